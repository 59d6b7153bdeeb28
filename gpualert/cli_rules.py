"""The verb ``gpualert rules``: what a file of one's own rules does, and its form for hosts."""

from __future__ import annotations

import argparse
import os
from typing import Any, Iterator

from gpualert.cli import add_verb, print_json

EXAMPLES = """\
  gpualert rules check my.rules.toml                      what it adds, replaces and silences, or every fault in it
  gpualert rules check my.rules.toml --log train.log      also which lines of a log its rules match
  gpualert rules compile my.rules.toml > my.rules.json    for a Python before 3.11, which reads no TOML"""

#: How much of a log is searched once more for patterns that matched nothing.
_SEARCHED_BYTES = 64 * 1024 * 1024
_LINE_BYTES = 4096
_SHOWN_LINES = 9


def add_verbs(verbs: Any) -> None:
    rules = add_verb(
        verbs,
        "rules",
        _rules,
        summary="check your own rules for verdicts, try them on a log, compile them",
        description="`check` says what a file of rules does, or names every fault in it (exit status 1). `compile` "
        "prints it as JSON, the form in which rules travel to a host; --rules takes both forms everywhere.",
        examples=EXAMPLES,
    )
    rules.add_argument("action", choices=("check", "compile"), metavar="ACTION", help="check or compile")
    rules.add_argument("file", metavar="FILE", help="rules in TOML, or compiled ones (.json)")
    rules.add_argument("--log", metavar="LOG", help="check: show which lines of this log (plain, gzip, -) they match")


def _rules(options: argparse.Namespace) -> int:
    from gpualert import userrules

    if options.action == "compile":
        import json

        compiled = userrules.compile_file(options.file)
        print(json.dumps(compiled, indent=None if options.json else 1, allow_nan=False))
        return 0
    try:
        rules = userrules.check_rules(userrules.compile_file(options.file), os.path.basename(options.file))
    except userrules.RulesUnreadable:
        raise
    except userrules.InvalidRules as error:
        faults = str(error).splitlines()
        if options.json:
            print_json({"file": options.file, "faults": faults})
        else:
            print("\n".join(faults))
        return 1
    log = None if options.log is None else _tried_on(options.log, rules)
    if options.json:
        print_json(
            {
                "file": options.file,
                "faults": [],
                "adds": [_row(row) for row in rules.added],
                "replaces": [_row(row) for row in rules.replaced],
                "silences": list(rules.silenced),
                "log": log,
            }
        )
    else:
        print("\n".join([*_told(rules), *(_log_told(log) if log is not None else ())]))
    return 0


def _row(row: Any) -> dict[str, Any]:
    return {
        "name": row.name,
        "class": None if row.failure_class is None else row.failure_class.value,
        "role": row.role.value,
        "domain": None if row.domain is None else row.domain.value,
        "words": list(row.words),
        "pattern": row.pattern,
        "advice": row.advice,
        "no_retry": row.no_retry,
    }


def _told(rules: Any) -> Iterator[str]:
    for verb, rows in (("adds", rules.added), ("replaces", rules.replaced)):
        for row in rows:
            means = row.role.value if row.failure_class is None else f"{row.failure_class.value} ({row.role.value})"
            more = ([f"domain {row.domain.value}"] if row.domain else []) + (["no retry"] if row.no_retry else [])
            yield f"{verb:<9} {row.name}: {', '.join([means, *more])}"
            if row.advice:
                yield f"{'':<9} advice: {row.advice}"
    for name in rules.silenced:
        yield f"{'silences':<9} {name}"
    if not rules.rows and not rules.silenced:
        yield "no rules: it changes nothing"


def _tried_on(log: str, rules: Any) -> dict[str, Any]:
    """Which lines of a log the user's rows match; and which lines their patterns match but their words never show."""
    from gpualert.classify_file import scan_source

    own = {row.name for row in rules.rows}
    found = scan_source(log, rules.rule_set())
    matches: list[dict[str, Any]] = [
        {"rule": event.rule, "line": event.line, "offset": event.offset, "rank": event.rank, "text": event.text}
        for event in found.events
        if event.rule in own
    ]
    counts = {name: found.counts.get(name, 0) for name in sorted(own)}
    silent = [row for row in rules.rows if not counts[row.name]]
    return {
        "file": log,
        "lines": found.lines,
        "counts": counts,
        "matches": matches,
        "not_found_by_words": [] if log == "-" or not silent else _missed(log, silent),
    }


def _missed(log: str, rows: list[Any]) -> list[dict[str, Any]]:
    """The first line, by row, that a pattern matches in vain."""
    import re

    from gpualert.classify_file import read_chunks
    from gpualert.logprefix import clean

    left = {row.name: re.compile(row.pattern) for row in rows}
    missed: list[dict[str, Any]] = []
    number, seen, rest = 0, 0, b""
    for chunk in read_chunks(log):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()[:_LINE_BYTES]
        for raw in lines:
            number += 1
            text = clean(raw[:_LINE_BYTES])
            for name in [name for name, pattern in left.items() if pattern.search(text)]:
                missed.append({"rule": name, "line": number, "text": text[:1000]})
                del left[name]
        seen += len(chunk)
        if seen >= _SEARCHED_BYTES or not left:
            break
    return missed


def _log_told(log: dict[str, Any]) -> Iterator[str]:
    from gpualert.cli_text import printable

    yield f"{log['file']} ({log['lines']} lines):"
    for name, count in log["counts"].items():
        shown = [match for match in log["matches"] if match["rule"] == name][:_SHOWN_LINES]
        yield f"  {name}: " + (f"{count} line(s)" if count else "no line")
        for match in shown:
            rank = "" if match["rank"] is None else f" (rank {match['rank']})"
            yield f"    line {match['line']}{rank}: {printable(match['text'][:200])}"
        if count > len(shown):
            yield f"    and {count - len(shown)} more"
    for miss in log["not_found_by_words"]:
        yield (
            f"  {miss['rule']}: its pattern matches line {miss['line']}, but none of its words is there, "
            f"or another rule takes the line: {printable(miss['text'][:200])}"
        )

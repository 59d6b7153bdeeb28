"""The verb ``gpualert classify``: its arguments, and how a verdict is printed."""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any, Optional, Tuple

    from gpualert.signature import RuleSet
    from gpualert.verdict import Classification, Evidence

    Exit = Tuple[Optional[int], Optional[int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log: plain, gzip, or - for stdin")
    ended = parser.add_mutually_exclusive_group()
    ended.add_argument("--exit-code", type=int, metavar="N", help="exit code of the command, 0 to 255")
    ended.add_argument("--signal", metavar="NAME", help="signal that ended it, such as SIGKILL or 9")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, in the order of the files")
    parser.add_argument(
        "--explain", action="store_true", help="also what followed, what else was considered, and why not"
    )
    parser.add_argument("--together", action="store_true", help="the files are ranks of one job: one verdict")
    parser.add_argument("--rules", metavar="FILE", help="your own rules, TOML or compiled JSON")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="JSON lines with id or path, exit_code and signal: how each file's command ended",
    )


def run(args: argparse.Namespace) -> int:
    """
    Carry the verb out.

    :return: 0 when every file was judged; 2 when arguments or a file cannot be used.
    """
    from gpualert.classify_file import classify_file, classify_together
    from gpualert.errors import GpuAlertError

    try:
        rules = _rules(args.rules)
        ends = _read_labels(args.labels) if args.labels else {}
        common = (_code(args.exit_code), _signal_number(args.signal))
    except (GpuAlertError, ValueError) as error:
        return _complain(str(error))
    failed = 0
    if args.together:
        try:
            verdict = classify_together(args.files, common[0], common[1], rules)
        except GpuAlertError as error:
            return _complain(str(error))
        _show(" ".join(args.files), verdict, args, many=len(args.files) > 1)
        return 0
    for name in args.files:
        code, signal = _end_of(name, ends, common)
        try:
            verdict = classify_file(name, code, signal, rules)
        except GpuAlertError as error:
            failed = _complain(str(error))
            continue
        _show(name, verdict, args, many=len(args.files) > 1)
    return failed


run_cli = run


def _complain(message: str) -> int:
    print("gpualert classify: " + message, file=sys.stderr)
    return 2


def _rules(path: str | None) -> RuleSet | None:
    if path is None:
        return None
    from gpualert.userrules import load_rules

    return load_rules(path)


def _code(code: int | None) -> int | None:
    if code is not None and not 0 <= code <= 255:
        raise ValueError(f"--exit-code: expected 0 to 255, found {code}")
    return code


def _signal_number(name: object) -> int | None:
    """A signal's number from its name, with or without SIG, or from a number."""
    if name is None or name == "":
        return None
    import signal

    text = str(name).upper()
    if text.isdigit() and 0 < int(text) < 65:
        return int(text)
    if not text.startswith("SIG"):
        text = "SIG" + text
    try:
        return int(signal.Signals[text])
    except KeyError:
        raise ValueError(f"signal: expected a name such as SIGKILL or a number, found {name!r}") from None


def _read_labels(path: str) -> Mapping[str, Exit]:
    """By id and by path: (exit code, signal) of each line of a labels file."""
    ends: dict[str, Exit] = {}
    try:
        with open(path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                try:
                    entry: Mapping[str, Any] = json.loads(line)
                    code = entry.get("exit_code")
                    # A shell's 128+N and a signal often stand together: the code is what the launcher saw.
                    end = (
                        None if code is None else int(code),
                        None if code is not None else _signal_number(entry.get("signal")),
                    )
                    names = [str(entry[key]) for key in ("id", "path") if entry.get(key) is not None]
                except (ValueError, AttributeError, TypeError) as error:
                    raise ValueError(
                        f"{path}:{number}: expected a JSON object with id, exit_code, signal: {error}"
                    ) from None
                if not names:
                    raise ValueError(f"{path}:{number}: expected a key 'id' or 'path', found {sorted(entry)}")
                for name in names:
                    ends[name] = end
    except OSError as error:
        raise ValueError(f"{path}: expected a readable labels file, found: {error.strerror}") from None
    return ends


def _end_of(name: str, ends: Mapping[str, Exit], common: Exit) -> Exit:
    base = os.path.basename(name)
    stem = base
    for suffix in (".gz", ".log", ".txt", ".out"):
        if stem.endswith(suffix):
            stem = stem[: -len(suffix)]
    for key in (name, os.path.normpath(name), base, stem):
        if key in ends:
            return ends[key]
    return common


def _show(name: str, verdict: Classification, args: argparse.Namespace, many: bool) -> None:
    if args.json:
        value = {"schema_version": 1, "file": name, **verdict.to_json()}
        print(json.dumps(value, ensure_ascii=False))
        return
    if many:
        print(f"{name}:")
    print(_paragraph(verdict, args.explain))


def _paragraph(verdict: Classification, explain: bool) -> str:
    outlook = verdict.retry_outlook
    lines = [
        f"{verdict.failure_class.value}  (domain {verdict.domain.value}; another try on this host: "
        f"{outlook.same_host.value}, on another: {outlook.other_host.value})"
    ]
    for index, item in enumerate(verdict.evidence):
        lines.append(("  because " if index == 0 else "     also ") + _line(item))
        if not explain and index >= 1:
            break
    for warning in verdict.warnings:
        lines.append("  warning " + warning)
    if verdict.advice:
        lines.append("  advice  " + verdict.advice)
    if verdict.not_seen and (explain or verdict.failure_class.value == "unknown"):
        lines.append("  unseen  " + ", ".join(verdict.not_seen))
    if explain:
        for item in verdict.cascade:
            lines.append("  then    " + _line(item))
        for other in verdict.alternatives:
            where = "" if other.evidence is None else "  [" + _line(other.evidence, 100) + "]"
            lines.append(f"  not     {other.failure_class.value}: {other.reason}{where}")
    return "\n".join(lines)


def _line(item: Evidence, limit: int = 240) -> str:
    from gpualert.verdict import bounded

    place = item.source if item.line is None else f"{item.source} line {item.line}"
    if item.rank is not None:
        place += f", rank {item.rank}"
    return f"{place} ({item.rule}): {bounded(item.text.strip(), limit)}"

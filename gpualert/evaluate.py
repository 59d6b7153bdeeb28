"""How good is the verdict? Scores a labelled corpus, and compares two sets of rules on it.

    python -m gpualert.evaluate LABELS LOGS [--rules mine.toml] [--intervals 1000]
    python -m gpualert.evaluate LABELS LOGS --rules mine.toml --against builtin      what my rules change
    python -m gpualert.evaluate LABELS LOGS --save before.jsonl                      … then change the code, and
    python -m gpualert.evaluate LABELS LOGS --against before.jsonl                   what that changed
    python -m gpualert.evaluate LABELS LOGS --false-certainty [--foreign DIR]        how often a cause is made up

LABELS holds a JSON object a line: ``id`` (the log is LOGS/id.log), ``class``, ``alternates`` (also right), ``coarse``,
``coarse_alternates``, ``exit_code``, ``signal``, ``root_lines`` (1-based; a verdict hits when one of its first three
lines is at most two lines away). Macro-F1 is over the classes that occur as a label.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from gpualert.classify_file import classify_file
from gpualert.signature import RuleSet
from gpualert.taxonomy import FailureClass, coarse_class
from gpualert.verdict import Classification

_ROOT_TOLERANCE_LINES = 2
_ROOT_LINES_LOOKED_AT = 3


@dataclass(frozen=True)
class Judged:
    """One log of a corpus: what it is, and what the classifier says."""

    log_id: str
    label: str
    coarse_label: str
    #: the label when the answer counts as right, else the answer
    answer: str
    coarse_answer: str
    said: str
    root_hit: bool | None  # None: the label names no root line
    verdict: Classification

    @property
    def right(self) -> bool:
        """Whether the full class is right."""
        return self.answer == self.label


@dataclass(frozen=True)
class Scores:
    """Figures of one corpus; F1 values are macro averages."""

    logs: int
    full_f1: float
    full_accuracy: float
    coarse_f1: float
    coarse_accuracy: float
    root_hits: int
    root_logs: int
    #: named a class that is neither right nor ``unknown``
    named_wrongly: int
    full_interval: tuple[float, float] | None = None
    coarse_interval: tuple[float, float] | None = None


class Said(NamedTuple):
    """What a set of rules says of one log: enough to compare it with another."""

    log_id: str
    said: str
    line: int | None
    rule: str | None


class Difference(NamedTuple):
    """A log on which two sets of rules differ.

    :param kind: ``fixed`` (wrong before, right now), ``broken``, ``still wrong`` (another wrong class), ``also right``
        (another class that counts), or ``root line`` (the same class by another line).
    """

    kind: str
    log_id: str
    label: str
    before: Said
    now: Said


_KINDS = ("broken", "fixed", "still wrong", "also right", "root line")


def judge_corpus(labels_path: str, logs_path: str, rules: RuleSet | None = None) -> tuple[Judged, ...]:
    """
    Classify every log that the labels name.

    :raises ValueError: a label has no such log, or a class that the taxonomy does not know.
    """
    judged = []
    for entry in read_labels(labels_path):
        path = find_log(logs_path, str(entry["id"]))
        code, signal_number = exit_of(entry)
        verdict = classify_file(path, code=code, signal=signal_number, rules=rules)
        judged.append(_compare(entry, verdict))
    return tuple(judged)


def exit_of(entry: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """
    How a labelled command ended, as (code, signal): the code that a shell saw where there is one, else the signal.

    :raises ValueError: a signal that this system does not know.
    """
    code, name = entry.get("exit_code"), entry.get("signal")
    if code is not None or name is None:
        return code, None
    if isinstance(name, int):
        return None, name
    try:
        return None, int(signal.Signals[str(name)])
    except KeyError:
        raise ValueError(f"label {entry.get('id')}: expected a signal such as SIGKILL, found {name!r}") from None


def said(judged: Sequence[Judged]) -> tuple[Said, ...]:
    """The answers alone, to be compared or stored."""
    roots = [item.verdict.root for item in judged]
    return tuple(
        Said(item.log_id, item.said, None if root is None else root.line, None if root is None else root.rule)
        for item, root in zip(judged, roots)
    )


def compare(labels: Sequence[Mapping[str, Any]], before: Sequence[Said], now: Sequence[Said]) -> tuple[Difference, ...]:
    """
    Log by log, what differs; the broken ones first.

    :param labels: entries of the corpus. A log that only one side has is left out.
    """
    old, new = {item.log_id: item for item in before}, {item.log_id: item for item in now}
    found = []
    for entry in labels:
        log_id = str(entry["id"])
        if log_id not in old or log_id not in new:
            continue
        first, second = old[log_id], new[log_id]
        right = (entry["class"], *entry.get("alternates", ()))
        if first.said != second.said:
            was, is_now = first.said in right, second.said in right
            kind = ("also right" if is_now else "broken") if was else ("fixed" if is_now else "still wrong")
        elif first.line != second.line:
            kind = "root line"
        else:
            continue
        found.append(Difference(kind, log_id, str(entry["class"]), first, second))
    return tuple(sorted(found, key=lambda item: _KINDS.index(item.kind)))


def read_labels(path: str) -> list[dict[str, Any]]:
    """The entries of a labels file."""
    with open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]


def save(answers: Sequence[Said], path: str) -> None:
    """Write answers down, a JSON object a line: ``id``, ``class``, ``evidence_line``, ``rule``."""
    with open(path, "w", encoding="utf-8") as stream:
        for item in answers:
            entry = {"id": item.log_id, "class": item.said, "evidence_line": item.line, "rule": item.rule}
            stream.write(json.dumps(entry) + "\n")


def load(path: str) -> tuple[Said, ...]:
    """Read what ``save`` wrote.

    :raises ValueError: a line is no such answer.
    """
    found = []
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(filter(str.strip, stream), 1):
            try:
                entry = json.loads(line)
                found.append(Said(str(entry["id"]), entry["class"], entry["evidence_line"], entry.get("rule")))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}: line {number}: expected an answer that --save wrote, found {error}"
                ) from error
    return tuple(found)


def find_log(logs_path: str, log_id: str) -> str:
    """The log of an id: ``ID.log``, ``ID.log.gz`` or ``ID`` below a directory.

    :raises ValueError: there is none.
    """
    for suffix in (".log", ".log.gz", ""):
        path = os.path.join(logs_path, log_id + suffix)
        if os.path.exists(path):
            return path
    raise ValueError(f"{logs_path}: expected {log_id}.log for a label, found none")


def _compare(entry: dict[str, Any], verdict: Classification) -> Judged:
    label = FailureClass(entry["class"]).value
    said = verdict.failure_class.value
    right = said == label or said in entry.get("alternates", ())
    coarse_label = entry.get("coarse") or coarse_class(FailureClass(label))
    coarse_right = (
        right or verdict.coarse_class == coarse_label or verdict.coarse_class in entry.get("coarse_alternates", ())
    )
    hit = None
    roots = entry.get("root_lines") or []
    if roots:
        lines = [item.line for item in verdict.evidence if item.line is not None][:_ROOT_LINES_LOOKED_AT]
        hit = any(abs(line - root) <= _ROOT_TOLERANCE_LINES for line in lines for root in roots)
    return Judged(
        log_id=str(entry["id"]),
        label=label,
        coarse_label=coarse_label,
        answer=label if right else said,
        coarse_answer=coarse_label if coarse_right else verdict.coarse_class,
        said=said,
        root_hit=hit,
        verdict=verdict,
    )


def macro_f1(pairs: Sequence[tuple[str, str]]) -> float:
    """Mean F1 over the classes that occur as a label; pairs are (label, answer)."""
    hits: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for label, answer in pairs:
        if label == answer:
            hits[label] += 1
        else:
            missed[label] += 1
            wrong[answer] += 1
    classes = {label for label, _ in pairs}
    if not classes:
        return 0.0
    total = 0.0
    for name in classes:
        denominator = 2 * hits[name] + missed[name] + wrong[name]
        total += 2 * hits[name] / denominator if denominator else 0.0
    return total / len(classes)


def score(judged: Sequence[Judged], resamples: int = 0, seed: int = 0) -> Scores:
    """
    Figures of a judged corpus.

    :param resamples: bootstrap resamples for 95 % intervals of the F1 values; 0 for none.
    """
    full = [(item.label, item.answer) for item in judged]
    coarse = [(item.coarse_label, item.coarse_answer) for item in judged]
    count = max(1, len(judged))
    roots = [item.root_hit for item in judged if item.root_hit is not None]
    intervals: list[tuple[float, float] | None] = [None, None]
    if resamples:
        chance = random.Random(seed)
        drawn: tuple[list[float], list[float]] = ([], [])
        for _ in range(resamples):
            chosen = [chance.randrange(len(full)) for _ in full]
            drawn[0].append(macro_f1([full[index] for index in chosen]))
            drawn[1].append(macro_f1([coarse[index] for index in chosen]))
        for index, values in enumerate(drawn):
            values.sort()
            intervals[index] = (values[int(len(values) * 0.025)], values[int(len(values) * 0.975)])
    return Scores(
        logs=len(judged),
        full_f1=macro_f1(full),
        full_accuracy=sum(label == answer for label, answer in full) / count,
        coarse_f1=macro_f1(coarse),
        coarse_accuracy=sum(label == answer for label, answer in coarse) / count,
        root_hits=sum(roots),
        root_logs=len(roots),
        named_wrongly=sum(not item.right and item.said != FailureClass.UNKNOWN.value for item in judged),
        full_interval=intervals[0],
        coarse_interval=intervals[1],
    )


def _print(judged: Sequence[Judged], figures: Scores) -> None:
    def interval(value: tuple[float, float] | None) -> str:
        return "" if value is None else f"  (95 %: {value[0]:.3f} to {value[1]:.3f})"

    print(f"{figures.logs} logs")
    print(
        f"full    macro-F1 {figures.full_f1:.4f}  accuracy {figures.full_accuracy:.4f}{interval(figures.full_interval)}"
    )
    print(
        f"coarse  macro-F1 {figures.coarse_f1:.4f}  accuracy {figures.coarse_accuracy:.4f}"
        f"{interval(figures.coarse_interval)}"
    )
    if figures.root_logs:
        print(
            f"root line  {figures.root_hits}/{figures.root_logs}  ({100 * figures.root_hits / figures.root_logs:.1f} %)"
        )
    print(f"named wrongly  {figures.named_wrongly}")
    confused = Counter((item.label, item.said) for item in judged if not item.right)
    if confused:
        print("\nlabel -> said")
        for (label, said), number in confused.most_common():
            print(f"  {number:3d}  {label} -> {said}")
        print("\nmisses")
        for item in judged:
            if not item.right:
                root = item.verdict.root
                where = "nothing" if root is None else f"{root.rule}: {root.text[:120]}"
                print(f"  {item.log_id}  {item.label} -> {item.said}  [{where}]")
    missed_roots = [item for item in judged if item.right and item.root_hit is False]
    for item in missed_roots:
        root = item.verdict.root
        print(f"  {item.log_id}  right, but the root line is missed  [{'nothing' if root is None else root.line}]")


def _print_differences(found: Sequence[Difference], against: str) -> None:
    count = Counter(item.kind for item in found)
    told = ", ".join(f"{count[kind]} {kind}" for kind in _KINDS if count[kind]) or "no difference"
    print(f"\ncompared with {against}: {told}")
    for kind, log_id, label, before, now in found:
        if kind == "root line":
            print(f"  {kind:<11}  {log_id}  {label}: line {before.line} ({before.rule}) -> {now.line} ({now.rule})")
        else:
            print(f"  {kind:<11}  {log_id}  {label}: {before.said} ({before.rule}) -> {now.said} ({now.rule})")


def _rules_from(name: str | None) -> RuleSet | None:
    from gpualert.userrules import load_rules

    return None if name in (None, "builtin") else load_rules(str(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m gpualert.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("labels", help="JSON lines, one label each")
    parser.add_argument("logs", help="directory with ID.log files")
    parser.add_argument("--rules", metavar="FILE", help="score the built-in rules with these added")
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="show where the answers differ from those of other rules (a rules file, or 'builtin'), "
        "or from answers that --save wrote (*.jsonl)",
    )
    parser.add_argument("--save", metavar="FILE", help="write the answers down, to compare with them later")
    parser.add_argument("--intervals", type=int, default=0, metavar="N", help="bootstrap resamples for 95 %% intervals")
    parser.add_argument("--json", action="store_true", help="figures as one JSON object")
    parser.add_argument(
        "--false-certainty",
        action="store_true",
        help="instead: rob the logs of cause and order, and count made-up causes",
    )
    parser.add_argument("--foreign", metavar="DIR", help="for --false-certainty: logs of other things, too")
    args = parser.parse_args(arguments)
    rules = _rules_from(args.rules)
    if args.false_certainty:
        return _false_certainty(args, rules)
    judged = judge_corpus(args.labels, args.logs, rules)
    figures = score(judged, args.intervals)
    if args.json:
        print(json.dumps(figures.__dict__))
    else:
        _print(judged, figures)
    answers = said(judged)
    if args.save:
        save(answers, args.save)
    if args.against:
        if args.against.endswith(".jsonl"):
            other = load(args.against)
        else:
            other = said(judge_corpus(args.labels, args.logs, _rules_from(args.against)))
        _print_differences(compare(read_labels(args.labels), other, answers), args.against)
    return 0


def _false_certainty(args: argparse.Namespace, rules: RuleSet | None) -> int:
    from gpualert import false_certainty

    cases = [false_certainty.cases_of_corpus(args.labels, args.logs), false_certainty.nonsense()]
    if args.foreign:
        cases.append(false_certainty.foreign(args.foreign))
    tallies = false_certainty.measure(chain.from_iterable(cases), rules)
    print(false_certainty.table(tallies))
    print(false_certainty.wrong_ones(tallies))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How good is the verdict? Scores a labelled corpus, and compares two sets of rules on it.

    python -m gpualert.evaluate LABELS LOGS [--rules mine.toml] [--against other.toml] [--intervals 1000]

LABELS holds a JSON object a line: ``id`` (the log is LOGS/id.log), ``class``, ``alternates`` (also right), ``coarse``,
``coarse_alternates``, ``exit_code``, ``signal``, ``root_lines`` (1-based; a verdict hits when one of its first three
lines is at most two lines away). Macro-F1 is over the classes that occur as a label.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def judge_corpus(labels_path: str, logs_path: str, rules: RuleSet | None = None) -> tuple[Judged, ...]:
    """
    Classify every log that the labels name.

    :raises ValueError: a label has no such log, or a class that the taxonomy does not know.
    """
    judged = []
    with open(labels_path, encoding="utf-8") as stream:
        entries = [json.loads(line) for line in stream if line.strip()]
    for entry in entries:
        path = find_log(logs_path, str(entry["id"]))
        verdict = classify_file(path, code=entry.get("exit_code"), rules=rules)
        judged.append(_compare(entry, verdict))
    return tuple(judged)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m gpualert.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("labels", help="JSON lines, one label each")
    parser.add_argument("logs", help="directory with ID.log files")
    parser.add_argument("--rules", metavar="FILE", help="score these rules instead of the built-in ones alone")
    parser.add_argument("--against", metavar="FILE", help="also score these, and show where the two differ")
    parser.add_argument("--intervals", type=int, default=0, metavar="N", help="bootstrap resamples for 95 %% intervals")
    parser.add_argument("--json", action="store_true", help="figures as one JSON object")
    args = parser.parse_args(arguments)
    from gpualert.userrules import load_rules

    judged = judge_corpus(args.labels, args.logs, load_rules(args.rules) if args.rules else None)
    figures = score(judged, args.intervals)
    if args.json:
        print(json.dumps(figures.__dict__))
    else:
        _print(judged, figures)
    if args.against:
        other = judge_corpus(args.labels, args.logs, load_rules(args.against))
        print(f"\nagainst {args.against}: macro-F1 {score(other).full_f1:.4f}; differences:")
        for first, second in zip(judged, other):
            if first.said != second.said:
                mark = "better" if second.right else "worse" if first.right else "as wrong"
                print(f"  {first.log_id}  {first.label}: {first.said} -> {second.said}  ({mark})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

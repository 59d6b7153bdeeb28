"""How often does the classifier name a cause that is not there? Logs are robbed of their cause or their order, and logs
of other things are shown to it.

A log whose lines are shuffled, cut or thinned out proves less; it must not prove something else. A case is named
wrongly when the answer is neither the label, nor one of its alternates, nor ``unknown`` (nor ``success`` after exit 0).
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any, Iterable, Iterator

from gpualert.classify import ExitFacts, classify
from gpualert.classify_file import read_chunks
from gpualert.evaluate import exit_of, find_log
from gpualert.scan import Scanner
from gpualert.signature import RuleSet
from gpualert.taxonomy import FailureClass

#: Most cases that may be named wrongly, of a hundred.
TARGET_PERCENT = 2.0
SEEDS = (1, 2, 3)
_LAST_LINES = 20


@dataclass(frozen=True)
class Case:
    """A log as it is shown.

    :param accepted: answers that are right, besides ``unknown``.
    """

    kind: str
    name: str
    data: bytes
    code: int | None
    accepted: frozenset[str]
    signal: int | None = None


@dataclass(frozen=True)
class Wrong:
    """A case that was named wrongly, and by which rule."""

    case: Case
    said: str
    rule: str
    text: str

    @property
    def by_definition(self) -> bool:
        """
        The taxonomy itself says so of what is left: an exit status that stands for a class (124, 127, 139), or
        collectives that complain with nothing before them. A reader of the robbed log would answer the same.
        """
        return self.rule == "exit" or self.said == FailureClass.NCCL.value


@dataclass(frozen=True)
class Tally:
    """Figures of one kind of cases."""

    kind: str
    cases: int
    unknown: int
    wrong: tuple[Wrong, ...]

    @property
    def percent(self) -> float:
        """Share of cases that were named wrongly."""
        return 100.0 * len(self.wrong) / self.cases if self.cases else 0.0


def _left(lines: list[bytes], label: dict[str, Any]) -> Iterator[tuple[str, list[bytes]]]:
    for seed in SEEDS:
        yield "lines shuffled", random.Random(seed).sample(lines, len(lines))
    roots = label.get("root_lines")
    if roots:
        yield "cut before the first root line", lines[: max(0, min(roots) - 1)]
    yield "cut in the middle", lines[: len(lines) // 2]
    yield f"last {_LAST_LINES} lines only", lines[-_LAST_LINES:]
    yield "every second line dropped", lines[::2]


def robbed(label: dict[str, Any], data: bytes) -> Iterator[Case]:
    """
    What is left of a labelled log, in every way that is measured.

    :param label: an entry as :mod:`gpualert.evaluate` describes it.
    """
    code, signal = exit_of(label)
    accepted = {str(label["class"]), *label.get("alternates", ())}
    if code == 0:
        accepted.add(FailureClass.SUCCESS.value)
    ended = data.endswith(b"\n")
    lines = data.split(b"\n")[: -1 if ended else None]
    for kind, left in _left(lines, label):
        data = b"\n".join(left) + b"\n" * bool(left and ended)
        yield Case(kind, str(label["id"]), data, code, frozenset(accepted), signal)


def nonsense() -> Iterator[Case]:
    """Logs that hold nothing: no byte, no word, random bytes and random words of a log's alphabet."""
    nothing: frozenset[str] = frozenset()
    yield Case("empty", "empty", b"", 1, nothing)
    yield Case("empty", "newlines", b"\n" * 1000, 1, nothing)
    yield Case("empty", "blanks", b"   \r\n\t\n" * 1000, 1, nothing)
    for seed in range(20):
        chance = random.Random(seed)
        yield Case(
            "random bytes", f"bytes {seed}", chance.getrandbits(8 * 200_000).to_bytes(200_000, "big"), 1, nothing
        )
        signs = bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyzABCDEFXYZ0123456789 .:_-/[]()'\"=\n", k=100_000))
        yield Case("random bytes", f"signs {seed}", signs, 1, nothing)


def foreign(directory: str) -> Iterator[Case]:
    """
    Logs of other things than training.

    :param directory: with ``cases.jsonl`` (``id``, ``kind``, ``exit_code``, ``accepts``: classes that the log does
        prove) and ``ID.txt``.
    """
    with open(os.path.join(directory, "cases.jsonl"), encoding="utf-8") as stream:
        for line in filter(str.strip, stream):
            label = json.loads(line)
            with open(os.path.join(directory, label["id"] + ".txt"), "rb") as log:
                data = log.read()
            accepted = set(label.get("accepts", ()))
            if label["exit_code"] == 0:
                accepted.add(FailureClass.SUCCESS.value)
            yield Case(label["kind"], label["id"], data, label["exit_code"], frozenset(accepted))


def cases_of_corpus(labels_path: str, logs_path: str) -> Iterator[Case]:
    """What is left of every log of a labelled corpus."""
    with open(labels_path, encoding="utf-8") as stream:
        for line in filter(str.strip, stream):
            label = json.loads(line)
            path = find_log(logs_path, str(label["id"]))
            yield from robbed(label, b"".join(read_chunks(path)))


def measure(cases: Iterable[Case], rules: RuleSet | None = None) -> tuple[Tally, ...]:
    """Classify every case; one tally for each kind, in the order in which they came."""
    count: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    wrong: dict[str, list[Wrong]] = {}
    for case in cases:
        scanner = Scanner(rules)
        scanner.feed(case.data)
        verdict = classify(ExitFacts(code=case.code, signal=case.signal), scanner.finish())
        said = verdict.failure_class.value
        count[case.kind] += 1
        if said == FailureClass.UNKNOWN.value:
            unknown[case.kind] += 1
        elif said not in case.accepted:
            root = verdict.root
            by, text = ("", "") if root is None else (root.rule, root.text)
            wrong.setdefault(case.kind, []).append(Wrong(case, said, by, text))
    return tuple(Tally(kind, count[kind], unknown[kind], tuple(wrong.get(kind, ()))) for kind in count)


def table(tallies: Iterable[Tally]) -> str:
    """The figures for people, with a sum, and the target beside it."""
    tallies = tuple(tallies)
    everything = Tally(
        "all",
        sum(t.cases for t in tallies),
        sum(t.unknown for t in tallies),
        tuple(w for t in tallies for w in t.wrong),
    )
    target = f"share (target: at most {TARGET_PERCENT:g} %)"
    lines = [f"{'false certainty':<36} {'cases':>6} {'unknown':>8} {'wrong':>6}    {target:<28} by definition"]
    for tally in (*tallies, everything):
        defined = sum(wrong.by_definition for wrong in tally.wrong)
        share = f"{tally.percent:5.1f} %"
        lines.append(
            f"{tally.kind:<36} {tally.cases:>6} {tally.unknown:>8} {len(tally.wrong):>6}  {share:<28}   {defined:>6}"
        )
    return "\n".join(lines)


def wrong_ones(tallies: Iterable[Tally], most: int = 40) -> str:
    """What was named wrongly, the most frequent first: how often, the answer and its rule, an example."""
    count: Counter[tuple[str, str, str]] = Counter()
    example: dict[tuple[str, str, str], Wrong] = {}
    for tally in tallies:
        for wrong in tally.wrong:
            key = (tally.kind, wrong.said, wrong.rule)
            count[key] += 1
            example.setdefault(key, wrong)
    lines = ["named wrongly"] if count else ["nothing is named wrongly"]
    for key, number in count.most_common(most):
        kind, said, rule = key
        first = example[key]
        right = "/".join(sorted(first.case.accepted)) or "unknown"
        lines.append(f"  {number:3d}  {kind}: {right} -> {said}  [{rule}] {first.case.name}: {first.text[:90]}")
    return "\n".join(lines)

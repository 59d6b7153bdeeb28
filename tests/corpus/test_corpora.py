"""Does the classifier name the cause, and stay silent when it should? Labelled logs, and logs robbed of their cause."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpualert.classify import ExitFacts, classify
from gpualert.evaluate import judge_corpus, score
from gpualert.scan import Scanner
from gpualert.taxonomy import FailureClass

HERE = Path(__file__).parent
#: corpus: least macro-F1 on the full taxonomy, on the coarse one, least share of root lines
FLOORS = {
    "reference": (0.97, 0.97, 0.95),
    "genuine": (0.97, 0.97, 0.95),
    "holdout": (0.97, 0.97, 0.95),
    "documented": (0.97, 0.97, 0.90),
    "paraphrased": (0.97, 0.97, 0.90),
    "workers": (0.97, 0.97, 0.90),
    "mixed": (0.97, 0.97, 0.90),
}


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_causes_are_named(name: str) -> None:
    """On known logs the class is right, and the line that is shown is the line that proves it."""
    corpus = HERE / name
    judged = judge_corpus(str(corpus / "labels.jsonl"), str(corpus / "logs"))

    figures = score(judged)

    misses = [(item.log_id, item.label, item.said) for item in judged if not item.right]
    assert figures.full_f1 >= FLOORS[name][0], misses
    assert figures.coarse_f1 >= FLOORS[name][1], misses
    assert figures.root_hits >= FLOORS[name][2] * figures.root_logs


def labelled() -> Iterator[tuple[dict[str, object], bytes]]:
    for name in ("reference", "genuine", "holdout"):
        for line in (HERE / name / "labels.jsonl").read_text().splitlines():
            label = json.loads(line)
            yield label, (HERE / name / "logs" / f"{label['id']}.log").read_bytes()


def verdict_of(data: bytes, code: int | None) -> str:
    scanner = Scanner()
    scanner.feed(data)
    return classify(ExitFacts(code=code), scanner.finish()).failure_class.value


def false_certainty(cases: list[tuple[str, set[str], bytes, int | None]]) -> list[tuple[str, str]]:
    wrong = []
    for name, accepted, data, code in cases:
        said = verdict_of(data, code)
        if said not in accepted | {FailureClass.UNKNOWN.value}:
            wrong.append((name, said))
    return wrong


def test_a_log_that_ends_before_its_cause_is_not_guessed_at() -> None:
    """Cut before the root line, with an exit code that names no signal or shell error: unknown, not a story."""
    cases = []
    for label, data in labelled():
        roots = label["root_lines"]
        if roots and label["exit_code"] in (1, 2):
            lines = data.split(b"\n")[: max(0, min(roots) - 4)]  # type: ignore[type-var]
            accepted = {label["class"], *label["alternates"]}  # type: ignore[misc]
            cases.append((str(label["id"]), accepted, b"\n".join(lines) + b"\n", 1))
    assert len(cases) > 80

    wrong = false_certainty(cases)

    assert len(wrong) <= 0.02 * len(cases), wrong


def test_shuffled_lines_are_rarely_named_wrongly() -> None:
    """Out of order, a log proves less; it must not prove something else."""
    chance = random.Random(7)
    cases = []
    for label, data in labelled():
        lines = data.split(b"\n")
        chance.shuffle(lines)
        accepted = {label["class"], *label["alternates"]}  # type: ignore[misc]
        if label["exit_code"] == 0:
            accepted.add("success")
        cases.append((str(label["id"]), accepted, b"\n".join(lines), label["exit_code"]))

    wrong = false_certainty(cases)  # type: ignore[arg-type]

    assert len(wrong) <= 0.04 * len(cases), wrong


FOREIGN = {
    "empty": b"",
    "newlines": b"\n" * 1000,
    "random": random.Random(3).randbytes(300_000),
    "make": b"gcc -O2 -c main.c -o main.o\nmain.c:14:5: error: expected ';' before 'return'\nmake: *** [Makefile:12: main.o] Error 1\n",
    "cargo": b"   Compiling serde v1.0.1\nerror[E0308]: mismatched types\n --> src/main.rs:4:5\nerror: could not compile `x` due to previous error\n",
    "go": b"# example.com/x\n./main.go:8:2: undefined: foo\nexit status 2\nFAIL\texample.com/x [build failed]\n",
    "maven": b"[INFO] Scanning for projects...\n[ERROR] COMPILATION ERROR :\n[ERROR] /src/A.java:[3,8] class B is public\n[INFO] BUILD FAILURE\n",
    "npm": b"npm ERR! code ELIFECYCLE\nnpm ERR! errno 1\nnpm ERR! app@1.0.0 build: `webpack`\nnpm ERR! Exit status 1\n",
    "prose": b"The quick brown fox was killed by no one.\nShe said the time limit did not matter.\nMemory is a strange thing.\n",
}


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_what_is_no_training_log_is_unknown(name: str) -> None:
    """Other tools' failures are not in this vocabulary: the answer is unknown."""
    assert verdict_of(FOREIGN[name], 1) == "unknown"

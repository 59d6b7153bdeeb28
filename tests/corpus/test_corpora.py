"""Does the classifier name the cause, and stay silent when it should? Labelled logs, and logs robbed of their cause."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpualert import false_certainty
from gpualert.evaluate import judge_corpus, macro_f1, read_labels, score
from gpualert.false_certainty import TARGET_PERCENT, Tally, measure
from gpualert.taxonomy import FailureClass, coarse_class
from tests.corpus.__main__ import corpora, false_certainty_cases

HERE = Path(__file__).parent
#: corpus: least macro-F1 on the full taxonomy, on the coarse one, least share of root lines
FLOORS = {
    "reference": (0.97, 0.97, 0.95),
    "genuine": (0.97, 0.97, 0.95),
    "holdout": (0.97, 0.97, 0.95),
    "exam": (0.97, 0.97, 0.95),
    "exam2": (0.97, 0.97, 0.95),
    "exam3": (0.85, 0.97, 0.95),
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


def test_the_command_reaches_it_in_one_call() -> None:
    """`gpualert classify --json --labels` on the whole reference corpus: what a person gets, scored as a person would."""
    corpus = HERE / "reference"
    labels = read_labels(str(corpus / "labels.jsonl"))
    logs = [str(corpus / "logs" / f"{label['id']}.log") for label in labels]

    done = subprocess.run(
        [sys.executable, "-m", "gpualert", "classify", "--json", "--labels", str(corpus / "labels.jsonl"), *logs],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )

    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(labels)
    full, coarse, hits = [], [], []
    for label, verdict in zip(labels, verdicts):
        right = verdict["failure_class"] in (label["class"], *label["alternates"])
        alike = right or verdict["coarse_class"] in (label["coarse"], *label["coarse_alternates"])
        full.append((label["class"], label["class"] if right else verdict["failure_class"]))
        coarse.append((label["coarse"], label["coarse"] if alike else verdict["coarse_class"]))
        assert coarse_class(FailureClass(verdict["failure_class"])) == verdict["coarse_class"]
        if label["root_lines"]:
            lines = [item["line"] for item in verdict["evidence"] if item["line"] is not None][:3]
            hits.append(any(abs(line - root) <= 2 for line in lines for root in label["root_lines"]))
    assert macro_f1(full) >= 0.97
    assert macro_f1(coarse) >= 0.97
    assert sum(hits) >= 0.95 * len(hits)


#: The target is 2 % of each kind. Where we are above it, this is about what we reach today: lower it when rules are mended.
CEILINGS = {
    "lines shuffled": 3.5,
    "cut before the first root line": 4.0,
    "cut in the middle": 3.0,
    "every second line dropped": 3.6,
    "listings and settings": 12.0,
    "ordinary system logs": 13.0,
    "prose and source code": 67.0,
}


@pytest.fixture(scope="module")
def tallies() -> dict[str, Tally]:
    return {tally.kind: tally for tally in measure(false_certainty_cases(corpora([])))}


@pytest.mark.parametrize("kind", sorted(CEILINGS))
def test_causes_are_seldom_made_up(kind: str, tallies: dict[str, Tally]) -> None:
    """Robbed of cause or order, a log must not prove something else; a log of other things proves nothing."""
    tally = tallies[kind]

    assert tally.cases >= 5
    assert tally.percent <= CEILINGS[kind] + 0.05, false_certainty.wrong_ones([tally])


def test_no_other_kind_is_above_the_target(tallies: dict[str, Tally]) -> None:
    """Empty logs, last lines, and whatever is added: at most two in a hundred."""
    above = [tally for tally in tallies.values() if tally.percent > TARGET_PERCENT and tally.kind not in CEILINGS]

    assert not above, false_certainty.wrong_ones(above)

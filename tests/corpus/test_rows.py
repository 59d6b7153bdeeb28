"""The table of signatures, held against real lines and against hostile ones. `python -m tests.corpus.rows` prints more."""

from __future__ import annotations

import pytest

from gpualert.classify import ExitFacts, classify
from gpualert.scan import Scanner
from gpualert.signature import Role, default_rules
from gpualert.signature_lint import Coverage, slow_line, unfound
from gpualert.signatures import TABLE
from tests.corpus.lines import SILENCES, all_lines, row_samples

#: Faults that are known and not yet mended. Take a name out when it is.
HIDDEN: set[str] = set()
UNFOUND: set[str] = set()
SLOW: set[str] = set()


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    return Coverage(default_rules(), all_lines())


def test_every_row_has_a_real_line(coverage: Coverage) -> None:
    """A row without a line that some software prints is a guess. Write one into row_samples.jsonl, with its source."""
    assert not coverage.without_sample()


def test_no_row_is_hidden_by_an_earlier_one(coverage: Coverage) -> None:
    """Of the lines that a row matches, one at least is decided by it, or by nobody for another class."""
    hidden = coverage.unreachable()

    assert not {name: by for name, by in hidden.items() if name not in HIDDEN | SILENCES}


@pytest.mark.parametrize("sample", row_samples(), ids=lambda sample: sample["rule"])
def test_a_sample_is_heard_and_believed(sample: dict[str, str]) -> None:
    """The scanner notes the row on its own line, and a verdict on that line alone names the row's class, or none."""
    if sample["rule"] in HIDDEN:
        pytest.xfail("hidden by another row")
    row = default_rules()[sample["rule"]]
    scanner = Scanner()
    scanner.feed(sample["line"].encode() + b"\n")

    scan = scanner.finish()

    assert row.name in scan.counts, f"{dict(scan.counts)} took it"
    if row.role in (Role.DECISIVE, Role.ROOT):
        verdict = classify(ExitFacts(code=1), scan)
        assert verdict.failure_class is row.failure_class
    assert sample["source"].strip()


def test_samples_are_for_rows_that_exist() -> None:
    """A row that is renamed or deleted takes its sample along."""
    assert not {sample["rule"] for sample in row_samples()} - {row.name for row in TABLE}


def test_every_branch_is_found_by_a_word() -> None:
    """A branch of a pattern whose words no token of the line holds would never be asked."""
    assert not [fault for fault in unfound(default_rules()) if fault.split(":")[0] not in UNFOUND]


def test_no_pattern_is_slow_on_lines_made_against_it() -> None:
    """Doubling a hostile line doubles the time; the lines are the pattern's own beginnings, over and over."""
    found = {row.name: slow_line(row.pattern) for row in TABLE if row.name not in SLOW}

    assert not {name: line for name, line in found.items() if line is not None}

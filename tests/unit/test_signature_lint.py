"""The table of signatures has no faults, and the linter finds those it is for."""

from __future__ import annotations

import pytest

from gpualert.signature import Role, RuleSet, Signature, default_rules, reads_digits
from gpualert.signature_lint import faults_of_pattern, faults_of_table, unreachable
from gpualert.signatures import TABLE
from gpualert.taxonomy import FailureClass


def test_the_table_has_no_faults() -> None:
    """Names are unique, words can be found, roles have their class, and no pattern can take more than linear time."""
    assert not list(faults_of_table(TABLE))


@pytest.mark.parametrize(
    "pattern", [r"(a+)+b", r"(?:\w+\.)*Error", r"x.*y", r"a\S+b", r"(?:ab|c)*d", r"(.{0,900}){0,900}x", "(", "a?"]
)
def test_slow_broken_and_empty_patterns_are_refused(pattern: str) -> None:
    """Nested and wide unbounded repetitions, products of large bounds, and what matches everything."""
    assert faults_of_pattern(pattern)


@pytest.mark.parametrize("pattern", [r"error \d+ in .{0,80} at line \d+", r"^\s*done$", r"(?:a|b){1,3}c"])
def test_bounded_patterns_are_accepted(pattern: str) -> None:
    """A bound is all it takes."""
    assert not faults_of_pattern(pattern)


def test_rows_that_cannot_speak_are_found() -> None:
    """A word in capitals, a short word, a missing class, a name used twice."""
    rows = (
        Signature("a.b", ("Oops",), "x", Role.ROOT, FailureClass.NCCL),
        Signature("a.b", ("ab",), "x", Role.ROOT, None),
    )
    faults = "\n".join(faults_of_table(rows))
    for word in ("not in lower case", "too short", "needs a class", "used twice"):
        assert word in faults


def test_a_row_that_another_hides_is_found() -> None:
    """A sample that its own row does not get is a fault of the table."""
    rules = RuleSet(
        (
            Signature("quoted.all", ("broken",), "broken", Role.BENIGN),
            Signature("x.broken", ("broken",), "is broken", Role.ROOT, FailureClass.NCCL),
        )
    )
    assert list(unreachable(rules, {"x.broken": "it is broken"})) == [
        "quoted.all: no sample line",
        "x.broken: quoted.all takes its sample",
    ]


def test_patterns_that_read_numbers_are_known() -> None:
    """Only of the others may the scanner learn from one line about all lines that differ in numbers."""
    assert reads_digits(r"Xid.{0,40}79") and reads_digits(r"code \d+")
    assert not reads_digits(r"\bloss.{0,60}nan\b")
    assert "cuda_oom.torch" in default_rules()

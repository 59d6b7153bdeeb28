"""The table of signatures has no faults, and the linter finds those it is for."""

from __future__ import annotations

import pytest

from gpualert.signature import Role, RuleSet, Signature
from gpualert.signature_lint import Coverage, Line, faults_of_pattern, faults_of_table, slow_line, unfound
from gpualert.signature_samples import lines_of_branches
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
        Signature("a.b", "x", Role.ROOT, FailureClass.NCCL, words=("Oops",)),
        Signature("a.b", "x", Role.ROOT, None, words=("ab",)),
        Signature("a.c", "(?:no|x) y", Role.ROOT, FailureClass.NCCL),
    )
    faults = "\n".join(faults_of_table(rows))
    for word in ("not in lower case", "too short", "needs a class", "used twice", "needs words"):
        assert word in faults


RULES = RuleSet(
    (
        Signature("quoted.all", "broken", Role.BENIGN),
        Signature("x.broken", "is broken", Role.ROOT, FailureClass.NCCL),
        Signature("x.lost", r"\blost\b", Role.ROOT, FailureClass.NCCL),
        Signature("x.file_lost", r"file lost", Role.ROOT, FailureClass.FILE_NOT_FOUND),
        Signature("x.unheard", r"unheard of", Role.ROOT, FailureClass.NCCL),
        Signature("x.echo", r"the file", Role.ECHO, FailureClass.NCCL),
    )
)


def test_rows_without_a_line_and_rows_that_others_hide_are_found() -> None:
    """What no real line needs is a guess; what an earlier row always takes is dead."""
    coverage = Coverage(RULES, [Line("a:1", "it is broken"), Line("a:2", "the file lost its head")])

    assert coverage.without_sample() == ["x.unheard"]
    assert coverage.unreachable() == {"x.broken": "quoted.all", "x.file_lost": "x.lost"}
    assert "x.echo" in coverage.decides, "an echo of the same class as the cause is not hidden by it"


def test_an_overlap_names_both_rows_and_the_line() -> None:
    """Two causes of different classes on one line: which of them wins is a matter of order alone, so it is shown."""
    coverage = Coverage(RULES, [Line("a:2", "the file lost its head")])

    assert [(o.first, o.second, o.line.where) for o in coverage.overlaps()] == [("x.lost", "x.file_lost", "a:2")]


def test_branches_become_lines() -> None:
    """Each alternative, and optional parts in and out; what a look-around asks for is left out."""
    made = set(lines_of_branches(r"(?:red|blue) ?cars?\b \d{2}"))
    assert made >= {"redcar 00", "bluecar 00", "red car 00", "redcars 00"}
    assert lines_of_branches("abc(?=d)") == ()


def test_a_branch_that_no_word_finds_is_found() -> None:
    """Words come from the pattern too; a branch of two letters has none that can be searched for."""
    rules = RuleSet((Signature("x.y", "long words|ab", Role.ROOT, FailureClass.NCCL),))
    assert list(unfound(rules)) == ["x.y: no word finds 'ab'"]


@pytest.mark.parametrize("pattern", [r"b\w+.{0,20}(?:fail|error)", r"\d+ x"])
def test_time_that_grows_faster_than_the_line_is_seen(pattern: str) -> None:
    """Also where each part looks harmless: what one repetition eats, another may give back."""
    assert slow_line(pattern) is not None


def test_plain_patterns_are_not_called_slow() -> None:
    """Words, a bound, and words."""
    assert slow_line(r"error \d{1,9} in .{0,80} at line \d{1,9}") is None

"""A user's pattern cannot make the matcher try for ever, and ordinary patterns pass."""

from __future__ import annotations

import sys

import pytest

from gpualert.pattern_time import faults_of_user_pattern
from gpualert.signature_lint import faults_of_pattern

HOSTILE = [
    r"(a+)+$",
    r"(.*a){20}",
    r"(a|a)*$",
    r"(a|aa)+$",
    r"(\w+\s?)+$",
    r"^(\w*)*$",
    r"([a-z]+)*[0-9]",
    r"(?:.*,){11}P",
    r".*.*.*x",
    r"\s*\s*\s*x",
    r"\d+\d+\d+x",
    r"a*a*a*a*b",
    r"1{0,20}1+?x",
    r".{0,9}?(?=(?:\w+|\d)\s)",
    r"(?: {0,20}[^b]{1,80}(?:\s{30}){0,20})c",
    r"\d+\.?\d*x",
    r"(?:a?){30}a{30}",
    r"(?:a|a){0,30}b",
    r"(?:a{0,99}){0,99}b",
    r"(?:(?:a{1,9}){1,9}){1,9}b",
    r"(?:\w|\w\w){1,40}!",
    r"(?i:A{1,30}a{1,30}){1,9}b",
    r"\d+.{0,80}failed",
    r"(?=(?:a{0,40}){0,40}b)x",
]

ORDINARY = [
    r"licence checkout failed: no seats",
    r"(?i)quota exceeded|over quota",
    r"loss is nan at step \d+",
    r"rank \d+.{0,80}failed",
    r"error.{0,80}foo.{0,80}bar",
    r"Permission denied: '[^']{1,200}'",
    r"ValueError: expected .{0,100} got .{0,100}",
    r"(?:\d{1,3}\.){3}\d{1,3}",
    r"\w+\s*=\s*\w+",
    r"\w+: .{0,80} not found",
    r"(?:\w{1,20},){1,5}x",
    r"\d+\.?\d*",
    r"(?:foo|bar|baz){1,4}x",
    r"^\[watchdog\] .{0,80}stalled",
    r"größe \d{1,9} überschritten",
    r"exit (?!0\b)\d{1,3}",
]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_what_can_take_for_ever_is_refused(pattern: str) -> None:
    """Nested, neighbouring and overlapping repetitions, bounded ones too."""
    assert faults_of_pattern(pattern) or faults_of_user_pattern(pattern)
    assert faults_of_user_pattern(pattern)


def test_the_check_itself_takes_no_time() -> None:
    """Each level of nesting adds its own price and does not double that of what is inside."""
    assert faults_of_user_pattern("(?:" * 60 + "a" + "b){0,2}" * 60)


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_patterns_pass(pattern: str) -> None:
    """What follows a repetition and cannot begin with what it repeats ends it: there is one way to match."""
    assert faults_of_pattern(pattern) + faults_of_user_pattern(pattern) == []


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(\w+) \1", r"(?P<x>\w+)(?P=x)", r"(a)?b(?(1)c|d)", r"x(?:(q)\1)"])
def test_back_references_are_refused(pattern: str) -> None:
    """At any depth."""
    assert "back-reference" in faults_of_user_pattern(pattern)[0]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python does not know them itself")
@pytest.mark.parametrize("pattern", [r"a++b", r"(?>a+)b", r"x(?:ab*+c)"])
def test_what_old_hosts_do_not_know_is_refused(pattern: str) -> None:
    """A rule that is right here must be right on a host with Python 3.8."""
    assert "before 3.11" in faults_of_user_pattern(pattern)[0]

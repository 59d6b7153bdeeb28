"""What a pattern cannot match without is read from the pattern."""

from __future__ import annotations

import re

import pytest

from gpualert.signature import default_rules, fold_word, reads_digits
from gpualert.signature_words import words_of_pattern


@pytest.mark.parametrize(
    "pattern, words",
    [
        ("CUDA out of memory", [["cuda out of memory"]]),
        (r"disk (?:is )?full|quota \d+ exceeded", [["disk "], [" exceeded"]]),
        (r"(?:was|been) preempted\b", [[" preempted"]]),
        (r"(?:oom|memory) killer", [[" killer"]]),
        (r"Xid.{0,40}79", [["xid"]]),
        (r"\d+", [[]]),
        (r"(?:red|green)", [["red"], ["green"]]),
        (r"x(?:abc|defg)+y", [["abc", "defg"]]),
    ],
)
def test_each_branch_gives_what_it_needs(pattern: str, words: list[list[str]]) -> None:
    """The longest literal that is certain; of alternatives, all."""
    assert words_of_pattern(pattern) == words


def test_a_line_that_a_pattern_matches_holds_a_word() -> None:
    """For every branch of every row that does not read numbers, a made-up line of its words is found."""
    rules = default_rules()
    lost = []
    for index, row in enumerate(rules.rows):
        if reads_digits(row.pattern) or row.role.value == "benign":
            continue
        for branch in words_of_pattern(row.pattern):
            for literal in branch:
                if index not in (rules.candidates_of_line(fold_word("... " + literal + " ...")) or ()):
                    lost.append((row.name, literal))
    assert not lost
    assert re.compile(rules.rows[0].pattern)

"""What a pattern cannot match without is read from the pattern."""

from __future__ import annotations

import pytest

from gpualert.signature import Role, default_rules, fold_word
from gpualert.signature_words import branches_of_pattern


@pytest.mark.parametrize(
    "pattern, needs",
    [
        ("CUDA out of memory", [({"cuda out of memory"}, False)]),
        (r"disk (?:is )?full|quota \d+ exceeded", [({"disk ", "full"}, False), ({"quota ", " exceeded"}, True)]),
        (r"(?:was|been) preempted\b", [({"been|was", " preempted"}, False)]),
        (r"(?:oom|memory) killer", [({"memory|oom", " killer"}, False)]),
        (r"Xid.{0,40}79", [({"xid"}, True)]),
        (r"\d+", [(set(), True)]),
        (r"loss[0-9]", [({"loss"}, True)]),
        (r"(?:red|green)", [({"red"}, False), ({"green"}, False)]),
        (r"x(?:abc|defg)+y", [({"abc|defg"}, False)]),
        (r"one(?: two)?\b three", [({"one", " three"}, False)]),
    ],
)
def test_each_branch_says_what_it_needs(pattern: str, needs: list[tuple[set[str], bool]]) -> None:
    """All literals that are certain; of alternatives, one. And whether numbers decide."""
    found = [
        ({"|".join(group) for group in branch.groups}, branch.reads_digits) for branch in branches_of_pattern(pattern)
    ]

    assert found == needs


def test_a_line_that_holds_what_a_branch_needs_is_looked_at() -> None:
    """For every branch of every row: each of its choices, beside one of every other."""
    rules = default_rules()
    lost = []
    for index, row in enumerate(rules.rows):
        if row.role is Role.BENIGN:
            continue
        for branch in branches_of_pattern(row.pattern):
            for chosen, group in enumerate(branch.groups):
                for literal in group:
                    parts = [other[0] if at != chosen else literal for at, other in enumerate(branch.groups)]
                    if index not in (rules.candidates_of_line(fold_word(" ... ".join(parts))) or ()):
                        lost.append((row.name, parts))
    assert not lost


@pytest.mark.parametrize(
    "line",
    [
        "step 10 loss 2.31 tokens/s 31022 mem 71.2GB",
        "INFO trainer rank 3 epoch 2 step 7/9 loss=0.3",
        "{'loss': 2.1, 'epoch': 0.3}",
    ],
)
def test_ordinary_lines_are_asked_of_no_row_by_their_numbers(line: str) -> None:
    """A row that would be asked anew for every number in every line makes a scan slow."""
    rules = default_rules()
    form = fold_word(line)
    candidates = rules.candidates_of_line(form) or ()

    _, spent = rules.match(candidates, line, False, form)

    assert set(spent) == set(candidates)

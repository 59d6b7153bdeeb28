"""The words without which a pattern cannot match, read from the pattern itself.

A row's own words make it cheap to find, but a pattern with many branches outgrows a list that is kept by hand: a branch
whose words are missing would never be asked. So each branch adds what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as _sre
    from re import _parser as _sre_parse
else:  # older interpreters keep the same parser under other names
    import sre_constants as _sre
    import sre_parse as _sre_parse

_DIGITS = "0123456789"
#: The shortest piece between blanks that can be searched for.
SHORTEST_PIECE = 3


def words_of_pattern(pattern: str, usable: Callable[[str], bool] | None = None) -> list[list[str]]:
    """
    For each branch of a pattern: literals, folded, of which one is in every line that the branch matches.

    An empty list stands for a branch that has none of a useful length, or none that is ``usable``.
    """
    found: list[list[str]] = []
    parsed: Any = _sre_parse.parse(pattern)
    for branch in _branches(list(parsed)):
        groups = list(_groups(branch))
        if usable is not None:
            groups = [group for group in groups if all(usable(fold_text(literal)) for literal in group)]
        found.append(_best(groups))
    return found


def fold_text(text: str) -> str:
    """Lower case, without digits: how a line is compared with words."""
    return "".join(char for char in text.lower() if char not in _DIGITS)


def _branches(items: list[Any]) -> Iterator[list[Any]]:
    if len(items) == 1 and items[0][0] is _sre.BRANCH:
        for branch in items[0][1][1]:
            yield from _branches(list(branch))
    elif len(items) == 1 and items[0][0] is _sre.SUBPATTERN:
        yield from _branches(list(items[0][1][-1]))
    else:
        yield items


def _groups(items: list[Any]) -> Iterator[list[str]]:
    """Groups of literals; of each group one literal is in every match."""
    run = ""
    for operation, argument in items:
        if operation is _sre.LITERAL:
            run += chr(argument)
            continue
        if operation in (_sre.AT, _sre.ASSERT, _sre.ASSERT_NOT):
            continue  # they take no characters: what stands around them is contiguous
        if run:
            yield [run]
            run = ""
        if operation is _sre.SUBPATTERN:
            yield from _groups_of_alternatives(list(_branches(list(argument[-1]))))
        elif operation is _sre.BRANCH:
            yield from _groups_of_alternatives([list(branch) for branch in argument[1]])
        elif operation in (_sre.MAX_REPEAT, _sre.MIN_REPEAT) and argument[0] >= 1:
            yield from _groups(list(argument[2]))
    if run:
        yield [run]


def _groups_of_alternatives(alternatives: list[list[Any]]) -> Iterator[list[str]]:
    if len(alternatives) == 1:
        yield from _groups(alternatives[0])
        return
    together: list[str] = []
    for alternative in alternatives:
        best = _best(list(_groups(alternative)))
        if not best:
            return
        together.extend(best)
    yield together


def _best(groups: list[list[str]]) -> list[str]:
    """The group whose shortest literal is longest."""
    folded = [[fold_text(literal) for literal in group] for group in groups]
    usable = [group for group in folded if min(map(_piece_length, group)) >= SHORTEST_PIECE]
    return max(usable, key=lambda group: (min(map(_piece_length, group)), -len(group)), default=[])


def _piece_length(text: str) -> int:
    return max((len(piece) for piece in text.split()), default=0)

"""The words without which a pattern cannot match, read from the pattern itself.

A list of words that is kept by hand is outgrown by a pattern with many branches: a branch whose words are missing would
never be asked, and one whose words are ordinary would be asked on every line. So each branch says what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    from re import _constants as _sre
    from re import _parser as _sre_parse
else:  # older interpreters keep the same parser under other names
    import sre_constants as _sre
    import sre_parse as _sre_parse

_DIGITS = "0123456789"
_DIGIT_CATEGORIES = (_sre.CATEGORY_DIGIT, _sre.CATEGORY_NOT_DIGIT)
#: A literal that is shorter is in too many lines to be worth asking for; of more choices than these, too.
_SHORTEST_NEED = 2
_MOST_CHOICES = 40
#: The shortest piece between blanks that can be searched for.
SHORTEST_PIECE = 3


class Branch(NamedTuple):
    """
    One way for a pattern to match.

    :param groups: of each, one literal (folded) is in every line that the branch matches.
    :param reads_digits: whether numbers in a line can decide.
    """

    groups: tuple[tuple[str, ...], ...]
    reads_digits: bool


def branches_of_pattern(pattern: str) -> list[Branch]:
    """A pattern's branches, each with all that a line needs to be worth a look."""
    parsed: Any = _sre_parse.parse(pattern)
    found = []
    for items in _branches(list(parsed)):
        groups = {tuple(sorted({fold_text(literal) for literal in group})) for group in _groups(items)}
        useful = [group for group in groups if min(map(len, group)) >= _SHORTEST_NEED and len(group) <= _MOST_CHOICES]
        found.append(Branch(tuple(sorted(useful)), _reads_digits(items)))
    return found


def _reads_digits(items: Any) -> bool:
    for operation, argument in items:
        if operation in (_sre.LITERAL, _sre.NOT_LITERAL):
            if chr(argument) in _DIGITS:
                return True
        elif operation is _sre.IN:
            if any(_names_digits(kind, value) for kind, value in argument):
                return True
        elif operation is _sre.CATEGORY:
            if argument in _DIGIT_CATEGORIES:
                return True
        elif operation is _sre.SUBPATTERN:
            if _reads_digits(list(argument[-1])):
                return True
        elif operation is _sre.BRANCH:
            if any(_reads_digits(list(branch)) for branch in argument[1]):
                return True
        elif operation in (_sre.MAX_REPEAT, _sre.MIN_REPEAT):
            if _reads_digits(list(argument[2])):
                return True
        elif operation in (_sre.ASSERT, _sre.ASSERT_NOT):
            if _reads_digits(list(argument[1])):
                return True
        elif operation not in (_sre.ANY, _sre.AT):
            return True  # not one that we know: rather ask too often
    return False


def _names_digits(kind: Any, value: Any) -> bool:
    if kind is _sre.LITERAL:
        return chr(value) in _DIGITS
    if kind is _sre.RANGE:
        return bool(value[0] <= ord("9") and value[1] >= ord("0"))
    return kind is _sre.CATEGORY and value in _DIGIT_CATEGORIES


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

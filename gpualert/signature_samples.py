"""Lines made from a pattern itself: one for each of its branches, and lines that make a matcher work in vain.

They show two faults that no reader sees: a branch that the row's words never find, and time that grows faster than the
line.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Iterator

if sys.version_info >= (3, 11):
    from re import _constants as _sre
    from re import _parser as _sre_parse
else:  # pragma: no cover - older interpreters keep the same parser under another name
    import sre_constants as _sre
    import sre_parse as _sre_parse

#: Most lines that are made from one pattern: a product of alternatives has no other end.
_MOST_TEXTS = 400
_LONGEST_TEXT = 2000
_MOST_HOSTILE = 60
#: Characters from which one is chosen for a set.
_USUAL = "ax0A9 -_./:=,;'\"()[]<>{}|#*+$%&@!?\\~`^"
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def lines_of_branches(pattern: str) -> tuple[str, ...]:
    """
    Lines that a pattern matches: every alternative is in one of them, each optional part is left out and put in.

    What cannot be made this way (a text that a look-around asks for) is left out.
    """
    compiled = re.compile(pattern)
    found: list[str] = []
    for text in dict.fromkeys(_texts(_parsed(pattern))):
        for line in (text, f" {text} ", f"x {text}"):
            if compiled.search(line) is not None:
                found.append(line)
                break
    return tuple(found)


def hostile_lines(pattern: str, length: int) -> Iterator[str]:
    """
    Lines of about ``length`` characters on which a matcher starts often, or goes far before it gives up.

    Beginnings of a match, over and over; one beginning, then what a repetition eats; a whole match without its end,
    over and over.
    """
    units: dict[str, None] = {}
    for items in _sequences(_parsed(pattern)):
        beginning = ""
        for item in items:
            if _name(item[0]) in _REPEATS:
                _, high, body = item[1]
                eaten = _texts(list(body))[0] if len(body) else ""
                if eaten and (high is _sre.MAXREPEAT or high > 1):
                    units.setdefault(beginning + "\0" + eaten)
            beginning = (beginning + _texts([item])[0])[:_LONGEST_TEXT]
            if beginning:
                units.setdefault(beginning)
        if len(beginning) > 1:
            units.setdefault(beginning[:-1])
    for unit in list(units)[:_MOST_HOSTILE]:
        once, mark, again = unit.rpartition("\0")
        if mark:
            yield (once + again * (length // len(again)))[:length]
            again = once + again * 7
        yield (again * (length // len(again) + 1))[:length]
    for char in "a 0/.-\"'A:":
        yield char * length


def _parsed(pattern: str) -> list[Any]:
    parsed: Any = _sre_parse.parse(pattern)
    return list(parsed)


def _name(operation: Any) -> str:
    return str(operation).rsplit(".", 1)[-1]


def _sequences(items: list[Any]) -> Iterator[list[Any]]:
    """The pattern's alternatives, with the groups at their top opened."""
    if len(items) == 1 and items[0][0] is _sre.BRANCH:
        for branch in items[0][1][1]:
            yield from _sequences(list(branch))
    elif len(items) == 1 and items[0][0] is _sre.SUBPATTERN:
        yield from _sequences(list(items[0][1][-1]))
    else:
        yield items
        for operation, argument in items:
            if operation is _sre.SUBPATTERN:
                yield from _sequences(list(argument[-1]))
            elif operation is _sre.BRANCH:
                for branch in argument[1]:
                    yield from _sequences(list(branch))


def _texts(items: list[Any]) -> list[str]:
    """Texts that a sequence matches: a usual one first, then one for each other choice at each place."""
    choices = [_choices(item) for item in items]
    usual = [texts[0] for texts in choices]
    found = ["".join(usual)]
    for index, texts in enumerate(choices):
        for other in texts[1:]:
            found.append("".join(usual[:index]) + other + "".join(usual[index + 1 :]))
    return [text[:_LONGEST_TEXT] for text in found[:_MOST_TEXTS]]


def _choices(item: Any) -> list[str]:
    operation, argument = item
    if operation is _sre.LITERAL:
        return [chr(argument)]
    if operation is _sre.NOT_LITERAL:
        return ["x" if chr(argument) != "x" else "y"]
    if operation is _sre.ANY:
        return ["x"]
    if operation is _sre.IN:
        return [_one_of(argument)]
    if operation is _sre.SUBPATTERN:
        return _texts(list(argument[-1]))
    if _name(operation) == "ATOMIC_GROUP":
        return _texts(list(argument))
    if operation is _sre.BRANCH:
        return [text for branch in argument[1] for text in _texts(list(branch))]
    if _name(operation) in _REPEATS:
        low, _, body = argument
        texts = _texts(list(body))
        return [text * low for text in texts] if low else ["", *texts]
    return [""]


def _one_of(members: Any) -> str:
    for kind, value in members:
        if kind is _sre.LITERAL:
            first = chr(value)
            if members[0][0] is not _sre.NEGATE:
                return first
    usable = (char for char in _USUAL if _is_in(char, members))
    return next(usable, "x")


def _is_in(char: str, members: Any) -> bool:
    negated = members[0][0] is _sre.NEGATE
    inside = any(_is_member(char, kind, value) for kind, value in members)
    return inside is not negated


def _is_member(char: str, kind: Any, value: Any) -> bool:
    if kind is _sre.LITERAL:
        return bool(chr(value) == char)
    if kind is _sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is _sre.CATEGORY:
        told = {"DIGIT": char.isdigit(), "SPACE": char.isspace(), "WORD": char.isalnum() or char == "_"}
        name = _name(value).replace("CATEGORY_", "").replace("UNI_", "")
        return not told[name[4:]] if name.startswith("NOT_") else told[name]
    return False

"""What a pattern of a user's may not do, beyond what the linter asks of every row.

Python's matcher goes back and tries again. The steps that this can take are counted here from the pattern's structure:
a repetition is tried in as many lengths as it has, unless what follows it cannot begin with what it repeats, since then
only one of its lengths can be right, or cannot fail.
"""

from __future__ import annotations

import re
import sys
from typing import Any, FrozenSet, NamedTuple, Sequence

if sys.version_info >= (3, 11):
    from re import _constants as _sre
    from re import _parser as _sre_parse
else:  # pragma: no cover - older interpreters keep the same parser under another name
    import sre_constants as _sre
    import sre_parse as _sre_parse

Characters = FrozenSet[int]

#: Most steps from one place of a line: of a pattern that can begin nearly anywhere, and of one that begins with
#: characters of its own (or the line's start), which few places show.
MAX_STEPS = 20_000
MAX_STEPS_AFTER_TEXT = 2_000_000
_TEXT = 3
#: Rules see so much of a line.
_LINE = 4096
_ENOUGH = 10**12
#: Characters beyond Latin-1 are told apart only as letters and digits, blanks, and the rest.
_LATIN = 256
_WORD, _BLANK, _REST = range(_LATIN, _LATIN + 3)
_ALL: Characters = frozenset(range(_LATIN + 3))
_NONE: Characters = frozenset()
_REPEATS = (_sre.MAX_REPEAT, _sre.MIN_REPEAT)


def faults_of_user_pattern(pattern: str) -> list[str]:
    """
    Reasons to refuse a pattern that a user wrote, each a sentence.

    :param pattern: one that compiles.
    """
    faults: list[str] = []
    for operation in _operations(_sre_parse.parse(pattern)):
        name = str(operation)
        if name.startswith("GROUPREF"):
            faults.append("a back-reference or a condition on a group: its time cannot be bounded")
        elif name in ("POSSESSIVE_REPEAT", "ATOMIC_GROUP"):
            faults.append(
                "a possessive repetition or an atomic group: hosts with a Python before 3.11 do not know them"
            )
    if faults:
        return sorted(set(faults))
    parsed: Any = _sre_parse.parse(pattern)
    steps = _sequence(parsed, _NONE, True).steps
    allowed = MAX_STEPS_AFTER_TEXT if _text_at_start(parsed) >= _TEXT else MAX_STEPS
    if steps > allowed:
        found = str(steps) if steps < _ENOUGH else "far more"
        faults.append(
            f"repetitions that overlap or stand inside one another: at most {allowed} steps from one place are "
            f"allowed, found {found}; give them smaller bounds, or put something between them that they do not match"
        )
    return faults


def _text_at_start(items: Sequence[Any]) -> int:
    """How many characters of its own a pattern begins with, in whichever of its branches has the fewest."""
    count = 0
    for operation, argument in items:
        if operation is _sre.AT and str(argument).startswith("AT_BEGINNING"):
            return _TEXT
        if operation is _sre.SUBPATTERN:
            return count + _text_at_start(argument[-1])
        if operation is _sre.BRANCH:
            return count + min(_text_at_start(branch) for branch in argument[1])
        if operation is not _sre.AT:
            if operation is not _sre.LITERAL:
                return count
            count += 1
    return count


def _operations(parsed: Any) -> list[Any]:
    """Of a parsed pattern, at any depth."""
    found = []
    for operation, argument in parsed:
        found.append(operation)
        for part in argument if isinstance(argument, (tuple, list)) else (argument,):
            for body in part if isinstance(part, list) else (part,):
                if isinstance(body, _sre_parse.SubPattern):
                    found += _operations(body)
    return found


class _Cost(NamedTuple):
    """
    Of one part of a pattern.

    :param tries: in how many ways it can match at one place, as far as more than one can be tried.
    :param steps: what all of them take together.
    :param first: characters with which it can begin.
    :param empty: it can match nothing.
    """

    tries: int
    steps: int
    first: Characters
    empty: bool


def _sequence(items: Sequence[Any], after: Characters, certain: bool) -> _Cost:
    """
    :param after: what can come behind it; nothing at the pattern's end.
    :param certain: what comes behind it cannot fail, so that nobody comes back for another try.
    """
    tries, steps, first, empty = 1, 0, _NONE, True
    behind = after
    text_follows = False
    for operation, argument in reversed(list(items)):
        own = _item(operation, argument, behind, certain)
        is_text = operation is _sre.LITERAL
        if not (is_text and text_follows):  # a text fails at its first character, as a rule
            steps = min(_ENOUGH, own.steps + own.tries * steps)
        text_follows = is_text
        tries = min(_ENOUGH, tries * own.tries)
        behind = own.first | behind if own.empty else own.first
        first = own.first | first if own.empty else own.first
        empty = empty and own.empty
        certain = certain and operation in _REPEATS and own.empty
    return _Cost(tries, steps, first, empty)


def _item(operation: Any, argument: Any, after: Characters, certain: bool) -> _Cost:
    if operation in _REPEATS:
        return _repetition(argument, after, certain)
    if operation is _sre.SUBPATTERN:
        return _sequence(argument[-1], after, certain)
    if operation is _sre.BRANCH:
        return _branches([_sequence(branch, after, certain) for branch in argument[1]])
    if operation in (_sre.ASSERT, _sre.ASSERT_NOT):
        # It costs its steps wherever it can begin.
        first, empty = _first(argument[1])
        return _Cost(1, _sequence(argument[1], _NONE, True).steps, _ALL if empty else first, True)
    if operation is _sre.AT:
        return _Cost(1, 1, _NONE, True)
    return _Cost(1, 1, _characters(operation, argument), False)


def _repetition(argument: Any, after: Characters, certain: bool) -> _Cost:
    low, high, body = argument
    most = _LINE if high is _sre.MAXREPEAT else min(int(high), _LINE)
    first = _first(body)[0]
    # Inside, one turn is followed by the next.
    inner = _sequence(body, after | first if most > 1 else after, certain and int(low) <= 1)
    differs = most - min(int(low), most) + 1
    lengths = differs if not certain and (first & after or inner.empty) else 1
    turns = 1 if inner.tries == 1 else min(_ENOUGH, inner.tries ** min(most, 64))
    steps = min(_ENOUGH, turns * most * max(1, inner.steps))
    return _Cost(min(_ENOUGH, turns * lengths), steps, first, inner.empty or int(low) == 0)


def _first(items: Sequence[Any]) -> tuple[Characters, bool]:
    """Characters with which a sequence can begin; whether it can be empty."""
    first: Characters = _NONE
    for operation, argument in items:
        if operation in _REPEATS:
            own, empty = _first(argument[2])
            empty = empty or int(argument[0]) == 0
        elif operation is _sre.SUBPATTERN:
            own, empty = _first(argument[-1])
        elif operation is _sre.BRANCH:
            found = [_first(branch) for branch in argument[1]]
            own, empty = _NONE.union(*(one for one, _ in found)), any(nothing for _, nothing in found)
        elif operation in (_sre.ASSERT, _sre.ASSERT_NOT, _sre.AT):
            own, empty = _NONE, True
        else:
            own, empty = _characters(operation, argument), False
        first |= own
        if not empty:
            return first, False
    return first, True


def _branches(branches: list[_Cost]) -> _Cost:
    first: Characters = _NONE
    apart = True
    for branch in branches:
        apart = apart and not branch.first & first and not branch.empty
        first |= branch.first
    together = max if apart else sum
    tries = min(_ENOUGH, together(branch.tries for branch in branches))
    steps = min(_ENOUGH, together(branch.steps for branch in branches))
    return _Cost(tries, steps, first, any(branch.empty for branch in branches))


def _characters(operation: Any, argument: Any) -> Characters:
    """Those that one item of a pattern can match, in either case."""
    if operation is _sre.LITERAL:
        return _both_cases(argument)
    if operation is _sre.NOT_LITERAL:
        return _ALL - frozenset([argument] if argument < _LATIN else [])
    if operation is not _sre.IN:
        return _ALL
    negated = any(kind is _sre.NEGATE for kind, _ in argument)
    found: set[int] = set()
    for kind, value in argument:
        if kind is _sre.LITERAL:
            found |= _one(value, negated)
        elif kind is _sre.RANGE:
            for code in range(value[0], min(value[1] + 1, _LATIN)):
                found |= _one(code, negated)
            if value[1] >= _LATIN and not negated:
                found |= {_WORD, _BLANK, _REST}
        elif kind is _sre.CATEGORY:
            found |= _category(str(value), negated)
    return _ALL - frozenset(found) if negated else frozenset(found)


def _category(name: str, negated: bool) -> Characters:
    wanted = name.rpartition("_")[2]  # CATEGORY_DIGIT, CATEGORY_NOT_SPACE, …
    test = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}.get(wanted)
    if test is None:
        return _NONE if negated else _ALL
    if "_NOT_" in name:
        test = test.upper()
    compiled = re.compile(test)
    found = {code for code in range(_LATIN) if compiled.match(chr(code))}
    # An Arabic digit, an en quad and a euro sign stand for the rest of their kinds.
    beyond = {_WORD: "\u0661", _BLANK: "\u2000", _REST: "\u20ac"}
    found |= {kind for kind, example in beyond.items() if compiled.match(example)}
    if wanted == "DIGIT":  # not every letter is a digit, and not every one is none
        found = found - {_WORD} if negated else found | {_WORD}
    return frozenset(found)


def _one(code: int, negated: bool) -> Characters:
    """As widely as it can be meant: in either case; when it is excluded, only itself."""
    if negated:
        return frozenset([code] if code < _LATIN else [])
    return _both_cases(code)


def _both_cases(code: int) -> Characters:
    found = set()
    for character in {chr(code), *chr(code).lower(), *chr(code).upper()}:
        kind = _BLANK if character.isspace() else _WORD if character.isalnum() else _REST
        found.add(ord(character) if ord(character) < _LATIN else kind)
    return frozenset(found)

"""What a pattern of a user's may not do, beyond what the linter asks of every row.

Python's matcher goes back and tries again. How often, in the worst case, is counted here from the pattern's structure:
a repetition counts for as many tries as it has lengths, unless what follows it cannot begin with what it repeats, since
then only one of its lengths can be right.
"""

from __future__ import annotations

import re
import sys
from typing import Any, FrozenSet, Sequence

if sys.version_info >= (3, 11):
    from re import _constants as _sre
    from re import _parser as _sre_parse
else:  # pragma: no cover - older interpreters keep the same parser under another name
    import sre_constants as _sre
    import sre_parse as _sre_parse

Characters = FrozenSet[int]

#: Most tries from one place of a line: of a pattern that can begin nearly anywhere, and of one that begins with
#: characters of its own (or the line's start), which few places show.
MAX_TRIES = 20_000
MAX_TRIES_AFTER_TEXT = 1_000_000
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
    tries, _, _ = _sequence(parsed, _NONE)
    allowed = MAX_TRIES_AFTER_TEXT if _text_at_start(parsed) >= _TEXT else MAX_TRIES
    if tries > allowed:
        found = str(tries) if tries < _ENOUGH else "far more"
        faults.append(
            f"repetitions that overlap or stand inside one another: at most {allowed} tries from one place are "
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


def _sequence(items: Sequence[Any], after: Characters) -> tuple[int, Characters, bool]:
    """
    :param after: what can come behind it; nothing at the pattern's end, where there is nothing left to fail.
    :return: tries; characters with which it can begin; whether it can be empty.
    """
    tries, first, empty = 1, _NONE, True
    behind = after
    for operation, argument in reversed(list(items)):
        own_tries, own_first, own_empty = _item(operation, argument, behind)
        tries = min(_ENOUGH, tries * own_tries)
        behind = own_first | behind if own_empty else own_first
        first = own_first | first if own_empty else own_first
        empty = empty and own_empty
    return tries, first, empty


def _item(operation: Any, argument: Any, after: Characters) -> tuple[int, Characters, bool]:
    if operation in _REPEATS:
        return _repetition(argument, after)
    if operation is _sre.SUBPATTERN:
        return _sequence(argument[-1], after)
    if operation is _sre.BRANCH:
        return _branches([_sequence(branch, after) for branch in argument[1]])
    if operation in (_sre.ASSERT, _sre.ASSERT_NOT):
        return _sequence(argument[1], _NONE)[0], _NONE, True
    if operation is _sre.AT:
        return 1, _NONE, True
    return 1, _characters(operation, argument), False


def _repetition(argument: Any, after: Characters) -> tuple[int, Characters, bool]:
    low, high, body = argument
    most = _LINE if high is _sre.MAXREPEAT else min(int(high), _LINE)
    first = _sequence(body, after)[1]
    # Inside, one turn is followed by the next.
    tries, _, empty = _sequence(body, after | first if most > 1 else after)
    lengths = most - min(int(low), most) + 1 if first & after or empty else 1
    inner = 1 if tries == 1 else min(_ENOUGH, tries ** min(most, 64))
    return min(_ENOUGH, inner * lengths), first, empty or low == 0


def _branches(branches: list[tuple[int, Characters, bool]]) -> tuple[int, Characters, bool]:
    first: Characters = _NONE
    apart = True
    for _, own, empty in branches:
        apart = apart and not own & first and not empty
        first |= own
    tries = [one for one, _, _ in branches]
    return max(tries) if apart else min(_ENOUGH, sum(tries)), first, any(empty for _, _, empty in branches)


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

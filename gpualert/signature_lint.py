"""What is wrong with a table of signatures: patterns that can be slow, rows that never speak, words that hide them.

Time is kept linear by construction. A pattern may repeat without bound only what is one kind of character and is
followed by something else; repetitions inside unbounded repetitions are refused, and so are bounded ones whose product
is large.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpualert.signature import Role, RuleSet, Signature, fold_word, piece_of

if sys.version_info >= (3, 11):
    from re import _constants as _sre
    from re import _parser as _sre_parse
else:  # pragma: no cover - older interpreters keep the same parser under another name
    import sre_constants as _sre
    import sre_parse as _sre_parse

#: Most combinations that nested and neighbouring bounded repetitions may span, from one starting point.
_MAX_SPAN = 200_000


def faults_of_pattern(pattern: str) -> list[str]:
    """Reasons why a pattern must not be used; none means that its time is linear in the line."""
    try:
        re.compile(pattern)
        parsed = _sre_parse.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return [f"expected a regular expression: {error}"]
    faults: list[str] = []
    span = _span(parsed, faults, inside=False, anchored=_is_anchored(parsed))
    if span > _MAX_SPAN:
        faults.append(f"its repetitions span {span} combinations; at most {_MAX_SPAN} are allowed")
    if re.compile(pattern).search("") is not None:
        faults.append("it matches the empty line")
    return faults


def _is_anchored(parsed: Any) -> bool:
    for operation, argument in parsed:
        if operation is _sre.AT:
            return bool(argument in (_sre.AT_BEGINNING, _sre.AT_BEGINNING_STRING))
        return False
    return False


def _span(parsed: Any, faults: list[str], inside: bool, anchored: bool) -> int:
    """How many ways there are to match from one place, in the worst case; faults are added on the way."""
    total = 1
    for operation, argument in parsed:
        if operation in (_sre.MAX_REPEAT, _sre.MIN_REPEAT) or str(operation) == "POSSESSIVE_REPEAT":
            low, high, body = argument
            unbounded = high is _sre.MAXREPEAT or (isinstance(high, int) and high > 5000)
            if unbounded and inside:
                faults.append("an unbounded repetition inside another repetition")
            inner = _span(body, faults, inside or unbounded or high > 1, anchored)
            if unbounded:
                if len(body) != 1 or body[0][0] not in _SINGLE:
                    faults.append(
                        "an unbounded repetition of more than one kind of character: give it a bound, such as {0,80}"
                    )
                elif _is_wide(body[0]) and not anchored:
                    faults.append("an unbounded repetition of nearly any character: give it a bound, such as {0,80}")
                total *= 2  # digits or blanks: what follows them ends them
            elif high > 1:
                narrow = len(body) == 1 and body[0][0] in _SINGLE and not _is_wide(body[0])
                total *= (2 if narrow else max(1, high - low + 1)) * max(1, inner)
            else:
                total *= max(1, inner)
        elif operation is _sre.SUBPATTERN:
            total *= max(1, _span(argument[-1], faults, inside, anchored))
        elif operation is _sre.BRANCH:
            total *= max(_span(branch, faults, inside, anchored) for branch in argument[1])
        elif operation in (_sre.ASSERT, _sre.ASSERT_NOT):
            total *= max(1, _span(argument[1], faults, inside, anchored))
        total = min(total, 10**12)
    return total


_SINGLE = (_sre.LITERAL, _sre.NOT_LITERAL, _sre.ANY, _sre.IN)


def _is_wide(item: Any) -> bool:
    operation, argument = item
    if operation in (_sre.ANY, _sre.NOT_LITERAL):
        return True
    if operation is _sre.IN:
        return any(
            kind is _sre.NEGATE
            or (
                kind is _sre.CATEGORY
                and value in (_sre.CATEGORY_NOT_SPACE, _sre.CATEGORY_NOT_DIGIT, _sre.CATEGORY_NOT_WORD)
            )
            for kind, value in argument
        )
    return False


def faults_of_table(rows: Sequence[Signature]) -> Iterator[str]:
    """Faults of a table, each naming its row: names, words, patterns, roles, and rows that an earlier one hides."""
    seen: dict[str, Signature] = {}
    for row in rows:
        if row.name in seen:
            yield f"{row.name}: the name is used twice"
        seen[row.name] = row
        if row.failure_class is None and row.role in (Role.DECISIVE, Role.ROOT, Role.WEAK, Role.GENERIC):
            yield f"{row.name}: a {row.role.value} row needs a class"
        if not row.words:
            yield f"{row.name}: no words, so it can never be found"
        for word in row.words:
            folded = fold_word(word)
            if word != word.lower():
                yield f"{row.name}: the word {word!r} is not in lower case"
            if row.role is not Role.BENIGN and len(piece_of(folded)) < 3:
                yield f"{row.name}: the word {word!r} is too short to be searched for"
        for fault in faults_of_pattern(row.pattern):
            yield f"{row.name}: {fault}"


def unreachable(rules: RuleSet, samples: Mapping[str, str]) -> Iterator[str]:
    """
    Rows whose own sample line they do not match, do not find by their words, or lose to another row.

    :param samples: by row: a line that it is meant for.
    """
    for row in rules.rows:
        sample = samples.get(row.name)
        if sample is None:
            yield f"{row.name}: no sample line"
            continue
        if re.search(row.pattern, sample) is None:
            yield f"{row.name}: its pattern does not match its sample"
            continue
        candidates = rules.candidates_of_line(fold_word(sample))
        if candidates is None or rules.order(row.name) not in candidates:
            yield f"{row.name}: its words do not find its sample"
            continue
        matched, _ = rules.match(candidates, sample, False)
        if row.name not in matched:
            yield f"{row.name}: {matched[0] if matched else 'nothing'} takes its sample"

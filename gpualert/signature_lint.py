"""What is wrong with a table of signatures: patterns that can be slow, rows that never speak, words that hide them.

Time is kept linear by construction. A pattern may repeat without bound only what is one kind of character and is
followed by something else; repetitions inside unbounded repetitions are refused, and so are bounded ones whose product
is large.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any, Iterable, Iterator, NamedTuple, Sequence

from gpualert.signature import Role, RuleSet, Signature, fold_word, needs_words, piece_of
from gpualert.signature_samples import hostile_lines, lines_of_branches

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
        if not row.words and needs_words(row.pattern):
            yield f"{row.name}: a branch of its pattern holds no three letters in a row, so it needs words to be found"
        for word in row.words:
            folded = fold_word(word)
            if word != word.lower():
                yield f"{row.name}: the word {word!r} is not in lower case"
            if row.role is not Role.BENIGN and len(piece_of(folded)) < 3:
                yield f"{row.name}: the word {word!r} is too short to be searched for"
        for fault in faults_of_pattern(row.pattern):
            yield f"{row.name}: {fault}"


class Line(NamedTuple):
    """A line of a corpus, and where it stands."""

    where: str
    text: str


class Overlap(NamedTuple):
    """A line that two rows of the same weight claim for different classes; the first is asked first, and wins."""

    first: str
    second: str
    line: Line


class Coverage:
    """
    What each row of a table does on the lines of a corpus.

    :param lines: decoded and without colours, as the rules see them.
    """

    def __init__(self, rules: RuleSet, lines: Iterable[Line]) -> None:
        self.rules = rules
        #: by row: a line that it matches, whatever other rows say about it
        self.matched: dict[str, Line] = {}
        #: by row: a line whose class it decides, or that nobody claims for another class
        self.decides: dict[str, Line] = {}
        #: by row: who took the lines that it matched, and one of them
        self.taken: dict[str, dict[str, Line]] = {}
        self._overlaps: dict[tuple[str, str], Line] = {}
        self._tokens: dict[bytes, tuple[int, ...]] = {}
        for line in lines:
            self._see(line)

    def without_sample(self) -> list[str]:
        """Rows that match no line of the corpus."""
        return [row.name for row in self.rules.rows if row.name not in self.matched]

    def unreachable(self) -> dict[str, str]:
        """Rows all of whose lines are taken by an earlier row: by name, who takes them."""
        return {
            row.name: ", ".join(sorted(self.taken.get(row.name, {})))
            for row in self.rules.rows
            if row.name in self.matched and row.name not in self.decides
        }

    def overlaps(self) -> tuple[Overlap, ...]:
        """Pairs of rows of the same role that name different classes on one line, each with the first such line."""
        return tuple(Overlap(first, second, line) for (first, second), line in sorted(self._overlaps.items()))

    def _see(self, line: Line) -> None:
        form = fold_word(line.text)
        found: set[int] = set()
        for token in form.split():
            rows = self._tokens.get(token)
            if rows is None:
                rows = self._tokens[token] = self.rules.rows_of_token(token[:2000]) or ()
            found.update(rows)
        candidates = self.rules.candidates(form, found) if found else None
        if not candidates:
            return
        alone = self.rules.match(candidates, line.text, False)[0]
        raised = self.rules.match(candidates, line.text, True)[0]
        for index in candidates:
            name = self.rules.rows[index].name
            if name in alone or name in raised or self.rules.pattern(index).search(line.text) is not None:
                self.matched.setdefault(name, line)
                if name not in alone and alone:
                    self.taken.setdefault(name, {}).setdefault(alone[0], line)
        self._weigh(alone, line, raised=False)
        # What is silenced on a line by itself may still speak where the line is an exception's own message.
        if _NAMES_EXCEPTION.search(line.text) is not None:
            self._weigh(raised, line, raised=True)

    def _weigh(self, names: Sequence[str], line: Line, raised: bool) -> None:
        rows = [self.rules[name] for name in names]
        if not raised:
            # A note stands beside the cause and takes nothing from it.
            for row in rows:
                if row.role is Role.NOTE:
                    self.decides.setdefault(row.name, line)
        causes = [row for row in rows if row.role is not Role.NOTE]
        if not causes:
            return
        first = min(causes, key=lambda row: (-_weight(row, raised), self.rules.order(row.name)))
        for row in causes:
            if row.failure_class is first.failure_class:
                self.decides.setdefault(row.name, line)
                continue
            self.taken.setdefault(row.name, {}).setdefault(first.name, line)
            if row.role is first.role and row.failure_class is not None and first.failure_class is not None:
                self._overlaps.setdefault((first.name, row.name), line)


_NAMES_EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b")


def _weight(row: Signature, raised: bool) -> float:
    """How much a row's word weighs against another's on the same line, as a judgement weighs them."""
    if row.role is Role.GENERIC and raised:
        return 0.5
    if row.role is Role.ECHO and row.failure_class is not None:
        return 3.5
    return _WEIGHTS[row.role]


_WEIGHTS = {Role.DECISIVE: 6, Role.ROOT: 5, Role.GENERIC: 3, Role.WEAK: 2, Role.ECHO: 1, Role.BENIGN: 1, Role.NOTE: 0}


def unfound(rules: RuleSet) -> Iterator[str]:
    """Branches of patterns that no word of their row finds. Benign rows are only asked where another row is."""
    for index, row in enumerate(rules.rows):
        if row.role is Role.BENIGN:
            continue
        for line in lines_of_branches(row.pattern):
            candidates = rules.candidates_of_line(fold_word(line))
            if candidates is None or index not in candidates:
                yield f"{row.name}: no word finds {line!r}"
                break


#: A line as long as the rules see any, and a quarter of it: linear time grows by 4 between them, quadratic time by 16.
_LONG = 1 << 12
_SHORT = _LONG // 4
_MOST_GROWTH = 8.0
#: Prices are counted in that of trying 64 characters from every place of a long line (some 5 ms on a slow machine).
_WORTH_A_LOOK = 4.0
_DEAR = 40.0
_KNOWN = re.compile("[ab]{0,64}c")
#: Too little to be compared with anything.
_NOTHING_S = 5e-5


def slow_line(pattern: str) -> str | None:
    """
    A line, made from the pattern itself, on which its time grows faster than the line, or is dear by any measure.

    Time is the thread's own, weighed against a pattern of known cost in the same breath, so that a busy machine
    accuses nobody.

    :return: the line's start; None: there is no such line.
    """
    compiled = re.compile(pattern)
    for short, long in zip(hostile_lines(pattern, _SHORT), hostile_lines(pattern, _LONG)):
        cheap = _price(compiled, short, _WORTH_A_LOOK / 16)
        if cheap < _WORTH_A_LOOK / 16:
            continue
        dear = _price(compiled, long, _WORTH_A_LOOK)
        if dear > _DEAR or (dear > _WORTH_A_LOOK and dear > _MOST_GROWTH * cheap):
            return long[:120]
    return None


def _price(pattern: re.Pattern[str], line: str, enough: float) -> float:
    """The least of three tries, or the first that is below what is of interest."""
    least = float("inf")
    for _ in range(3):
        asked = _time_of(pattern, line)
        if asked < _NOTHING_S:
            return 0.0
        least = min(least, asked / max(_time_of(_KNOWN, "ab" * (_LONG // 2)), 1e-7))
        if least < enough or least > 4 * _DEAR:
            break
    return least


def _time_of(pattern: re.Pattern[str], line: str) -> float:
    start = time.thread_time()
    pattern.search(line)
    return time.thread_time() - start

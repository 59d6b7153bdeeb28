"""Failure signatures as data: what a row is, how rows are found quickly, and what is wrong with a table.

A row says which words make it cheap to find, which pattern decides, and what a match means. What it means depends on
its role as much as on its class: the same words can be a cause, an echo of a cause elsewhere, or a quotation. The rows
themselves live in the ``signatures_*`` modules, one family each; to add one, add a line there and a sample to
``tests/corpus``.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Iterable, NamedTuple, Pattern, Sequence

from gpualert.signature_words import words_of_pattern
from gpualert.taxonomy import FailureClass, FailureDomain


class Role(str, Enum):
    """What a match may be taken for."""

    #: the word of a kernel, scheduler or driver about this job: wins over what dying processes print
    DECISIVE = "decisive"
    #: states a cause
    ROOT = "root"
    #: states a cause if nothing stronger is there: warnings, observations, ambiguous words
    WEAK = "weak"
    #: an exception's type alone
    GENERIC = "generic"
    #: a consequence; names a class only when no cause is found
    ECHO = "echo"
    #: a quotation, a recovered error, a habit of the software: nothing on this line is a cause
    BENIGN = "benign"
    #: a fact that a verdict needs to know: finished, retrying, restarted
    NOTE = "note"


class Signature(NamedTuple):
    """One row.

    :param name: ``family.what``, unique; it is what evidence names as its rule.
    :param words: any of these must be in the folded line (lower case, no digits); each holds one of ``STEMS``.
    :param pattern: regular expression that decides, searched in the line without colours.
    :param failure_class: None for BENIGN and NOTE.
    :param domain: None: the class's own.
    :param proves_not: what a match must not be taken to prove; for readers and reference pages.
    :param advice: None: the class's own.
    :param no_retry: the class's outlook does not hold: another try is useless (a mode that the user set).
    """

    name: str
    words: tuple[str, ...]
    pattern: str
    role: Role
    failure_class: FailureClass | None = None
    domain: FailureDomain | None = None
    proves_not: str = ""
    advice: str | None = None
    no_retry: bool = False


class RuleSet:
    """The rows in the order in which they are asked, ready to be searched for.

    Each of a row's words is represented by its longest piece without blanks. A token of the log (what stands between
    blanks) is compared with the pieces once, ever; a line is of interest when one of its tokens is.

    :param rows: earlier rows are more specific; on one line the first cause wins.
    """

    def __init__(self, rows: Sequence[Signature]) -> None:
        self.rows = tuple(rows)
        self._by_name = {row.name: index for index, row in enumerate(self.rows)}
        self._words = tuple(_all_words(row) for row in self.rows)
        pieces: dict[bytes, set[tuple[int, bytes]]] = {mark: set() for mark in _TRACEBACK_PIECES}
        self._is_benign = tuple(row.role is Role.BENIGN for row in self.rows)
        #: words of benign rows that are too short to be searched for: looked for on every line that interests a rule
        self._short: list[tuple[int, bytes]] = []
        for index in range(len(self.rows)):
            for word in self._words[index]:
                if len(piece_of(word)) >= _START_BYTES:
                    pieces.setdefault(piece_of(word), set()).add((index, word))
                elif self._is_benign[index]:
                    self._short.append((index, word))
        # By their first bytes: a token is walked once, with one look-up at each place.
        self._by_start: dict[bytes, tuple[tuple[bytes, tuple[tuple[int, bytes], ...]], ...]] = {}
        for piece in sorted(pieces):
            start = piece[:_START_BYTES]
            self._by_start[start] = (*self._by_start.get(start, ()), (piece, tuple(sorted(pieces[piece]))))
        self._patterns: dict[int, Pattern[str]] = {}
        self._digits: dict[int, bool] = {}

    def __getitem__(self, name: str) -> Signature:
        return self.rows[self._by_name[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def order(self, name: str) -> int:
        """Position of a row: smaller is more specific."""
        return self._by_name.get(name, len(self.rows))

    def digest(self) -> str:
        """Changes when any row changes: scans by different rules cannot be joined."""
        import hashlib

        text = repr([(row.name, row.words, row.pattern, row.role.value) for row in self.rows])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def rows_of_token(self, token: bytes) -> tuple[tuple[int, bytes], ...] | None:
        """Rows that a folded line with this token may match, each with a word of its own; None when there are none."""
        found: set[tuple[int, bytes]] = set()
        heard = False
        by_start = self._by_start
        for place in range(len(token) - _START_BYTES + 1):
            entries = by_start.get(token[place : place + _START_BYTES])
            if entries is not None:
                for piece, rows in entries:
                    if token.startswith(piece, place):
                        heard = True
                        found.update(rows)
        return tuple(found) if heard else None

    def candidates(self, form: bytes, rows: Iterable[tuple[int, bytes]]) -> tuple[int, ...] | None:
        """
        Rows that a folded line may match, out of those that its tokens speak for.

        :return: None when the line is of no interest, () when only a traceback's reader wants it.
        """
        found = {index for index, word in rows if word in form}
        benign = self._is_benign
        # A benign row only speaks on lines that interest another row.
        if any(not benign[index] for index in found):
            found.update(index for index, word in self._short if word in form)
            return tuple(sorted(found))
        return () if self.opens_traceback(form) else None

    def candidates_of_line(self, form: bytes) -> tuple[int, ...] | None:
        """``candidates`` for a line by itself."""
        rows: set[tuple[int, bytes]] = set()
        for token in form.split():
            rows.update(self.rows_of_token(token[:2000]) or ())
        return self.candidates(form, rows)

    def pattern(self, index: int) -> Pattern[str]:
        """The row's pattern, compiled when it is first needed: most runs need few of them."""
        compiled = self._patterns.get(index)
        if compiled is None:
            compiled = self._patterns[index] = re.compile(self.rows[index].pattern)
        return compiled

    def match(self, candidates: Iterable[int], text: str, in_exception: bool) -> tuple[list[str], list[int]]:
        """
        Show a line to rows.

        A benign row hides the causes on its line. An exception's own message is believed, whatever advice on retrying
        it carries: there, only habits of the software hide anything.

        :return: names of the rows that match, in order; and the rows of which it is clear that no line with the same
            words matches them, whatever numbers it holds.
        """
        found: list[str] = []
        spent: list[int] = []
        candidates = tuple(candidates)
        for index in candidates:
            row = self.rows[index]
            if in_exception and row.role is Role.BENIGN and not row.name.startswith("habit."):
                continue
            if self.pattern(index).search(text) is None:
                if not self._reads_digits(index):
                    spent.append(index)
            elif row.role is Role.BENIGN:
                return [row.name], list(candidates) if not self._reads_digits(index) else spent
            else:
                found.append(row.name)
                if len(found) >= 6:
                    break
        return found, spent

    def _reads_digits(self, index: int) -> bool:
        known = self._digits.get(index)
        if known is None:
            known = self._digits[index] = reads_digits(self.rows[index].pattern)
        return known

    def places(self, index: int, lowered: bytes) -> list[int]:
        """Where a row's words stand in a line in lower case, as far as they hold no digits."""
        return [place for place in (lowered.find(word) for word in self._words[index]) if place >= 0]

    @staticmethod
    def opens_traceback(form: bytes) -> bool:
        """Whether the traceback parser wants to see a folded line in lower case."""
        return any(mark in form for mark in TRACEBACK_MARKS)


_QUANTIFIER = re.compile(r"\{\d*,?\d*\}")
_ESCAPED_DIGIT = re.compile(r"\\[dbB]|[0-9]")


def reads_digits(pattern: str) -> bool:
    """Whether numbers in a line can decide about a match. Bounds such as ``{0,80}`` are not counted."""
    bare = _QUANTIFIER.sub("", pattern)
    return any(found.group(0) not in ("\\b", "\\B") for found in _ESCAPED_DIGIT.finditer(bare))


#: What opens a traceback for its reader.
TRACEBACK_MARKS = (b"traceback (most recent", b'  file "')
_TRACEBACK_PIECES = (b"traceback", b"file")
#: The shortest piece of a word that can be searched for.
_START_BYTES = 3

_DIGITS = re.compile("[0-9]")


def fold_word(word: str) -> bytes:
    """A word as it is found in a folded line."""
    return _DIGITS.sub("", word.lower()).encode()


#: Words of ordinary training lines. A row that reads numbers is asked anew on every line with one of its words, so it
#: must not be found by one of these.
_ORDINARY = frozenset(
    "step steps loss epoch epochs iter iteration iterations time memory mem data batch output progress train training "
    "grad norm scale max min eta token tokens sample samples update second seconds rate log rank node gpu speed info "
    "number model checkpoint value values mean average test eval valid validation and the for with from size "
    "total".split()
)


def _not_ordinary(literal: str) -> bool:
    return any(len(piece) >= _START_BYTES and piece not in _ORDINARY for piece in re.findall(r"[^\s\W_]+", literal))


def _all_words(row: Signature) -> tuple[bytes, ...]:
    """A row's own words, and those without which one of its pattern's branches cannot match."""
    found = {fold_word(word) for word in row.words}
    usable = _not_ordinary if reads_digits(row.pattern) else None
    for branch in words_of_pattern(row.pattern, usable):
        if not any(all(word in literal.encode() for literal in branch) for word in found):
            found.update(literal.encode() for literal in branch)
    return tuple(sorted(found))


def piece_of(word: bytes) -> bytes:
    """The longest piece of a folded word without blanks: what a token of the log must hold."""
    return max(word.split(), key=len, default=b"")


def default_rules() -> RuleSet:
    """The table as shipped; one object for the process."""
    global _DEFAULT
    if _DEFAULT is None:
        from gpualert.signatures import TABLE

        _DEFAULT = RuleSet(TABLE)
    return _DEFAULT


_DEFAULT: RuleSet | None = None

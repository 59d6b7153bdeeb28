"""Failure signatures as data: what a row is, how rows are found quickly, and what is wrong with a table.

A row says which pattern decides, and what a match means. What it means depends on its role as much as on its class: the
same words can be a cause, an echo of a cause elsewhere, or a quotation. What makes a row cheap to find is read from its
pattern (:mod:`gpualert.signature_words`).

The rows themselves live in the ``signatures_*`` modules, one family each; to add one, add a line there and a sample to
``tests/corpus``.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Iterable, NamedTuple, Pattern, Sequence

from gpualert.signature_words import branches_of_pattern
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
    :param pattern: regular expression that decides, searched in the line without colours.
    :param failure_class: None for BENIGN and NOTE.
    :param domain: None: the class's own.
    :param proves_not: what a match must not be taken to prove; for readers and reference pages.
    :param advice: None: the class's own.
    :param no_retry: the class's outlook does not hold: another try is useless (a mode that the user set).
    :param words: only for a pattern with a branch that holds no three letters in a row: any of these must be in the
        line, in any case and without its digits.
    """

    name: str
    pattern: str
    role: Role
    failure_class: FailureClass | None = None
    domain: FailureDomain | None = None
    proves_not: str = ""
    advice: str | None = None
    no_retry: bool = False
    words: tuple[str, ...] = ()


class RuleSet:
    """The rows in the order in which they are asked, ready to be searched for.

    A pattern is divided into its branches, and each branch into the literals without which no line matches it. One set
    of them, the rarest, is what makes the branch cheap to find: a token of the log (what stands between blanks) is
    compared with the longest pieces of those literals once, ever. A line with such a token is a candidate when it holds
    the branch's other literals, too.

    :param rows: earlier rows are more specific; on one line the first cause wins.
    """

    def __init__(self, rows: Sequence[Signature]) -> None:
        self.rows = tuple(rows)
        self._by_name = {row.name: index for index, row in enumerate(self.rows)}
        self._is_benign = tuple(row.role is Role.BENIGN for row in self.rows)
        self._branches: list[_Branch] = []
        #: of each row, the branches that read numbers
        self._reading: dict[int, list[_Branch]] = {}
        #: words of benign rows that are too short to be searched for: looked for on every line that interests a rule
        self._short: list[tuple[int, bytes]] = []
        pieces: dict[bytes, set[int]] = {mark: set() for mark in _TRACEBACK_PIECES}
        for index, row in enumerate(self.rows):
            for branch in _branches_of(index, row):
                if branch.reads_digits:
                    self._reading.setdefault(index, []).append(branch)
                for literal in branch.key:
                    piece = piece_of(literal)
                    if len(piece) >= _START_BYTES:
                        pieces.setdefault(piece, set()).add(len(self._branches))
                    elif self._is_benign[index]:
                        self._short.append((index, literal))
                self._branches.append(branch)
        # By their first bytes: a token is walked once, with one look-up at each place.
        self._by_start: dict[bytes, tuple[tuple[bytes, tuple[int, ...]], ...]] = {}
        for piece in sorted(pieces):
            start = piece[:_START_BYTES]
            self._by_start[start] = (*self._by_start.get(start, ()), (piece, tuple(sorted(pieces[piece]))))
        self._patterns: dict[int, Pattern[str]] = {}
        self._digest: str | None = None

    def __getitem__(self, name: str) -> Signature:
        return self.rows[self._by_name[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def order(self, name: str) -> int:
        """Position of a row: smaller is more specific."""
        return self._by_name.get(name, len(self.rows))

    def digest(self) -> str:
        """Changes when any row changes: scans by different rules cannot be joined."""
        if self._digest is None:
            import hashlib

            text = repr([(row.name, row.words, row.pattern, row.role.value) for row in self.rows])
            self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._digest

    def rows_of_token(self, token: bytes) -> tuple[int, ...] | None:
        """For :meth:`candidates`: the branches of which a folded token holds a word; None when it holds none."""
        found: set[int] = set()
        heard = False
        by_start = self._by_start
        for place in range(len(token) - _START_BYTES + 1):
            entries = by_start.get(token[place : place + _START_BYTES])
            if entries is not None:
                for piece, branches in entries:
                    if token.startswith(piece, place):
                        heard = True
                        found.update(branches)
        return tuple(found) if heard else None

    def candidates(self, form: bytes, branches: Iterable[int]) -> tuple[int, ...] | None:
        """
        Rows that a folded line may match, out of those that its tokens speak for.

        :return: None when the line is of no interest, () when only a traceback's reader wants it.
        """
        found = {branch.row for branch in map(self._branches.__getitem__, branches) if branch.may_match(form)}
        benign = self._is_benign
        # A benign row only speaks on lines that interest another row.
        if any(not benign[index] for index in found):
            found.update(index for index, word in self._short if word in form)
            return tuple(sorted(found))
        return () if self.opens_traceback(form) else None

    def candidates_of_line(self, form: bytes) -> tuple[int, ...] | None:
        """``candidates`` for a line by itself."""
        branches: set[int] = set()
        for token in form.split():
            branches.update(self.rows_of_token(token[:2000]) or ())
        return self.candidates(form, branches)

    def pattern(self, index: int) -> Pattern[str]:
        """The row's pattern, compiled when it is first needed: most runs need few of them."""
        compiled = self._patterns.get(index)
        if compiled is None:
            compiled = self._patterns[index] = re.compile(self.rows[index].pattern)
        return compiled

    def match(
        self, candidates: Iterable[int], text: str, in_exception: bool, form: bytes | None = None
    ) -> tuple[list[str], list[int]]:
        """
        Show a line to rows.

        A benign row hides the causes on its line. An exception's own message is believed, whatever advice on retrying
        it carries: there, only habits of the software hide anything.

        :param form: the line folded, in lower case; None when nobody wants to know which rows are spent.
        :return: names of the rows that match, in order; and the rows of which it is clear that no line of the same
            form matches them, whatever numbers it holds.
        """
        found: list[str] = []
        spent: list[int] = []
        candidates = tuple(candidates)
        for index in candidates:
            row = self.rows[index]
            if in_exception and row.role is Role.BENIGN and not row.name.startswith("habit."):
                continue
            if self.pattern(index).search(text) is None:
                if form is not None and not self._may_read_digits(index, form):
                    spent.append(index)
            elif row.role is Role.BENIGN:
                always = form is not None and index not in self._reading
                return [row.name], list(candidates) if always else spent
            else:
                found.append(row.name)
                if len(found) >= 6:
                    break
        return found, spent

    def _may_read_digits(self, index: int, form: bytes) -> bool:
        """Whether other numbers could make a row match a line of this form."""
        return any(branch.may_match(form) for branch in self._reading.get(index, ()))

    def places(self, index: int, lowered: bytes) -> list[int]:
        """Where a row's literals stand in a line in lower case, as far as they hold no digits."""
        literals = {literal for branch in self._branches if branch.row == index for literal in branch.key}
        return [place for place in map(lowered.find, literals) if place >= 0]

    @staticmethod
    def opens_traceback(form: bytes) -> bool:
        """Whether the traceback parser wants to see a folded line in lower case."""
        return any(mark in form for mark in TRACEBACK_MARKS)


#: What opens a traceback for its reader.
TRACEBACK_MARKS = (b"traceback (most recent", b'  file "')
_TRACEBACK_PIECES = (b"traceback", b"file")
#: The shortest piece of a word that can be searched for.
_START_BYTES = 3
#: Sets of literals that are asked for beside the one that is searched for.
_MOST_OTHERS = 4

_DIGITS = re.compile("[0-9]")


def fold_word(word: str) -> bytes:
    """A word as it is found in a folded line."""
    return _DIGITS.sub("", word.lower()).encode()


#: Words of ordinary training lines: what is found by one of these alone is looked for on every line.
_ORDINARY = frozenset(
    "step steps loss epoch epochs iter iteration iterations time memory mem data batch output progress train training "
    "grad norm scale max min eta token tokens sample samples update second seconds rate log rank node gpu speed info "
    "number model checkpoint value values mean average test eval valid validation and the for with from size "
    "total".split()
)


def _not_ordinary(literal: str) -> bool:
    return any(len(piece) >= _START_BYTES and piece not in _ORDINARY for piece in re.findall(r"[^\s\W_]+", literal))


class _Branch(NamedTuple):
    """
    One way for a row to match.

    :param key: one of these literals is in every line that matches; they are what is searched for.
    :param others: further sets of literals of which one must be there, too.
    """

    row: int
    key: tuple[bytes, ...]
    others: tuple[tuple[bytes, ...], ...]
    reads_digits: bool

    def may_match(self, form: bytes) -> bool:
        """Whether a folded line in lower case holds what it needs."""
        for group in (self.key, *self.others):
            for literal in group:
                if literal in form:
                    break
            else:
                return False
        return True


def _branches_of(index: int, row: Signature) -> list[_Branch]:
    """A row's branches; one in whose pattern nothing can be searched for is found by the row's own words."""
    own = tuple(sorted({fold_word(word) for word in row.words}))
    found = []
    for branch in branches_of_pattern(row.pattern):
        groups = [tuple(literal.encode() for literal in group) for group in branch.groups]
        keys = [group for group in groups if _can_be_searched_for(group)]
        if keys:
            key = max(keys, key=_rarity)
            others = sorted((group for group in groups if group is not key), key=_rarity, reverse=True)
        else:
            key, others = own, groups
        found.append(_Branch(index, key, tuple(others[:_MOST_OTHERS]), branch.reads_digits))
    return found


def _can_be_searched_for(group: tuple[bytes, ...]) -> bool:
    return min(len(piece_of(literal)) for literal in group) >= _START_BYTES


def needs_words(pattern: str) -> bool:
    """Whether a row with this pattern must bring words, since in some branch nothing can be searched for."""
    return any(
        not any(_can_be_searched_for(tuple(literal.encode() for literal in group)) for group in branch.groups)
        for branch in branches_of_pattern(pattern)
    )


def _rarity(group: tuple[bytes, ...]) -> tuple[bool, int, int]:
    """Rare sets of literals compare as greater: of no ordinary word, long, few."""
    return (
        all(_not_ordinary(literal.decode()) for literal in group),
        min(len(piece_of(literal)) for literal in group),
        -len(group),
    )


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

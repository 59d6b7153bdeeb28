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

    :param rows: earlier rows are more specific; on one line the first cause wins.
    :param stems: byte strings so that each word of each row holds at least one of them.
    """

    def __init__(self, rows: Sequence[Signature], stems: Sequence[bytes] | None = None) -> None:
        self.rows = tuple(rows)
        self._by_name = {row.name: index for index, row in enumerate(self.rows)}
        self._words: tuple[tuple[bytes, ...], ...] = tuple(
            tuple(fold_word(word) for word in row.words) for row in self.rows
        )
        self.stems = tuple(stems) if stems is not None else stems_for(self._words)
        self._by_stem: dict[bytes, tuple[int, ...]] = {}
        by_stem: dict[bytes, list[int]] = {stem: [] for stem in self.stems}
        for index, words in enumerate(self._words):
            for stem in self.stems:
                if any(stem in word for word in words):
                    by_stem[stem].append(index)
        self._by_stem = {stem: tuple(indexes) for stem, indexes in by_stem.items()}
        self._patterns: dict[int, Pattern[str]] = {}

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

    def candidates(self, form: bytes) -> tuple[int, ...] | None:
        """Rows that a folded line may match; None when it is of no interest, () when only a traceback's reader wants it."""
        found = set()
        for stem, indexes in self._by_stem.items():
            if stem in form:
                for index in indexes:
                    if index not in found and any(word in form for word in self._words[index]):
                        found.add(index)
        if found:
            return tuple(sorted(found))
        return () if any(mark in form for mark in TRACEBACK_MARKS) else None

    def pattern(self, index: int) -> Pattern[str]:
        """The row's pattern, compiled when it is first needed: most runs need few of them."""
        compiled = self._patterns.get(index)
        if compiled is None:
            compiled = self._patterns[index] = re.compile(self.rows[index].pattern)
        return compiled

    def match(self, candidates: Iterable[int], text: str, in_exception: bool) -> list[str]:
        """
        Names of the rows that match a line, in order.

        A benign row hides the causes on its line. An exception's own message is believed, whatever advice on retrying
        it carries: there, only habits of the software hide anything.
        """
        found: list[str] = []
        for index in candidates:
            row = self.rows[index]
            if in_exception and row.role is Role.BENIGN and not row.name.startswith("habit."):
                continue
            if self.pattern(index).search(text) is not None:
                if row.role is Role.BENIGN:
                    return [row.name]
                found.append(row.name)
                if len(found) >= 6:
                    break
        return found


#: What opens a traceback for its reader.
TRACEBACK_MARKS = (b"traceback (most recent", b'  file "')

_DIGITS = re.compile("[0-9]")


def fold_word(word: str) -> bytes:
    """A word as it is found in a folded line."""
    return _DIGITS.sub("", word.lower()).encode()


def stems_for(words_of_rows: Sequence[Sequence[bytes]]) -> tuple[bytes, ...]:
    """Stems for rows that are not in the table (a user's): the built-in ones where they serve, else the word itself."""
    stems = list(STEMS)
    for words in words_of_rows:
        for word in words:
            if not any(stem in word for stem in stems):
                stems.append(word)
    return tuple(stems)


def default_rules() -> RuleSet:
    """The table as shipped; one object for the process."""
    global _DEFAULT
    if _DEFAULT is None:
        from gpualert.signatures import TABLE

        _DEFAULT = RuleSet(TABLE)
    return _DEFAULT


_DEFAULT: RuleSet | None = None

#: Every word of every row holds one of these; lines without any of them are never decoded. Few, because each costs
#: one search through everything that is new in a log.
STEMS: tuple[bytes, ...] = tuple(
    stem.encode()
    for stem in (
        "error", "exception", "fail", "kill", "nan", "cannot", "can't", "unable", "not ", "no such", "denied", "memory",
        "exhaust", "xid", "signal", "time", "abort", "cancel", "preempt", "traceback", 'file "', "usage", "assert",
        "warn", "match", "fault", "corrupt", "truncat", "invalid", "lost", "refused", "reach", "quota", "limit",
        "terminat", "evict", "stale", "slow", "throttl", "hang", "stuck", "stall", "interrupt", "undefined", "missing",
        "unexpected", "core dump", "oom", "expected", "unsupported", "must ", "unrecognized", "incompatib", "nvml",
        "mat1", "shm", "is too ", "exit", "retry", "complet", "finish", "done", "previous", "already in use", "no cuda",
        "no module", "shape", "divi", "insufficient", "crash", "no output", "node", "resum", "no progress", "ancdata",
        "is not", "cuda", "cannon", "died", "dead", "inf ",
    )
)  # fmt: skip

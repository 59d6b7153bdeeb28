"""A verdict and the lines that prove it: values only, and the one place that spells their JSON names.

Everything here is bounded, because a verdict travels through task logs, XComs and notices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping

from gpualert.taxonomy import (
    CLASS_FACTS,
    FailureClass,
    FailureDomain,
    RetryOutlook,
    coarse_class,
)

#: Longest text of one evidence line, in characters; the middle of a longer one is cut out.
MAX_TEXT_CHARS = 500
#: Most lines in ``evidence`` and in ``cascade``; most entries in the other lists.
MAX_EVIDENCE = 6
MAX_CASCADE = 6
MAX_NOTES = 8
_MAX_JSON_BYTES = 23 * 1024


def bounded(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """The text in at most ``limit`` characters: its start and its end, which both carry meaning in error messages."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return text[: limit - tail - 3] + " … " + text[-tail:]


@dataclass(frozen=True)
class Evidence:
    """One thing that was seen.

    :param source: where: ``log``, a file's name, ``exit``, ``kernel``, ``cgroup``, ``slurm``, ``gpu``, ``control``.
    :param line: 1-based, ``\\n`` counted as ``grep -n`` does; None where there are no lines.
    :param offset: byte offset of the line's first byte in its source; None where there is none.
    :param rank: the rank that the line itself names; None if it names none.
    :param text: the line, without colours, bounded.
    :param rule: name of the signature or of the reasoning step that chose it.
    """

    source: str
    line: int | None
    offset: int | None
    rank: int | None
    text: str
    rule: str

    def to_json(self, limit: int = MAX_TEXT_CHARS) -> dict[str, Any]:
        """A JSON-able dictionary; ``from_json`` reads it back."""
        return {
            "source": bounded(self.source, limit),
            "line": self.line,
            "offset": self.offset,
            "rank": self.rank,
            "text": bounded(self.text, limit),
            "rule": self.rule,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Evidence:
        """The inverse of ``to_json``; unknown keys are ignored."""
        return cls(
            source=str(value["source"]),
            line=value.get("line"),
            offset=value.get("offset"),
            rank=value.get("rank"),
            text=str(value.get("text", "")),
            rule=str(value.get("rule", "")),
        )


@dataclass(frozen=True)
class Outlook:
    """What another try can do, on the same host and on another one."""

    same_host: RetryOutlook
    other_host: RetryOutlook

    def to_json(self) -> dict[str, str]:
        """``{"same_host": …, "other_host": …}``."""
        return {"same_host": self.same_host.value, "other_host": self.other_host.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outlook:
        """The inverse of ``to_json``.

        :raises ValueError: a name that is not in the vocabulary.
        """
        return cls(RetryOutlook(value["same_host"]), RetryOutlook(value["other_host"]))

    @classmethod
    def default(cls, failure_class: FailureClass) -> Outlook:
        """The taxonomy's outlook for a class."""
        facts = CLASS_FACTS[failure_class]
        return cls(facts.same_host, facts.other_host)


@dataclass(frozen=True)
class Alternative:
    """A class that was considered, and why it lost."""

    failure_class: FailureClass
    reason: str
    evidence: Evidence | None = None

    def to_json(self, limit: int = MAX_TEXT_CHARS) -> dict[str, Any]:
        """A JSON-able dictionary; ``from_json`` reads it back."""
        return {
            "failure_class": self.failure_class.value,
            "reason": bounded(self.reason, min(limit, 300)),
            "evidence": None if self.evidence is None else self.evidence.to_json(limit),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Alternative:
        """The inverse of ``to_json``."""
        seen = value.get("evidence")
        return cls(
            FailureClass(value["failure_class"]),
            str(value.get("reason", "")),
            None if seen is None else Evidence.from_json(seen),
        )


@dataclass(frozen=True)
class Classification:
    """The verdict: class, domain, outlook, and everything that a reader needs to disagree with it.

    ``evidence`` starts with the root (empty when nothing decides). ``cascade`` holds what followed from it.
    ``not_seen`` names evidence that could not be looked at. ``warnings`` say what a state alone would hide, such as a
    failure behind an exit status of 0.
    """

    failure_class: FailureClass
    domain: FailureDomain
    retry_outlook: Outlook
    evidence: tuple[Evidence, ...] = ()
    cascade: tuple[Evidence, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    not_seen: tuple[str, ...] = ()
    advice: str = ""
    warnings: tuple[str, ...] = field(default=())

    @property
    def coarse_class(self) -> str:
        """One of GPUAlert's fifteen names, or ``generic``."""
        return coarse_class(self.failure_class)

    @property
    def root(self) -> Evidence | None:
        """The first independent cause; None when nothing decides."""
        return self.evidence[0] if self.evidence else None

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dictionary of less than 24 KiB, however it is written; ``from_json`` reads it back."""
        value: dict[str, Any] = {}
        for limit in (MAX_TEXT_CHARS, 250, 120, 60):
            value = self._to_json(limit)
            if _weight(value) < _MAX_JSON_BYTES:
                break
        return value

    def _to_json(self, limit: int) -> dict[str, Any]:
        return {
            "failure_class": self.failure_class.value,
            "coarse_class": self.coarse_class,
            "domain": self.domain.value,
            "retry_outlook": self.retry_outlook.to_json(),
            "evidence": [item.to_json(limit) for item in self.evidence[:MAX_EVIDENCE]],
            "cascade": [item.to_json(limit) for item in self.cascade[:MAX_CASCADE]],
            "alternatives": [item.to_json(limit) for item in self.alternatives[:MAX_CASCADE]],
            "not_seen": [bounded(item, min(limit, 200)) for item in self.not_seen[:MAX_NOTES]],
            "advice": bounded(self.advice, limit),
            "warnings": [bounded(item, min(limit, 300)) for item in self.warnings[:MAX_NOTES]],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Classification:
        """The inverse of ``to_json``; ``coarse_class`` is derived, not read.

        :raises KeyError, ValueError: a key is missing, or a name is not in the vocabulary (a newer writer).
        """
        return cls(
            failure_class=FailureClass(value["failure_class"]),
            domain=FailureDomain(value["domain"]),
            retry_outlook=Outlook.from_json(value["retry_outlook"]),
            evidence=tuple(Evidence.from_json(item) for item in value.get("evidence", ())),
            cascade=tuple(Evidence.from_json(item) for item in value.get("cascade", ())),
            alternatives=tuple(Alternative.from_json(item) for item in value.get("alternatives", ())),
            not_seen=tuple(str(item) for item in value.get("not_seen", ())),
            advice=str(value.get("advice", "")),
            warnings=tuple(str(item) for item in value.get("warnings", ())),
        )

    def with_source(self, source: str) -> Classification:
        """The same verdict, its log evidence renamed to come from ``source`` (several files, one verdict)."""

        def rename(item: Evidence) -> Evidence:
            return replace(item, source=source) if item.source == "log" else item

        return replace(
            self,
            evidence=tuple(rename(item) for item in self.evidence),
            cascade=tuple(rename(item) for item in self.cascade),
            alternatives=tuple(
                item if item.evidence is None else replace(item, evidence=rename(item.evidence))
                for item in self.alternatives
            ),
        )


def _weight(value: Any) -> int:
    """At most so many bytes does JSON take, if every character beyond ASCII is escaped."""
    if isinstance(value, str):
        return 2 + sum(
            1 if " " <= char <= "~" and char not in '"\\' else 6 if char <= "\uffff" else 12 for char in value
        )
    if isinstance(value, dict):
        return 2 + sum(_weight(key) + _weight(item) + 4 for key, item in value.items())
    if isinstance(value, list):
        return 2 + sum(_weight(item) + 2 for item in value)
    return 20

"""All that crosses from a launch to Airflow, as one small versioned JSON object.

Opinion (the classification) and fact (state, exit) stand side by side here and never mix: no field of the one is
derived from the other.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any, Mapping

from gpualert.errors import ProtocolError
from gpualert.key import Attempt
from gpualert.records import RunState

SCHEMA_VERSION = 1
#: Airflow keeps XComs in its database; ours stay below this many bytes of JSON.
MAX_JSON_BYTES = 48 * 1024


@dataclass(frozen=True)
class Outcome:
    """
    What became of a launch, who is to blame, and whether trying again can help.

    The fields from ``failure_class`` to ``warnings`` are the classification, with the names and shapes of
    :class:`gpualert.verdict.Classification`;
    ``failure_class`` is ``success`` when nothing failed and None while nothing can be said (the launch still runs, or
    could not be reached).

    :param host: {name, machine_id, boot_id}; ``name`` is what the caller calls the host, the rest is what the host says
        of itself.
    :param exit_code: 0..255, or None when a signal ended the child or nobody saw its end.
    :param signal: the signal's name, or None.
    :param created_at: ISO 8601 in UTC, as are ``started_at`` and ``ended_at``; on the host's clock.
    :param duration_s: seconds the child ran, by the host's monotonic clock.
    :param git: {commit, dirty} of ``cwd`` when the child started; None when it is no checkout or git could not say.
    :param observations: what was seen of the host beside the log (:func:`gpualert.observations.for_outcome`); None when
        nobody looked.
    :param result: the content of ``result_file``; None when there is none, and ``result_error`` then says why, if one
        was asked for.
    :param versions: {gpualert, python, archive}.
    """

    state: RunState
    launch_id: str | None = None
    launch_number: int | None = None
    attempt: Attempt | None = None
    host: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    signal: str | None = None
    core_dumped: bool | None = None
    stopped_by: str | None = None
    lost_reason: str | None = None
    failure_class: str | None = None
    coarse_class: str | None = None
    domain: str | None = None
    retry_outlook: Mapping[str, str] | None = None
    advice: str | None = None
    evidence: tuple[Mapping[str, Any], ...] = ()
    cascade: tuple[Mapping[str, Any], ...] = ()
    alternatives: tuple[Mapping[str, Any], ...] = ()
    not_seen: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    run_directory: str | None = None
    log_path: str | None = None
    log_size_bytes: int | None = None
    log_generation: int | None = None
    log_truncated: bool | None = None
    created_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    duration_s: float | None = None
    git: Mapping[str, Any] | None = None
    survivors: tuple[Mapping[str, Any], ...] | None = None
    observations: Mapping[str, Any] | None = None
    result: Any = None
    result_error: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def succeeded(self) -> bool:
        """The child ended by itself with status 0. Nothing else is a success."""
        return self.state is RunState.SUCCEEDED

    @property
    def exit_text(self) -> str:
        """``exit 3``, ``SIGSEGV``, or ``nobody saw the end``."""
        if self.signal is not None:
            return self.signal + (" (core dumped)" if self.core_dumped else "")
        return "nobody saw the end" if self.exit_code is None else f"exit {self.exit_code}"

    @property
    def headline(self) -> str:
        """One line for people: state, how it ended, class, and the line that proves it."""
        text = f"{self.state}: {self.exit_text}"
        if self.failure_class not in (None, "success"):
            text += f", {self.failure_class} ({self.domain})"
        if self.evidence:
            first = self.evidence[0]
            where = (
                f"{first.get('source')} line {first['line']}"
                if first.get("line") is not None
                else str(first.get("source"))
            )
            text += f"; {where}: {first.get('text')}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: NaN and infinities become None, tuples become lists; shortened to :data:`MAX_JSON_BYTES`
        if it must be."""
        value: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        value["state"] = self.state.value
        value["attempt"] = None if self.attempt is None else self.attempt.to_json()
        plain = without_nan(value)
        assert isinstance(plain, dict)
        return _shortened(plain)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outcome:
        """
        :raises ProtocolError: the schema is newer than this version knows.
        """
        version = value.get("schema_version")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise ProtocolError(
                f"outcome: expected schema_version {SCHEMA_VERSION}, found {version!r} (written by a newer gpualert)"
            )
        known = {f.name: value[f.name] for f in fields(cls) if f.name in value}
        known["state"] = RunState(value["state"])
        known["attempt"] = None if value.get("attempt") is None else Attempt.from_json(value["attempt"])
        for name in ("evidence", "cascade", "alternatives", "not_seen", "warnings"):
            known[name] = tuple(value.get(name) or ())
        if value.get("survivors") is not None:
            known["survivors"] = tuple(value["survivors"])
        return cls(**known)


def without_nan(value: Any) -> Any:
    """A copy made of JSON's own types, with None in place of NaN and infinities (Airflow fails a task whose XCom holds
    one)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return value


def _shortened(value: dict[str, Any]) -> dict[str, Any]:
    """Give up the least important parts, and say so, until it fits."""

    def size() -> int:
        return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))

    if value["result"] is not None and len(json.dumps(value["result"]).encode()) > MAX_JSON_BYTES // 2:
        value["result"] = None
        value["result_error"] = f"the result is larger than {MAX_JSON_BYTES // 2} bytes and stays in its file"
    for name in ("alternatives", "cascade", "survivors", "not_seen", "observations", "evidence", "warnings"):
        if size() <= MAX_JSON_BYTES:
            break
        kept = value[name][:1] if name == "evidence" else None if name == "observations" else []
        left_out = len(value[name] or ()) - len(kept or ())
        value[name] = kept
        if left_out > 0 and name != "warnings":
            value["warnings"] = [
                *value["warnings"],
                f"{left_out} item(s) of '{name}' left out here to stay below {MAX_JSON_BYTES} bytes",
            ]
    return value

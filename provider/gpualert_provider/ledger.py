"""What Airflow remembers about a task's launches: one JSON value in ``task_state_store``, which survives retries and a
user's clear.

An entry is written *before* its launch happens ("maybe launched") and corrected after, so a worker may die at any
moment and the next try still knows what to ask the host about. We never stop or adopt a launch that the ledger does not
name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Protocol

from gpualert.key import Attempt
from gpualert.outcome import Outcome, without_nan
from gpualert.records import RunRecord, RunState
from gpualert_provider.exceptions import LedgerError

#: The key in ``task_state_store``.
STORE_KEY = "gpualert"
FORMAT_VERSION = 1
#: Airflow keeps the value in its database; the oldest entries go first when it grows beyond this many bytes of JSON.
MAX_BYTES = 16 * 1024
MAX_ENTRIES = 20
#: Tries remembered per launch (the first launched it, the others adopted it).
MAX_ATTEMPTS = 8


class StateStore(Protocol):
    """The part of Airflow's ``context["task_state_store"]`` that is used."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def set(self, key: str, value: Any, *, retention: Any = None) -> None: ...


class EntryStatus(str, Enum):
    """How far a launch came, as Airflow's side knows it."""

    MAYBE_LAUNCHED = "maybe_launched"
    LAUNCHED = "launched"
    #: Its end was told to Airflow: XComs pushed, and the task's state follows at once.
    REPORTED = "reported"


@dataclass(frozen=True)
class LedgerEntry:
    """
    One launch.

    :param number: the launch's number under its key; of a launch that never happened, the number it would have had.
    :param conn_id: the connection through which it was launched; None for the local form.
    :param attempts: the try that launched it, then those that adopted it.
    :param max_tries: Airflow's ``max_tries`` when a try last dealt with it; greater later means that a user cleared the
        task.
    :param stop_asked: a try asked the host to stop it, or was about to.
    :param outcome: summary of the end: state, failure_class, domain, retry_outlook, exit_code, signal, headline.
    :param retry: the retry policy's decision: action, reason, delay_s.
    """

    number: int
    attempts: tuple[Attempt, ...]
    status: EntryStatus = EntryStatus.MAYBE_LAUNCHED
    launch_id: str | None = None
    conn_id: str | None = None
    host_name: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    max_tries: int | None = None
    stop_asked: bool = False
    at: str | None = None
    outcome: Mapping[str, Any] | None = None
    retry: Mapping[str, Any] | None = None

    @property
    def attempt(self) -> Attempt:
        """The try that dealt with it last."""
        return self.attempts[-1]

    @property
    def ended(self) -> bool:
        """Its end was reported, and it was an end: UNREACHABLE is none."""
        state = (self.outcome or {}).get("state")
        return self.status is EntryStatus.REPORTED and state is not None and RunState(state).ended

    def knows(self, attempt: Attempt) -> bool:
        return any(known.id == attempt.id for known in self.attempts)

    def names(self, record: RunRecord) -> bool:
        """Whether a host's record is this launch: the same number, launched by a try that the entry names."""
        return record.number == self.number and self.knows(record.attempt)

    def to_json(self) -> dict[str, Any]:
        value = {f.name: getattr(self, f.name) for f in fields(self)}
        value["status"] = self.status.value
        value["attempts"] = [attempt.to_json() for attempt in self.attempts]
        return {name: v for name, v in without_nan(value).items() if v is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LedgerEntry:
        known = {f.name: value[f.name] for f in fields(cls) if f.name in value}
        known["status"] = EntryStatus(value["status"])
        known["attempts"] = tuple(Attempt.from_json(attempt) for attempt in value["attempts"])
        return cls(**known)


@dataclass(frozen=True)
class Ledger:
    """
    All launches of one task instance, oldest first.

    :param deployment_id: the one its launch keys were made with; it stays, even if the deployment's variable changes
        later.
    """

    deployment_id: str
    entries: tuple[LedgerEntry, ...] = field(default=())

    @property
    def last(self) -> LedgerEntry | None:
        return self.entries[-1] if self.entries else None

    def entry_for(self, record: RunRecord) -> LedgerEntry | None:
        """The entry that names a host's record, or None: then the launch is not ours."""
        return next((entry for entry in reversed(self.entries) if entry.names(record)), None)

    def with_new(self, entry: LedgerEntry) -> Ledger:
        return replace(self, entries=(*self.entries, entry))

    def with_changed(self, entry: LedgerEntry, **changes: Any) -> Ledger:
        """The same ledger with one entry replaced; the entry is found by its place, so it must be one of ours."""
        index = self.entries.index(entry)
        return replace(self, entries=(*self.entries[:index], replace(entry, **changes), *self.entries[index + 1 :]))

    def to_json(self) -> dict[str, Any]:
        """At most :data:`MAX_BYTES` and :data:`MAX_ENTRIES`: the oldest go first; the newest always stays."""
        entries = [entry.to_json() for entry in self.entries[-MAX_ENTRIES:]]
        value = {"format_version": FORMAT_VERSION, "deployment_id": self.deployment_id, "entries": entries}
        while len(json.dumps(value)) > MAX_BYTES and len(entries) > 1:
            del entries[0]
        return value

    @classmethod
    def from_json(cls, value: Any) -> Ledger:
        """
        :raises LedgerError: not a ledger, or one written by a newer version.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("format_version"), int):
            raise LedgerError(f"state store key {STORE_KEY!r}: expected a ledger, found {type(value).__name__}")
        if value["format_version"] > FORMAT_VERSION:
            raise LedgerError(
                f"state store key {STORE_KEY!r}: expected format_version {FORMAT_VERSION}, "
                f"found {value['format_version']} (written by a newer gpualert)"
            )
        try:
            return cls(value["deployment_id"], tuple(LedgerEntry.from_json(entry) for entry in value["entries"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"state store key {STORE_KEY!r}: damaged ledger ({error!r})") from error


def load(store: StateStore) -> Ledger | None:
    """
    The task's ledger; None when there is none yet.

    :raises LedgerError: it could not be read, which is not the same as having none.
    """
    try:
        value = store.get(STORE_KEY)
    except Exception as error:
        raise LedgerError(f"cannot read state store key {STORE_KEY!r}: {error}") from error
    return None if value is None else Ledger.from_json(value)


def save(store: StateStore, ledger: Ledger) -> None:
    """
    Write it, without an expiry: a paused run may come back after Airflow's default of 30 days.

    :raises LedgerError: it could not be written. A try that Airflow has replaced ends here, since its task instance id
        is no longer known.
    """
    from airflow.sdk import NEVER_EXPIRE

    try:
        store.set(STORE_KEY, ledger.to_json(), retention=NEVER_EXPIRE)
    except Exception as error:
        raise LedgerError(f"cannot write state store key {STORE_KEY!r}: {error}") from error


def summary(outcome: Outcome) -> dict[str, Any]:
    """
    What the ledger keeps of an outcome: enough for a retry policy and the run page; without log text, which may be
    large.
    """
    return {
        "state": outcome.state.value,
        "failure_class": outcome.failure_class,
        "domain": outcome.domain,
        "retry_outlook": None if outcome.retry_outlook is None else dict(outcome.retry_outlook),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "ended_at": outcome.ended_at,
        "duration_s": outcome.duration_s,
    }

"""What a try does about earlier launches of its task: a pure rule over the ledger, what the host says, and Airflow's
facts.

A new try does not simply relaunch. A finished training is reported, not repeated; a running one that nobody asked to
stop is adopted; one whose task a user cleared is stopped, proven dead and launched anew. Two trainings of one task
never run at once on hosts that we can reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpualert.key import Attempt
from gpualert.records import RunRecord, RunState
from gpualert_provider.ledger import EntryStatus, Ledger, LedgerEntry


@dataclass(frozen=True)
class Sighting:
    """
    What the host of the last launch said when asked about the key.

    :param answered: False when it could not be asked; then the rest is None.
    :param record: the latest launch of the key; None when the host answered that it knows none.
    :param machine_id, boot_id: of the machine that answered.
    """

    answered: bool
    record: RunRecord | None = None
    machine_id: str | None = None
    boot_id: str | None = None


@dataclass(frozen=True)
class TryFacts:
    """
    Airflow's side of this moment.

    :param attempt: this try.
    :param max_tries: ``ti.max_tries`` now. A user's clear makes it grow; Airflow's own retry leaves it.
    """

    attempt: Attempt
    max_tries: int | None


@dataclass(frozen=True)
class Report:
    """It has ended: tell its outcome, launch nothing."""

    entry: LedgerEntry
    record: RunRecord
    reason: str


@dataclass(frozen=True)
class Adopt:
    """It runs: follow it, launch nothing."""

    entry: LedgerEntry
    record: RunRecord
    reason: str


@dataclass(frozen=True)
class StopAndRelaunch:
    """It runs and must not: stop it, see it dead, then launch."""

    entry: LedgerEntry
    record: RunRecord
    reason: str


@dataclass(frozen=True)
class Launch:
    """
    Nothing of this task runs.

    :param after: number of the last launch that is known to be over, 0 for none; the host launches only if it knows of
        none above it.
    """

    after: int
    reason: str


@dataclass(frozen=True)
class RefuseForeign:
    """A launch runs that is not ours to touch: not named by the ledger, or owned by a newer try."""

    record: RunRecord
    reason: str
    kind: str = "foreign"


@dataclass(frozen=True)
class RefuseUnfenced:
    """An earlier launch may still run where we cannot look."""

    entry: LedgerEntry
    reason: str
    kind: str = "unfenced"


Decision = Report | Adopt | StopAndRelaunch | Launch | RefuseForeign | RefuseUnfenced


def decide(ledger: Ledger | None, seen: Sighting, facts: TryFacts, *, allow_unfenced_retry: bool = False) -> Decision:
    """
    :param seen: the answer of the host that the ledger's last entry names; of the target when the ledger is empty.
    :param allow_unfenced_retry: the user's word that an earlier launch which cannot be proven dead may be taken for
        dead.
    """
    last = None if ledger is None else ledger.last
    if ledger is None or last is None:
        return _without_ledger(seen)
    if not seen.answered:
        if last.ended:
            return Launch(last.number, "the last launch is known to have ended")
        return _unfenced(last, f"its host {_host(last)} cannot be asked", allow_unfenced_retry)
    if seen.record is None:
        return _without_record(last, seen, allow_unfenced_retry)
    entry = ledger.entry_for(seen.record)
    if entry is None:
        return _not_ours(last, seen.record)
    if entry is not last and last.status is not EntryStatus.MAYBE_LAUNCHED and not last.ended:
        # The host's latest launch is older than one we know to have happened there, or elsewhere under the same number.
        return _unfenced(last, f"its run directory is gone from {_host(last)}", allow_unfenced_retry)
    return _ours(entry, seen.record, facts, allow_unfenced_retry)


def _without_ledger(seen: Sighting) -> Decision:
    if seen.record is None:
        return Launch(0, "first launch")
    if _may_run(seen.record):
        return RefuseForeign(
            seen.record,
            f"launch {seen.record.launch_id} is {seen.record.state} and this task's ledger does not name it "
            "(was the run deleted and made again?)",
        )
    return Launch(seen.record.number, f"launch {seen.record.launch_id} is not in this task's ledger, and it has ended")


def _without_record(last: LedgerEntry, seen: Sighting, allow_unfenced_retry: bool) -> Decision:
    if last.status is EntryStatus.MAYBE_LAUNCHED:
        return Launch(last.number - 1, "the earlier try recorded its launch but never made it")
    if last.ended:
        return Launch(last.number, "the last launch has ended and its run directory was removed")
    if last.machine_id and seen.machine_id and last.machine_id != seen.machine_id:
        return _unfenced(last, "another machine answers at its address", allow_unfenced_retry)
    if last.boot_id and seen.boot_id and last.boot_id != seen.boot_id:
        return Launch(last.number, "the host was rebooted since, and the launch's run directory is gone")
    return _unfenced(last, f"its run directory is gone from {_host(last)}", allow_unfenced_retry)


def _not_ours(last: LedgerEntry, record: RunRecord) -> Decision:
    if _may_run(record):
        return RefuseForeign(
            record, f"launch {record.launch_id} is {record.state} and this task's ledger does not name it"
        )
    # The host never launches over a living launch, so all earlier ones are over too.
    return Launch(
        max(record.number, last.number - 1), f"launch {record.launch_id} is not in this task's ledger, and it has ended"
    )


def _ours(entry: LedgerEntry, record: RunRecord, facts: TryFacts, allow_unfenced_retry: bool) -> Decision:
    cleared = _cleared(entry, facts)
    state = record.state
    if record.attempt.number > facts.attempt.number:
        return RefuseForeign(
            record, f"launch {record.launch_id} belongs to the newer try {record.attempt.number}", "superseded"
        )
    if state is RunState.UNREACHABLE:
        return _unfenced(
            entry, record.note or "its process cannot be seen from the machine that answered", allow_unfenced_retry
        )
    if not state.ended:
        return _running(entry, record, facts, cleared)
    if state is RunState.LOST and record.lost_reason == "never_started":
        return Launch(record.number, f"the command of launch {record.launch_id} never ran")
    if state is RunState.SUCCEEDED:
        if cleared and entry.status is EntryStatus.REPORTED:
            return Launch(record.number, "cleared by a user after it had succeeded")
        # Airflow never retries a success, so it has not heard of this one.
        return Report(entry, record, "it has succeeded, and Airflow does not know yet")
    if cleared:
        return Launch(record.number, f"cleared by a user; the earlier launch is {state}")
    if state is RunState.STOPPED:
        return Launch(record.number, "the earlier launch was stopped on request")
    if entry.ended:
        return Launch(record.number, f"the earlier launch is {state}, and that was reported")
    if state is RunState.LOST and entry.status is EntryStatus.REPORTED:
        # Reported as UNREACHABLE: that it is LOST tells nobody anything new.
        return Launch(record.number, f"the unreachable launch is proven gone ({record.lost_reason})")
    return Report(entry, record, f"it is {state}, and Airflow does not know yet")


def _running(entry: LedgerEntry, record: RunRecord, facts: TryFacts, cleared: bool) -> Decision:
    if entry.attempts[-1].id == facts.attempt.id and not record.stop_requested:
        return Adopt(entry, record, "this very try launched it")
    if cleared:
        return StopAndRelaunch(entry, record, "cleared by a user while it runs")
    if entry.stop_asked or record.stop_requested:
        return StopAndRelaunch(entry, record, f"it was asked to stop ({record.stop_reason or 'no reason given'})")
    return Adopt(entry, record, "Airflow retries for its own reasons, and the training still runs")


def _cleared(entry: LedgerEntry, facts: TryFacts) -> bool:
    return entry.max_tries is not None and facts.max_tries is not None and facts.max_tries > entry.max_tries


def _may_run(record: RunRecord) -> bool:
    return not record.state.ended


def _host(entry: LedgerEntry) -> str:
    return entry.host_name or entry.conn_id or "this machine"


def _unfenced(entry: LedgerEntry, why: str, allowed: bool) -> Decision:
    name = entry.launch_id or f"launch {entry.number}"
    if allowed:
        return Launch(entry.number, f"{name} may still run ({why}), and allow_unfenced_retry takes it for dead")
    return RefuseUnfenced(
        entry,
        f"{name} may still run: {why}. Nothing was launched beside it. "
        "Try again when the host answers, or set allow_unfenced_retry=True if it is surely gone",
    )

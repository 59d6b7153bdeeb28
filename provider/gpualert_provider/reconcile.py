"""``gpualert reconcile CONN``: what Airflow and a host disagree on, and what can be proven and mended.

A launch is stopped only when Airflow itself says that nobody waits for it: its task is over, or is gone although the
audit log knows that it ran here, or a newer try owns another launch. Whatever is less than that is told and left
alone, and nothing is ever written into Airflow's database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gpualert import protocol
from gpualert.errors import GpuAlertError
from gpualert.protocol import HostError
from gpualert.records import RunRecord, RunState
from gpualert_provider.airflow_state import (
    AirflowState,
    DatabaseState,
    Expected,
    NoAirflowHere,
    TaskKey,
    TaskSeen,
    TaskState,
)
from gpualert_provider.hooks import blocking
from gpualert_provider.hooks.blocking import BlockingSession, Target
from gpualert_provider.ledger import EntryStatus, LedgerEntry

#: In these nobody looks after the task's launch any more. Not what a clear leaves: the next try deals with that.
OVER = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
#: In these the task waits for its launch, or is with it.
WAITING = frozenset({"deferred", "running"})
#: How long the host may take to stop a launch before the answer is "stopping"; the request itself is durable.
_STOP_WAIT_S = 10.0
#: Airflow's launch keys: deployment, DAG, run, task, map index.
_KEY_PARTS = 5


class Finding(str, Enum):
    """What became of a launch, as Airflow and the host see it together."""

    AGREED = "agreed"
    #: It runs, and nobody in Airflow waits for it.
    ORPHAN = "orphan"
    #: It has ended, and Airflow has not been told.
    UNREPORTED = "unreported"
    #: Airflow waits for it, and the host knows nothing of it.
    LOST = "lost"
    #: Nothing of this can be proven.
    UNCLEAR = "unclear"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Verdict:
    """
    :param why: the reason, for people; with what to do where somebody has to do something.
    :param stop: a proven orphan that nobody has asked to stop yet.
    """

    finding: Finding
    why: str
    stop: bool = False


@dataclass(frozen=True)
class Row:
    """
    One launch of this Airflow's on one host.

    :param done: what mending did, in words; None when nothing was done.
    :param mended: the disagreement is over, or the host has been told to end it.
    """

    launch_id: str
    task: TaskKey
    verdict: Verdict
    host_state: str | None = None
    airflow_state: str | None = None
    done: str | None = None
    mended: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "launch_id": self.launch_id,
            "dag_id": self.task.dag_id,
            "run_id": self.task.run_id,
            "task_id": self.task.task_id,
            "map_index": self.task.map_index,
            "finding": self.verdict.finding.value,
            "why": self.verdict.why,
            "would": "stop" if self.verdict.stop else None,
            "host_state": self.host_state,
            "airflow_state": self.airflow_state,
            "done": self.done,
            "mended": self.mended,
        }


@dataclass(frozen=True)
class HostReport:
    """
    One host.

    :param error: why it could not be asked; then nothing else is known.
    :param rows: launches of this Airflow's, disagreements and agreements alike.
    :param foreign: launches of other Airflows; ``by_hand``: of the command line; ``elsewhere``: launches that run on
        another machine with the same disk. All three are left alone.
    :param damaged: launches that the host cannot read: {launch_id, run_directory, why, newer}.
    """

    conn_id: str
    error: str | None = None
    rows: tuple[Row, ...] = ()
    foreign: int = 0
    by_hand: int = 0
    elsewhere: int = 0
    damaged: tuple[dict[str, Any], ...] = ()
    lost_asked: bool = True

    @property
    def settled(self) -> bool:
        """Airflow and the host agree, or will by what was done."""
        return self.error is None and all(row.mended or row.verdict.finding is Finding.AGREED for row in self.rows)

    def lines(self) -> list[str]:
        """For a task's log: a line for the host, and one for each launch that there is something to say of."""
        if self.error is not None:
            return [f"{self.conn_id}: could not be asked: {self.error}"]
        told = [row for row in self.rows if row.verdict.finding is not Finding.AGREED]
        head = f"{self.conn_id}: {len(self.rows) - len(told)} agreed, {self.foreign} of other Airflows"
        shown = [
            f"{row.verdict.finding}: {row.launch_id} ({row.task.text}): {row.verdict.why}"
            + (f" → {row.done}" if row.done else "")
            for row in told
        ]
        return [f"{head}, {self.by_hand} launched by hand", *shown]

    def to_json(self) -> dict[str, Any]:
        return {
            "connection": self.conn_id,
            "error": self.error,
            "settled": self.settled,
            "launches": [row.to_json() for row in self.rows],
            "foreign": self.foreign,
            "by_hand": self.by_hand,
            "elsewhere": self.elsewhere,
            "damaged": list(self.damaged),
            "lost_asked": self.lost_asked,
        }


# -- the rule


def judge(record: RunRecord, task: TaskSeen) -> Verdict:
    """What is to be said of a launch that a host lists. Pure."""
    if record.state.ended:
        return _ended(record, task)
    if record.state is RunState.UNREACHABLE:
        return Verdict(Finding.UNCLEAR, f"its processes cannot be seen: {record.note or 'no reason given'}")
    if not task.exists:
        return _of_no_task(record, task)
    if task.state in OVER:
        return _orphan(record, f"it runs, and its task is {task.state}")
    return _of_live_task(record, task)


def _orphan(record: RunRecord, why: str) -> Verdict:
    if record.stop_requested:
        return Verdict(Finding.ORPHAN, f"{why}; it was asked to stop ({record.stop_reason or 'no reason given'})")
    return Verdict(Finding.ORPHAN, why, stop=True)


def _of_no_task(record: RunRecord, task: TaskSeen) -> Verdict:
    gone = "its task instance is gone from the run" if task.run_exists else "its DAG run is gone"
    if task.traced:
        return _orphan(record, f"it runs, and {gone}")
    if task.traced is None:
        why = "a task cannot see whether it was ever here; run `gpualert reconcile` on an Airflow machine"
    else:
        why = (
            "the audit log has no trace that it ever ran here: is this database a copy, or restored from an older one? "
            f"If nobody needs it, run `gpualert stop {record.launch_id}` on the host"
        )
    return Verdict(Finding.UNCLEAR, f"it runs, and {gone}, but {why}")


def _of_live_task(record: RunRecord, task: TaskSeen) -> Verdict:
    if not task.ledger_seen:
        return Verdict(Finding.AGREED, f"it runs, and its task is {_word(task)}")
    ledger = task.ledger
    entry = None if ledger is None else ledger.entry_for(record)
    last = None if ledger is None else ledger.last
    if entry is None or last is None:
        return Verdict(
            Finding.UNCLEAR,
            f"it runs, its task is {_word(task)}, and the task's ledger does not name it (was the run deleted and made "
            f"again?). If nobody needs it, run `gpualert stop {record.launch_id}` on the host",
        )
    if _same(entry, last):
        return Verdict(Finding.AGREED, f"it runs, and its task is {_word(task)}")
    owns = last.status is not EntryStatus.MAYBE_LAUNCHED and last.launch_id is not None
    if owns and last.attempt.number > entry.attempt.number:
        where = last.host_name or last.conn_id or "the worker's machine"
        return _orphan(record, f"it runs, and try {last.attempt.number} owns {last.launch_id} on {where}")
    return Verdict(Finding.UNCLEAR, "it runs, and a newer launch of its task is recorded that may never have happened")


def _ended(record: RunRecord, task: TaskSeen) -> Verdict:
    if not task.exists or task.state in OVER:
        return Verdict(Finding.AGREED, "it has ended, and so has its task")
    if record.state is RunState.LOST and record.lost_reason == "never_started":
        return Verdict(Finding.AGREED, "its command never ran; the next try launches it")
    if not task.ledger_seen:
        if task.state != "deferred":
            return Verdict(Finding.AGREED, f"it has ended, and its task is {_word(task)}")
        why = "whether its task waits for this launch is in the ledger, which a task cannot see"
        return Verdict(Finding.UNCLEAR, f"it has ended; {why}")
    entry = None if task.ledger is None else task.ledger.entry_for(record)
    last = None if task.ledger is None else task.ledger.last
    if entry is None or last is None or not _same(entry, last):
        return Verdict(Finding.AGREED, "it has ended; its task deals with another launch")
    if entry.status is EntryStatus.REPORTED:
        return Verdict(Finding.AGREED, "it has ended, and that was reported")
    return Verdict(Finding.UNREPORTED, f"it is {record.state}, and its task is {_word(task)}; {_nudge(task)}")


def judge_missing(expected: Expected, before: TaskSeen, hello_machine_id: str | None, unread: Sequence[str]) -> Verdict:
    """
    What is to be said of a launch that an unfinished task's ledger names and that its host does not list. Pure.

    :param before: the task as it is after the host was asked.
    :param unread: places on the host that could not be looked at.
    """
    last = None if before.ledger is None else before.ledger.last
    if before.state in OVER or not before.exists or last is None or last.launch_id != expected.launch_id:
        return Verdict(Finding.AGREED, "its task has gone on since")
    if last.status is EntryStatus.REPORTED:
        return Verdict(Finding.AGREED, "its end was reported since")
    if unread:
        return Verdict(Finding.UNCLEAR, f"the host does not list it, and could not look into {', '.join(unread)}")
    if expected.machine_id and hello_machine_id and expected.machine_id != hello_machine_id:
        return Verdict(
            Finding.UNCLEAR,
            f"another machine answers at this connection (expected {expected.machine_id}, found {hello_machine_id})",
        )
    return Verdict(
        Finding.LOST, f"its task is {_word(before)}, and the host knows nothing of it; {_nudge(before, lost=True)}"
    )


def _same(one: LedgerEntry, other: LedgerEntry) -> bool:
    """Numbers begin anew on each host, so the host counts as well."""
    return (one.number, one.conn_id, one.machine_id) == (other.number, other.conn_id, other.machine_id)


def _word(task: TaskSeen) -> str:
    return task.state or "cleared"


def _nudge(task: TaskSeen, *, lost: bool = False) -> str:
    """Who will tell Airflow, and what to do if nobody does."""
    if task.reporter is None:
        return "the task's next try deals with it (is the DAG paused?)"
    if task.state not in WAITING:
        return f"{task.reporter} deals with it"
    if task.reporter_alive is False:
        return f"nobody will report it: {task.reporter}. Start a triggerer (`airflow triggerer`); it takes the trigger"
    text = f"{task.reporter} will report it{' as LOST' if lost else ''}"
    if task.reporter_alive:
        text += ". If it has not within minutes, restart that triggerer: the trigger goes on where it stood"
    return text


# -- the use case


def reconcile(
    conn_ids: Sequence[str],
    *,
    mend: bool = False,
    root: str | None = None,
    airflow: AirflowState | None = None,
    resolve: Callable[[str], Target] | None = None,
    open_session: Callable[..., BlockingSession] = blocking.open_session,
) -> list[HostReport]:
    """
    Compare each host's launches with Airflow's tasks.

    :param conn_ids: Airflow ``ssh`` connections.
    :param mend: ask the hosts to stop proven orphans.
    :param root: configured root for run directories on the hosts.
    :param airflow: how to look at Airflow; None: by its metadata database.
    :return: one report for each connection, in order. A host that cannot be asked is a report with an ``error``.
    :raises NoAirflowHere: Airflow's state cannot be read, so nothing can be compared.
    """
    view = DatabaseState() if airflow is None else airflow
    ours = view.deployment_id()
    if resolve is None:
        from gpualert_provider.doctor import resolve as resolve_connection

        resolve = resolve_connection
    reports = []
    for conn_id in dict.fromkeys(conn_ids):
        # Before the host is asked: a launch that happens in between is then in its list, or was not expected.
        expected = view.expected(conn_id)
        try:
            with open_session(resolve(conn_id), root=root) as session:
                reports.append(_Host(conn_id, session, view, ours, mend).report(expected))
        except NoAirflowHere:
            raise
        except GpuAlertError as error:
            reports.append(HostReport(conn_id, error=str(error)))
    return reports


def reconcile_from_task(
    conn_ids: Sequence[str], ti: Any, *, mend: bool = False, root: str | None = None
) -> list[HostReport]:
    """
    :func:`reconcile` inside a running task, with what the execution API tells: orphans are proven by their tasks'
    states alone; runs that are gone, lost launches and newer tries take the command line.

    :param ti: ``context["ti"]``.
    """
    from gpualert_provider.operators.training import resolve_target

    return reconcile(conn_ids, mend=mend, root=root, airflow=TaskState(ti), resolve=resolve_target)


def reconcile_as_json(conn_ids: Sequence[str], **how: Any) -> list[dict[str, Any]]:
    """:func:`reconcile` for the command line, as plain values."""
    return [report.to_json() for report in reconcile(conn_ids, **how)]


def clean_host(conn_id: str, *, older_than_s: float, dry_run: bool = False, root: str | None = None) -> dict[str, Any]:
    """
    ``gpualert clean`` on a connection's host, from a task or from anywhere else.

    :return: ``removed``, a list as of ``gpualert clean --json``; and ``error``, a text where the host could not be
        asked, else None.
    """
    from gpualert_provider.operators.training import resolve_target

    try:
        with blocking.open_session(resolve_target(conn_id), root=root) as session:
            # Removing much takes longer than a connection's usual command.
            request = protocol.clean_request(older_than_s=older_than_s, dry_run=dry_run)
            reply = session.call(request, timeout_s=600.0)
            return {"removed": reply["cleaned"], "error": None}
    except GpuAlertError as error:
        return {"removed": [], "error": str(error)}


class _Host:
    """One host's launches, while a session with it is open."""

    def __init__(self, conn_id: str, session: BlockingSession, view: AirflowState, ours: str, mend: bool) -> None:
        self._conn_id = conn_id
        self._session = session
        self._view = view
        self._ours = ours
        self._mend = mend

    def report(self, expected: Sequence[Expected] | None) -> HostReport:
        reply = self._session.call(protocol.list_request())
        here = self._session.hello.get("machine_id")
        rows, foreign, by_hand, elsewhere = [], 0, 0, 0
        listed = set()
        for record in map(RunRecord.from_json, reply["launches"]):
            listed.add((record.launch_id, record.attempt.id))
            key = task_key(record)
            if key is None:
                by_hand += 1
                continue
            task = self._view.look(key)
            if not self._is_ours(record, task):
                foreign += 1
            elif record.machine_id and here and record.machine_id != here:
                elsewhere += 1
            else:
                rows.append(self._row(record, key, task))
        damaged = tuple(reply.get("damaged") or ())
        rows += [self._missing(e, damaged) for e in expected or () if not _is_listed(e, listed)]
        return HostReport(
            self._conn_id, None, tuple(rows), foreign, by_hand, elsewhere, damaged, lost_asked=expected is not None
        )

    def _is_ours(self, record: RunRecord, task: TaskSeen) -> bool:
        """By the deployment's id, or by the one that the task's own ledger goes on using."""
        its = record.key_parts[0]
        return its == self._ours or (task.ledger is not None and task.ledger.deployment_id == its)

    def _row(self, record: RunRecord, key: TaskKey, task: TaskSeen) -> Row:
        row = Row(record.launch_id, key, judge(record, task), record.state.value, task.state)
        return self._stop(row, record) if self._mend and row.verdict.stop else row

    def _missing(self, expected: Expected, damaged: Sequence[dict[str, Any]]) -> Row:
        task = self._view.look(expected.key)
        hello = self._session.hello
        # Other reasons (a stranger's folder, one that cannot be made) hide no launch of ours.
        unread = [
            f"{r['path']} ({r['why']})"
            for r in hello.get("roots") or ()
            if str(r.get("why")).startswith(("cannot be read", "cannot be looked at"))
        ]
        unread += [f"{d['run_directory']} ({d['why']})" for d in damaged if d["launch_id"] == expected.launch_id]
        verdict = judge_missing(expected, task, hello.get("machine_id"), unread)
        return Row(expected.launch_id, expected.key, verdict, None, task.state)

    def _stop(self, row: Row, seen: RunRecord) -> Row:
        """Look once more at both, and ask only if it still is what it was: a user may clear the task meanwhile."""
        reply = self._session.call(protocol.inspect_request(launch_id=seen.launch_id))
        if reply["type"] != "record":
            return replace(row, done="nothing to stop any more", mended=True)
        record = RunRecord.from_json(reply["record"])
        task = self._view.look(row.task)
        verdict = judge(record, task)
        if record.attempt != seen.attempt or not verdict.stop:
            return replace(row, done=f"not stopped: meanwhile {verdict.why}")
        request = protocol.stop_request(
            launch_id=record.launch_id,
            epoch=record.epoch,
            reason=f"orphan: {verdict.why}",
            who=f"gpualert reconcile on {os.uname().nodename}",
            wait_s=_STOP_WAIT_S,
        )
        try:
            reply = self._session.call(request)
        except HostError as error:
            if error.kind not in ("stale_epoch", "unknown_launch"):
                raise
            return replace(row, done=f"not stopped: {error}")
        stopped = reply["type"] == "stopped"
        done = "stopped" if stopped else "asked to stop; the host carries it out"
        return replace(row, done=done, mended=True, host_state=reply["record"]["state"])


def task_key(record: RunRecord) -> TaskKey | None:
    """The task that a launch was made for; None for one of the command line's."""
    parts = record.key_parts
    if len(parts) != _KEY_PARTS or not parts[-1].lstrip("-").isdigit():
        return None
    return TaskKey(parts[1], parts[2], parts[3], int(parts[4]))


def _is_listed(expected: Expected, listed: set[tuple[str, str]]) -> bool:
    last = expected.ledger.last
    return last is not None and any((expected.launch_id, attempt.id) in listed for attempt in last.attempts)

"""The rule of reconcile as a table: what the host says + what Airflow says → what is found, and whether it is stopped."""
# ruff: noqa: E501 (a table is read by row)

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpualert.cli_reconcile import host_lines
from gpualert.key import Attempt
from gpualert.records import RunRecord, RunState
from gpualert_provider.airflow_state import Expected, TaskKey, TaskSeen, TaskState
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.ledger import EntryStatus, Ledger, LedgerEntry
from gpualert_provider.reconcile import Finding, judge, judge_missing, reconcile, task_key

TRY_1, TRY_2 = Attempt(1, "id-of-try-1"), Attempt(2, "id-of-try-2")
KEY = TaskKey("dag", "run", "train")
PARTS = ("here", "dag", "run", "train", "-1")
ENTRY = LedgerEntry(
    number=1, attempts=(TRY_1,), status=EntryStatus.LAUNCHED, launch_id="train-000000000000.1", conn_id="gpu", machine_id="m1"
)  # fmt: skip
REPORTED = dataclasses.replace(ENTRY, status=EntryStatus.REPORTED, outcome={"state": "FAILED"})
ELSEWHERE = dataclasses.replace(ENTRY, attempts=(TRY_2,), conn_id="gpu2", machine_id="m2")
MAYBE_ELSEWHERE = dataclasses.replace(
    ELSEWHERE, status=EntryStatus.MAYBE_LAUNCHED, launch_id=None, machine_id=None, number=1
)


def record(state: str, **changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "launch_id": "train-000000000000.1", "number": 1, "attempt": TRY_1, "state": RunState(state), "run_directory": "/r/0001",
        "log_path": "/r/0001/log", "created_at": 1.0, "key_parts": PARTS, "machine_id": "m1", "epoch": 3,
    }  # fmt: skip
    return RunRecord(**{**values, **changes})


def task(state: str | None, *entries: LedgerEntry, **changes: Any) -> TaskSeen:
    ledger = Ledger("here", entries) if entries else None
    return dataclasses.replace(TaskSeen(True, True, state, 1, True, True, ledger), **changes)


RUNS = record("RUNNING")
GONE = TaskSeen(False, False, traced=True, ledger_seen=True)
BY_TASK = {"ledger_seen": False, "traced": None}

TABLE = [
    # what, the host's record, Airflow's task, finding, stopped
    ("runs, deferred", RUNS, task("deferred", ENTRY), "agreed", False),
    ("runs, its worker follows", RUNS, task("running", ENTRY), "agreed", False),
    ("runs, between two tries", RUNS, task("up_for_retry", ENTRY), "agreed", False),
    ("runs, cleared", RUNS, task(None, ENTRY), "agreed", False),
    ("launching, running", record("LAUNCHING"), task("running", ENTRY), "agreed", False),
    ("runs, marked failed", RUNS, task("failed", ENTRY), "orphan", True),
    ("runs, marked success", RUNS, task("success", ENTRY), "orphan", True),
    ("runs, removed from the DAG", RUNS, task("removed", ENTRY), "orphan", True),
    ("runs, failed, is being stopped", record("RUNNING", stop_requested=True), task("failed", ENTRY), "orphan", False),
    ("runs, its run was deleted", RUNS, GONE, "orphan", True),
    ("runs, its task was deleted from the run", RUNS, dataclasses.replace(GONE, run_exists=True), "orphan", True),
    ("runs, and never was here: a copied database", RUNS, dataclasses.replace(GONE, traced=False), "unclear", False),
    ("runs, deleted, asked from a task", RUNS, dataclasses.replace(GONE, **BY_TASK), "unclear", False),
    ("runs, no ledger: run made again", RUNS, task("deferred"), "unclear", False),
    ("runs, ledger names others only", RUNS, task("deferred", ELSEWHERE), "unclear", False),
    ("runs, a newer try runs elsewhere", RUNS, task("deferred", ENTRY, ELSEWHERE), "orphan", True),
    ("runs, a newer try may run elsewhere", RUNS, task("running", ENTRY, MAYBE_ELSEWHERE), "unclear", False),
    ("runs, deferred, asked from a task", RUNS, task("deferred", **BY_TASK), "agreed", False),
    ("runs, failed, asked from a task", RUNS, task("failed", **BY_TASK), "orphan", True),
    ("out of sight, failed", record("UNREACHABLE"), task("failed", ENTRY), "unclear", False),
    ("ended, deferred", record("SUCCEEDED"), task("deferred", ENTRY), "unreported", False),
    ("ended, running", record("FAILED"), task("running", ENTRY), "unreported", False),
    ("lost, deferred", record("LOST", lost_reason="rebooted"), task("deferred", ENTRY), "unreported", False),
    ("never started, running", record("LOST", lost_reason="never_started"), task("running", ENTRY), "agreed", False),
    ("ended and reported, next try waits", record("FAILED"), task("up_for_retry", REPORTED), "agreed", False),
    ("ended, a later launch is waited for", record("FAILED"), task("deferred", REPORTED, ELSEWHERE), "agreed", False),
    ("ended, failed", record("FAILED"), task("failed", ENTRY), "agreed", False),
    ("ended, its run was deleted", record("FAILED"), GONE, "agreed", False),
    ("ended, deferred, asked from a task", record("FAILED"), task("deferred", **BY_TASK), "unclear", False),
]  # fmt: skip


@pytest.mark.parametrize(("what", "found", "seen", "finding", "stop"), TABLE, ids=[row[0] for row in TABLE])
def test_the_rule(what: str, found: RunRecord, seen: TaskSeen, finding: str, stop: bool):
    """Only a proven orphan that nobody has asked yet is stopped."""
    verdict = judge(found, seen)

    assert (verdict.finding.value, verdict.stop) == (finding, stop), f"{what}: {verdict.why}"


def test_an_unreported_end_says_who_reports_it_and_how_to_nudge():
    """Nothing is forced: the reader learns which process is to act, and what to start when none is there."""
    waits = task("deferred", ENTRY, reporter="trigger 7, which no triggerer has taken", reporter_alive=False)
    assert "airflow triggerer" in judge(record("FAILED"), waits).why

    waits = dataclasses.replace(waits, reporter="trigger 7 in triggerer 2 on box", reporter_alive=True)
    assert "trigger 7 in triggerer 2 on box will report it" in judge(record("FAILED"), waits).why


EXPECTED = Expected(KEY, "gpu", "train-000000000000.1", 1, "m1", Ledger("here", (ENTRY,)))


@pytest.mark.parametrize(
    ("what", "seen", "machine", "unread", "finding"),
    [
        ("the host knows nothing of it", task("deferred", ENTRY), "m1", [], "lost"),
        ("reported meanwhile", task("up_for_retry", REPORTED), "m1", [], "agreed"),
        ("failed meanwhile", task("failed", ENTRY), "m1", [], "agreed"),
        ("launched anew meanwhile", task("running", ENTRY, dataclasses.replace(ENTRY, number=2, launch_id="x.2")), "m1", [], "agreed"),
        ("another machine answers", task("deferred", ENTRY), "m9", [], "unclear"),
        ("a root cannot be read", task("deferred", ENTRY), "m1", ["/data (cannot be read)"], "unclear"),
    ],
)  # fmt: skip
def test_what_the_host_does_not_list(what: str, seen: TaskSeen, machine: str, unread: list[str], finding: str):
    """Lost is only what the right machine, which could look everywhere, does not know."""
    assert judge_missing(EXPECTED, seen, machine, unread).finding.value == finding, what


def test_only_keys_of_airflows_form_name_a_task():
    """Launches by hand have keys of their own."""
    assert task_key(RUNS) == KEY
    assert task_key(record("RUNNING", key_parts=(*PARTS[:4], "12"))) == dataclasses.replace(KEY, map_index=12)
    for parts in (("command line", "name", "x"), ("foreground", "abc"), (), ("a", "b", "c", "d", "e")):
        assert task_key(record("RUNNING", key_parts=parts)) is None


class FakeAirflow:
    """Answers in order for each look; the last one stays."""

    def __init__(self, *seen: TaskSeen, expected: list[Expected] | None = None) -> None:
        self.seen, self._expected = list(seen), expected or []

    def deployment_id(self) -> str:
        return "here"

    def look(self, key: TaskKey) -> TaskSeen:
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]

    def expected(self, conn_id: str) -> list[Expected]:
        return self._expected if conn_id == "gpu" else []


class FakeSession:
    def __init__(self, *records: RunRecord) -> None:
        self.hello = {"machine_id": "m1", "roots": [{"path": "/r", "usable": True, "why": None}]}
        self.records, self.requests = list(records), []

    def call(self, request: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        self.requests.append(request)
        if request["type"] == "list":
            return {"type": "launches", "launches": [r.to_json() for r in self.records], "damaged": []}
        now = next(r for r in self.records if r.launch_id == request["launch_id"])
        if request["type"] == "inspect":
            return {"type": "record", "record": now.to_json()}
        return {"type": "stopped", "record": {**now.to_json(), "state": "STOPPED"}}

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None: ...


def run(session: FakeSession, airflow: FakeAirflow, conn_ids: tuple[str, ...] = ("gpu",), **how: Any) -> Any:
    def open_session(target: Any, **_: Any) -> FakeSession:
        if target == "silent":
            raise TransportError("timeout", "silent: nobody answers")
        return session

    return reconcile(conn_ids, airflow=airflow, resolve=lambda c: c, open_session=open_session, **how)


def stops(session: FakeSession) -> list[dict[str, Any]]:
    return [r for r in session.requests if r["type"] == "stop"]


def test_without_mend_nothing_is_asked_of_the_host_but_its_list():
    """It shows what it would do."""
    session = FakeSession(RUNS)
    (report,) = run(session, FakeAirflow(task("failed", ENTRY)))

    assert [r["type"] for r in session.requests] == ["list"]
    assert not report.settled and report.rows[0].to_json()["would"] == "stop"
    assert "with --mend" in "\n".join(host_lines(report.to_json(), mend=False, agreed=False))


def test_mending_names_the_epoch_and_looks_once_more():
    """A stop that somebody's attach has overtaken is refused by the host; a task cleared meanwhile is left to its try."""
    session = FakeSession(RUNS)
    (report,) = run(session, FakeAirflow(task("failed", ENTRY)), mend=True)
    (request,) = stops(session)
    assert (request["launch_id"], request["epoch"]) == (RUNS.launch_id, 3) and "orphan" in request["reason"]
    assert report.settled and report.rows[0].done == "stopped"

    session = FakeSession(RUNS)
    (report,) = run(session, FakeAirflow(task("failed", ENTRY), task("scheduled", ENTRY)), mend=True)
    assert stops(session) == [] and "meanwhile" in str(report.rows[0].done) and not report.settled


def test_what_is_not_this_airflows_is_counted_and_left_alone():
    """Other deployments, launches by hand, and launches of another machine with the same disk."""
    session = FakeSession(
        record("RUNNING", key_parts=("staging", *PARTS[1:])),
        record("RUNNING", launch_id="x-1.1", key_parts=("command line", "abc")),
        record("RUNNING", launch_id="y-1.1", machine_id="m7"),
    )
    (report,) = run(session, FakeAirflow(task("failed", ENTRY)), mend=True)

    assert (report.foreign, report.by_hand, report.elsewhere, report.rows) == (1, 1, 1, ())
    assert [r["type"] for r in session.requests] == ["list"] and report.settled


def test_a_host_that_cannot_be_reached_is_a_line():
    """The others are asked all the same."""
    silent, other = run(FakeSession(RUNS), FakeAirflow(task("deferred", ENTRY)), ("silent", "gpu"))

    assert "nobody answers" in str(silent.error) and not silent.settled
    assert other.settled and [row.verdict.finding for row in other.rows] == [Finding.AGREED]
    assert "could not be asked" in "".join(host_lines(silent.to_json(), mend=False, agreed=False))


def test_a_launch_that_the_host_does_not_list_is_lost():
    """And one that it lists is not, whoever launched it."""
    (report,) = run(FakeSession(), FakeAirflow(task("deferred", ENTRY), expected=[EXPECTED]))
    assert [row.verdict.finding for row in report.rows] == [Finding.LOST]

    (report,) = run(FakeSession(RUNS), FakeAirflow(task("deferred", ENTRY), expected=[EXPECTED]))
    assert [row.verdict.finding for row in report.rows] == [Finding.AGREED]


class FakeTaskInstance:
    """As the execution API answers: a mapped task's name ends with its index, and what is gone is absent."""

    def __init__(self, states: dict[str, dict[str, str | None]], runs: int) -> None:
        self._states, self._runs = states, runs

    def get_task_states(self, **asked: Any) -> dict[str, Any]:
        assert set(asked) == {"dag_id", "map_index", "task_ids", "run_ids"}
        return self._states

    def get_dr_count(self, dag_id: str, run_ids: list[str]) -> int:
        return self._runs


def test_what_a_task_may_ask():
    """States and whether a run exists; neither ledger nor audit log, so it proves nothing about what is gone."""
    look = TaskState(FakeTaskInstance({"run": {"train": "failed", "train_2": None}}, 1)).look
    assert look(KEY) == TaskSeen(True, True, "failed")
    assert look(dataclasses.replace(KEY, map_index=2)) == TaskSeen(True, True, None)
    assert TaskState(FakeTaskInstance({}, 0)).look(KEY) == TaskSeen(False, False)
    assert TaskState(FakeTaskInstance({}, 1)).expected("gpu") is None


def test_a_tasks_log_names_what_was_found_and_done():
    (report,) = run(FakeSession(RUNS), FakeAirflow(task("failed", ENTRY)), mend=True)
    head, line = report.lines()

    assert head == "gpu: 0 agreed, 0 of other Airflows, 0 launched by hand"
    assert line.startswith(f"orphan: {RUNS.launch_id} (dag.train, run run): ") and line.endswith("→ stopped")

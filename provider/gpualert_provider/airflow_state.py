"""What Airflow knows of the tasks whose launches a host lists. Nothing here writes.

Two ways lead to it, both Airflow's own. A command line on an Airflow machine has a session of the metadata database,
and sees all: states, ledgers, triggers, the audit log. A task has only what Airflow's execution API tells it, the
states of tasks and whether a run exists, because workers are kept from the database. The REST API would need a login
that a command line and a task do not have by themselves, so it is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

from gpualert.errors import GpuAlertError
from gpualert_provider.exceptions import LedgerError
from gpualert_provider.ledger import STORE_KEY, EntryStatus, Ledger
from gpualert_provider.operators.deployment import VARIABLE

#: A triggerer that was silent for longer is taken for dead (Airflow's own default is 30 s).
_TRIGGERER_SILENT_S = 60.0
#: States in which a task has, or may get, somebody who deals with its launch.
_ACTIVE = ("deferred", "running", "queued", "scheduled", "restarting", "up_for_retry", "up_for_reschedule")


class NoAirflowHere(GpuAlertError):
    """Airflow's state cannot be read from this process."""

    kind = "no_airflow"


@dataclass(frozen=True, order=True)
class TaskKey:
    """Which task instance: what stands in a launch key after the deployment's id."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def text(self) -> str:
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{index}, run {self.run_id}"


@dataclass(frozen=True)
class TaskSeen:
    """
    One task instance, as Airflow knew it at one moment.

    :param exists: Airflow has the task instance.
    :param run_exists: it has the DAG run.
    :param traced: the audit log shows that this Airflow once ran the task. A run without any trace was perhaps never
        here: the database may be a copy, or restored from an older one. None: the audit log cannot be seen.
    :param ledger_seen: the ledger could be looked for; False makes ``ledger`` say nothing.
    :param reporter: who will tell Airflow of the launch's end, in words; None when nobody is known.
    :param reporter_alive: False when that one is known to be silent; None when it cannot be seen.
    """

    exists: bool
    run_exists: bool
    state: str | None = None
    try_number: int | None = None
    traced: bool | None = None
    ledger_seen: bool = False
    ledger: Ledger | None = None
    reporter: str | None = None
    reporter_alive: bool | None = None


@dataclass(frozen=True)
class Expected:
    """A launch that an unfinished task's ledger says to have happened."""

    key: TaskKey
    conn_id: str | None
    launch_id: str
    number: int
    machine_id: str | None
    ledger: Ledger = field(repr=False)


class AirflowState(Protocol):
    """A way to look at Airflow."""

    def deployment_id(self) -> str: ...

    def look(self, key: TaskKey) -> TaskSeen: ...

    def expected(self, conn_id: str) -> list[Expected] | None:
        """Launches that should be on a connection's host; None when that cannot be asked."""
        ...


class DatabaseState:
    """Airflow's state by its metadata database: for a process on an Airflow machine that is no task."""

    @contextmanager
    def _session(self) -> Iterator[Any]:
        try:
            from airflow.utils.session import create_session

            with create_session() as session:
                yield session
                session.rollback()  # we only look
        except GpuAlertError:
            raise
        except Exception as error:
            raise NoAirflowHere(
                f"Airflow's metadata database cannot be read from here ({type(error).__name__}: {error}). Run this "
                "where Airflow's scheduler runs, with its configuration; inside a task, use reconcile_from_task"
            ) from error

    def deployment_id(self) -> str:
        """:raises NoAirflowHere: no database, or no training was ever launched by this Airflow."""
        with self._session():
            from airflow.models.variable import Variable

            found = Variable.get(VARIABLE, default_var=None)
        return _deployment(found)

    def look(self, key: TaskKey) -> TaskSeen:
        from airflow.models.dagrun import DagRun
        from airflow.models.log import Log
        from airflow.models.taskinstance import TaskInstance as TI
        from sqlalchemy import exists, select

        with self._session() as session:
            task = session.execute(
                select(TI.state, TI.try_number, TI.trigger_id, TI.hostname, TI.pid, TI.last_heartbeat_at).where(
                    *_of(TI, key)
                )
            ).first()
            if task is None:
                run = select(exists().where(DagRun.dag_id == key.dag_id, DagRun.run_id == key.run_id))
                ran = [*_of(Log, key, with_index=False), Log.event == "running"]
                # The index is not known of every event: -1 and NULL are what older ones have.
                ran.append((Log.map_index == key.map_index) | (Log.map_index.is_(None)))
                return TaskSeen(
                    exists=False,
                    run_exists=bool(session.execute(run).scalar()),
                    traced=bool(session.execute(select(exists().where(*ran))).scalar()),
                    ledger_seen=True,
                    ledger=self._ledger(session, key),
                )
            state = None if task.state is None else str(getattr(task.state, "value", task.state))
            reporter, alive = self._reporter(session, state, task)
            return TaskSeen(
                exists=True,
                run_exists=True,
                state=state,
                try_number=task.try_number,
                traced=True,
                ledger_seen=True,
                ledger=self._ledger(session, key),
                reporter=reporter,
                reporter_alive=alive,
            )

    def expected(self, conn_id: str) -> list[Expected]:
        from airflow.models.dagrun import DagRun  # noqa: F401 (mapped before the models that refer to it)
        from airflow.models.task_state_store import TaskStateStoreModel as Store
        from airflow.models.taskinstance import TaskInstance as TI
        from sqlalchemy import and_, select

        same = and_(*(getattr(Store, n) == getattr(TI, n) for n in ("dag_id", "run_id", "task_id", "map_index")))
        query = select(Store.dag_id, Store.run_id, Store.task_id, Store.map_index, Store.value).join(TI, same)
        with self._session() as session:
            rows = session.execute(query.where(Store.key == STORE_KEY, TI.state.in_(_ACTIVE))).all()
        return list(_launched(rows, conn_id))

    def _ledger(self, session: Any, key: TaskKey) -> Ledger | None:
        from airflow.models.task_state_store import TaskStateStoreModel as Store
        from sqlalchemy import select

        query = select(Store.value).where(*_of(Store, key), Store.key == STORE_KEY)
        return _ledger_of(session.execute(query).scalar())

    def _reporter(self, session: Any, state: str | None, task: Any) -> tuple[str | None, bool | None]:
        from airflow.jobs.job import Job
        from airflow.models.trigger import Trigger
        from sqlalchemy import select

        if state == "running":
            return f"the worker process {task.pid} on {task.hostname or 'an unknown machine'}", None
        if state != "deferred":
            return (None if state in (None, "removed") else "the task's next try"), None
        if task.trigger_id is None:
            return "the task's next leg (its trigger has fired)", None
        found = session.execute(
            select(Trigger.triggerer_id, Job.hostname, Job.latest_heartbeat)
            .join(Job, Job.id == Trigger.triggerer_id, isouter=True)
            .where(Trigger.id == task.trigger_id)
        ).first()
        if found is None or found.triggerer_id is None:
            return f"trigger {task.trigger_id}, which no triggerer has taken", False
        name = f"trigger {task.trigger_id} in triggerer {found.triggerer_id} on {found.hostname}"
        if found.latest_heartbeat is None:
            return name, None
        age_s = (datetime.now(tz=timezone.utc) - found.latest_heartbeat).total_seconds()
        return f"{name}, last heartbeat {age_s:.0f} s ago", age_s <= _TRIGGERER_SILENT_S


class TaskState:
    """
    Airflow's state as a running task may ask for it.

    :param ti: ``context["ti"]`` of the task that asks.
    """

    def __init__(self, ti: Any) -> None:
        self._ti = ti

    def deployment_id(self) -> str:
        from airflow.sdk import Variable

        return _deployment(Variable.get(VARIABLE, default=None))

    def look(self, key: TaskKey) -> TaskSeen:
        states = self._ti.get_task_states(
            dag_id=key.dag_id, map_index=key.map_index, task_ids=[key.task_id], run_ids=[key.run_id]
        )
        of_run = (states or {}).get(key.run_id) or {}
        # The execution API adds the index to the name of a mapped task.
        name = key.task_id if key.map_index < 0 else f"{key.task_id}_{key.map_index}"
        if name in of_run:
            state = of_run[name]
            return TaskSeen(True, True, None if state is None else str(getattr(state, "value", state)))
        return TaskSeen(False, self._ti.get_dr_count(dag_id=key.dag_id, run_ids=[key.run_id]) > 0)

    def expected(self, conn_id: str) -> list[Expected] | None:
        return None


def _deployment(found: Any) -> str:
    if not found:
        raise NoAirflowHere(
            f"Airflow variable {VARIABLE!r}: expected this Airflow's id, found none. Has it ever launched a training?"
        )
    return str(found)


def _of(model: Any, key: TaskKey, *, with_index: bool = True) -> list[Any]:
    same = [model.dag_id == key.dag_id, model.run_id == key.run_id, model.task_id == key.task_id]
    return [*same, model.map_index == key.map_index] if with_index else same


def _ledger_of(value: Any) -> Ledger | None:
    """None when there is none, or it cannot be read: then it proves nothing."""
    try:
        return None if value is None else Ledger.from_json(json.loads(value) if isinstance(value, str) else value)
    except (LedgerError, ValueError):
        return None


def _launched(rows: Iterable[Any], conn_id: str) -> Iterator[Expected]:
    for row in rows:
        ledger = _ledger_of(row.value)
        last = None if ledger is None else ledger.last
        if ledger is None or last is None or last.conn_id != conn_id:
            continue
        if last.status is EntryStatus.LAUNCHED and last.launch_id is not None:
            key = TaskKey(row.dag_id, row.run_id, row.task_id, row.map_index)
            yield Expected(key, last.conn_id, last.launch_id, last.number, last.machine_id, ledger)

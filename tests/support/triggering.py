"""Airflow's own way of running and cancelling a trigger, without an Airflow around it.

The triggerer's ``run_trigger`` is the real one; only what it would ask the API server for is answered here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from gpualert_provider.tasklog import Record
from gpualert_provider.triggers.training import GpuTrainingTrigger

USER_ACTION: Any = "user-action"
# With its portal a synchronous call in a trigger would work by accident, and no traceback of a failing test could be
# shown.
os.environ["AIRFLOW_DISABLE_GREENBACK_PORTAL"] = "true"


class Log:
    """What a trigger said, in order: (level, text, keywords), and in whose context."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []
        self.contexts: list[Any] = []
        self.records: list[Record] = []

    def _add(self, level: str, text: str, *values: Any, **keywords: Any) -> None:
        self.entries.append((level, text % values if values else text, keywords))
        self.contexts.append(structlog.contextvars.get_contextvars().get("trigger_id"))

    def info(self, text: str, *values: Any, **keywords: Any) -> None:
        self._add("info", text, *values, **keywords)

    def warning(self, text: str, *values: Any, **keywords: Any) -> None:
        self._add("warning", text, *values, **keywords)

    def error(self, text: str, *values: Any, **keywords: Any) -> None:
        self._add("error", text, *values, **keywords)

    @property
    def training_lines(self) -> list[str]:
        """Lines of the training's own log."""
        return [line for record in self.records if record.lines for line in record.text.split("\n")]

    @property
    def told(self) -> str:
        """What the trigger itself had to say."""
        training = {record.text for record in self.records if record.lines}
        return "\n".join(text for _, text, _ in self.entries if text not in training)


class Supervisor:
    """Stands in for the triggerer's supervisor: answers the question for the task's state."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.asked: list[Any] = []

    async def asend(self, message: Any) -> Any:
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse, TaskStatesResult

        if type(message).__name__ == "GetDagRunState" and self.state == "deleted":
            detail = {"status_code": 404, "message": "Not Found"}
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))
        if type(message).__name__ != "GetTaskStates":
            return None
        self.asked.append(message)
        state = self.state(len(self.asked)) if callable(self.state) else self.state
        if isinstance(state, Exception):
            raise state
        if state in ("deleted", "missing"):
            return TaskStatesResult(task_states={})
        return TaskStatesResult(task_states={"run": {"train": state}})


class Triggerer:
    """Runs triggers as Airflow does, on the running loop."""

    def __init__(self) -> None:
        from airflow.jobs.triggerer_job_runner import TriggerRunner

        self.runner = TriggerRunner()
        self._number = 0

    def start(self, trigger: GpuTrainingTrigger, log: Log | None = None) -> tuple[asyncio.Task[None], Log]:
        self._number += 1
        log = log or Log()
        trigger._log = log  # type: ignore[assignment]
        printing = trigger._print

        def noted(record: Record) -> None:
            log.records.append(record)
            printing(record)

        trigger._print = noted  # type: ignore[method-assign]
        trigger.task_instance = SimpleNamespace(  # type: ignore[assignment]
            id="ti-1", dag_id="dag", run_id="run", task_id="train", map_index=-1, try_number=1, context_carrier=None
        )
        number = self._number
        details = {"task": None, "is_watcher": False, "name": f"trigger {number}", "events": 0}
        self.runner.triggers[number] = details  # type: ignore[assignment]
        task = asyncio.create_task(self.runner.run_trigger(number, trigger))
        details["task"] = task
        return task, log

    def events(self) -> list[Any]:
        return [entry.event.payload for entry in self.runner.events]


def run(trigger: GpuTrainingTrigger) -> tuple[list[Any], Log]:
    """From start to event: all events, and what was said."""

    async def whole() -> tuple[list[Any], Log]:
        triggerer = Triggerer()
        task, log = triggerer.start(trigger)
        await task
        return triggerer.events(), log

    return asyncio.run(whole())


def run_until(
    trigger: GpuTrainingTrigger, condition: Callable[[Log], object], *, kill: bool, deadline_s: float = 60
) -> Log:
    """
    Run until the condition holds, then cancel: as on a user's action (``kill``), or as when a triggerer shuts down.
    """

    async def part() -> Log:
        task, log = Triggerer().start(trigger)
        end = asyncio.get_running_loop().time() + deadline_s
        while not condition(log):
            assert not task.done(), f"the trigger ended by itself: {log.entries}"
            assert asyncio.get_running_loop().time() < end, f"not in {deadline_s} s; said: {log.entries}"
            await asyncio.sleep(0.05)
        task.cancel(USER_ACTION if kill else None)
        with pytest.raises(asyncio.CancelledError):
            await task
        return log

    return asyncio.run(part())


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Supervisor]:
    """
    Set the state that Airflow gives for the task: a word, None (cleared), ``deleted`` (with its run), ``missing``
    (though
    its run is there), or an exception.
    """
    from airflow.jobs import triggerer_job_runner
    from airflow.sdk.execution_time import task_runner

    assert triggerer_job_runner._USER_ACTION_CANCEL_MSG, "Airflow's mark for a user's action has moved"
    global USER_ACTION
    USER_ACTION = triggerer_job_runner._USER_ACTION_CANCEL_MSG

    def make(state: Any) -> Supervisor:
        stub = Supervisor(state)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", stub, raising=False)
        return stub

    return make


__all__ = ["Log", "Supervisor", "Triggerer", "run", "run_until", "supervisor"]

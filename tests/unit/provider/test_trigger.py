"""The trigger's decisions that need no host: what it stores, how patient it is, when it speaks, how long it holds."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from gpualert_provider.hooks import connections
from gpualert_provider.hooks.errors import KINDS, TRANSIENT, TransportError
from gpualert_provider.triggers.link_watch import LARGEST_BOUND_S, LASTING_BOUND_S, LinkWatch
from gpualert_provider.triggers.training import GpuTrainingTrigger


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_watch(patience_s: float = 86_400.0) -> tuple[LinkWatch, Clock]:
    clock = Clock()
    return LinkWatch(patience_s, clock), clock


def told_at(watch: LinkWatch, clock: Clock, until_s: float) -> list[float]:
    """The moments at which a host that stays away is spoken of, when every wait is as long as it may be."""
    began, moments = clock.now, []
    while clock.now - began < until_s:
        watch.failed("refused")
        if watch.due():
            moments.append(clock.now - began)
        clock.now += max(0.001, watch.next_wait_s(random=1.0))
    return moments


def test_silence_is_told_at_1_5_and_30_minutes_and_then_hourly():
    """A short break is not worth a word, and a long one not a thousand."""
    moments = told_at(*make_watch(), until_s=4 * 3600)

    assert [round(moment / 60) for moment in moments] == [1, 5, 30, 90, 150, 210]


def test_what_lasts_is_told_at_once_and_once_for_each_reason():
    """A wrong key will be wrong in a minute too."""
    watch, clock = make_watch()
    watch.failed("wrong key", lasting=True)
    assert watch.due() == ["wrong key"]
    watch.failed("wrong key", lasting=True)
    assert watch.due() == []
    watch.failed("no python", lasting=True)
    assert watch.due() == ["no python"]


def test_a_return_is_told_only_if_the_absence_was():
    """Otherwise the task log would be full of links that came and went."""
    watch, clock = make_watch()
    watch.failed("refused")
    clock.now += 30
    assert watch.due() == [] and watch.succeeded() == []

    watch.failed("refused")
    clock.now += 61
    assert len(watch.due()) == 1
    assert watch.succeeded() == ["reached again after 61 s; nothing of the log is lost."]
    assert watch.succeeded() == [] and watch.lost_for_s == 0


def test_patience_ends_and_is_not_slept_through():
    """The last wait ends with the patience, whatever the backoff would allow."""
    watch, clock = make_watch(patience_s=100.0)
    for _ in range(10):
        watch.failed("refused")
    clock.now += 99
    assert not watch.exhausted and watch.next_wait_s(random=1.0) <= 1.0
    clock.now += 1
    assert watch.exhausted


def test_waits_are_random_from_nothing_to_a_bound_that_grows_and_ends():
    """Full jitter: a thousand triggers do not come back in the same second."""
    watch, _ = make_watch()
    bounds = []
    for _ in range(10):
        watch.failed("refused")
        assert watch.next_wait_s(random=0.0) == 0.0
        bounds.append(watch.next_wait_s(random=1.0))

    assert bounds[:4] == [1.0, 2.0, 4.0, 8.0] and bounds[-1] == LARGEST_BOUND_S
    watch.failed("no python", lasting=True)
    assert LARGEST_BOUND_S <= watch.next_wait_s(random=1.0) <= LASTING_BOUND_S


def test_arguments_are_plain_and_make_the_same_trigger_again():
    """Airflow stores them as JSON, in clear text, and makes the trigger anew in whatever triggerer."""
    first = GpuTrainingTrigger(
        "gpu_box", "gpu-1", "train-0123456789ab.1", machine_id="m", boot_id="b", epoch=3, deferred_at=1.5, hold_s=10.0,
        patience_s=60.0, root="/r", remote_python="python3.9", log_path="/l", run_directory="/d",
        secret_env={"HF_TOKEN": "hf_default"}, ceiling_bytes=None,
    )  # fmt: skip
    path, kwargs = first.serialize()
    again = GpuTrainingTrigger(**json.loads(json.dumps(kwargs)))

    assert again.serialize() == (path, kwargs) and "None" not in [*map(str, list(kwargs.values())[:4])]


def test_nothing_learnt_on_the_way_is_stored():
    """Airflow stores what serialize() gave at the deferral; a secret must have no way into it."""
    trigger = GpuTrainingTrigger("gpu_box", "gpu-1", "train-0123456789ab.1")
    before = trigger.serialize()
    trigger._held_epoch, trigger._secret_values = 9, ("hunter22",)

    assert trigger.serialize() == before


def test_the_hold_counts_from_the_triggers_own_start():
    """
    Airflow 3.3 can fail a task that is resumed at once; the worker's clock may be wrong, ours alone is used for the
    wait.
    """
    trigger = GpuTrainingTrigger("c", "h", "t-0123456789ab.1", hold_s=10.0, deferred_at=time.time() + 3600)
    began_at = time.monotonic()

    assert 9.0 < trigger._hold_left_s(began_at) <= 10.0
    assert trigger._hold_left_s(began_at - 11.0) == 0.0
    trigger.deferred_at = time.time() - 3600
    assert trigger._hold_left_s(began_at) == 0.0, (
        "long past by any clock: a triggerer that took over need not hold again"
    )


def test_a_cancellation_that_comes_with_the_result_is_not_lost():
    """asyncio.wait_for of Python 3.10 and 3.11 forgets it; then a trigger would follow for ever."""

    async def scene() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def waits() -> str:
            return await connections.within(future, 60)

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        future.set_result("late")
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return "cancelled"

    assert asyncio.run(scene()) == "cancelled"


def test_within_gives_the_result_or_says_that_it_did_not_come():
    """And the work does not go on behind the caller's back."""

    async def scene() -> list[object]:
        stopped: list[object] = [await connections.within(asyncio.sleep(0, "done"), 10)]

        async def slow() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append("stopped")

        with pytest.raises(TimeoutError):
            await connections.within(slow(), 0.01)
        return stopped

    assert asyncio.run(scene()) == ["done", "stopped"]


def test_helpers_carry_no_context_of_the_task():
    """Airflow sorts log lines by context variables; a shared helper must not have a task's."""
    import structlog

    async def scene() -> dict[str, object]:
        structlog.contextvars.bind_contextvars(trigger_id=7)

        async def helper() -> dict[str, object]:
            return structlog.contextvars.get_contextvars()

        return await connections.detached(helper())

    assert asyncio.run(scene()) == {}


def test_kinds_are_closed_and_say_what_passes_by_itself():
    """Code branches on them."""
    assert TRANSIENT <= set(KINDS)
    assert TransportError("refused", "x").transient and not TransportError("host_key", "x").transient
    with pytest.raises(ValueError, match="expected one of"):
        TransportError("strange", "x")


@pytest.mark.parametrize(
    ("map_index", "states", "expected"),
    [
        (-1, {"train": "failed"}, (True, "failed")),
        (3, {"train_3": "failed"}, (True, "failed")),
        (3, {"train": "failed"}, (False, None)),
        (-1, {"train": None}, (True, None)),
        (-1, {}, (False, None)),
    ],
)
def test_the_tasks_own_state_is_read_also_when_it_is_mapped(
    map_index: int, states: dict[str, str | None], expected: tuple[bool, str | None], monkeypatch: pytest.MonkeyPatch
):
    """The Execution API names a mapped task instance with its index behind."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, TaskStatesResult

    class Comms:
        async def asend(self, message: object) -> TaskStatesResult:
            if type(message).__name__ == "GetDagRunState":
                detail = {"status_code": 404}
                raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))
            return TaskStatesResult(task_states={"run": states})

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Comms(), raising=False)
    trigger = GpuTrainingTrigger("c", "h", "t-0123456789ab.1")
    trigger.task_instance = SimpleNamespace(dag_id="d", run_id="run", task_id="train", map_index=map_index)  # type: ignore[assignment]

    assert asyncio.run(trigger._ask_state()) == expected

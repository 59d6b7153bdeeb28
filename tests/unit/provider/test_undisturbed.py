"""Airflow cancels a trigger once a second while its on_kill runs; the stop is delivered all the same."""

from __future__ import annotations

import asyncio

import pytest

from gpualert_provider.triggers.training import GpuTrainingTrigger
from gpualert_provider.triggers.undisturbed import undisturbed


def cancel_until_done(coroutine, before) -> asyncio.Task:
    """As the triggerer's runner does: cancel at every exchange, as long as the task is there."""

    async def run():
        task = asyncio.ensure_future(coroutine)
        await asyncio.sleep(0)
        for _ in range(200):
            if task.done():
                break
            task.cancel("user action")
            before()
            await asyncio.sleep(0.005)
        await asyncio.wait({task})
        return task

    return asyncio.run(run())


def test_the_work_is_finished_however_often_its_caller_is_cancelled():
    steps = []
    cancelled = []

    async def work():
        for step in range(5):
            await asyncio.sleep(0.02)
            steps.append(step)

    cancel_until_done(undisturbed(work()), lambda: cancelled.append(1))

    assert steps == [0, 1, 2, 3, 4]
    assert len(cancelled) > 5


def test_what_the_work_raises_is_raised():
    async def work():
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        asyncio.run(undisturbed(work()))


def test_a_stop_is_delivered_though_airflow_goes_on_cancelling_and_cleans_up(monkeypatch):
    """Nothing that Airflow does meanwhile may close the connection under the stop."""
    trigger = GpuTrainingTrigger(conn_id="gpu", host_name="gpu", launch_id="train-000000000000.1", epoch=3)
    happened = []

    class Session:
        closed = asyncio.Event()

        async def call(self, request):
            await asyncio.sleep(0.05)
            assert not self.closed.is_set()
            happened.append((request["launch_id"], request["epoch"]))
            return {"type": "stopped"}

        async def close(self):
            self.closed.set()

    session = Session()

    async def state():
        await asyncio.sleep(0.05)
        return "failed"

    async def opened():
        trigger._session = session
        return session

    monkeypatch.setattr(trigger, "_state", state)
    monkeypatch.setattr(trigger, "_open", opened)

    async def killed_and_cleaned():
        try:
            await asyncio.wait_for(trigger.on_kill(), timeout=30)
        finally:
            await trigger.cleanup()

    async def run():
        task = asyncio.ensure_future(killed_and_cleaned())
        for _ in range(4):
            await asyncio.sleep(0.01)
            task.cancel("user action")
        await asyncio.wait({task})
        async with asyncio.timeout(10):
            await session.closed.wait()

    asyncio.run(run())

    assert happened == [("train-000000000000.1", 3)]

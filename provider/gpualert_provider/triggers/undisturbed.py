"""Finish a piece of work although its caller is cancelled, again and again.

Airflow 3.3's triggerer repeats the cancellation of a trigger with every exchange of its two processes, about once a
second, until the trigger has finished; and it calls ``on_kill`` in the very task that it cancels. So an ``on_kill``
that takes longer than a second is cut off in the middle, unless its work lives in a task of its own.

Source: ``TriggerStateSync(to_cancel=…)``, ``cancel_triggers`` and ``run_trigger`` in
airflow/jobs/triggerer_job_runner.py; seen in a real Airflow under load (a task marked failed, on_kill gone after 1.03
s, nothing stopped).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

#: The event loop itself keeps only weak references to tasks.
_RUNNING: set[asyncio.Task[Any]] = set()


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """
    Run ``work`` to its end, whoever cancels the caller meanwhile; so the work must limit its own time.

    A cancellation that arrived meanwhile is not raised afterwards; the caller returns as if there had been none.

    :raises Exception: what the work raises.
    """
    task = asyncio.ensure_future(work)
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    await task

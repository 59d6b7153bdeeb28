"""A triggerer that can be killed: a process of its own with many triggers, made from what was stored.

``python -m tests.faults.triggerer_process FOLDER``: reads FOLDER/triggers.json (launch id to arguments), follows all
that have no event yet, writes every printed line with its time to FOLDER/lines/LAUNCH.PID, and each event to
FOLDER/events/LAUNCH.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from gpualert_provider.triggers import link_watch
from gpualert_provider.triggers.training import GpuTrainingTrigger
from tests.support.triggering import Log, Triggerer


class File(Log):
    """The task log of one trigger: each record is on the disk when the call returns, as Airflow's supervisor has it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = open(path, "a")

    def _add(self, level: str, text: str, *values: object, **keywords: object) -> None:
        if "timestamp" in keywords:  # a record of the training's own log
            now = time.time()
            self._file.write("".join(f"{now:.3f}\t{line}\n" for line in text.split("\n")))
            self._file.flush()


async def follow_all(folder: Path) -> None:
    triggerer = Triggerer()
    stored = json.loads((folder / "triggers.json").read_text())

    async def one(launch_id: str, arguments: dict[str, object]) -> None:
        log = File(folder / "lines" / f"{launch_id}.{os.getpid()}")
        task, _ = triggerer.start(GpuTrainingTrigger(**arguments), log)  # type: ignore[arg-type]
        await task
        event = next(entry for entry in reversed(triggerer.events()) if entry["launch_id"] == launch_id)
        part = folder / "events" / f".{launch_id}"
        part.write_text(json.dumps(event))
        part.rename(folder / "events" / launch_id)

    await asyncio.gather(
        *(one(*item) for item in stored.items() if not (folder / "events" / item[0]).exists()),
    )


if __name__ == "__main__":
    link_watch.LARGEST_BOUND_S = link_watch.LASTING_BOUND_S = 1.0
    asyncio.run(follow_all(Path(sys.argv[1])))

"""A DAG with one training, and one run of it from outside: for tests of what befalls a training."""

from __future__ import annotations

import json
import re

from tests.e2e.gpu_rig import GpuRig, Training, dag_source
from tests.support.waiting import wait_until

LONG = 2000  # steps of half a second: longer than any test waits
FAST = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}


def dag(name: str, steps: int, code: int = 0, source: str = "", **arguments: object) -> str:
    """:param source: further arguments as they stand in a DAG file."""
    given = ", ".join(f"{key}={value!r}" for key, value in {"early_window": 1, "hold": 2, **arguments}.items())
    return dag_source(
        name,
        f'GPUTrainingOperator(task_id="train", ssh_conn_id="gpu_box", retry_delay=timedelta(seconds=1), '
        f'command="python3 train.py {name} {steps} {code}", {given}{source and ", " + source})',
    )


class Life:
    """One run of the DAG ``name``, whose one task is ``train``."""

    def __init__(self, rig: GpuRig, name: str) -> None:
        self.rig, self.name = rig, name
        self.run = rig.trigger(name)
        self.training: Training = rig.training(name)

    def wait(self, *states: str, deadline_s: float = 120, try_number: int | None = None) -> dict:
        try:
            return self.rig.api.wait_for_task(self.name, self.run, "train", states, deadline_s, try_number=try_number)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.rig.everything(self.name, self.run, 'train')}") from None

    def wait_followed(self, try_number: int = 1) -> None:
        """Wait until the triggerer has the task: a trigger that has not started yet cannot notice anything."""
        self.wait("deferred", try_number=try_number)
        wait_until(
            lambda: re.search(r"trigger \S+ \(ID \d+\) starting\n(.*\n)*.* step ", self.log(try_number)),
            120,
            lambda: f"the triggerer follows; so far: {self.log(try_number)[-2000:]}",
            interval_s=0.5,
        )

    def log(self, try_number: int = 1) -> str:
        return self.rig.log(self.name, self.run, "train", try_number)

    @property
    def ledger(self) -> list[dict]:
        value = self.rig.api.state_store(self.name, self.run, "train")["gpualert"]
        return (json.loads(value) if isinstance(value, str) else value)["entries"]

    def xcom(self, key: str) -> object:
        return self.rig.api.xcom(self.name, self.run, "train", key)

    def steps_logged(self, *tries: int) -> list[int]:
        text = "\n".join(self.log(number) for number in tries)
        return [int(n) for n in re.findall(rf"{self.name} step (\d+)", text)]

    def pid_of_task(self) -> int:
        return wait_until(
            lambda: self.rig.api.task(self.name, self.run, "train")["pid"], 30, "the task's process is known"
        )


def assert_only_once(life: Life) -> None:
    assert len(life.training.started) == 1, life.rig.everything(life.name, life.run, "train")

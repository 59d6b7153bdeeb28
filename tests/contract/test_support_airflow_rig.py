"""The Airflow that end-to-end tests rely on is a real one, and nothing of it is left when it stops."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.airflow_rig import AirflowRig
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DAG = """
from datetime import timedelta
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import dag, task

@dag(schedule=None)
def rig_probe():
    @task
    def remember(task_state_store=None):
        print("seen in the task log")
        task_state_store.set("kept", {"n": 1})
        return {"loss": 0.5}

    @task
    def fail():
        raise ValueError("on purpose")

    @task
    def sleep():
        import time
        time.sleep(600)

    TimeDeltaSensor(task_id="wait", delta=timedelta(minutes=10), deferrable=True)
    remember(), fail(), sleep()

rig_probe()
"""


def test_a_run_is_followed_through_all_that_the_api_tells() -> None:
    """
    One rig, since starting one costs 20 s: states, log, XComs, state store, tries, marks, clears, and components that
    are killed and come back.
    """
    rig = AirflowRig()
    rig.write_dag("rig_probe", DAG)
    with rig:
        api = rig.api
        api.wait_for_dag("rig_probe")
        run = api.trigger("rig_probe")

        done = api.wait_for_task("rig_probe", run, "remember", ["success"], 90)
        assert done["try_number"] == 1
        assert "seen in the task log" in api.log("rig_probe", run, "remember", 1)
        assert api.xcom("rig_probe", run, "remember") == {"loss": 0.5}
        assert api.xcoms("rig_probe", run, "remember") == {"return_value": {"loss": 0.5}}
        assert api.xcom("rig_probe", run, "remember", "nothing") is None
        assert api.state_store("rig_probe", run, "remember") == {"kept": {"n": 1}}
        assert api.wait_for_task("rig_probe", run, "fail", ["failed"], 60)["state"] == "failed"

        sleeper = api.wait_for_task("rig_probe", run, "sleep", ["running"], 60)
        assert os.path.exists(f"/proc/{sleeper['pid']}")

        api.wait_for_task("rig_probe", run, "wait", ["deferred"], 60)
        api.mark("rig_probe", run, "wait", "success")
        assert api.wait_for_task("rig_probe", run, "wait", ["success"], 30)["state"] == "success"

        api.clear("rig_probe", run, ["remember"])
        again = api.wait_for_task("rig_probe", run, "remember", ["success"], 90, try_number=2)
        assert again["try_number"] == 2
        assert [t["try_number"] for t in api.tries("rig_probe", run, "remember")] == [1, 2]
        assert rig.viewer_api.task("rig_probe", run, "remember")["state"] == "success"

        second = rig.start_component("triggerer", "triggerer-2")
        rig.freeze("triggerer-2")
        wait_until(lambda: _state(second.pid) == "T", 10, "the second triggerer stands still")
        rig.thaw("triggerer-2")
        wait_until(lambda: _state(second.pid) != "T", 10, "the second triggerer goes on")
        rig.stop_component("triggerer-2")
        assert not second.alive

        rig.kill_component("scheduler", tree=False)
        assert os.path.exists(f"/proc/{sleeper['pid']}"), "only the scheduler was killed; its task should live"
        rig.restart_component("scheduler")
        rig.wait_until_healthy()

    wait_until(lambda: not os.path.exists(f"/proc/{sleeper['pid']}"), 10, "init has reaped the orphaned task")
    assert not _standing_in(rig.folder)
    assert not rig.folder.exists()


def _state(pid: int) -> str:
    status = Path(f"/proc/{pid}/stat").read_text()
    return status[status.rindex(")") + 2]


def _standing_in(folder: Path) -> list[str]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{entry}/cwd").startswith(str(folder)):
                found.append(Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # ended while we looked
            continue
    return found

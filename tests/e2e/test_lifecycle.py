"""What happens to a training when something around it dies, moves or is told to stop: one training runs, and its end is told.

One Airflow for the module, with short limits so that a lost heartbeat is noticed in seconds.
"""

# ruff: noqa: E501 (one task, one line)
from __future__ import annotations

import os
import re
import signal
import sqlite3

import pytest

from tests.e2e.gpu_rig import GpuRig, dag_source, gpu_rig, stays
from tests.e2e.life import FAST, LONG, Life, assert_only_once, dag
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

DAGS = {
    "cleared": dag("cleared", LONG),
    "marked": dag("marked", LONG),
    "marked_early": dag("marked_early", LONG, early_window=300),
    "cleared_early": dag("cleared_early", LONG, early_window=300),
    "task_killed": dag("task_killed", 60, early_window=300, retries=1),
    "worker_killed": dag("worker_killed", 120, early_window=300, retries=1),
    "ended_alone": dag("ended_alone", 16, early_window=300, retries=1),
    "ended_alone_badly": dag("ended_alone_badly", 16, 9, early_window=300, retries=1),
    "triggerer_killed": dag("triggerer_killed", 60),
    "frozen": dag("frozen", 200),
}


LATE = """
@task.gpu_training(ssh_conn_id="gpu_box", retries=1, retry_delay=timedelta(seconds=1), early_window=300)
def train(ti=None):
    import os, time
    folder = os.environ["GPUALERT_TEST_FOLDER"]
    if ti.try_number == 1:
        open(f"{folder}/reached", "w").close()
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.1)
    return "python3 train.py late 40 0"
train()
"""


RESUMING = """
class Slow(GPUTrainingOperator):
    def execute_complete(self, context, event):
        import os, time
        if context["ti"].try_number == 1:
            open(os.environ["GPUALERT_TEST_FOLDER"] + "/resuming", "w").close()
            time.sleep(600)
        return super().execute_complete(context, event)

Slow(task_id="train", ssh_conn_id="gpu_box", command="python3 train.py resuming 10 0", early_window=1, hold=2,
     retries=1, retry_delay=timedelta(seconds=1))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a DAG's own code and the test leave signs for each other."""
    return tmp_path_factory.mktemp("signs")


@pytest.fixture(scope="module")
def rig(folder):
    dags = {**DAGS, "late": dag_source("late", LATE), "resuming": dag_source("resuming", RESUMING)}
    with gpu_rig(dags, config=FAST, env={"GPUALERT_TEST_FOLDER": str(folder)}, parallelism=6) as started:
        yield started


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


# ---- a user's word


def test_clear_while_deferred_stops_and_relaunches(rig):
    """Exactly one is alive at any time: the first is gone before the second begins."""
    life = Life(rig, "cleared")
    life.wait_followed()
    first = life.training.wait_started()

    rig.api.clear(life.name, life.run, ["train"])

    second = life.training.wait_started(2, deadline_s=120)
    assert life.training.stopped == [first]
    assert life.training.alive == [second]
    life.wait_followed(2)
    assert [entry.get("stop_asked") for entry in life.ledger] == [True, False]
    assert "cleared by a user" in life.log(2)
    rig.api.mark(life.name, life.run, "train", "failed")
    wait_until(lambda: not life.training.alive, 60, "the relaunched training was stopped, too")


@pytest.mark.parametrize("name", ["marked", "marked_early"])
def test_mark_failed_stops_the_training(rig, name):
    """Deferred or still on the worker: the host stops it, and nothing of it is left."""
    life = Life(rig, name)
    pid = life.training.wait_started()
    life.wait_followed() if name == "marked" else life.wait("running")

    rig.api.mark(life.name, life.run, "train", "failed")

    wait_until(lambda: not life.training.alive, 60, "the training was stopped")
    assert life.training.stopped == [pid]
    assert_only_once(life)


def test_clear_while_on_the_worker_stops_and_relaunches(rig):
    """Before the deferral, too: the first training is stopped by its own task, and the second begins after it."""
    life = Life(rig, "cleared_early")
    first = life.training.wait_started()
    life.wait("running")

    rig.api.clear(life.name, life.run, ["train"])

    second = life.training.wait_started(2, deadline_s=120)
    assert life.training.stopped == [first]
    assert life.training.alive == [second]
    rig.api.mark(life.name, life.run, "train", "failed")
    wait_until(lambda: not life.training.alive, 60, "the relaunched training was stopped, too")


# ---- a worker's death


def test_the_task_process_is_killed_and_the_next_try_adopts(rig):
    """Between launch and deferral: SIGKILL, as the OOM killer sends it. The training does not notice."""
    life = Life(rig, "task_killed")
    life.training.wait_started()

    os.kill(life.pid_of_task(), signal.SIGKILL)

    life.wait("success", deadline_s=120)
    assert_only_once(life)
    assert life.xcom("exit_code") == 0
    assert len(life.ledger[0]["attempts"]) == 2
    assert "Adopt" in life.log(2)
    assert set(life.steps_logged(1, 2)) == set(range(1, 61))


def test_the_worker_is_killed_and_the_next_try_adopts(rig):
    """The executor's supervisor dies, and with it the task's way to Airflow; the heartbeat is missed, and try 2 follows."""
    life = Life(rig, "worker_killed")
    life.training.wait_started()

    os.kill(parent_of(life.pid_of_task()), signal.SIGKILL)

    life.wait("success", deadline_s=180, try_number=2)
    assert_only_once(life)
    assert life.training.stopped == []
    assert set(life.steps_logged(1, 2)) == set(range(1, 121))


def test_a_worker_taken_for_dead_acts_late_and_launches_nothing(rig, folder):
    """Try 1 stands still before its launch, its heartbeat is missed, try 2 launches; then try 1's process goes on."""
    life = Life(rig, "late")
    wait_until((folder / "reached").exists, 60, "try 1 is about to launch")
    orphan = life.pid_of_task()
    os.kill(parent_of(orphan), signal.SIGKILL)
    life.training.wait_started(deadline_s=120)
    assert os.path.exists(f"/proc/{orphan}"), "the test wants try 1's process alive while try 2 runs"

    (folder / "go").touch()

    wait_until(lambda: not os.path.exists(f"/proc/{orphan}"), 60, "try 1's process has ended")
    life.wait("success", deadline_s=180)
    assert_only_once(life)
    assert life.training.stopped == []


def test_the_task_process_is_killed_while_it_resumes(rig, folder):
    """The training has succeeded, and the worker dies before Airflow knows: the next try tells it, and trains nothing."""
    life = Life(rig, "resuming")
    wait_until((folder / "resuming").exists, 120, "the task has been resumed")

    os.kill(life.pid_of_task(), signal.SIGKILL)

    life.wait("success", deadline_s=120, try_number=2)
    assert life.xcom("run_state") == "SUCCEEDED"
    assert_only_once(life)


@pytest.mark.parametrize(("name", "state", "code"), [("ended_alone", "success", 0), ("ended_alone_badly", "failed", 9)])
def test_what_ended_while_no_worker_lived_is_reported_and_not_repeated(rig, name, state, code):
    """Nobody watched the end; the next try tells it, and does not train again."""
    life = Life(rig, name)
    life.training.wait_started()
    task = life.pid_of_task()
    worker = parent_of(task)
    os.kill(worker, signal.SIGKILL)
    os.kill(task, signal.SIGKILL)

    wait_until(lambda: life.training.finished, 60, "the training ended by itself")
    life.wait(state, deadline_s=120, try_number=2)

    assert_only_once(life)
    assert life.xcom("exit_code") == code
    assert "Report" in life.log(2)
    assert 16 in life.steps_logged(2)


# ---- a triggerer's death


def test_a_triggerer_is_killed_and_nothing_is_lost(rig):
    """Its successor begins where the log was acknowledged: no line lost, none repeated but those of the last second."""
    life = Life(rig, "triggerer_killed")
    life.wait("deferred")
    wait_until(lambda: len(life.steps_logged(1)) > 10, 60, "the triggerer has printed some lines")

    rig.airflow.kill_component("triggerer")
    rig.airflow.restart_component("triggerer")

    life.wait("success", deadline_s=150)
    steps = life.steps_logged(1)
    assert set(steps) == set(range(1, 61))
    assert len(steps) - 60 <= 6, f"repeated: {sorted({n for n in steps if steps.count(n) > 1})}"
    assert_only_once(life)


def test_a_triggerer_that_froze_and_thawed_stops_nothing(rig):
    """Airflow calls on_kill on the frozen one when it finds its trigger moved: that is no reason to stop a training."""
    life = Life(rig, "frozen")
    life.wait("deferred")
    wait_until(lambda: len(life.steps_logged(1)) > 4, 60, "the first triggerer follows")
    holder = _triggerer_of(rig, life)
    rig.airflow.start_component("triggerer", "triggerer-2")
    try:
        rig.airflow.freeze("triggerer")
        wait_until(
            lambda: _triggerer_of(rig, life) not in (None, holder), 90, "the trigger moved to the second triggerer"
        )
        rig.airflow.thaw("triggerer")
        wait_until(
            lambda: re.search(r"invoking on_kill\n(.*\n)*trigger completed", life.log()),
            90,
            lambda: f"the first triggerer dealt with the loss of its trigger: {life.log()[-3000:]}",
            interval_s=0.5,
        )
        assert stays(lambda: life.training.alive, 5)
        life.wait("success", deadline_s=150)
        assert life.training.stopped == []
        assert_only_once(life)
        # Airflow begins a triggerer's file anew when a trigger comes back to it, so only the end is sure to be shown.
        assert 200 in life.steps_logged(1)
    finally:
        rig.airflow.thaw("triggerer")
        rig.airflow.stop_component("triggerer-2")


def _triggerer_of(rig: GpuRig, life: Life) -> int | None:
    """Which triggerer job holds the task's trigger."""
    database = sqlite3.connect(f"file:{rig.airflow.home}/airflow.db?mode=ro", uri=True, timeout=30)
    try:
        row = database.execute(
            "select t.triggerer_id from trigger t join task_instance ti on ti.trigger_id = t.id where ti.dag_id = ? and ti.run_id = ?",
            (life.name, life.run),
        ).fetchone()
    finally:
        database.close()
    return None if row is None else row[0]

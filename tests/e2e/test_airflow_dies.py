"""
What happens to a training when Airflow itself is taken away under it, or told to forget it: one training runs, and its
end is told.

One Airflow for the module. The trainings of one part run side by side, since each takes half a minute.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.e2e.gpu_rig import GpuRig, dag_source, gpu_rig, stays
from tests.e2e.life import FAST, LONG, Life, assert_only_once, dag
from tests.support.waiting import wait_until
from tools.rig.airflow import COMPONENTS

pytestmark = pytest.mark.slow

DAGS = {
    "marked_success": dag("marked_success", LONG),
    "run_deleted": dag("run_deleted", LONG),
    "paused": dag("paused", 120),
    "too_long": dag("too_long", LONG, source="execution_timeout=timedelta(seconds=120)"),
    "dag_deleted": dag("dag_deleted", LONG),
    "task_removed": dag("task_removed", 60),
    "scheduler_killed": dag("scheduler_killed", 60),
    "database_away": dag("database_away", 100),
    "all_killed": dag("all_killed", 80),
    "ended_in_the_dark": dag("ended_in_the_dark", 30),
    "given_up": dag("given_up", LONG),
}


@pytest.fixture(scope="module")
def rig():
    with gpu_rig(DAGS, config=FAST, parallelism=8) as started:
        yield started


@pytest.fixture(scope="module")
def lives(rig) -> dict[str, Life]:
    """The first six, started together and followed by the triggerer."""
    names = ("marked_success", "run_deleted", "paused", "too_long", "dag_deleted", "task_removed")
    lives = {name: Life(rig, name) for name in names}
    for life in lives.values():
        life.training.wait_started()
        life.wait_followed()
    return lives


def test_mark_success_stops_the_training(lives, rig):
    """A user who says that it is done wants the GPU back; the state stays what the user said."""
    life = lives["marked_success"]
    (pid,) = life.training.started

    rig.api.mark(life.name, life.run, "train", "success")

    wait_until(lambda: not life.training.alive, 60, "the training was stopped")
    assert life.training.stopped == [pid]
    assert rig.api.task(life.name, life.run, "train")["state"] == "success"
    assert_only_once(life)


def test_a_paused_dag_ends_its_training_when_it_goes_on(lives, rig):
    """Pausing starts nothing new; what runs goes on, and its end is told at the latest when the DAG goes on."""
    life = lives["paused"]

    rig.api.request("PATCH", f"/dags/{life.name}", json={"is_paused": True})
    wait_until(lambda: life.training.finished, 120, "the training finished although its DAG is paused")
    rig.api.request("PATCH", f"/dags/{life.name}", json={"is_paused": False})

    life.wait("success")
    assert sorted(set(life.steps_logged(1))) == list(range(1, 121))
    assert_only_once(life)


def test_a_deleted_run_stops_its_training_and_its_name_can_be_used_again(lives, rig):
    """
    Airflow deletes no run that is running, so it is failed first. The state store goes with the run: the new one of
    that name knows of nothing, and its training runs alone all the same.
    """
    life = lives["run_deleted"]
    (first,) = life.training.started

    rig.api.request("PATCH", f"/dags/{life.name}/dagRuns/{life.run}", json={"state": "failed"})
    rig.api.request("DELETE", f"/dags/{life.name}/dagRuns/{life.run}")
    wait_until(lambda: not life.training.alive, 90, "the training of the deleted run was stopped")
    assert life.training.stopped == [first]
    rig.api.trigger(life.name, run_id=life.run)

    second = life.training.wait_started(2, deadline_s=120)
    assert life.training.alive == [second]
    # The first run's log file bears the same name, so it cannot tell that the second one is followed.
    wait_until(lambda: followers_of_newest(life) >= 2, 120, "worker and triggerer have attached to the second training")
    rig.api.mark(life.name, life.run, "train", "failed")
    wait_until(lambda: not life.training.alive, 60, "the second training was stopped, too")


def test_a_deleted_dag_stops_its_training(lives, rig):
    """Its file and all that Airflow knew of it are gone: nobody would ever look after the training."""
    life = lives["dag_deleted"]
    (pid,) = life.training.started

    (rig.airflow.dags_folder / f"{life.name}.py").unlink()
    rig.api.request("PATCH", f"/dags/{life.name}/dagRuns/{life.run}", json={"state": "failed"})
    rig.api.request("DELETE", f"/dags/{life.name}")

    wait_until(lambda: not life.training.alive, 90, "the training of the deleted DAG was stopped")
    assert life.training.stopped == [pid]
    assert len(life.training.started) == 1


def test_a_task_that_is_taken_out_of_its_dag_ends_once(lives, rig):
    """The training goes on to its end and is not repeated; Airflow itself says that the task is gone."""
    life = lives["task_removed"]

    rig.airflow.write_dag(life.name, dag_source(life.name, 'GPUTrainingOperator(task_id="other", command="true")'))
    wait_until(lambda: life.training.finished, 120, "the training finished although its task was taken out of the DAG")

    state = life.wait("removed", "success", "failed", deadline_s=180)["state"]
    assert state in ("removed", "success"), f"the training succeeded, and its task is {state}"
    assert_only_once(life)
    assert not life.training.alive


def followers_of_newest(life: Life) -> int:
    """How many have attached, one after the other, to the last launch of the life's key."""
    root = life.training.home / ".local/state/gpualert/launches"
    keys = [key for key in root.glob("*/key.json") if f'"{life.name}"' in key.read_text()]
    newest = max(path.parent for key in keys for path in key.parent.glob("*/started.json"))
    return len(list(newest.glob("epoch-*")))


def test_the_execution_timeout_counts_while_deferred(lives):
    """Airflow's own does not; the host keeps it, and the cause is the time limit."""
    life = lives["too_long"]

    life.wait("failed", deadline_s=180)

    assert not life.training.alive
    assert life.xcom("failure_class") == "time_limit"
    assert_only_once(life)


def test_a_scheduler_is_killed(rig):
    """Its successor hears of the end; nobody trains again."""
    life = Life(rig, "scheduler_killed")
    life.training.wait_started()
    life.wait_followed()

    rig.airflow.kill_component("scheduler")
    assert stays(lambda: life.training.alive, 3)
    rig.airflow.restart_component("scheduler")

    life.wait("success", deadline_s=180)
    assert sorted(set(life.steps_logged(1))) == list(range(1, 61))
    assert_only_once(life)


def test_the_database_is_away_for_a_while(rig):
    """Nobody can write to it for twenty seconds; whoever dies of that is started again, and the end is told."""
    life = Life(rig, "database_away")
    life.training.wait_started()
    life.wait_followed()

    with closing(sqlite3.connect(rig.airflow.home / "airflow.db", timeout=30, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert stays(lambda: life.training.alive, 20)
        database.execute("ROLLBACK")

    def succeeded_while_the_dead_are_started_again() -> bool:
        for name in COMPONENTS:
            if not rig.airflow.components[name].alive:
                rig.airflow.restart_component(name)
        return rig.api.task(life.name, life.run, "train")["state"] == "success"

    wait_until(succeeded_while_the_dead_are_started_again, 240, "the task succeeds", interval_s=1.0)
    assert sorted(set(life.steps_logged(1))) == list(range(1, 101))
    assert_only_once(life)


def test_all_of_airflow_dies_and_comes_back(rig: GpuRig):
    """A power cut on the Airflow machine: one training goes on under it, another ends while nobody is there."""
    running, ended = Life(rig, "all_killed"), Life(rig, "ended_in_the_dark")
    for life in (running, ended):
        life.training.wait_started()
        life.wait_followed()

    for name in list(rig.airflow.components):
        rig.airflow.kill_component(name)
    wait_until(lambda: ended.training.finished, 60, "one of the trainings ended meanwhile")
    assert running.training.alive
    for name in COMPONENTS:
        rig.airflow.restart_component(name)
    rig.airflow.wait_until_healthy()

    for life, steps in ((running, 80), (ended, 30)):
        life.wait("success", deadline_s=240)
        logged = life.steps_logged(1)
        assert sorted(set(logged)) == list(range(1, steps + 1))
        assert len(logged) - steps <= 6, "at most the lines of the last second came twice"
        assert_only_once(life)


def test_a_task_that_was_given_up_while_no_triggerer_lived(rig):
    """Airflow tells nobody of it, so the training goes on; the next try stops it before it begins its own."""
    life = Life(rig, "given_up")
    first = life.training.wait_started()
    life.wait_followed()

    rig.airflow.kill_component("triggerer")
    rig.api.mark(life.name, life.run, "train", "failed")
    rig.airflow.restart_component("triggerer")
    rig.airflow.wait_until_healthy()
    assert stays(lambda: life.training.alive == [first], 3)
    rig.api.clear(life.name, life.run, ["train"])

    second = life.training.wait_started(2, deadline_s=120)
    assert life.training.stopped == [first]
    assert life.training.alive == [second]
    life.wait_followed(2)
    rig.api.mark(life.name, life.run, "train", "failed")
    wait_until(lambda: not life.training.alive, 60, "the second training was stopped, too")

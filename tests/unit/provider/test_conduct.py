"""One try's conduct: launch, adopt, report, stop and follow, against a host in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred

from gpualert.records import ExitStatus, RunState
from gpualert_provider import conduct
from gpualert_provider import ledger as ledgers
from gpualert_provider.exceptions import GpuTrainingFailed, InvalidRequest, LaunchRefused, LedgerError
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.ledger import EntryStatus
from gpualert_provider.operators import training
from tests.unit.provider.fake_host import FakeHost, FakeTarget
from tests.unit.provider.test_ledger import Store

# ---- ledger and launch


def test_the_ledger_names_the_launch_before_it_happens(world):
    """A worker may die between any two steps; whatever the host has done, the ledger knew of it."""
    seen = []
    world.host.on_request = lambda request: request["type"] == "launch" and seen.append(world.ledger)

    world.run()

    assert seen[0].last.status is EntryStatus.MAYBE_LAUNCHED
    assert seen[0].last.conn_id == "gpu"
    assert seen[0].last.attempts[0].id == "ti-1"


def test_without_a_ledger_nothing_is_launched(world):
    world.store.set = lambda *a, **k: (_ for _ in ()).throw(RuntimeError("not found"))

    with pytest.raises(LedgerError):
        world.run()
    assert world.launched == []


def test_a_lost_reply_is_no_second_launch(world):
    """The connection drops after the host acted: the request is repeated, and the host knows the try."""
    world.host.fail_after["launch"] = [TransportError("dropped", "x")]

    assert world.run() is None
    assert len(world.launched) == 2
    assert len(world.host.launches) == 1


def test_the_worker_dies_after_the_request_and_the_next_try_adopts(world):
    world.host.end = None
    world.host.fail_after["launch"] = [RuntimeError("killed")] * 3
    with pytest.raises(RuntimeError):
        world.run()
    assert world.ledger.last.status is EntryStatus.MAYBE_LAUNCHED

    with pytest.raises(TaskDeferred):
        world.run(try_number=2)

    assert len(world.host.launches) == 1
    assert [a.id for a in world.ledger.last.attempts] == ["ti-1", "ti-2"]


def test_the_worker_dies_before_the_request_and_the_next_try_launches(world):
    world.host.fail_before["launch"] = [RuntimeError("killed")]
    with pytest.raises(RuntimeError):
        world.run()

    assert world.run(try_number=2) is None
    assert len(world.host.launches) == 1


def test_a_finished_training_is_reported_and_not_repeated(world):
    """It ended while no worker lived; the next try tells it, log included."""
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()
    world.host.change(world.ledger.last.launch_id, state=RunState.SUCCEEDED, exit=ExitStatus(code=0))
    world.host.log += b"the last line\n"
    world.lines.clear()

    assert world.run(try_number=2) is None
    assert len(world.host.launches) == 1
    text = "\n".join(world.lines)
    assert "the last line" in text
    assert "epoch 1" not in text


def test_a_reported_failure_is_launched_anew_by_the_next_try(world):
    world.host.end = RunState.FAILED
    with pytest.raises(GpuTrainingFailed):
        world.run()
    world.host.end = RunState.SUCCEEDED

    world.run(try_number=2)

    assert [r.number for r in world.host.launches.values()] == [1, 2]
    assert [e.number for e in world.ledger.entries] == [1, 2]


def test_a_users_clear_stops_and_relaunches(world):
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()

    with pytest.raises(TaskDeferred):
        world.run(try_number=2, max_tries=3)

    assert len(world.host.launches) == 2
    assert world.host.alive() == [world.ledger.last.launch_id]
    assert world.ledger.entries[0].stop_asked
    order = [r["type"] for r in world.host.requests]
    assert order.index("stop") < len(order) - 1 - order[::-1].index("launch")


def test_what_cannot_be_killed_keeps_the_host(world):
    """Survivors in uninterruptible sleep still hold the GPU: no second training beside them."""
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()
    first = world.ledger.last.launch_id
    stop = world.host._stop

    def leave_one(request):
        stop(request)
        world.host.change(first, survivors=({"pid": 7, "command": "python"},))
        return {"type": "stopped", "record": world.host.launches[first].to_json()}

    world.host._stop = leave_one

    with pytest.raises(LaunchRefused) as caught:
        world.run(try_number=2, max_tries=3)
    assert caught.value.kind == "survivors"
    assert len(world.host.launches) == 1


def test_a_stopped_leader_is_not_the_end_of_its_tree(world, monkeypatch):
    """
    The loaders of a training that was stopped a moment ago may still hold the GPU: wait until the host has seen them
    end.
    """
    monkeypatch.setattr(conduct, "_TICK_S", 0.01)
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()
    first = world.ledger.last.launch_id
    world.host.change(first, state=RunState.STOPPED, stop_requested=True, exit=ExitStatus(signal=15), survivors=None)
    looks = []

    def look(request):
        if request["type"] == "inspect" and request["launch_id"] == first:
            looks.append(len(world.host.launches))
            if len(looks) == 3:
                world.host.change(first, survivors=())

    world.host.on_request = look

    with pytest.raises(TaskDeferred):
        world.run(try_number=2)
    assert looks == [1, 1, 1]
    assert len(world.host.alive()) == 1


def test_a_launch_adopted_many_times_is_still_ours(world):
    world.host.end = None
    for try_number in range(1, 15):
        with pytest.raises(TaskDeferred):
            world.run(try_number=try_number, max_tries=20)

    assert len(world.host.launches) == 1
    assert world.ledger.last.attempts[0].id == "ti-1"
    assert world.ledger.last.attempts[-1].id == "ti-14"
    assert len(world.ledger.last.attempts) == ledgers.MAX_ATTEMPTS


def test_the_earlier_hosts_connection_was_deleted(world, monkeypatch):
    """Its training may still run, and there is no way left to ask."""
    world.hosts["other"] = FakeHost(machine_id="m2")
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()

    def resolve(conn_id):
        if conn_id == "gpu":
            raise InvalidRequest("there is no connection 'gpu'", "connection")
        return FakeTarget(conn_id)

    monkeypatch.setattr(training, "resolve_target", resolve)

    with pytest.raises(LaunchRefused) as caught:
        world.run(try_number=2, ssh_conn_id="other")
    assert caught.value.kind == "unfenced"


def test_a_foreign_launch_is_left_alone(world):
    """The run was deleted and made again: its ledger is gone, its training is not. Refuse, and tell."""
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()
    world.store.clear()

    with pytest.raises(LaunchRefused) as caught:
        world.run(try_number=2)
    assert caught.value.kind == "foreign"
    assert len(world.host.alive()) == 1


def test_a_foreign_launch_that_has_ended_is_no_obstacle(world):
    world.run()
    world.store.clear()

    world.run(try_number=2)

    assert len(world.host.launches) == 2


def test_a_worker_taken_for_dead_launches_nothing(world):
    """Try 2 has been seen by the host; try 1's worker lives after all and comes late."""
    world.run(try_number=2)
    world.store.clear()

    with pytest.raises(LaunchRefused) as caught:
        world.run(try_number=1)
    assert caught.value.kind in ("superseded", "foreign")
    assert len(world.host.launches) == 1


def test_an_unreachable_host_is_a_transport_error_and_no_verdict(world):
    world.host.unreachable = True

    with pytest.raises(TransportError):
        world.run()
    assert "outcome" not in world.pushed


def test_another_host_only_when_the_first_is_proven_dead(world):
    """The DAG now names another host. The first one cannot be asked, so its training may still run."""
    world.hosts["other"] = other = FakeHost(machine_id="m2")
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()
    world.host.unreachable = True

    with pytest.raises(LaunchRefused) as caught:
        world.run(try_number=2, ssh_conn_id="other")
    assert caught.value.kind == "unfenced"
    assert other.launches == {}

    world.run(try_number=2, ssh_conn_id="other", allow_unfenced_retry=True)
    assert len(other.launches) == 1


def test_a_running_training_on_the_earlier_host_is_adopted_there(world):
    world.hosts["other"] = other = FakeHost(machine_id="m2")
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()

    with pytest.raises(TaskDeferred) as caught:
        world.run(try_number=2, ssh_conn_id="other")

    assert caught.value.trigger.serialize()[1]["conn_id"] == "gpu"
    assert other.launches == {}


def test_a_training_on_the_worker_is_adopted_there_though_the_task_has_a_connection_now(world):
    """Nothing can be deferred on this machine, so the try that adopts it stays with it."""
    world.hosts["gpu"], world.hosts["other"] = world.host, FakeHost(machine_id="m2")
    world.host.end = None
    follow = conduct.TrainingTry.follow
    conduct.TrainingTry.follow = lambda self, for_s=None: (_ for _ in ()).throw(RuntimeError("the worker dies"))
    try:
        with pytest.raises(RuntimeError):
            world.run(ssh_conn_id=None)
    finally:
        conduct.TrainingTry.follow = follow
    world.host.end = RunState.SUCCEEDED

    assert world.run(try_number=2, ssh_conn_id="other", early_window=0) is None
    assert world.hosts["other"].launches == {}
    assert len(world.host.launches) == 1


def test_cleared_and_moved_stops_there_and_launches_here(world):
    world.hosts["other"] = other = FakeHost(machine_id="m2")
    world.host.end = None
    with pytest.raises(TaskDeferred):
        world.run()

    world.run(try_number=2, max_tries=3, ssh_conn_id="other")

    assert world.host.alive() == []
    assert len(other.launches) == 1
    assert world.ledger.last.conn_id == "other"


# ---- killing


def test_killed_before_the_launch_nothing_is_launched(world):
    """``execute`` goes on after ``on_kill``, and must not launch any more."""
    task = world.operator()
    world.host.on_request = lambda request: None
    saved = ledgers.save

    def kill_then_save(store, ledger):
        saved(store, ledger)
        if ledger.last.status is EntryStatus.MAYBE_LAUNCHED:
            task.on_kill()

    ledgers.save = kill_then_save
    try:
        with pytest.raises(LaunchRefused) as caught:
            task.execute(world.context())
    finally:
        ledgers.save = saved
    assert caught.value.kind == "stopped"
    assert world.host.launches == {}
    assert [r["type"] for r in world.host.requests] == ["stop"]
    assert list(world.host.tombstones.values()) == [1]


def test_killed_before_anything_nothing_is_launched(world):
    task = world.operator()
    task.on_kill()

    with pytest.raises(LaunchRefused):
        task.execute(world.context())
    assert world.host.launches == {}


def test_killed_while_the_launch_request_is_on_its_way(world):
    """The stop overtakes the request: the tombstone refuses it."""
    task = world.operator()

    def kill_first(request):
        if request["type"] == "launch":
            world.host.on_request = None
            task.on_kill()
            task._try.finish_stop()

    world.host.on_request = kill_first

    with pytest.raises(LaunchRefused) as caught:
        task.execute(world.context())
    assert caught.value.kind == "tombstoned"
    assert world.host.launches == {}


def test_killed_while_it_runs_the_stop_names_launch_and_epoch(world):
    """And the end is told: STOPPED, not success."""
    task = world.operator(early_window=30)
    world.host.end = None
    flush = conduct.TrainingTry._flush

    def kill_once(self, session, final=False):
        conduct.TrainingTry._flush = flush
        task.on_kill()
        flush(self, session, final)

    conduct.TrainingTry._flush = kill_once
    try:
        with pytest.raises(GpuTrainingFailed) as caught:
            task.execute(world.context())
    finally:
        conduct.TrainingTry._flush = flush
    stop = next(r for r in world.host.requests if r["type"] == "stop")
    assert stop["launch_id"] == world.ledger.last.launch_id
    assert stop["epoch"] == 1
    assert caught.value.outcome.state is RunState.STOPPED


def test_execution_timeout_while_blocking_waits_for_the_hosts_word(world, monkeypatch):
    """The host enforces the same limit; its TIMED_OUT has a cause, Airflow's exception has none."""
    calls = []
    follow = conduct.TrainingTry.follow

    def once_too_late(self, for_s=None):
        calls.append(for_s)
        if len(calls) == 1:
            raise AirflowTaskTimeout("timeout")
        world.host.end = RunState.TIMED_OUT
        return follow(self, for_s)

    monkeypatch.setattr(conduct.TrainingTry, "follow", once_too_late)

    with pytest.raises(GpuTrainingFailed) as caught:
        world.run(deferrable=False, execution_timeout=timedelta(seconds=30))
    assert caught.value.outcome.state is RunState.TIMED_OUT
    assert world.launched[0]["spec"]["deadline_s"] == 30


def test_killed_between_launch_and_attach_the_stop_counts(world):
    """The attach is on its way when the signal comes: the stop waits for the epoch that it has to name."""
    task = world.operator(early_window=30)
    world.host.end = None
    take = conduct.TrainingTry._take

    def kill_before_the_epoch_is_known(self, frame):
        if frame.type == "attached" and self.epoch is None:
            task.on_kill()
            assert self._courier.is_alive()
        take(self, frame)

    conduct.TrainingTry._take = kill_before_the_epoch_is_known
    try:
        with pytest.raises(GpuTrainingFailed) as caught:
            task.execute(world.context())
    finally:
        conduct.TrainingTry._take = take
    assert caught.value.outcome.state is RunState.STOPPED
    assert world.host.alive() == []


def test_a_worker_taken_for_dead_attaches_to_nothing_and_stops_nothing(world):
    """
    It stood still between launch and attach while try 2 adopted its launch. Airflow no longer knows its try, and
    answers that the task has no state.
    """
    world.host.end = None
    task = world.operator()
    follow = conduct.TrainingTry.follow

    def adopt_first(self, for_s=None):
        conduct.TrainingTry.follow = follow
        with pytest.raises(TaskDeferred):
            world.run(try_number=2)
        self._store = Store()
        task.on_kill()
        return follow(self, for_s)

    conduct.TrainingTry.follow = adopt_first
    try:
        with pytest.raises(LaunchRefused) as caught:
            task.execute(world.context())
    finally:
        conduct.TrainingTry.follow = follow
    assert caught.value.kind == "superseded"
    assert len(world.host.alive()) == 1
    assert world.host.launches[world.ledger.last.launch_id].epoch == 1


# ---- following


def test_a_lost_link_while_blocking_loses_and_repeats_no_line(world):
    world.host.fail_before["follow"] = [TransportError("dropped", "x")]

    world.run(deferrable=False)

    assert "\n".join(world.lines).count("epoch 1") == 1
    assert "\n".join(world.lines).count("epoch 2") == 1


def test_a_lost_link_in_the_early_window_is_the_triggerers_business(world):
    world.host.fail_before["follow"] = [TransportError("dropped", "x")]

    with pytest.raises(TaskDeferred):
        world.run()


def test_silence_beyond_the_patience_is_unreachable_and_not_failure(world):
    """UNREACHABLE has no class: nothing is known about the training."""
    world.host.fail_before["follow"] = [TransportError("timeout", "x")] * 1000

    with pytest.raises(GpuTrainingFailed) as caught:
        world.run(deferrable=False, patience=0)
    assert caught.value.outcome.state is RunState.UNREACHABLE
    assert caught.value.failure_class is None
    assert not world.ledger.last.ended


def test_another_machine_at_the_same_address_is_not_followed(world):
    world.host.end = None
    task = world.operator(deferrable=False, patience=0)
    begin = conduct.TrainingTry.begin

    def begin_then_swap(self):
        begin(self)
        self.close()
        world.host.machine_id = "m9"

    conduct.TrainingTry.begin = begin_then_swap
    try:
        with pytest.raises(GpuTrainingFailed) as caught:
            task.execute(world.context())
    finally:
        conduct.TrainingTry.begin = begin
    assert caught.value.outcome.state is RunState.UNREACHABLE
    assert "another one (m9)" in caught.value.outcome.warnings[0]

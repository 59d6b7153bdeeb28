"""
The trigger against a real sshd: one event that tells the truth, every line once, and a stop only when it was meant.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpualert import protocol
from gpualert_provider.hooks.blocking import open_session
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.target import SshTarget
from gpualert_provider.triggers.training import GpuTrainingTrigger
from tests.support.sessions import greet, launch_request, started, target_of
from tests.support.sshd import SshHost
from tests.support.triggering import Log, Triggerer, run, run_until, supervisor
from tests.support.waiting import wait_until

__all__ = ["supervisor"]

ENDLESS = "echo begin; n=0; while true; do n=$((n+1)); echo $n; sleep 0.05; done"


@pytest.fixture(autouse=True)
def no_waiting_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits between tries are a promise of their own, tested with a clock of paper."""
    from gpualert_provider.triggers import link_watch

    monkeypatch.setattr(link_watch, "LARGEST_BOUND_S", 0.5)
    monkeypatch.setattr(link_watch, "LASTING_BOUND_S", 0.5)


@pytest.fixture
def target(ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch) -> SshTarget:
    connect(ssh_host, monkeypatch)
    return target_of(ssh_host)


def connect(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value = host.airflow_connection_json(look_for_keys=False, conn_timeout=3, keepalive_interval=2)
    monkeypatch.setenv("AIRFLOW_CONN_GPU_BOX", value)


def trigger_for(launch_id: str, **how: Any) -> GpuTrainingTrigger:
    """As the triggerer gets it: made from what was stored."""
    how.setdefault("hold_s", 0.0)
    path, kwargs = GpuTrainingTrigger("gpu_box", "gpu-1", launch_id, **how).serialize()
    assert path == "gpualert_provider.triggers.training.GpuTrainingTrigger"
    return GpuTrainingTrigger(**json.loads(json.dumps(kwargs)))


def state_of(target: SshTarget, launch_id: str) -> str:
    with open_session(target) as session:
        return str(session.call(protocol.inspect_request(launch_id=launch_id))["record"]["state"])


@contextmanager
def stopped_at_the_end(target: SshTarget, launch_id: str) -> Iterator[None]:
    try:
        yield
    finally:
        with open_session(target) as session:
            session.call(protocol.stop_request(launch_id=launch_id, reason="end of test", who="test", wait_s=10))


def numbers(lines: list[str]) -> list[int]:
    return [int(line) for line in lines if line.isdigit()]


# -- the end


def test_a_success_is_one_event_and_every_line_once(ssh_host: SshHost, target: SshTarget):
    """Outcome, launch and epoch in one event; nothing is left open."""
    launch_id = started(target, "echo a; sleep 1; echo b; echo c")
    events, log = run(trigger_for(launch_id))

    (event,) = events
    assert event["outcome"]["state"] == "SUCCEEDED" and event["outcome"]["host"]["name"] == "gpu-1"
    assert event["launch_id"] == launch_id and event["epoch"] == 1
    assert log.training_lines == ["a", "b", "c"] and log.told == ""
    wait_until(lambda: not ssh_host.session_pids(), 10, "the host has no session left")


def test_a_failure_is_an_event_and_no_exception(target: SshTarget):
    """A job that fails is an ordinary result; the worker makes an exception of it."""
    (event,), _ = run(trigger_for(started(target, "echo no; exit 3")))

    assert (event["outcome"]["state"], event["outcome"]["exit_code"]) == ("FAILED", 3)


def test_a_burst_before_the_end_is_printed_whole(target: SshTarget):
    """100,000 lines in the last moment: all before the event, in few records."""
    events, log = run(trigger_for(started(target, "seq 1 100000")))

    assert numbers(log.training_lines) == list(range(1, 100_001)) and len(events) == 1
    assert len(log.entries) < 40


def test_beyond_the_ceiling_the_event_still_comes(target: SshTarget):
    """A flood costs the task log its middle, with a word where the rest is."""
    (event,), log = run(trigger_for(started(target, "seq 1 100000"), ceiling_bytes=20_000))

    assert event["outcome"]["state"] == "SUCCEEDED"
    assert log.training_lines[0] == "1" and log.training_lines[-1] == "100000"
    assert f"all of them at {event['outcome']['log_path']} on gpu-1" in log.told


def test_lines_land_in_their_own_tasks_log(target: SshTarget):
    """Airflow sorts by context variables: two trainings followed at once must not mix."""
    ids = [started(target, f"for i in 1 2 3; do echo {word}; sleep 0.3; done") for word in ("one", "two")]

    async def both() -> list[Log]:
        triggerer = Triggerer()
        running = [triggerer.start(trigger_for(launch_id)) for launch_id in ids]
        await asyncio.gather(*(task for task, _ in running))
        return [log for _, log in running]

    first, second = asyncio.run(both())
    assert first.training_lines == ["one"] * 3 and set(first.contexts) == {1}
    assert second.training_lines == ["two"] * 3 and set(second.contexts) == {2}


def test_secrets_are_masked_in_log_and_event(target: SshTarget, monkeypatch: pytest.MonkeyPatch):
    """The trigger's arguments name where a secret lies; its value is in no log, no event, no argument."""
    value = {"conn_type": "generic", "password": "hf_S3cretValue"}
    monkeypatch.setenv("AIRFLOW_CONN_HF_DEFAULT", json.dumps(value))
    launch_id = started(target, "echo token hf_S3cretValue; echo ValueError: bad token hf_S3cretValue >&2; exit 1")
    trigger = trigger_for(launch_id, secret_env={"HF_TOKEN": "hf_default"})
    (event,), log = run(trigger)

    assert "token **************" in log.training_lines
    for text in (json.dumps(event), json.dumps(trigger.serialize()), repr(trigger), str(log.entries)):
        assert "hf_S3cretValue" not in text


# -- the link


def test_a_cut_connection_costs_no_line_and_repeats_none(ssh_host: SshHost, target: SshTarget):
    """The server's sessions are killed several times; the task log looks as if nothing had happened."""
    launch_id = started(target, "for i in $(seq 1 120); do echo $i; sleep 0.05; done")
    trigger = trigger_for(launch_id)
    done = threading.Event()

    def cut() -> None:
        while not done.wait(1.2):
            ssh_host.kill_sessions()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        (event,), log = run(trigger)
    finally:
        done.set()
        cutter.join()

    assert numbers(log.training_lines) == list(range(1, 121))
    assert event["outcome"]["state"] == "SUCCEEDED" and event["epoch"] > 1, "the link was cut at least once"


def test_a_triggerer_that_dies_is_followed_by_one_that_goes_on(target: SshTarget):
    """What was printed is acknowledged, what was not is sent again: over both, every line once."""
    launch_id = started(target, "for i in $(seq 1 60); do echo $i; sleep 0.05; done")
    first = run_until(trigger_for(launch_id), lambda log: len(log.training_lines) > 10, kill=False)
    (event,), second = run(trigger_for(launch_id))

    assert numbers(first.training_lines) + numbers(second.training_lines) == list(range(1, 61))
    assert event["outcome"]["state"] == "SUCCEEDED"


def test_the_host_is_told_that_the_end_has_been_heard(target: SshTarget):
    """So cleaning there may take the launch, once it has lain for a while."""
    launch_id = started(target, "echo one; sleep 1")
    run(trigger_for(launch_id))

    ack = ack_of(target, launch_id)
    assert (ack["offset"], ack["ended"]) == (4, True)


@pytest.mark.parametrize("command", ["true", "echo one; sleep 2"], ids=["wrote nothing", "nothing new"])
def test_an_end_without_new_lines_has_been_heard_too(target: SshTarget, command: str):
    """And what an earlier triggerer acknowledged stays acknowledged."""
    launch_id = started(target, command)
    if "echo" in command:
        run_until(trigger_for(launch_id), lambda log: log.training_lines, kill=False)
    before = wait_until(lambda: ack_of(target, launch_id) or command == "true", 10, "the line is acknowledged")
    (event,), log = run(trigger_for(launch_id))

    assert event["outcome"]["state"] == "SUCCEEDED" and log.training_lines == []
    after = wait_until(lambda: (found := ack_of(target, launch_id))["ended"] and found, 10, "the end is acknowledged")
    assert after["offset"] == (0 if command == "true" else before["offset"]) and after["generation"] == 0


def ack_of(target: SshTarget, launch_id: str) -> dict[str, Any]:
    with open_session(target) as session:
        record = session.call(protocol.inspect_request(launch_id=launch_id))["record"]
    path = Path(record["run_directory"], "ack.json")
    return json.loads(path.read_text()) if path.exists() else {}


def test_a_host_that_stays_away_is_unreachable_after_patience(ssh_host: SshHost, target: SshTarget):
    """The answer is about us, not about the training: UNREACHABLE, with the last reason."""
    launch_id = started(target, "sleep 1", "gone")
    ssh_host.stop()
    (event,), log = run(trigger_for(launch_id, patience_s=1.0, log_path="/x/log"))

    outcome = event["outcome"]
    assert (outcome["state"], outcome["lost_reason"], outcome["log_path"]) == ("UNREACHABLE", "unreachable", "/x/log")
    assert outcome["failure_class"] is None and "refused" in outcome["warnings"][0]
    assert "patience" in log.told and outcome["launch_number"] == 1


def test_a_host_that_comes_back_is_followed_on(ssh_host: SshHost, target: SshTarget):
    """A sshd that restarts for a moment is not worth a word; the training's end is told."""
    launch_id = started(target, "sleep 4; exit 5")

    async def whole() -> tuple[list[Any], Log]:
        triggerer = Triggerer()
        task, log = triggerer.start(trigger := trigger_for(launch_id))
        await asyncio.to_thread(wait_until, lambda: trigger._held_epoch, 30, "the trigger follows")
        await asyncio.to_thread(ssh_host.stop)
        await asyncio.to_thread(wait_until, lambda: trigger._session is None, 30, "the trigger has lost the link")
        await asyncio.to_thread(ssh_host.start)
        await task
        return triggerer.events(), log

    (event,), log = asyncio.run(whole())
    assert event["outcome"]["exit_code"] == 5 and log.told == ""


def test_what_does_not_pass_by_itself_is_told_at_once(
    ssh_host: SshHost, target: SshTarget, monkeypatch: pytest.MonkeyPatch
):
    """A triggerer without the key: said in the task log with what to do, while the training goes on."""
    launch_id = started(target, "sleep 1", "nokey")
    monkeypatch.setenv("AIRFLOW_CONN_GPU_BOX", ssh_host.airflow_connection_json(key_file="/nowhere/key"))
    (event,), log = run(trigger_for(launch_id, patience_s=1.0))

    assert event["outcome"]["state"] == "UNREACHABLE"
    assert log.told.count("key_file: '/nowhere/key' cannot be read") >= 1 and "the training goes on" in log.told


def test_another_machine_is_not_asked(target: SshTarget):
    """An address that leads elsewhere must not be taken for the launch's host that forgot it."""
    launch_id = started(target, "sleep 1", "elsewhere")
    (event,), log = run(trigger_for(launch_id, machine_id="f" * 32, patience_s=1.0))

    assert (event["outcome"]["state"], event["outcome"]["lost_reason"]) == ("LOST", "other_machine")
    assert "expected the machine that runs" in log.told and log.training_lines == []


def test_a_run_directory_that_is_gone_is_lost(target: SshTarget):
    """Somebody cleaned it away: the answer is LOST, at once, and says why."""
    with open_session(target) as session:
        record = session.call(launch_request("sleep 60", "cleaned"))["record"]
    with stopped_in_spite(target, record):
        shutil.rmtree(record["run_directory"].rsplit("/", 1)[0])
        (event,), _ = run(trigger_for(record["launch_id"]))

    assert (event["outcome"]["state"], event["outcome"]["lost_reason"]) == ("LOST", "run_directory_gone")


@contextmanager
def stopped_in_spite(target: SshTarget, record: dict[str, Any]) -> Iterator[None]:
    """For a launch whose files the test takes away."""
    import os
    import signal

    try:
        yield
    finally:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as environ:
                    ours = record["launch_id"].encode() in environ.read()
                if ours or int(entry) == record["child_pid"]:
                    os.kill(int(entry), signal.SIGKILL)
            except (OSError, TypeError):
                continue


@pytest.mark.slow
def test_a_rebooted_host_is_lost_by_reboot(machine_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    """Power fails in silence and comes back: another boot id, so nobody has to guess."""
    machine = machine_with()
    connect(machine, monkeypatch)
    target = target_of(machine)
    hello = wait_until(lambda: greet("blocking", target), 20, "the machine answers", ignore=(TransportError,))
    with open_session(target) as session:
        record = session.call(launch_request("echo alive; sleep 600", "reboot"))["record"]
    facts = {"machine_id": hello["machine_id"], "boot_id": hello["boot_id"]}

    async def whole() -> tuple[list[Any], Log]:
        triggerer = Triggerer()
        task, log = triggerer.start(trigger_for(record["launch_id"], **facts))
        while "alive" not in log.training_lines:
            assert not task.done()
            await asyncio.sleep(0.05)
        await asyncio.to_thread(machine.reboot)
        await task
        return triggerer.events(), log

    (event,), log = asyncio.run(whole())
    assert (event["outcome"]["state"], event["outcome"]["lost_reason"]) == ("LOST", "rebooted")
    assert "has been rebooted" in log.told and log.training_lines == ["alive"]


# -- stopping


@pytest.mark.parametrize("state", ["failed", "success", "removed", "deleted"])
def test_a_task_that_was_given_up_stops_its_training(target: SshTarget, supervisor: Callable[..., Any], state: str):
    """Marked failed, marked success, or its run deleted: nobody else would look after the training."""
    stub = supervisor(state)
    launch_id = started(target, ENDLESS)
    log = run_until(trigger_for(launch_id), lambda log: log.training_lines, kill=True)

    assert state_of(target, launch_id) == "STOPPED" and state in log.told
    (question,) = stub.asked
    assert (question.dag_id, question.run_ids, question.task_ids) == ("dag", ["run"], ["train"])


@pytest.mark.parametrize("state", ["deferred", "running", "scheduled", None], ids=str)
def test_a_trigger_that_only_moved_stops_nothing(target: SshTarget, supervisor: Callable[..., Any], state: str | None):
    """Airflow cancels a trigger "by user action" also when another triggerer has it, or the task was cleared."""
    supervisor(state)
    launch_id = started(target, ENDLESS)
    with stopped_at_the_end(target, launch_id):
        log = run_until(trigger_for(launch_id), lambda log: log.training_lines, kill=True)

        assert state_of(target, launch_id) == "RUNNING"
        assert "the training goes on" in log.told and (state or "cleared") in log.told


@pytest.mark.parametrize(
    ("answer", "word"),
    [(RuntimeError("API server is away"), "API server is away"), ("missing", "was not in the answer")],
)
def test_when_the_state_is_not_known_nothing_is_stopped(
    target: SshTarget, supervisor: Callable[..., Any], answer: Any, word: str
):
    """A training of five days is not stopped on a guess; how to stop it is told."""
    supervisor(answer)
    launch_id = started(target, ENDLESS)
    with stopped_at_the_end(target, launch_id):
        log = run_until(trigger_for(launch_id), lambda log: log.training_lines, kill=True)

        assert state_of(target, launch_id) == "RUNNING"
        assert word in log.told and f"gpualert stop {launch_id}" in log.told


def test_a_triggerer_that_shuts_down_stops_nothing(target: SshTarget, supervisor: Callable[..., Any]):
    """Cancelled without a user's action: the trigger is given to another triggerer."""
    stub = supervisor("failed")
    launch_id = started(target, ENDLESS)
    with stopped_at_the_end(target, launch_id):
        run_until(trigger_for(launch_id), lambda log: log.training_lines, kill=False)

        assert state_of(target, launch_id) == "RUNNING" and stub.asked == []


def test_a_later_follower_is_not_stopped_by_an_earlier_one(target: SshTarget, supervisor: Callable[..., Any]):
    """The task was failed, cleared and taken over while we were frozen: our epoch is stale, and the host refuses."""
    supervisor("failed")
    launch_id = started(target, ENDLESS)

    def taken_over(log: Log) -> bool:
        if not log.training_lines:
            return False
        with open_session(target) as session:
            next(session.follow(launch_id, attach=True, who="a new try"))
        return True

    with stopped_at_the_end(target, launch_id):
        log = run_until(trigger_for(launch_id), taken_over, kill=True)

        assert state_of(target, launch_id) == "RUNNING" and "somebody else follows" in log.told


def test_a_trigger_that_never_reached_the_host_fences_before_it_stops(
    ssh_host: SshHost, target: SshTarget, supervisor: Callable[..., Any]
):
    """Without an epoch of its own it takes one and asks for the task's state once more, so it cannot hit a new try."""
    launch_id = started(target, ENDLESS)
    stub = supervisor(lambda asked: "failed" if asked == 1 else None)
    with stopped_at_the_end(target, launch_id):
        asyncio.run(_kill_only(trigger_for(launch_id)))
        assert state_of(target, launch_id) == "RUNNING" and len(stub.asked) == 2

        supervisor("failed")
        asyncio.run(_kill_only(trigger_for(launch_id)))
        assert state_of(target, launch_id) == "STOPPED"


async def _kill_only(trigger: GpuTrainingTrigger) -> None:
    task, _ = Triggerer().start(trigger)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await trigger.on_kill()
    await trigger.cleanup()


def test_a_stop_that_cannot_be_delivered_is_told(ssh_host: SshHost, target: SshTarget, supervisor: Callable[..., Any]):
    """The host is away just then: the task log says that the training may still run, and how to stop it."""
    supervisor("failed")
    launch_id = started(target, "echo begin; sleep 3")

    def host_gone(log: Log) -> bool:
        if not log.training_lines:
            return False
        ssh_host.stop()
        return True

    log = run_until(trigger_for(launch_id), host_gone, kill=True)
    assert "not delivered" in log.told and f"gpualert stop {launch_id}" in log.told
    ssh_host.start()

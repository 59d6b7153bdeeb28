"""What the keepers owe the child: they may die, it may not notice; and what they promise is kept by whoever is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpualert import procfs, records
from gpualert.records import ExitStatus, RunState
from gpualert.rundir import RunDirectory
from tests.support.launching import ROOT, Host, host, stop, wait_until_reaper
from tests.support.waiting import wait_until

__all__ = ["host"]

COUNT = "i=0; while [ $i -lt {n} ]; do echo line $i; i=$((i+1)); [ -e {gate} ] || sleep 0.02; done; exit 5"


@pytest.mark.parametrize("victims", [["supervisor"], ["guard"], ["supervisor", "guard"], ["guard", "supervisor"]])
def test_no_byte_is_lost_whoever_is_killed(host: Host, tmp_path: Path, victims: list[str]) -> None:
    """The child writes into the log itself; keepers die beside it."""
    gate = tmp_path / "gate"
    record = host.launch(["sh", "-c", COUNT.format(n=400, gate=gate)])
    host.wait_for_log(record, b"line 3\n")
    wait_until_reaper(host, record)
    for who in victims:
        host.kill(record, who)
    gate.touch()
    ended = host.end(record)

    assert host.log(record) == b"".join(b"line %d\n" % i for i in range(400))
    if len(victims) == 1:
        assert ended.exit == ExitStatus(5, None, False)
    else:
        assert (ended.state, ended.lost_reason) == (RunState.LOST, "vanished")


def test_a_guard_that_wakes_late_finds_both_dead_and_loses_nothing(host: Host, tmp_path: Path) -> None:
    """It was busy while supervisor and child died one after the other: the child's status is still the child's."""
    record = host.launch(f"echo up; while [ ! -e {tmp_path}/gate ]; do sleep 0.02; done; exit 23")
    host.wait_for_log(record, b"up")
    wait_until_reaper(host, record)
    guard = host.started(record)["guard"]["pid"]
    os.kill(guard, signal.SIGSTOP)
    host.kill(record, "supervisor")
    (tmp_path / "gate").touch()
    stat = Path(f"/proc/{record.child_pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", deadline_s=10, what="the child to end")
    os.kill(guard, signal.SIGCONT)
    ended = host.end(record)

    assert (ended.exit, ended.witness) == (ExitStatus(23, None, False), "guard")


def test_the_deadline_holds_although_the_supervisor_is_dead(host: Host) -> None:
    record = host.launch("echo up; exec sleep 60", deadline_s=1.5, grace_period_s=5)
    host.wait_for_log(record, b"up")
    wait_until_reaper(host, record)
    host.kill(record, "supervisor")
    ended = host.end(record)

    assert (ended.state, ended.stopped_by, ended.witness) == (RunState.TIMED_OUT, "deadline", "guard")
    assert ended.exit == ExitStatus(None, signal.SIGTERM, False)


@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_jumps_neither_stops_a_training_nor_prolongs_it(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Someone sets the host's clock while it runs: deadlines and durations are counted by one that cannot be set."""
    jump, real = tmp_path / "jump", time.time
    # The keepers are forked from this process, and have its clock.
    monkeypatch.setattr(time, "time", lambda: real() + (86_400 * days if jump.exists() else 0))
    patient = host.launch("sleep 4; exit 5", deadline_s=600)
    late = host.launch("sleep 60", deadline_s=3)
    wait_until(lambda: all(host.started(record) for record in (patient, late)), 20, "both run")
    jump.touch()

    patient, late = host.end(patient), host.end(late)
    assert (patient.state, patient.exit and patient.exit.code) == (RunState.FAILED, 5)
    assert late.state is RunState.TIMED_OUT
    assert patient.elapsed_s is not None and 3.5 < patient.elapsed_s < 30
    assert late.elapsed_s is not None and 2.5 < late.elapsed_s < 30
    assert patient.ended_at and patient.started_at and abs(patient.ended_at - patient.started_at) > 80_000, "no jump"


def test_a_visitor_enforces_the_deadline_when_both_are_dead(host: Host) -> None:
    """Whoever asks carries it out; the status was seen by nobody, but that we stopped it is known."""
    from gpualert import control

    record = host.launch("echo up; exec sleep 60", deadline_s=1.0, grace_period_s=5)
    host.wait_for_log(record, b"up")
    host.kill(record, "supervisor")
    host.kill(record, "guard")
    ended = wait_until(
        lambda: (now := control.inspect(launch_id=record.launch_id)).state.ended and now,
        deadline_s=20,
        what="a visitor to enforce the deadline",
    )

    assert (ended.state, ended.stopped_by, ended.witness) == (RunState.TIMED_OUT, "deadline", "visitor")
    assert ended.exit == ExitStatus(None, None, None)


def test_a_visitor_carries_out_a_stop_when_both_are_dead(host: Host) -> None:
    record = host.launch("trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    host.wait_for_log(record, b"up")
    host.kill(record, "supervisor")
    host.kill(record, "guard")
    ended = stop(record)

    assert (ended.state, ended.witness) == (RunState.STOPPED, "visitor")
    assert b"asked" in host.log(record)


def test_the_grace_period_is_not_begun_anew_by_the_guard(host: Host) -> None:
    """The supervisor dies after it has sent the signal: the guard neither sends it twice nor waits twice."""
    record = host.launch(
        "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done", grace_period_s=3, leftovers="kill"
    )
    host.wait_for_log(record, b"up")
    wait_until_reaper(host, record)
    stop(record, wait_s=0)
    host.wait_for_log(record, b"asked")
    wait_until(RunDirectory(record.run_directory).read_stopping, deadline_s=5, what="stopping.json")
    host.kill(record, "supervisor")
    ended = host.end(record)

    assert ended.state is RunState.STOPPED
    assert ended.exit == ExitStatus(None, signal.SIGKILL, False)
    assert host.log(record).count(b"asked") == 1


LAUNCHER = """
import sys
sys.path.insert(0, sys.argv[1])
from gpualert.launch import launch
from gpualert.key import Attempt, LaunchKey
from gpualert.spec import LaunchSpec
what, record = launch(LaunchKey(("other",), "other"), Attempt(1, "a"), LaunchSpec(sys.argv[2]), {}, 0)
print(record.run_directory)
"""


def test_a_launch_leaves_nothing_of_the_callers_open(host: Host) -> None:
    """A parent that reads a pipe to its end (ssh, subprocess) sees it as soon as the launcher is gone."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(ROOT), "sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[write],
        timeout=30,  # run() waits for the end of the pipe
    )
    os.close(write)
    record = records.read(done.stdout.decode().strip())
    host.records.append(record)

    assert os.read(read, 1) == b"", "our own pipe is at its end, too"
    os.close(read)
    assert record.state is RunState.RUNNING
    stop(record)


def test_what_the_keepers_hold(host: Host) -> None:
    """/dev/null three times, pipes of their own, the log for reading; their folder is /, so nothing is kept busy."""
    record = host.launch(["sleep", "60"])
    for who in ("guard", "supervisor"):
        pid = host.pid(record, who)
        held = {int(n): os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}
        assert {held.pop(n) for n in (0, 1, 2)} == {"/dev/null"}
        assert all(v.startswith("pipe:") or v == record.log_path for v in held.values()), held
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert os.getsid(pid) == host.pid(record, "guard") != os.getsid(0)
    assert os.getpgid(host.pid(record, "child")) == host.pid(record, "child")


def test_orphans_are_reaped(host: Host, tmp_path: Path) -> None:
    """Whoever loses its parent comes to the guard, and leaves no zombie there."""
    record = host.launch(
        "echo up; sleep 0.6; for i in 1 2 3; do (sleep 0.1 & ); done; sleep 0.5; echo orphans ended; exec sleep 60"
    )
    host.wait_for_log(record, b"orphans ended")
    guard = host.pid(record, "guard")
    wait_until(
        lambda: not [p for p in procfs.all_processes() if p.parent == guard and p.dead],
        deadline_s=5,
        what="no zombies below the guard",
    )
    stop(record)


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "USR2", "QUIT"])
def test_signals_are_forwarded_to_the_whole_group(host: Host, name: str) -> None:
    """A signal to the supervisor is meant for the training, its workers included; it is not a request of ours."""
    code = (
        "import os, signal, sys, time\n"
        "who = 'worker' if os.fork() == 0 else 'leader'\n"
        "def got(*_): os.write(1, f'{who} got it\\n'.encode()); os._exit(4)\n"
        "signal.signal(int(sys.argv[1]), got)\n"
        "os.write(1, f'{who} up\\n'.encode())\n"
        "time.sleep(60)"
    )
    number = int(getattr(signal, f"SIG{name}"))
    record = host.launch([sys.executable, "-I", "-S", "-c", code, str(number)])
    host.wait_for_log(record, b"worker up")
    host.wait_for_log(record, b"leader up")
    os.kill(host.pid(record, "supervisor"), number)
    ended = host.end(record)

    assert (ended.exit, ended.stopped_by, ended.state) == (ExitStatus(4, None, False), None, RunState.FAILED)
    host.wait_for_log(record, b"worker got it")
    assert b"leader got it" in host.log(record)


def test_a_terminals_stop_stops_the_group_and_cont_continues_it(host: Host) -> None:
    record = host.launch("echo up; while :; do sleep 0.05; done")
    host.wait_for_log(record, b"up")
    child = host.pid(record, "child")

    def state() -> str:
        found = procfs.stat(child)
        return "" if found is None else found.state

    os.kill(host.pid(record, "supervisor"), signal.SIGTSTP)
    wait_until(lambda: state() == "T", deadline_s=5, what="the child to be stopped")
    os.kill(host.pid(record, "supervisor"), signal.SIGCONT)
    wait_until(lambda: state() in "SR", deadline_s=5, what="the child to go on")
    stop(record)


def test_truncation_is_noticed_also_when_the_log_has_grown_again(host: Host) -> None:
    """``echo x > /dev/stderr`` empties the log in bash; offsets before it mean nothing any more."""
    grown = host.run("echo 0123456789; sleep 0.5; : > /dev/stderr; seq 1 5000; sleep 0.2")
    assert (grown.log_truncated, grown.log_generation) == (True, 1)
    shrunk = host.run("seq 1 5000; sleep 0.3; : > /dev/stderr; echo after; exit 3")
    assert (shrunk.log_truncated, shrunk.log_generation, shrunk.exit) == (True, 1, ExitStatus(3, None, False))
    twice = host.run("for i in 1 2; do seq $i 5000; sleep 1.5; : > /dev/stderr; done; echo end")
    assert twice.log_generation == 2
    innocent = host.run("seq 1 1000; sleep 0.3; seq 1 1000")
    assert (innocent.log_truncated, innocent.log_generation) == (False, 0)


def test_the_heartbeat_beats(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers on another machine have nothing else to go by."""
    monkeypatch.setattr("gpualert.supervisor.HEARTBEAT_S", 0.2)
    record = host.launch(["sleep", "60"])
    run = RunDirectory(record.run_directory)
    first = run.heartbeat_at()
    assert first is not None
    wait_until(lambda: (run.heartbeat_at() or 0) > first, deadline_s=10, what="a second beat")
    stop(record)


def test_a_deleted_run_directory_does_not_hurt_the_child(host: Host, tmp_path: Path) -> None:
    """It goes on, writing into a file that has no name any more, and the keepers end with it."""
    import shutil

    record = host.launch(f"echo up; while [ ! -e {tmp_path}/gate ]; do sleep 0.05; done; touch {tmp_path}/done")
    host.wait_for_log(record, b"up")
    keepers = [procfs.ProcessIdentity.from_json(host.started(record)[w]) for w in ("supervisor", "guard")]
    shutil.rmtree(record.run_directory)
    (tmp_path / "gate").touch()
    wait_until((tmp_path / "done").exists, deadline_s=10, what="the child to end its work")
    wait_until(lambda: not any(map(procfs.alive, keepers)), deadline_s=30, what="the keepers to end")


@pytest.mark.parametrize(
    ("change", "age_s", "expected"),
    [
        ({"start_ticks": 1}, 0, (RunState.LOST, "vanished")),
        ({"boot_id": "another-boot"}, 10**9, (RunState.LOST, "rebooted")),
        ({"boot_id": "another-boot"}, 0, (RunState.RUNNING, None)),
        ({"boot_id": "b", "machine_id": "m"}, 0, (RunState.RUNNING, None)),
        ({"boot_id": "b", "machine_id": "m"}, 90, (RunState.UNREACHABLE, None)),
        ({"boot_id": "b", "machine_id": None}, 90, (RunState.UNREACHABLE, None)),
        ({"pid_namespace": "pid:[1]"}, 90, (RunState.UNREACHABLE, None)),
    ],
    ids=["reused", "rebooted", "clone", "elsewhere", "elsewhere-old", "no-machine-id", "namespace"],
)
def test_a_pid_alone_proves_nothing(
    host: Host, change: dict[str, Any], age_s: float, expected: tuple[RunState, str | None]
) -> None:
    """The pid lives (it is this test's own), but boot, start or machine are another's."""
    record = host.run(["true"])
    run = RunDirectory(record.run_directory)
    started = host.started(record)
    ours = procfs.identify(os.getpid())
    assert ours is not None
    for who in ("child", "supervisor", "guard"):
        started[who] = {**ours.to_json(), **change}
    Path(run.started_path).write_text(json.dumps(started))
    os.unlink(run.exit_path)
    os.utime(run.heartbeat_path, (time.time() - age_s,) * 2)
    now = records.read(record.run_directory)

    assert (now.state, now.lost_reason) == expected
    assert now.exit is None
    if expected[0] is RunState.UNREACHABLE or age_s == 0 and expected[0] is RunState.RUNNING:
        assert now.note and "another machine" in now.note


def test_the_observer_may_die_as_often_as_it_likes(host: Host, tmp_path: Path) -> None:
    """It is started again at most three times, and neither the child nor its end notices."""
    gate = tmp_path / "gate"
    record = host.launch(f"echo up; while [ ! -e {gate} ]; do sleep 0.05; done; exit 6")
    guard = host.pid(record, "guard")

    def observers() -> list[int]:
        return [p.pid for p in procfs.all_processes() if p.parent == guard and p.command.startswith("gpualert-watch")]

    seen: set[int] = set()
    for _ in range(4):
        pid = wait_until(lambda: (set(observers()) - seen) or None, deadline_s=10, what="an observer").pop()
        seen.add(pid)
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, guard)
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not observers(), deadline_s=10, what="no fifth observer")
    gate.touch()
    ended = host.end(record)

    assert ended.exit == ExitStatus(6, None, False)
    assert ended.witness == "supervisor"


def test_the_childs_place_before_the_oom_killer_is_its_own(host: Host) -> None:
    """Keepers ask to be spared, where that is allowed; the child's score is the launcher's."""
    record = host.launch("cat /proc/self/oom_score_adj; exec sleep 600")
    wait_until_reaper(host, record)
    ours = Path("/proc/self/oom_score_adj").read_bytes()

    assert host.wait_for_log(record, b"\n") == ours
    for who in ("guard", "supervisor"):
        assert Path(f"/proc/{host.pid(record, who)}/oom_score_adj").read_bytes() in (ours, b"-900\n")
    stop(record)


def test_a_launch_within_a_launch_is_stopped_with_it(host: Host, tmp_path: Path) -> None:
    """What a training starts through us belongs to its tree, keepers included."""
    inner = tmp_path / "inner"
    words = f"{sys.executable} -I -S -c '{LAUNCHER}' {ROOT} 'echo $$ > {inner}; exec sleep 600'"
    record = host.launch(f"sleep 0.5; {words}; echo launched; sleep 600", grace_period_s=1)
    host.wait_for_log(record, b"launched")
    wait_until(lambda: inner.exists() and inner.read_text(), deadline_s=20, what="the inner training to run")
    nested = records.read(host.log(record).decode().split("\n")[0])
    host.records.append(nested)
    stop(record)
    wait_until(RunDirectory(record.run_directory).read_tree, deadline_s=60, what="tree.json")

    assert procfs.stat(int(inner.read_text())) is None
    assert procfs.stat(host.pid(nested, "guard")) is None


def test_keepers_are_small(host: Host) -> None:
    """Guard and supervisor together: at most 25 MB of proportional memory, with any log."""
    command = "head -c 50000000 /dev/zero; exec sleep 60"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", LAUNCHER, str(ROOT), command], capture_output=True)
    record = records.read(done.stdout.decode().strip())
    host.records.append(record)
    wait_until(lambda: (records.read(record.run_directory).log_size_bytes or 0) >= 50_000_000, 20, "50 MB of log")
    total_kib = sum(proportional_kib(host.pid(record, who)) for who in ("guard", "supervisor"))
    stop(record)

    assert 0 < total_kib <= 25 * 1024


def proportional_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    pytest.skip("this kernel does not tell proportional memory")


def test_a_python_without_the_module_resource_still_sees_the_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """wait4 needs it to tell what the child used; without it that is unknown, and the status is exact."""
    monkeypatch.setitem(sys.modules, "resource", None)
    ended = host.run("exit 41")

    assert (ended.exit, ended.witness, ended.rusage) == (ExitStatus(41, None, False), "supervisor", None)

"""A stop is a durable request on the host, and a tree is stopped whole."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import gpualert
from gpualert import control, procfs, records
from gpualert.errors import Refused
from gpualert.key import Attempt
from gpualert.launch import launch
from gpualert.records import ExitStatus, RunState
from gpualert.rundir import RunDirectory
from gpualert.spec import STOP_SIGNALS, LaunchSpec
from tests.support import needs
from tests.support.launching import Host, host, stop
from tests.support.waiting import wait_until

__all__ = ["host"]

# Leaves group, session, parents and environment behind, ignores what can be ignored, and says where it is.
FUGITIVE = """
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if len(sys.argv) == 2:
    me = open("/proc/self/cmdline", "rb").read().split(b"\\0")[4]
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", me, sys.argv[1], "again"], {})
os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
open(sys.argv[1] + ".tmp", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
time.sleep(600)
"""


def fugitive(path: Path) -> str:
    return f"{sys.executable} -I -S -c {quoted(FUGITIVE)} {path}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def gone(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is None or found.dead


def test_a_stop_is_carried_out_at_once(host: Host) -> None:
    """Durable first, then a poke; the child has its grace period, and its own status is kept."""
    record = host.launch("trap 'echo saving; sleep 0.2; echo saved; exit 9' TERM; echo up; while :; do sleep 0.1; done")
    host.wait_for_log(record, b"up")
    ended = stop(record)

    assert (ended.state, ended.stopped_by, ended.stop_reason) == (RunState.STOPPED, "request", "a test says so")
    assert ended.exit == ExitStatus(9, None, False)
    assert host.log(record).endswith(b"saving\nsaved\n")


def test_stopped_is_not_a_success_even_with_code_0(host: Host) -> None:
    record = host.launch("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")
    host.wait_for_log(record, b"up")
    ended = stop(record)

    assert (ended.state, ended.exit) == (RunState.STOPPED, ExitStatus(0, None, False))


@pytest.mark.parametrize("name", STOP_SIGNALS)
@pytest.mark.parametrize("program", ["bash", "sh"])
def test_the_shell_waits_for_its_command_and_then_ends_with_128_plus_n(
    host: Host, monkeypatch: pytest.MonkeyPatch, name: str, program: str
) -> None:
    """Without our prologue the shell would die at once, beside a training that still saves its checkpoint."""
    monkeypatch.setattr("gpualert.shell.find_shell", lambda environ: needs.program(program))
    number = int(getattr(signal, name))
    code = (
        "import signal, sys, time\n"
        "def save(*_):\n    print('saving', flush=True); time.sleep(0.3); print('saved', flush=True); sys.exit(0)\n"
        f"signal.signal({number}, save)\nprint('up', flush=True)\nwhile True: time.sleep(0.05)"
    )
    record = host.launch(f"{sys.executable} -I -S -c {quoted(code)}\necho not reached", stop_signal=name)
    host.wait_for_log(record, b"up")
    ended = stop(record)

    assert host.log(record) == b"up\nsaving\nsaved\n"
    assert ended.exit == ExitStatus(128 + number, None, False)
    assert ended.state is RunState.STOPPED


@pytest.mark.parametrize("program", ["bash", "sh"])
def test_a_trap_of_the_scripts_own_takes_the_place_of_ours(
    host: Host, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr("gpualert.shell.find_shell", lambda environ: needs.program(program))
    record = host.launch("trap 'echo mine; exit 5' TERM\necho up\nwhile :; do sleep 0.05; done")
    host.wait_for_log(record, b"up")
    ended = stop(record)

    assert ended.exit == ExitStatus(5, None, False)
    assert host.log(record).endswith(b"mine\n")


def test_a_childs_dispositions_are_the_defaults_under_the_prologue(host: Host) -> None:
    """Our trap is the shell's alone."""
    record = host.run("cat /proc/self/status; exit 0")
    lines = dict(line.split(":\t", 1) for line in host.log(record).decode().splitlines())

    # 32 and 33 belong to the C library, which lets nobody change them; GNU make hands them on ignored.
    of_libc = 1 << 31 | 1 << 32
    masks = {name: int(lines[name], 16) & ~of_libc for name in ("SigBlk", "SigIgn", "SigCgt")}
    assert masks == {"SigBlk": 0, "SigIgn": 0, "SigCgt": 0}


def test_who_ignores_the_signal_is_killed_after_the_grace_period(host: Host) -> None:
    record = host.launch("trap '' TERM; echo up; while :; do sleep 0.05; done", grace_period_s=0.5)
    host.wait_for_log(record, b"up")
    ended = stop(record)

    assert ended.exit == ExitStatus(None, signal.SIGKILL, False)
    assert ended.state is RunState.STOPPED


def test_no_grace_means_sigkill_at_once(host: Host) -> None:
    record = host.launch("trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done", grace_period_s=0)
    host.wait_for_log(record, b"up")
    ended = stop(record)

    assert ended.exit == ExitStatus(None, signal.SIGKILL, False)
    assert b"asked" not in host.log(record)


def test_a_stopped_process_is_continued_so_that_it_can_end(host: Host) -> None:
    record = host.launch("trap 'echo asked; exit 0' TERM; echo up; kill -STOP $$; while :; do sleep 0.05; done")
    host.wait_for_log(record, b"up")
    stop(record)

    assert b"asked" in host.log(record)


def test_who_leaves_group_session_parents_and_environment_is_found(host: Host, tmp_path: Path) -> None:
    """setsid, two forks, an empty environment, SIGTERM ignored: orphans return to the guard, and it knows them."""
    where = tmp_path / "fugitive"
    # it becomes a fugitive once the guard is a sub-reaper, a moment after the start
    record = host.launch(f"sleep 0.7; {fugitive(where)}; echo up; sleep 600", grace_period_s=0.5)
    wait_until(where.exists, deadline_s=15, what="the fugitive to flee")
    pid = int(where.read_text())
    assert os.getsid(pid) not in (host.pid(record, "guard"), host.pid(record, "child"))
    assert not procfs.is_tagged(pid, record.launch_id)
    stop(record)
    tree = wait_until(RunDirectory(record.run_directory).read_tree, deadline_s=60, what="tree.json")

    assert gone(pid)
    assert pid in [one["pid"] for one in tree["killed"]]
    assert tree["survivors"] == []
    assert records.read(record.run_directory).survivors == ()


def test_the_tree_is_stopped_whole_at_the_deadline_too(host: Host, tmp_path: Path) -> None:
    where = tmp_path / "fugitive"
    record = host.launch(f"sleep 0.7; {fugitive(where)}; trap '' TERM; sleep 600", deadline_s=2.0, grace_period_s=0.3)
    ended = host.end(record)
    wait_until(RunDirectory(record.run_directory).read_tree, deadline_s=60, what="tree.json")

    assert (ended.state, ended.stopped_by) == (RunState.TIMED_OUT, "deadline")
    assert ended.stop_reason == "its deadline was reached"
    assert gone(int(where.read_text()))


def test_what_is_left_behind_is_ended(host: Host, tmp_path: Path) -> None:
    """The leader ends by itself: exit.json comes at once, and data-loader workers do not hold the GPU for ever."""
    left = tmp_path / "left"
    record = host.launch(
        f"sh -c 'trap \"\" TERM; echo $$ > {left}; while :; do sleep 0.05; done' & "
        f"while [ ! -s {left} ]; do sleep 0.02; done; exit 3",
        grace_period_s=0.5,
    )
    ended = host.end(record)
    tree = wait_until(RunDirectory(record.run_directory).read_tree, deadline_s=60, what="tree.json")

    assert (ended.state, ended.exit) == (RunState.FAILED, ExitStatus(3, None, False))
    assert int(left.read_text()) in [one["pid"] for one in tree["killed"]]
    assert gone(int(left.read_text()))


def test_leftovers_are_kept_if_asked(host: Host, tmp_path: Path) -> None:
    left = tmp_path / "left"
    record = host.launch(f"sleep 600 & echo $! > {left}; exit 0", leftovers="keep")
    host.end(record)
    guard = procfs.ProcessIdentity.from_json(host.started(record)["guard"])
    wait_until(lambda: not procfs.alive(guard), deadline_s=10, what="the keepers to end")

    assert not gone(int(left.read_text()))
    os.kill(int(left.read_text()), signal.SIGKILL)


def test_a_stop_after_the_end_changes_nothing(host: Host) -> None:
    record = host.run("exit 3")
    after = stop(record)

    assert (after.state, after.stopped_by, after.exit) == (RunState.FAILED, None, ExitStatus(3, None, False))
    assert not after.stop_requested


def test_a_stop_survives_the_death_of_whoever_asked(host: Host) -> None:
    """Only asked for, not waited for: it happens all the same, within a second even without the poke."""
    record = host.launch("echo up; exec sleep 600")
    host.wait_for_log(record, b"up")
    RunDirectory(record.run_directory).write_stop({"reason": "r", "who": "w", "epoch": None, "at": time.time()})
    ended = host.end(record)

    assert ended.state is RunState.STOPPED


def test_an_older_follower_stops_nothing(host: Host) -> None:
    """Every follower that attaches raises the epoch; the word of an older one no longer counts, an operator's does."""
    record = host.launch("echo up; exec sleep 600")
    first = control.attach(record.launch_id, "the first")
    second = control.attach(record.launch_id, "the second")
    assert (first, second) == (1, 2)
    with pytest.raises(Refused, match="epoch 2") as caught:
        stop(record, epoch=first)

    assert caught.value.kind == "stale_epoch"
    assert records.read(record.run_directory).state is RunState.RUNNING
    assert stop(record, epoch=second).state is RunState.STOPPED


def test_stop_command_stops_what_lives_elsewhere(host: Host, tmp_path: Path) -> None:
    """Containers and other schedulers' jobs are not in our tree. Its output is not the child's."""
    record = host.launch(
        "echo up; exec sleep 600", stop_command=f"echo stopping $GPUALERT_STOPPING; touch {tmp_path}/called"
    )
    host.wait_for_log(record, b"up")
    stop(record)
    wait_until((tmp_path / "called").exists, deadline_s=10, what="the stop command to run")
    said = Path(RunDirectory(record.run_directory).stop_command_log_path)
    wait_until(lambda: record.launch_id.encode() in said.read_bytes(), deadline_s=5, what="its output in its own file")

    assert host.log(record) == b"up\n"


def test_a_survivor_is_listed_not_hidden(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that has become another user (here by a set-user-ID program) cannot be killed by us: it is named."""
    needs.root()
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o001)
    home = tmp_path / "nobodys"
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    become_root = tmp_path / "become-root"
    shutil.copy(needs.program("setpriv"), become_root)
    become_root.chmod(0o4755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GPUALERT_ROOT", str(home / "root"))
    for room in pkgutil.iter_modules(gpualert.__path__, "gpualert."):
        if not room.name.endswith("__main__"):
            importlib.import_module(room.name)  # nobody may not be allowed to read this checkout
    read, write = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            spec = LaunchSpec(f"{become_root} --reuid=0 --clear-groups sleep 600 & echo up; wait", grace_period_s=0.3)
            _, record = launch(host.key(), Attempt(1, "a"), spec, {}, 0)
            os.write(write, record.run_directory.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(launcher, 0)
    record = records.read(os.read(read, 4096).decode())
    os.close(read)
    host.records.append(record)
    host.wait_for_log(record, b"up")
    sleeper = wait_until(
        lambda: [p.pid for p in procfs.all_processes() if p.group == record.child_pid and p.command == "sleep"],
        deadline_s=10,
        what="the command to become root's",
    )[0]
    # As root we do not even look into nobody's root; so the request is written as nobody's own stop would write it.
    RunDirectory(record.run_directory).write_stop({"reason": "r", "who": "w", "epoch": None, "at": time.time()})
    tree = wait_until(RunDirectory(record.run_directory).read_tree, deadline_s=60, what="tree.json")

    assert [one["pid"] for one in tree["survivors"]] == [sleeper]
    assert "sleep 600" in tree["survivors"][0]["command"]
    ended = host.end(record)
    assert ended.state is RunState.STOPPED
    assert ended.survivors and ended.survivors[0]["pid"] == sleeper
    os.kill(sleeper, signal.SIGKILL)

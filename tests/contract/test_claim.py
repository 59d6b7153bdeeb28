"""Two trainings of one task never run at once: claims, the fence of attempts, tombstones, over every root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpualert import control, procfs, records
from gpualert.errors import Refused
from gpualert.key import Attempt
from gpualert.launch import launch
from gpualert.records import RunState
from gpualert.rundir import KeyDirectory, RunDirectory
from gpualert.spec import LaunchSpec
from tests.support import needs
from tests.support.launching import ROOT, Host, host, stop
from tests.support.waiting import wait_until

__all__ = ["host"]

RACER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from gpualert.launch import launch
from gpualert.key import Attempt, LaunchKey
from gpualert.spec import LaunchSpec
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.read()  # all are let go at once, by the end of one pipe
attempt = Attempt(int(sys.argv[2]), sys.argv[3])
command = ["sh", "-c", f"echo ran >> {sys.argv[4]}; exec sleep 600"]
spec = LaunchSpec(command, root=sys.argv[5] if len(sys.argv) > 5 else None)
what, record = launch(LaunchKey(("race",), "race"), attempt, spec, {}, 0)
print(what, record.run_directory)
"""


@pytest.mark.parametrize("roots", ["one root", "different roots"])
def test_twenty_launch_at_once_and_one_child_runs(host: Host, tmp_path: Path, roots: str) -> None:
    """The claim decides, whatever root each would choose."""
    ran = tmp_path / "ran"
    read, write = os.pipe()
    racers = []
    for number in range(20):
        words = [sys.executable, "-c", RACER, str(ROOT), "1", f"racer{number}", str(ran)]
        if roots == "different roots":
            words.append(str(tmp_path / f"root{number % 3}"))
        racers.append(subprocess.Popen(words, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    os.close(read)
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    os.close(write)
    answers = []
    for racer in racers:
        out, err = racer.communicate(timeout=60)
        assert racer.returncode == 0, err
        answers.append(out.split())
    for _, folder in answers:
        host.records.append(records.read(folder))

    assert sorted(what for what, _ in answers) == ["existing"] * 19 + ["launched"]
    assert len({folder for _, folder in answers}) == 1
    wait_until(lambda: ran.exists() and ran.read_text() == "ran\n", deadline_s=10, what="the one child to run")
    stop(host.records[0])
    assert ran.read_text() == "ran\n"


def test_the_same_attempt_launches_once_however_often_it_asks(host: Host) -> None:
    """A worker that did not hear the answer asks again, also when the training has ended meanwhile."""
    key, attempt = host.key(), Attempt(1, "same")
    record = host.launch("exit 3", key=key, attempt=attempt)
    host.end(record)
    what, again = launch(key, attempt, LaunchSpec("exit 4"), {}, record.number)

    assert (what, again.launch_id) == ("existing", record.launch_id)
    assert again.exit and again.exit.code == 3


def test_a_later_launch_than_the_caller_knows_is_reported(host: Host) -> None:
    """Ended and not yet reported is reported, not repeated; only who knows of it may follow it."""
    key = host.key()
    first = host.run("exit 3", key=key, attempt=Attempt(1, "a"))
    what, reported = launch(key, Attempt(2, "b"), LaunchSpec("exit 4"), {}, 0)
    assert (what, reported.launch_id) == ("existing", first.launch_id)
    second = host.run("exit 4", key=key, attempt=Attempt(2, "b"), after=first.number)
    assert (second.number, second.exit and second.exit.code) == (2, 4)


def test_a_running_launch_is_never_doubled(host: Host) -> None:
    """A newer attempt that finds it alive adopts it, even if it knows its number."""
    key = host.key()
    record = host.launch(["sleep", "600"], key=key, attempt=Attempt(1, "a"))
    what, adopted = launch(key, Attempt(2, "b"), LaunchSpec("exit 4"), {}, record.number)

    assert (what, adopted.launch_id, adopted.state) == ("existing", record.launch_id, RunState.RUNNING)
    stop(record)
    assert host.run("exit 4", key=key, attempt=Attempt(2, "b"), after=record.number).number == 2


def test_an_older_attempt_that_acts_late_is_refused(host: Host) -> None:
    """A worker presumed dead can still be in execute(); it may launch nothing, and stop nothing."""
    key = host.key()
    record = host.run("exit 3", key=key, attempt=Attempt(3, "new"))
    with pytest.raises(Refused, match="attempt 3") as caught:
        launch(key, Attempt(2, "old"), LaunchSpec("exit 4"), {}, record.number)
    assert caught.value.kind == "superseded"
    with pytest.raises(Refused) as caught:
        control.stop_key(key, Attempt(2, "old"), reason="r", who="w", wait_s=1)
    assert caught.value.kind == "superseded"
    assert [r.launch_id for r in control.list_launches()] == [record.launch_id]


def test_a_stop_before_the_launch_leaves_a_tombstone(host: Host) -> None:
    """on_kill can come before a slow execute() reaches the host; that launch then never happens, later attempts do."""
    key = host.key()
    assert control.stop_key(key, Attempt(2, "a"), reason="r", who="w", wait_s=1) is None
    for late in (Attempt(1, "z"), Attempt(2, "a")):
        with pytest.raises(Refused, match="stop") as caught:
            launch(key, late, LaunchSpec("exit 4"), {}, 0)
        assert caught.value.kind == "tombstoned"
    assert host.run("exit 5", key=key, attempt=Attempt(3, "b")).number == 1


def test_stop_by_key_stops_what_runs(host: Host) -> None:
    """Whether the attempt launched or adopted it."""
    key = host.key()
    record = host.launch(["sleep", "600"], key=key, attempt=Attempt(1, "a"))
    stopped = control.stop_key(key, Attempt(1, "a"), reason="r", who="w", wait_s=20)
    assert stopped and (stopped.launch_id, stopped.state) == (record.launch_id, RunState.STOPPED)

    second = host.launch(["sleep", "600"], key=key, attempt=Attempt(2, "b"), after=1)
    what, _ = launch(key, Attempt(3, "c"), LaunchSpec(["true"]), {}, 2)
    assert what == "existing"
    stopped = control.stop_key(key, Attempt(3, "c"), reason="r", who="w", wait_s=20)
    assert stopped and (stopped.launch_id, stopped.state) == (second.launch_id, RunState.STOPPED)
    with pytest.raises(Refused):  # and attempt 3 itself will not launch any more
        launch(key, Attempt(3, "c"), LaunchSpec(["true"]), {}, 2)


def test_a_launch_in_another_root_is_seen(host: Host, tmp_path: Path) -> None:
    """Yesterday the home was full; today the configured root is another. The training that runs there still counts."""
    key = host.key()
    record = host.launch(
        ["sleep", "600"], key=key, attempt=Attempt(1, "a"), root=str(host.home / ".local/state/gpualert")
    )
    assert record.run_directory.startswith(str(host.home))
    what, found = launch(key, Attempt(2, "b"), LaunchSpec(["true"], root=str(tmp_path / "new")), {}, 0)

    assert (what, found.run_directory) == ("existing", record.run_directory)
    assert [r.launch_id for r in control.list_launches()] == [record.launch_id]
    stop(record)


def test_a_root_configured_for_one_attempt_alone_is_no_hiding_place(host: Host, tmp_path: Path) -> None:
    """The DAG was edited between two tries: the new root knows nothing of the old one, the default root of both."""
    key = host.key()
    record = host.launch(["sleep", "600"], key=key, attempt=Attempt(1, "a"), root=str(tmp_path / "old"))
    what, found = launch(key, Attempt(2, "b"), LaunchSpec(["true"], root=str(tmp_path / "new")), {}, 0)

    assert (what, found.run_directory) == ("existing", record.run_directory)
    assert control.inspect(key=key).state is RunState.RUNNING
    assert [r.launch_id for r in control.list_launches()] == [record.launch_id]
    stop(record)


def test_an_unreadable_root_is_a_refusal(host: Host, tmp_path: Path) -> None:
    """Another launch may live there. Root can read everything, so this runs as nobody."""
    needs.root()
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o001)
    for folder in (host.root, host.home):
        folder.mkdir(exist_ok=True)
        os.chown(folder, 65534, 65534)
    host.root.chmod(0o000)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                launch(host.key(), Attempt(1, "a"), LaunchSpec(["true"]), {}, 0)
                os.write(write, b"launched")
            except Refused as error:
                os.write(write, f"{error.kind} {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    answer = os.read(read, 4096).decode()
    os.close(read)

    assert answer.startswith(f"root_unreadable {host.root}"), answer
    assert not (host.home / ".local").exists()


def test_a_launcher_that_died_half_way_has_launched_nothing(host: Host, tmp_path: Path) -> None:
    """A claim without started.json and nobody alive: LOST, never started; so a newer attempt may launch at once."""
    key = host.key()
    marker = tmp_path / "ran"
    folder = KeyDirectory(f"{host.root}/launches/{key.directory_name}")
    pid = os.fork()
    if pid == 0:
        try:
            # killed after the claim, before the word is given
            import gpualert.rundir as module

            create = module.RunDirectory.create

            def create_and_die(self: RunDirectory) -> None:
                create(self)
                os.kill(os.getpid(), signal.SIGKILL)

            module.RunDirectory.create = create_and_die  # type: ignore[method-assign]
            launch(key, Attempt(1, "a"), LaunchSpec(["touch", str(marker)]), {}, 0)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert folder.claims() == [1]
    claim = folder.read_claim(1)
    assert claim is not None
    guard = procfs.ProcessIdentity.from_json(claim["guard"])
    wait_until(lambda: procfs.alive(guard) is False, deadline_s=10, what="the waiting guard to end")
    record = records.read(folder.run_directory(1).path)

    assert (record.state, record.lost_reason) == (RunState.LOST, "never_started")
    assert not marker.exists()
    second = host.run(["true"], key=key, attempt=Attempt(2, "b"), after=1)
    assert (second.number, second.state) == (2, RunState.SUCCEEDED)


def test_a_root_that_was_deleted_hides_no_launch(host: Host, tmp_path: Path) -> None:
    """The claim in the default root still names the guard: alive, it counts; dead, nobody knows how it ended."""
    key = host.key()
    command = "echo up; exec sleep 600"
    record = host.launch(command, key=key, attempt=Attempt(1, "a"), root=str(tmp_path / "deleted"))
    host.wait_for_log(record, b"up")
    child, guard = host.pid(record, "child"), procfs.identify(host.pid(record, "guard"))
    assert guard is not None
    shutil.rmtree(tmp_path / "deleted")
    what, found = launch(key, Attempt(2, "b"), LaunchSpec(["true"]), {}, 1)
    assert (what, found.state, found.note) == ("existing", RunState.LAUNCHING, "its run directory is gone")

    os.kill(child, signal.SIGKILL)
    wait_until(lambda: procfs.alive(guard) is False, deadline_s=30, what="the keepers to end")
    found = records.read(record.run_directory)
    assert (found.state, found.lost_reason, found.note) == (RunState.LOST, "vanished", "its run directory is gone")
    assert host.run(["true"], key=key, attempt=Attempt(2, "b"), after=1).number == 2


@pytest.mark.parametrize("victim", ["launcher", "guard", "supervisor"])
def test_nothing_runs_twice_whoever_dies_during_the_launch(host: Host, tmp_path: Path, victim: str) -> None:
    """Killed at the moment of the claim: either the one child runs, and is found, or none ever will."""
    key = host.key()
    ran = tmp_path / "ran"
    spec = LaunchSpec(["sh", "-c", f"echo ran >> {ran}; exec sleep 600"])
    folder = KeyDirectory(f"{host.root}/launches/{key.directory_name}")
    pid = os.fork()
    if pid == 0:
        try:
            import gpualert.rundir as module

            create = module.RunDirectory.create

            def create_and_kill(self: RunDirectory) -> None:
                create(self)
                if victim == "launcher":
                    os.kill(os.getpid(), signal.SIGKILL)
                claim = folder.read_claim(1)
                assert claim is not None
                guard = int(claim["guard"]["pid"])
                below = [p.pid for p in procfs.all_processes() if p.parent == guard]
                os.kill(guard if victim == "guard" else below[0], signal.SIGKILL)

            module.RunDirectory.create = create_and_kill  # type: ignore[method-assign]
            launch(key, Attempt(1, "a"), spec, {}, 0)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

    def settled() -> bool:
        try:
            return records.read(folder.run_directory(1).path).state is not RunState.LAUNCHING
        except Exception:
            return True  # taken back

    wait_until(settled, deadline_s=10, what="the half launch to settle")
    what, record = launch(key, Attempt(2, "b"), spec, {}, 1)
    host.records.append(record)
    wait_until(lambda: ran.exists() and ran.read_text(), deadline_s=10, what="a child to run")
    assert ran.read_text() == "ran\n"
    stop(record)
    assert ran.read_text() == "ran\n"

"""SIGKILL at random moments of the launch: whatever is told afterwards is true."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from gpualert import procfs, records
from gpualert.errors import UnknownLaunch
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch
from gpualert.records import RunRecord, RunState
from gpualert.rundir import KeyDirectory
from gpualert.spec import LaunchSpec
from tests.support.launching import Host, host
from tests.support.waiting import wait_until

__all__ = ["host"]

VICTIMS = (
    *(["guard"], ["supervisor"], ["launcher"]),
    *(["guard", "supervisor"], ["supervisor", "guard"], ["launcher", "supervisor"]),
)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_is_true_whoever_is_killed_when(host: Host, tmp_path: Path, seed: int) -> None:
    """
    It ran at most once; it is not called "never started" if it ran; a code that is told is the code; its log is whole;
    and every launch comes to an end.
    """
    chance = random.Random(seed)
    for number in range(12):
        story = Story(host, tmp_path / f"{number}", chance)
        story.play()
        story.check()


class Story:
    def __init__(self, host: Host, folder: Path, chance: random.Random) -> None:
        folder.mkdir()
        self.host = host
        self.mark = folder / "mark"
        self.code = chance.randrange(256)
        self.victims = chance.choice(VICTIMS)
        self.delay_s = chance.choice([0, 0.001, 0.002, 0.004, 0.006, 0.01, 0.02, 0.05]) * 2 * chance.random()
        self.key = host.key()
        self.folder = KeyDirectory(f"{host.root}/launches/{self.key.directory_name}")
        self.record: RunRecord | None = None

    def __str__(self) -> str:
        return f"{self.victims} killed {1000 * self.delay_s:.2f} ms after the claim: {self.record}"

    def play(self) -> None:
        command = f"echo x >> {self.mark}; echo begin; sleep 0.1; echo end; exit {self.code}"
        launcher = os.fork()
        if launcher == 0:
            with contextlib.suppress(BaseException):
                launch(self.key, Attempt(1, "a"), LaunchSpec(["sh", "-c", command]), {}, 0)
            os._exit(0)
        claim = wait_until(lambda: self.folder.read_claim(1), 10, "the claim", interval_s=0, ignore=(OSError,))
        time.sleep(self.delay_s)
        self.guard = procfs.ProcessIdentity.from_json(claim["guard"])
        pids = {"launcher": launcher, "guard": self.guard.pid}
        for one in procfs.all_processes():
            if one.parent == self.guard.pid == one.group:
                pids.setdefault("supervisor", one.pid)
        for victim in self.victims:
            if victim in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[victim], signal.SIGKILL)
        os.waitpid(launcher, 0)
        wait_until(self.settled, 30, lambda: f"the launch to come to an end; {self}")

    def settled(self) -> bool:
        try:
            self.record = records.read(self.folder.run_directory(1).path)
        except UnknownLaunch:
            self.record = None  # taken back by its launcher
            return procfs.alive(self.guard) is False
        return self.record.state.ended

    def check(self) -> None:
        ran = self.mark.exists()
        if self.record is None:
            assert not ran, f"taken back, but it ran; {self}"
            return
        self.host.records.append(self.record)
        if self.record.lost_reason == "never_started":
            assert not ran, f"it ran; {self}"
        if self.record.exit is not None and self.record.exec_errno is None and self.record.exit.code is not None:
            assert self.record.exit.code == self.code, str(self)
            assert self.record.state is (RunState.FAILED if self.code else RunState.SUCCEEDED), str(self)
            assert ran
        if ran:
            # A lost child may still be writing.
            whole = Path(self.record.log_path)
            wait_until(lambda: whole.read_bytes() == b"begin\nend\n", 10, lambda: f"a whole log; {self}")
            assert self.mark.read_text() == "x\n", f"it ran twice; {self}"


def test_the_key_of_a_launch_that_came_to_nothing_is_free(host: Host) -> None:
    """After any of this a newer attempt can launch."""
    key = LaunchKey(("free",), "free")
    pid = os.fork()
    if pid == 0:
        try:
            import gpualert.launch as module

            def die(self: object, run: object) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            module._Starting.give_word = die  # type: ignore[method-assign,assignment]
            launch(key, Attempt(1, "a"), LaunchSpec(["true"]), {}, 0)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    path = KeyDirectory(f"{host.root}/launches/{key.directory_name}").run_directory(1).path
    wait_until(lambda: records.read(path).state is RunState.LOST, 10, "the half launch to be known as lost")

    assert host.run(["true"], key=key, attempt=Attempt(2, "b"), after=1).state is RunState.SUCCEEDED

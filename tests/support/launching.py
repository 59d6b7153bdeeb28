"""Real launches in a root of the test's own, and what is left of them afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpualert import control, procfs, records, roots
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch
from gpualert.records import RunRecord
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Host:
    """
    A GPU host as the core sees it: one root, the home of nobody else.

    :param root: the configured root; the other two lie beside it, so nothing of the machine's own is read or written.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.home = folder / "home"
        self.home.mkdir()
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setattr(roots, "LAST_RESORT", str(folder / "last-resort-{uid}"))
        monkeypatch.setenv("GPUALERT_ROOT", str(self.root))
        self.records: list[RunRecord] = []
        #: mounts to be taken away in the end
        self.unmount: list[Path] = []

    def key(self, word: str = "train") -> LaunchKey:
        return LaunchKey((word, str(uuid.uuid4())), word)

    def launch(
        self,
        command: str | list[str],
        *,
        key: LaunchKey | None = None,
        attempt: Attempt | None = None,
        after: int = 0,
        secrets: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> RunRecord:
        """Launch, and insist that this call did it."""
        what, record = launch(
            key or self.key(),
            attempt or Attempt(1, uuid.uuid4().hex),
            LaunchSpec(command, **spec),
            secrets or {},
            after,
            environ=os.environ if environ is None else environ,
        )
        self.records.append(record)
        assert what == "launched", f"expected a new launch, found {what}: {record}"
        return record

    def end(self, record: RunRecord, timeout_s: float = 20.0) -> RunRecord:
        """The record once the launch has ended, whoever says so."""
        return wait_until(
            lambda: (now := records.read(record.run_directory)).state.ended and now,
            deadline_s=timeout_s,
            what=f"{record.launch_id} to end",
        )

    def run(self, command: str | list[str], **options: Any) -> RunRecord:
        return self.end(self.launch(command, **options))

    def finish(self, command: str | list[str], **options: Any) -> RunRecord:
        """Run it, and wait until its keepers have gone, too."""
        record = self.run(command, **options)
        keepers = [procfs.ProcessIdentity.from_json(self.started(record)[who]) for who in ("supervisor", "guard")]
        wait_until(lambda: not any(map(procfs.alive, keepers)), deadline_s=20, what="the keepers to end")
        return records.read(record.run_directory)

    def log(self, record: RunRecord) -> bytes:
        return Path(record.log_path).read_bytes()

    def wait_for_log(self, record: RunRecord, words: bytes, timeout_s: float = 20.0) -> bytes:
        return wait_until(
            lambda: words in self.log(record) and self.log(record),
            deadline_s=timeout_s,
            what=f"{words!r} in the log of {record.launch_id}",
        )

    def started(self, record: RunRecord) -> dict[str, Any]:
        started = RunDirectory(record.run_directory).read_started()
        assert started is not None
        return started

    def pid(self, record: RunRecord, who: str) -> int:
        """:param who: ``child``, ``supervisor`` or ``guard``."""
        return int(self.started(record)[who]["pid"])

    def kill(self, record: RunRecord, who: str) -> None:
        """SIGKILL one of them, and see it gone."""
        identity = procfs.ProcessIdentity.from_json(self.started(record)[who])
        os.kill(identity.pid, signal.SIGKILL)
        wait_until(lambda: procfs.alive(identity) is False, deadline_s=10, what=f"the {who} to die")

    def clean_up(self) -> None:
        """Nothing that a test started outlives it."""
        for record in self.records:
            try:
                started = RunDirectory(record.run_directory).read_started()
            except Exception:
                continue
            if started is None:
                continue
            child = procfs.ProcessIdentity.from_json(started["child"])
            guard = procfs.ProcessIdentity.from_json(started["guard"])
            for one in procfs.tree(child, guard, record.launch_id, (os.getpid(),)):
                procfs.send_signal(one.pid, one.start_ticks, signal.SIGKILL)
            for name in ("supervisor", "guard"):
                keeper = procfs.ProcessIdentity.from_json(started[name])
                if keeper.pid == os.getpid():
                    continue  # a test has put itself there
                procfs.send_signal(keeper.pid, keeper.start_ticks, signal.SIGKILL)
        for mount in self.unmount:
            subprocess.run(["umount", "--lazy", str(mount)], check=True)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(tmp_path, monkeypatch)
    yield made
    made.clean_up()


def stop(record: RunRecord, wait_s: float = 20.0, epoch: int | None = None) -> RunRecord:
    return control.stop(record.launch_id, epoch=epoch, reason="a test says so", who="the test", wait_s=wait_s)


def wait_until_reaper(host: Host, record: RunRecord) -> None:
    """The guard becomes a sub-reaper a moment after the start (ctypes is loaded late), and then takes its name."""
    name = Path(f"/proc/{host.pid(record, 'guard')}/comm")
    wait_until(lambda: name.read_text() == "gpualert-guard\n", deadline_s=20, what="the guard to become a sub-reaper")

"""No log, no launch: what the child finds from its very first instruction on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpualert import records
from gpualert.errors import RunDirectoryError
from gpualert.key import Attempt
from gpualert.launch import launch, start_fast
from gpualert.records import ExitStatus
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec
from tests.support import needs
from tests.support.launching import Host, host

__all__ = ["host"]

# Runs in the child: what its own descriptors are, and what lies in its run directory, before it does anything else.
WITNESS = """
import json, os, sys
log = os.readlink("/proc/self/fd/1")
folder = os.path.dirname(log)
flags = int(open("/proc/self/fdinfo/1").read().split("flags:")[1].split()[0], 8)
json.dump({
    "log": log, "same": os.path.sameopenfile(1, 2), "errors": os.readlink("/proc/self/fd/2"),
    "append": bool(flags & os.O_APPEND), "stdin": os.readlink("/proc/self/fd/0"),
    "files": sorted(os.listdir(folder)), "claims": sorted(os.listdir(os.path.dirname(folder))),
    "started": json.load(open(folder + "/started.json")), "pid": os.getpid(), "group": os.getpgrp(),
    "mode": os.stat(folder).st_mode & 0o777, "log_mode": os.fstat(1).st_mode & 0o777,
    "open": sorted(int(n) for n in os.listdir("/proc/self/fd")), "tag": os.environ.get("GPUALERT_LAUNCH_ID"),
}, open(sys.argv[1], "w"))
"""


def test_log_and_identity_are_on_disk_before_the_childs_first_instruction(host: Host, tmp_path: Path) -> None:
    """The child itself looks: its log, who it is, who claimed; one open file for stdout and stderr, appending."""
    report = tmp_path / "report.json"
    record = host.run([sys.executable, "-I", "-S", "-c", WITNESS, str(report)])
    seen = json.loads(report.read_text())

    assert record.exit and record.exit.code == 0, host.log(record)
    assert seen["log"] == seen["errors"] == record.log_path
    assert seen["same"] and seen["append"]
    assert seen["stdin"] == "/dev/null"
    assert {"log", "started.json", "spec.json"} <= set(seen["files"])
    assert "0001.claim" in seen["claims"] and "key.json" in seen["claims"]
    assert seen["started"]["child"]["pid"] == seen["pid"] == seen["group"] == record.child_pid
    assert (seen["mode"], seen["log_mode"]) == (0o700, 0o600)
    assert seen["tag"] == record.launch_id
    assert seen["open"][:3] == [0, 1, 2] and len(seen["open"]) == 4, "only what listed the folder is open besides"


def test_the_log_holds_the_childs_bytes_and_nothing_else(host: Host) -> None:
    """Any bytes, in the order written, over both descriptors."""
    code = "import os\nfor n in range(300): os.write(1 + n % 2, bytes([n % 256]) * 3)"
    record = host.run([sys.executable, "-I", "-S", "-c", code])

    assert host.log(record) == b"".join(bytes([n % 256]) * 3 for n in range(300))
    assert record.log_size_bytes == 900
    assert (record.log_generation, record.log_truncated) == (0, False)


def test_a_full_disk_refuses_the_launch_and_leaves_nothing(host: Host, tmp_path: Path) -> None:
    """ENOSPC at launch is ours to say: kind disk, no claim, no process, nothing left, and the command did not run."""
    full = full_disk(host, tmp_path)
    marker = tmp_path / "ran"
    with pytest.raises(RunDirectoryError, match="disk is full") as caught:
        launch(host.key(), Attempt(1, "a"), LaunchSpec(["touch", str(marker)], root=str(full / "root")), {}, 0)

    assert caught.value.kind == "disk"
    assert not marker.exists()
    left = [str(p.relative_to(full)) for p in full.rglob("*") if p.name.endswith((".claim", "0001", ".tmp"))]
    assert left == []
    with pytest.raises(RunDirectoryError, match="disk is full"):
        start_fast(["touch", str(marker)], root=str(full / "root"))
    assert not marker.exists()


def full_disk(host: Host, tmp_path: Path) -> Path:
    """A disk of 64 KiB with our root on it, filled to the brim."""
    mount = tmp_path / "small"
    mount.mkdir()
    mount_small(host, mount, "64k")
    (mount / "root/launches").mkdir(parents=True)
    (mount / "root").chmod(0o700)
    fill(mount)
    return mount


def test_the_end_is_written_although_the_disk_is_full(host: Host, tmp_path: Path) -> None:
    """The reserve, given its blocks at launch, becomes exit.json; the child's own ENOSPC is the child's."""
    mount = tmp_path / "small"
    mount.mkdir()
    mount_small(host, mount, "1m")
    record = host.run(
        "while echo a line that fills the disk, again and again and again; do :; done; exit 13",
        root=str(mount / "root"),
    )

    assert record.run_directory.startswith(str(mount))
    assert record.exit and record.exit.code == 13
    assert os.statvfs(mount).f_bavail <= 12, "and it was full: what is free now was the reserves"


def test_a_disk_that_takes_nothing_is_asked_again(host: Host, tmp_path: Path) -> None:
    """Even without the reserve the end is not lost: it is announced at once, and written when the disk takes it."""
    # The observer's own short-lived files may free a page at the wrong moment: then nothing was refused; once more.
    assert any(_ended_on_a_full_disk(host, tmp_path / str(number)) for number in range(8)), "no disk stayed full"


def _ended_on_a_full_disk(host: Host, folder: Path) -> bool:
    """Whether the end was announced while the disk refused it; that it is written afterwards is asserted here."""
    full = folder / "small"
    full.mkdir(parents=True)
    mount_small(host, full, "1m")
    gate = folder / "gate"
    command = ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 13"]
    started = start_fast(command, root=str(full / "root"))
    os.unlink(RunDirectory(started.run_directory).exit_reserve_path)
    fill(full)
    gate.touch()
    assert os.read(started.announce, 100) == b"ended 13 -\n"
    os.close(started.announce)
    refused = not RunDirectory(started.run_directory).has_ended()
    (full / "filler").unlink()
    record = records.read(started.run_directory)
    host.records.append(record)
    assert host.end(record).exit == ExitStatus(13, None, False)
    return refused


def mount_small(host: Host, folder: Path, size: str) -> None:
    needs.root()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        pytest.skip(f"needs a tmpfs of its own, which this machine refuses: {done.stderr.decode().strip()}")
    host.unmount.append(folder)


def fill(folder: Path) -> None:
    with open(folder / "filler", "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_root_open_to_others_is_passed_over(host: Host, mode: int) -> None:
    """A root is ours alone, or it is not used; the record says which was passed over, and why."""
    host.root.mkdir()
    host.root.chmod(mode)
    record = host.run(["true"])

    assert record.run_directory.startswith(str(host.home / ".local/state/gpualert"))
    assert len(record.warnings) == 1
    assert str(host.root) in record.warnings[0] and f"{mode:04o}" in record.warnings[0]


def test_a_symbolic_link_is_no_root(host: Host, tmp_path: Path) -> None:
    """In /var/tmp anybody could have put it there."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    host.root.symlink_to(tmp_path / "elsewhere")
    record = host.run(["true"])

    assert record.run_directory.startswith(str(host.home))
    assert "symbolic link" in record.warnings[0]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_somebody_elses_folder_is_no_root(host: Host) -> None:
    needs.root()
    host.root.mkdir(mode=0o700)
    os.chown(host.root, 12345, 12345)
    record = host.run(["true"])

    assert record.run_directory.startswith(str(host.home))
    assert "owner" in record.warnings[0]


def test_no_root_at_all_says_why_for_each(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setattr("gpualert.roots.LAST_RESORT", str(blocker / "r-{uid}"))
    with pytest.raises(RunDirectoryError) as caught:
        launch(
            host.key(),
            Attempt(1, "a"),
            LaunchSpec(["true"], root=str(blocker / "x")),
            {},
            0,
            environ={"HOME": str(blocker / "home")},
        )

    assert caught.value.kind == "no_root"
    for path in ("/x", "/home/.local/state/gpualert", f"/r-{os.getuid()}"):
        assert str(blocker) + path in str(caught.value)


def test_files_are_private_whatever_the_umask(host: Host) -> None:
    """Logs hold what people print. The child itself has the umask of whoever launched."""
    before = os.umask(0)
    try:
        record = host.run("umask")
    finally:
        os.umask(before)

    assert host.log(record) == b"0000\n"
    for path in [host.root, *host.root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} has mode {mode:04o}"

"""Disks, limits and descriptors: what may have run out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpualert import probe_host

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max file size             unlimited            unlimited            bytes     
Max stack size            8388608              unlimited            bytes     
Max core file size        0                    unlimited            bytes     
Max resident set          unlimited            unlimited            bytes     
Max processes             127234               127234               processes 
Max open files            1024                 524288               files     
Max locked memory         8388608              8388608              bytes     
Max address space         unlimited            unlimited            bytes     
"""  # noqa: W291


def test_limits_of_a_process() -> None:
    assert probe_host.limits_of(LIMITS) == {
        "open_files": 1024,
        "core_bytes": 0,
        "locked_memory_bytes": 8388608,
        "stack_bytes": 8388608,
        "address_space_bytes": "unlimited",
        "file_size_bytes": "unlimited",
        "processes": 127234,
    }
    assert probe_host.limits_of("\x00\xffMax open files\nMax open files many\n") == {}
    assert probe_host.limits(os.getpid()) is not None
    assert probe_host.limits(2**22 + 7) is None


@pytest.mark.parametrize(
    ("disk", "full"),
    [
        ({"free_bytes": 0, "total_bytes": 100}, True),
        ({"free_bytes": 1, "total_bytes": 1000}, True),
        ({"free_bytes": 10, "total_bytes": 1000}, False),
        ({"free_bytes": 900, "total_bytes": 1000, "free_inodes": 0, "total_inodes": 50}, True),
        ({"free_bytes": 900, "total_bytes": 1000, "free_inodes": None, "total_inodes": None}, False),
        ({"trouble": "Stale file handle"}, None),
        ({"free_bytes": None, "total_bytes": None}, None),
        ({"free_bytes": 0, "total_bytes": 0}, None),
    ],
)
def test_when_a_disk_is_full(disk: dict[str, object], full: bool | None) -> None:
    assert probe_host.is_full(disk) is full


def test_each_filesystem_is_told_once(tmp_path: Path) -> None:
    found = probe_host.look([("cwd", str(tmp_path)), ("run_directory", str(tmp_path / "not" / "there"))])
    (disk,) = found["seen"]["disks"]
    assert disk["what"] == "cwd,run_directory" and disk["total_bytes"] > 0


def test_variables_of_a_process(tmp_path: Path) -> None:
    import subprocess

    held = tmp_path / "held"
    held.touch()
    code = f"f = open({str(held)!r}); print(flush=True); input()"
    environ = {"SLURM_JOB_ID": "12", "OTHER": "x", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        names = ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "SLURM_CONF")
        assert probe_host.environment_of(child.pid, names) == {"SLURM_JOB_ID": "12", "CUDA_VISIBLE_DEVICES": ""}
        assert (probe_host.open_files(child.pid) or 0) >= 4
        assert probe_host.holds_device(child.pid, str(held)) is True
        assert probe_host.holds_device(child.pid, "/dev/nvidia") is False
        child.communicate(b"\n")
    assert probe_host.environment_of(child.pid, names) is None
    assert probe_host.open_files(child.pid) is None
    assert probe_host.holds_device(child.pid, "/dev/nvidia") is None

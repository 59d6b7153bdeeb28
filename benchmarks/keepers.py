"""Memory of guard and supervisor while their child writes a large log, and after it: proportional set size (PSS)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import peer
from benchmarks.measure import Effort, Row, Statistic, Target
from gpualert import control
from tools.rig import processes

GIB = 1 << 30
_LINE = "epoch 12 step 123456 loss 0.123456 lr 3.0e-04 tokens per second 123456 memory 71.3 of 80.0 GB"
_FINISH_S = 180

# In a process of its own, as on a host: keepers that are forked from a big process share its pages and count for it.
_LAUNCH = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec
_, record = launch(LaunchKey(("memory",), "memory"), Attempt(1, "a"), LaunchSpec(sys.argv[3], root=sys.argv[2]), {}, 0)
started = RunDirectory(record.run_directory).read_started()
print(json.dumps([record.launch_id, record.log_path, [started[who]["pid"] for who in ("guard", "supervisor")]]))
"""


def measure(effort: Effort) -> Sequence[Row]:
    size, peer_size = effort.rounds(GIB, GIB // 8), GIB // 8  # the peer takes a minute for more
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    try:
        while_writing, afterwards = _ours(folder, size)
        theirs: list[float] = []
        missing = ""
        try:
            theirs = _theirs(folder, peer_size)
        except peer.PeerMissing as reason:
            missing = str(reason)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = f"memory of guard and supervisor together, log of {size / GIB:.3g} GiB"
    beside = f"{peer.NAME} `run`, its one process, log of {peer_size / GIB:.3g} GiB"
    promised = Target(25)

    def row(what: str, ours: list[float], theirs: list[float]) -> Row:
        return Row(
            f"{about}: {what}",
            "MiB",
            tuple(ours),
            beside,
            tuple(theirs),
            Statistic.HIGHEST,
            promised,
            why_no_peer=missing or "the log was written before a sample was taken",
        )

    return [row("while it is written", while_writing, theirs[:-1]), row("after it", afterwards, theirs[-1:])]


def _writes(size: int) -> str:
    """The child stays after its last byte, so that its keepers can be looked at then."""
    return f"yes '{_LINE}' | head -c {size}; echo; echo written; exec sleep 600"


def _ours(folder: Path, size: int) -> tuple[list[float], list[float]]:
    package_root = str(Path(control.__file__).resolve().parents[1])
    words = [sys.executable, "-I", "-S", "-c", _LAUNCH, package_root, str(folder / "root"), _writes(size)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(folder)})
    launch_id, log, pids = json.loads(done.stdout)
    try:
        samples = _sampled(pids, Path(log), size)
        return samples, [_together(pids)]
    finally:
        control.stop(launch_id, epoch=None, reason="measured", who="benchmark", wait_s=20, root=str(folder / "root"))


def _theirs(folder: Path, size: int) -> list[float]:
    """While its child writes, and last after that."""
    words = peer.run_command("bash", "-c", _writes(size))
    process = subprocess.Popen(
        words, env=peer.clean_environment(folder), cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + 30
        while not (logs := list(folder.glob(".gpualert/logs/*/stdout.log"))):
            if process.poll() is not None or time.monotonic() > until:
                raise peer.PeerMissing("its log did not appear within 30 s")
            time.sleep(0.05)
        return [*_sampled([process.pid], logs[0], size), _together([process.pid])]
    finally:
        for pid in [*processes.descendants(process.pid), process.pid]:
            processes.send(pid, signal.SIGKILL)
        process.wait()


def _sampled(pids: Sequence[int], log: Path, size: int) -> list[float]:
    """Four samples a second until the log is written."""
    samples = []
    until = time.monotonic() + _FINISH_S
    while not _written(log, size):
        if time.monotonic() > until:
            raise RuntimeError(f"{log}: expected {size} bytes within {_FINISH_S} s, found {log.stat().st_size}")
        samples.append(_together(pids))
        time.sleep(0.25)
    return samples


def _written(log: Path, size: int) -> bool:
    if log.stat().st_size < size:
        return False
    with open(log, "rb") as file:
        file.seek(-64, os.SEEK_END)
        return b"written\n" in file.read()


def _together(pids: Sequence[int]) -> float:
    return sum(_proportional_mib(pid) for pid in pids)


def _proportional_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup: expected a line Pss, found none")

"""How fast the whole log is scanned for causes, beside `grep` for the words of sixty rules: the same file, in turns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import classifier
from benchmarks.measure import Effort, Row, Statistic, Target

# VmHWM, not ru_maxrss: that one begins with what the parent had.
_SCAN = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from gpualert.classify import ExitFacts, classify
from gpualert.scan import Scanner
def peak_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
scanner = Scanner()
before, cpu = peak_kib(), time.process_time()
with open(sys.argv[2], "rb") as stream:
    while chunk := stream.read(1 << 20):
        scanner.feed(chunk)
cpu, last = time.process_time() - cpu, time.perf_counter()
classify(ExitFacts(code=1), scanner.finish())
print(json.dumps([cpu, time.perf_counter() - last, before, peak_kib()]))
"""


def measure(effort: Effort) -> Sequence[Row]:
    size = effort.rounds(300, 30)
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    path = str(folder / "train.log")
    try:
        with open(path, "wb") as stream:
            stream.writelines(classifier.training_log(size * 1_000_000))
        megabytes = os.path.getsize(path) / 1e6
        ours, theirs, late, grown = [], [], [], []
        for _ in range(effort.rounds(3, 1)):
            if shutil.which("grep"):
                theirs.append(megabytes / classifier.grep(path)[1])
            cpu_s, verdict_s, before_kib, peak_kib = _scanned(path)
            ours.append(megabytes / cpu_s)
            late.append(verdict_s)
            grown.append((peak_kib - before_kib) / 1024)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    what = f"training log of {megabytes:.0f} MB"
    return [
        Row(
            f"scanner, {what}, by CPU time",
            "MB/s",
            tuple(ours),
            "`grep -cE` of 60 words",
            tuple(theirs),
            target=Target(100, at_least=True),
            why_no_peer="grep is not installed",
        ),
        Row(f"verdict after the last byte of a {what}", "s", tuple(late), target=Target(0.1)),
        Row(f"memory that scanning a {what} adds", "MiB", tuple(grown), statistic=Statistic.HIGHEST),
    ]


def _scanned(path: str) -> tuple[float, float, int, int]:
    """Seconds of CPU for the whole file, seconds to the verdict after that, KiB before and at the peak."""
    words = [sys.executable, "-c", _SCAN, str(classifier.ROOT), path]
    cpu_s, verdict_s, before_kib, peak_kib = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return cpu_s, verdict_s, before_kib, peak_kib

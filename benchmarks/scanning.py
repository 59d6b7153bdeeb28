"""How fast the whole log is scanned for causes, beside `grep` for the words of sixty rules: the same file, in turns."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import classifier
from benchmarks.measure import Effort, Row, Statistic, Target


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
            _, cpu_s, verdict_s, before_kib, peak_kib, _ = classifier.scan(path)
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

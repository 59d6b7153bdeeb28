"""A log of a gigabyte that is scanned while it grows: how soon after the end the verdict is there, and the price."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import observer
from benchmarks.measure import Effort, Row, Target

#: The child must write slower than we scan; on a machine whose cores are busy we scan slower.
_BYTES_PER_S = 40_000_000

_CHILD = """\
import os, sys, time
size, rate = int(sys.argv[1]), float(sys.argv[2])
block = b"".join(b"epoch %d step %d/9000000 loss 0.%d tok/s 1234\\n" % (i % 9, i * 7, i * 13) for i in range(20000))
began, written = time.monotonic(), 0
while written < size:
    os.write(1, block)
    written += len(block)
    time.sleep(max(0.0, began + written / rate - time.monotonic()))
raise RuntimeError("boom")
"""


def measure(effort: Effort) -> Sequence[Row]:
    size = effort.rounds(1000, 100) * 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    try:
        child = folder / "child.py"
        child.write_text(_CHILD)
        command = f"{sys.executable} -S {child} {size} {_BYTES_PER_S}"
        # The share is taken over the first part of the run, which must not outlive the child.
        seen = observer.watched(sys.executable, folder, max(1.0, size / _BYTES_PER_S / 2), command)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    late = () if seen["late_s"] is None else (seen["late_s"],)
    share = () if seen["share"] is None else (100 * seen["share"],)
    what = f"{seen['log_mb']:.0f} MB of log, scanned while it grew by {_BYTES_PER_S / 1e6:.0f} MB/s"
    return [
        Row(f"exit to verdict ({seen['class']}), {what}", "s", late, target=Target(0.1), why_not="no verdict came"),
        Row(f"CPU of the observer, {what}", "% of a core", share, why_not="/proc does not tell"),
        Row(f"peak memory of the observer, {what}", "MiB", (seen["peak_mib"],)),
    ]

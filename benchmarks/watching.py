"""What watching takes from the machine while the child runs, and how soon the verdict is there when it has ended."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import observer
from benchmarks.measure import Effort, Row, Target

_FAIL = "echo 'RuntimeError: boom'; exit 1"


def measure(effort: Effort) -> Sequence[Row]:
    seconds = effort.rounds(8, 3)
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    try:
        flood = folder / "flood.py"
        flood.write_text(observer.FLOOD.format(seconds=seconds + 2))
        quiet = [
            observer.watched(sys.executable, folder, seconds, f"sleep {seconds + 2}; {_FAIL}")
            for _ in range(effort.rounds(2, 1))
        ]
        flooding = [observer.watched(sys.executable, folder, seconds, f"{sys.executable} -S {flood}")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rate = flooding[0]["log_mb"] / (seconds + 2)
    verdict = f"exit to verdict, {flooding[0]['log_mb']:.0f} MB of log (exit.json to verdict.json)"
    return [
        Row("CPU of the observer, silent child", "% of a core", _shares(quiet), target=Target(2), why_not=_UNSEEN),
        Row(f"CPU of the observer, child writes {rate:.0f} MB/s", "% of a core", _shares(flooding), why_not=_UNSEEN),
        Row("peak memory of the observer, same flood", "MiB", (flooding[0]["peak_mib"],)),
        Row(verdict, "s", _late(flooding), target=Target(0.1), why_not="no verdict came"),
    ]


_UNSEEN = "/proc does not tell"


def _shares(seen: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    return tuple(100 * one["share"] for one in seen if one["share"] is not None)


def _late(seen: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    return tuple(one["late_s"] for one in seen if one["late_s"] is not None)

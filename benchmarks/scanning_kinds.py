"""How fast logs of other kinds are scanned, ordinary and hostile, beside `grep` for the same words; and whether twice
as much takes twice as long."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import log_kinds
from benchmarks.measure import Effort, Row, Statistic, Target, as_text

ROOT = Path(__file__).resolve().parents[1]
#: A kind that is scanned slowly is not scanned to its end: its speed is known by then, its growth is not.
_ENOUGH_S = 20.0

# CPU seconds: other processes share the machine. VmHWM, not ru_maxrss: that one begins with what the parent had.
_SCAN = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from gpualert.classify import ExitFacts, classify
from gpualert.scan import Scanner
def peak_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
scanner = Scanner()
before, began, done = peak_kib(), time.process_time(), 0
with open(sys.argv[2], "rb") as stream:
    while time.process_time() - began < float(sys.argv[3]) and (chunk := stream.read(1 << 20)):
        scanner.feed(chunk)
        done += len(chunk)
result = scanner.finish()
cpu = time.process_time() - began
classify(ExitFacts(code=1), result)
print(json.dumps([done, cpu, (peak_kib() - before) / 1024]))
"""


def measure(effort: Effort) -> Sequence[Row]:
    ordinary, hostile = effort.rounds(60, 8) * 1_000_000, effort.rounds(12, 2) * 1_000_000
    rounds = effort.rounds(3, 1)
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    rows: list[Row] = []
    try:
        path = str(folder / "log")
        words = _words_file(folder)
        for name, kind in log_kinds.ORDINARY.items():
            _write(path, log_kinds.blob(kind, ordinary))
            rows += _speed(name, path, words, rounds, 100)
        for name, kind in log_kinds.HOSTILE.items():
            _write(path, log_kinds.blob(kind, hostile))
            rows += _speed(f"hostile: {name}", path, words, rounds, 20)
            _write(path, log_kinds.blob(kind, 2 * hostile))
            rows.append(_growth(name, path, hostile, rounds))
        _write(path, [log_kinds.one_line(100_000_000 if not effort.quick else 10_000_000)])
        rows.append(_line(path))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def _speed(name: str, path: str, words: str, rounds: int, target: float) -> list[Row]:
    ours, theirs, grown = [], [], []
    for _ in range(rounds):
        if shutil.which("grep"):
            theirs.append(os.path.getsize(path) / 1e6 / _grep(path, words))
        done, cpu_s, mib = scanned(path)
        ours.append(done / 1e6 / cpu_s)
        grown.append(mib)
    return [
        Row(
            f"scanner, {name}",
            "MB/s",
            tuple(ours),
            "`grep -cE` of the rules' words",
            tuple(theirs),
            target=Target(target, at_least=True),
            why_no_peer="grep is not installed",
        ),
        Row(f"memory that it adds, {name}", "MiB", tuple(grown), statistic=Statistic.HIGHEST, target=Target(60)),
    ]


def _growth(name: str, path: str, half: int, rounds: int) -> Row:
    """The file's first half and the whole of it, in turns."""
    ratios = []
    small = path + ".half"
    with open(path, "rb") as whole:
        _write(small, [whole.read(half)])
    for _ in range(rounds):
        halves, whole_log = scanned(small), scanned(path)
        if halves[0] == half and whole_log[0] == os.path.getsize(path):
            ratios.append(whole_log[1] / halves[1])
    what = f"time for twice as much, hostile: {name}"
    return Row(
        what, "times", tuple(ratios), target=Target(2.3), why_not=f"half or whole takes more than {_ENOUGH_S:.0f} s"
    )


def _line(path: str) -> Row:
    done, cpu_s, _ = scanned(path, limit_s=60)
    size = os.path.getsize(path)
    what = f"one line of {size / 1e6:.0f} MB, to its verdict"
    if done < size:
        return Row(what, "s", why_not=f"more than 60 s: {done / 1e6:.0f} MB in {cpu_s:.0f} s", target=Target(1.5))
    return Row(what, "s", (cpu_s,), target=Target(1.5 * size / 1e8))


def scanned(path: str, limit_s: float = _ENOUGH_S) -> tuple[int, float, float]:
    """Bytes scanned, the CPU seconds that it took, and the MiB that it added to the process."""
    command = [sys.executable, "-c", _SCAN, str(ROOT), path, str(limit_s)]
    done, cpu_s, mib = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return int(done), float(cpu_s), float(mib)


def _words_file(folder: Path) -> str:
    """The literals of all rows, as grep reads them: one expression of alternatives."""
    from gpualert.signatures import TABLE

    words = sorted({word for row in TABLE for word in row.words})
    path = folder / "words"
    path.write_text("|".join(re.sub(r"[][\\.*^$+?(){}|]", r"\\\g<0>", word) for word in words) + "\n")
    return str(path)


def _grep(path: str, words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["grep", "-cE", "-a", "-f", words, path], stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode > 1:
        raise RuntimeError(f"grep: expected status 0 or 1, found {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _write(path: str, pieces: Iterable[bytes]) -> None:
    with open(path, "wb") as stream:
        stream.writelines(pieces)


if __name__ == "__main__":
    print(as_text(measure(Effort(quick="--quick" in sys.argv))))

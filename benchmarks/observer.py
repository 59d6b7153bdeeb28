"""What watching takes, and how soon the verdict is there. Prints a table; asserts nothing.

    python -m benchmarks.observer [--python PYTHON] [--seconds N]

The observer's CPU is its own, from /proc; "exit to verdict" is from exit.json's appearance to verdict.json's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.wrapper import table

ROOT = Path(__file__).resolve().parents[1]

# One launch under the interpreter to be measured; it prints what it saw as JSON.
INSIDE = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from gpualert import observer, procfs, records
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec

root, seconds, command = sys.argv[2], float(sys.argv[3]), sys.argv[4]
key = LaunchKey(("bench", os.urandom(8).hex()), "bench")
_, record = launch(key, Attempt(1, "a"), LaunchSpec(command, root=root), {}, 0)
run = RunDirectory(record.run_directory)
while (state := observer.load_scan(run)) is None:
    time.sleep(0.02)
pid = state["observer"]["pid"]
time.sleep(0.5)
began, before = time.monotonic(), procfs.cpu_seconds(pid)
time.sleep(seconds)
wall, after = time.monotonic() - began, procfs.cpu_seconds(pid)
memory = next(line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmHWM"))
while not run.has_ended():
    time.sleep(0.01)
until = time.monotonic() + 120
while not os.path.exists(run.verdict_path) and time.monotonic() < until:
    time.sleep(0.005)
verdict = run.read_verdict()
late = os.stat(run.verdict_path).st_mtime - os.stat(run.exit_path).st_mtime if verdict else None
print(json.dumps({
    "share": (sum(after) - sum(before)) / wall if before and after else None,
    "peak_mib": int(memory) / 1024,
    "log_mb": os.path.getsize(run.log_path) / 1e6,
    "late_s": late,
    "class": verdict and verdict["failure_class"],
}))
"""

FLOOD = """\
import os, time
block = b"".join(b"epoch %d step %d loss 0.%d tok/s 1234\\n" % (i, i * 7, i * 13) for i in range(20000))
end = time.time() + {seconds}
while time.time() < end:
    os.write(1, block)
    time.sleep(0.05)
raise RuntimeError("boom")
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observer", description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, metavar="PYTHON", help="interpreter to measure with")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="of watching (default: %(default)s)")
    options = parser.parse_args(argv)
    seconds = options.seconds
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    try:
        flood = folder / "flood.py"
        flood.write_text(FLOOD.format(seconds=seconds + 2))
        fail = "echo 'RuntimeError: boom'; exit 1"
        loop = f"for i in $(seq {int(10 * (seconds + 2))}); do echo epoch $i loss 0.$i; sleep 0.1; done"
        commands = {
            "quiet": f"sleep {seconds + 2}; {fail}",
            "10 lines a second": f"{loop}; {fail}",
            "about 15 MB a second": f"{options.python} -S {flood}",
        }
        load = os.getloadavg()[0]
        print(f"{platform.platform()}, {os.cpu_count()} cores, load {load:.1f}; {options.python}")
        rows = [[name, *_watched(options.python, folder, seconds, command)] for name, command in commands.items()]
        header = ["a child that is", "% of a core", "peak MiB", "log MB", "exit to verdict s", "class"]
        print("\nThe observer, beside")
        table(header, rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def watched(python: str, folder: Path, seconds: float, command: str) -> dict[str, Any]:
    """What :data:`INSIDE` saw of one launch of ``command``: ``share peak_mib log_mb late_s class``."""
    words = [python, "-S", "-c", INSIDE, str(ROOT), str(folder / "root"), str(seconds), command]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _watched(python: str, folder: Path, seconds: float, command: str) -> list[str]:
    seen = watched(python, folder, seconds, command)
    share = "unknown" if seen["share"] is None else f"{100 * seen['share']:.2f}"
    late = "none" if seen["late_s"] is None else f"{seen['late_s']:.3f}"
    return [share, f"{seen['peak_mib']:.1f}", f"{seen['log_mb']:.0f}", late, str(seen["class"])]


if __name__ == "__main__":
    sys.exit(main())

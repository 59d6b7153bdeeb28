"""What the wrapper costs: starting, launching, and the memory of its keepers. Prints a table; asserts nothing.

    python -m benchmarks.wrapper [--python PYTHON]... [--rounds N] [--peer NAME=COMMAND]... [--log-bytes N]

Everything that is compared is run in turn, one of each per round, so that a busy machine slows all of it alike.
Bytecode is cached first, as it is on a host on which the archive has run before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gpualert"

# Runs inside a warm interpreter, where a launcher that serves many requests is: the launch alone.
INSIDE = """
import json, os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch, start_fast
from gpualert.spec import LaunchSpec
rounds, root = int(sys.argv[2]), sys.argv[3]
taken = {"subprocess.Popen": [], "start_fast": [], "launch": []}
for number in range(rounds):
    begin = time.perf_counter()
    process = subprocess.Popen(["true"])
    taken["subprocess.Popen"].append(time.perf_counter() - begin)
    process.wait()
    begin = time.perf_counter()
    started = start_fast(["true"], root=root)
    taken["start_fast"].append(time.perf_counter() - begin)
    while os.read(started.announce, 100):
        pass
    os.close(started.announce)
    begin = time.perf_counter()
    key, spec = LaunchKey(("bench", str(os.getpid()), str(number)), "bench"), LaunchSpec(["true"], root=root)
    begin = time.perf_counter()
    _, record = launch(key, Attempt(1, "a"), spec, {}, 0)
    taken["launch"].append(time.perf_counter() - begin)
    while not os.path.exists(record.run_directory + "/tree.json"):
        time.sleep(0.001)
print(json.dumps(taken))
"""

DETACHED = """
import sys
sys.path.insert(0, sys.argv[1])
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch
from gpualert.spec import LaunchSpec
command = f"head -c {sys.argv[3]} /dev/zero | tr '\\\\0' 'x' | fold -w 100; echo; echo written; exec sleep 600"
spec = LaunchSpec(command, root=sys.argv[2])
_, record = launch(LaunchKey(("memory",), "memory"), Attempt(1, "a"), spec, {}, 0)
print(record.run_directory)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrapper", description=__doc__.split("\n")[0])
    parser.add_argument("--python", action="append", metavar="PYTHON", help="interpreter to measure with; repeatable")
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="runs of each (default: %(default)s)")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="another wrapper of `true`")
    parser.add_argument("--log-bytes", type=int, default=1 << 30, metavar="N", help="size of the log for the memory")
    options = parser.parse_args(argv)
    pythons = options.python or [sys.executable]
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    try:
        root = folder / "root"
        os.environ["HOME"] = str(folder)  # the default root, too, is here: nothing of the user's own is touched
        # what a host holds after the archive was unpacked: the package alone, its bytecode beside it
        package = folder / "archive" / "gpualert"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        print(
            f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; run directories on {root}"
        )
        for python in pythons:
            wrapper_cost(python, package, root, options.rounds, options.peer)
        for python in pythons:
            launch_overhead(python, package.parent, root, options.rounds)
        memory(pythons[0], package.parent, root, options.log_bytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def wrapper_cost(python: str, package: Path, root: Path, rounds: int, peers: Sequence[str]) -> None:
    """`run -- true` beside the bare interpreter, and beside whatever else is named."""
    bare = f"{Path(python).name} -I -S -c pass"
    commands: dict[str, list[str]] = {
        "true": ["true"],
        bare: [python, "-I", "-S", "-c", "pass"],
        "gpualert run -- true": [python, "-I", "-S", str(package), "run", "--", "true"],
    }
    for peer in peers:
        name, _, command = peer.partition("=")
        commands[name] = shlex.split(command)
    environment = {**os.environ, "GPUALERT_ROOT": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    taken = in_turn({name: one_run(command, environment) for name, command in commands.items()}, rounds)
    version = subprocess.run([python, "-V"], capture_output=True, text=True).stdout.strip()
    print(f"\nWrapper cost ({version}; {rounds} runs of each in turn)")
    table(
        ["", "median ms", "p90 ms", "times the bare interpreter"],
        [
            [name, milliseconds(values), milliseconds(values, 0.9), f"{middle(values) / middle(taken[bare]):.2f}"]
            for name, values in taken.items()
        ],
    )


def launch_overhead(python: str, path: Path, root: Path, rounds: int) -> None:
    """From the call to its return: then the child has its log and runs. In a process that has imported everything."""
    done = subprocess.run(
        [python, "-I", "-S", "-c", INSIDE, str(path), str(rounds), str(root)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{python}: {done.stderr}")
    taken: dict[str, list[float]] = json.loads(done.stdout)
    print(f"\nLaunch inside the process ({python}; {rounds} of each in turn)")
    table(
        ["call to return", "median ms", "p90 ms"],
        [[name, milliseconds(values), milliseconds(values, 0.9)] for name, values in taken.items()],
    )


def memory(python: str, path: Path, root: Path, log_bytes: int) -> None:
    """Proportional set size of guard and supervisor, beside a log of that size."""
    done = subprocess.run(
        [python, "-I", "-S", "-c", DETACHED, str(path), str(root), str(log_bytes)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{python}: {done.stderr}")
    folder = Path(done.stdout.strip())
    started = json.loads((folder / "started.json").read_text())
    rows = []
    try:
        for size in ("at the start", "with the log written"):
            if size != "at the start":
                wait_for_words(folder / "log", b"written\n", 600)
            total = 0.0
            for who in ("guard", "supervisor"):
                mib = proportional_mib(started[who]["pid"])
                total += mib
                rows.append([who, size, f"{mib:.1f}"])
            rows.append(["together", size, f"{total:.1f}"])
        log_mib = (folder / "log").stat().st_size / (1 << 20)
    finally:
        subprocess.run(
            [python, "-I", "-S", str(path / "gpualert"), "stop", folder.parent.name],
            env={**os.environ, "GPUALERT_ROOT": str(root)},
            stdout=subprocess.DEVNULL,
        )
    print(f"\nMemory of the keepers (proportional set size; log of {log_mib:.0f} MiB)")
    table(["", "when", "MiB"], rows)


def wait_for_words(path: Path, words: bytes, deadline_s: float) -> None:
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            if words in file.read():
                return
        time.sleep(0.05)
    raise SystemExit(f"{path}: {words!r} did not come within {deadline_s} s")


def proportional_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/{pid}/smaps_rollup has no line Pss")


def one_run(command: list[str], environment: dict[str, str]) -> Callable[[], float]:
    def run() -> float:
        begin = time.perf_counter()
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL)
        taken = time.perf_counter() - begin
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)}: exit {done.returncode}")
        return taken

    return run


def in_turn(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    for run in runs.values():
        run()  # caches bytecode and files
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(run())
    return taken


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def milliseconds(values: Sequence[float], quantile: float = 0.5) -> str:
    ordered = sorted(values)
    return f"{1000 * (middle(ordered) if quantile == 0.5 else ordered[int(quantile * (len(ordered) - 1))]):.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  " + "  ".join(cells))


if __name__ == "__main__":
    sys.exit(main())

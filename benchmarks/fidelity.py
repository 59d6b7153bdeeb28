"""The two promises without a figure of their own: the log is there before the child, and its end is told exactly.

Counted here in per cent of the tries, beside what the peer does with the same; the contract tests hold ours to all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import peer, wrapper
from benchmarks.measure import Effort, Row, Statistic, Target

# Of the child's own folder: is there a log already? Both keep theirs below HOME.
_LOOK = 'find "$HOME" -name log -type f -o -name stdout.log -type f | grep -q .'
_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGABRT,
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGTERM,
    signal.SIGUSR1,
)

# Many children that wait at one gate; behind it each ends with a code of its own, its supervisor dead by then.
_KILL_SUPERVISORS = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from gpualert import records
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec
root, gate, runs = sys.argv[2], sys.argv[2] + ".gate", []
for number in range(int(sys.argv[3])):
    code = (7 * number + 1) % 256
    spec = LaunchSpec(f"while [ ! -e {gate} ]; do sleep 0.1; done; exit {code}", root=root)
    _, record = launch(LaunchKey(("bench", str(number)), "bench"), Attempt(1, "a"), spec, {}, 0)
    run = RunDirectory(record.run_directory)
    runs.append((run, code))
time.sleep(1)
for run, _ in runs:
    os.kill(run.read_started()["supervisor"]["pid"], signal.SIGKILL)
open(gate, "w").close()
until = time.monotonic() + 60
while not all(run.has_ended() for run, _ in runs) and time.monotonic() < until:
    time.sleep(0.05)
told = [(records.read(run.path).exit, code) for run, code in runs]
print(json.dumps(sum(exit is not None and exit.code == code for exit, code in told)))
"""
_ALL = Target(100, at_least=True)


def measure(effort: Effort) -> Sequence[Row]:
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    try:
        return _measure(folder, effort)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(folder: Path, effort: Effort) -> list[Row]:
    ours = [sys.executable, "-I", "-S", str(wrapper.PACKAGE), "run", "--quiet", "--"]
    missing = ""
    theirs: list[str] | None = None
    try:
        theirs = peer.run_command()
    except peer.PeerMissing as reason:
        missing = str(reason)
    codes = range(0, 256, effort.rounds(1, 16))
    few = range(0, 256, effort.rounds(37, 128))
    subjects: list[tuple[str, Sequence[int], Sequence[int], Callable[[int], str], Callable[[int], int]]] = [
        ("log there at the child's first instruction", range(effort.rounds(20, 4)), range(4), lambda _: _LOOK, _zero),
        ("exit status of `run` exact, codes", codes, few, "exit {}".format, int),
        ("exit status of `run` is 128 + signal", _SIGNALS, _SIGNALS[:4], "kill -{} $$".format, lambda n: 128 + n),
    ]
    rows = []
    for what, tries, peers_tries, script, expected in subjects:
        mine = _share(folder, ours, tries, script, expected)
        other = _share(folder, theirs, peers_tries, script, expected) if theirs else ()
        beside = f"{peer.NAME}, {len(peers_tries)} tries"
        about = f"{what}, {len(tries)} tries"
        rows.append(Row(about, "%", mine, beside, other, Statistic.MEDIAN, _ALL, why_no_peer=missing))
    told = _supervisor_killed(folder, effort.rounds(16, 4))
    return [*rows, Row("exit code exact though the supervisor was killed 1 s after the start", "%", told, target=_ALL)]


def _zero(_: int) -> int:
    return 0


def _share(
    folder: Path,
    wrapper_words: list[str],
    tries: Sequence[int],
    script: Callable[[int], str],
    expected: Callable[[int], int],
) -> tuple[float]:
    """Per cent of the tries whose exit status was the expected one; each try has a home of its own."""

    def one(number: int) -> bool:
        home = Path(tempfile.mkdtemp(dir=folder))
        command = [*wrapper_words, "bash", "-c", script(int(number))]
        done = subprocess.run(
            command, env=peer.clean_environment(home), cwd=home, stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.returncode == expected(int(number))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        right = list(pool.map(one, tries))
    return (100 * sum(right) / len(right),)


def _supervisor_killed(folder: Path, tries: int) -> tuple[float]:
    package_root = str(wrapper.PACKAGE.parent)
    words = [sys.executable, "-c", _KILL_SUPERVISORS, package_root, str(folder / "root"), str(tries)]
    environment = {**os.environ, "HOME": str(folder)}  # a key's claim lies in the default root, which is the home's
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr[-1500:]}")
    return (100 * json.loads(done.stdout) / tries,)

"""What stands between a command and its start: the wrapper's own process, and the launch inside a warm one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import peer, wrapper
from benchmarks.measure import Effort, Row, Target, in_milliseconds

# The child tells when it began to run, since 0.1.6 does not return before it has ended.
_TO_THE_CHILD = """
import json, re, subprocess, sys, time
def popen(path):
    with open(path, "wb") as log:
        subprocess.run(["date", "+%s.%N"], stdout=log)
    return path
def ours(path):
    import os
    from gpualert.launch import start_fast
    started = start_fast(["date", "+%s.%N"], root=path + ".root")
    while os.read(started.announce, 100):
        pass
    os.close(started.announce)
    return started.run_directory + "/log"
def theirs(path):
    from gpualert.launcher import run_job
    return run_job(["date", "+%s.%N"]).stdout_log_path
call = {"popen": popen, "ours": ours, "theirs": theirs}[sys.argv[2]]
if sys.argv[1]:
    sys.path.insert(0, sys.argv[1])
taken = []
for number in range(int(sys.argv[3]) + 1):
    begin = time.time()
    path = call(sys.argv[4] + "." + str(number))
    taken.append(float(re.findall(r"\\b\\d{10}\\.\\d{9}\\b", open(path).read())[-1]) - begin)
print(json.dumps(taken[1:]))
"""


def measure(effort: Effort) -> Sequence[Row]:
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    try:
        # What a host holds after the archive was unpacked: the package alone, its bytecode beside it.
        package = folder / "archive" / "gpualert"
        shutil.copytree(wrapper.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        return [*_start(folder, package, effort), *_launch(folder, package.parent, effort)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, package: Path, effort: Effort) -> list[Row]:
    """`gpualert run -- true` from the shell's point of view."""
    environment = {**peer.clean_environment(folder), "GPUALERT_ROOT": str(folder / "root")}
    commands = {
        "true": ["true"],
        "python": [sys.executable, "-I", "-S", "-c", "pass"],
        "ours": [sys.executable, "-I", "-S", str(package), "run", "--", "true"],
    }
    missing = ""
    try:
        commands["theirs"] = peer.run_command("true")
    except peer.PeerMissing as reason:
        missing = str(reason)
    runs = {name: _quiet_run(command, environment) for name, command in commands.items()}
    taken = in_milliseconds(wrapper.in_turn(runs, effort.rounds(20, 5)))
    what = "`run -- true`, start to end"
    return [
        Row(what, "ms", taken["ours"], "`python3 -I -S -c pass`", taken["python"], target=Target(4, of_ratio=True)),
        Row(what, "ms", taken["ours"], "bare `true`", taken["true"]),
        Row(
            what,
            "ms",
            taken["ours"],
            f"{peer.NAME} `run -- true`",
            taken.get("theirs", ()),
            target=Target(1, of_ratio=True),
            why_no_peer=missing,
        ),
    ]


def _quiet_run(command: list[str], environment: dict[str, str]):
    # The peer draws a panel: nobody is to wait for a terminal.
    return wrapper.one_run(["/bin/sh", "-c", 'exec "$@" >/dev/null', "sh", *command], environment)


def _launch(folder: Path, path: Path, effort: Effort) -> list[Row]:
    rounds = effort.rounds(20, 5)
    words = [sys.executable, "-I", "-S", "-c", wrapper.INSIDE, str(path), str(rounds), str(folder / "root")]
    inside = in_milliseconds(json.loads(_output(words, folder)))
    rows = [
        Row(
            f"{what}, call to return, in a warm process",
            "ms",
            inside[name],
            "`subprocess.Popen`",
            inside["subprocess.Popen"],
            target=Target(3),
        )
        for what, name in (("launch as `run` does", "start_fast"), ("launch as the operator does", "launch"))
    ]
    taken: dict[str, list[float]] = {"popen": [], "ours": [], "theirs": []}
    pythons = {"popen": ("", sys.executable), "ours": (str(path), sys.executable)}
    missing = ""
    try:
        pythons["theirs"] = ("", str(peer.environment() / "python"))
    except peer.PeerMissing as reason:
        missing = str(reason)
    portions = 4  # in turns, so that a busy moment does not fall on one alone
    for portion in range(portions):
        for name, (where, python) in pythons.items():
            log = str(folder / f"{name}-{portion}")
            command = [python, "-c", _TO_THE_CHILD, where, name, str(max(2, rounds // portions)), log]
            taken[name] += json.loads(_output(command, folder))
    milliseconds = in_milliseconds(taken)
    what = "call to the child's first word, in a warm process"
    return [
        *rows,
        Row(what, "ms", milliseconds["ours"], "`subprocess.Popen`", milliseconds["popen"]),
        Row(what, "ms", milliseconds["ours"], f"{peer.NAME} `run_job`", milliseconds["theirs"], why_no_peer=missing),
    ]


def _output(words: list[str], home: Path) -> str:
    done = subprocess.run(words, env=peer.clean_environment(home), cwd=home, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{os.path.basename(words[0])}: exit {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout

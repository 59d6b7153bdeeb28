"""`make demo` is the first thing that people see: it shows what it says, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tools.rig.sshd import SshdMissing, find_sshd

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]

# What each training really ends with. SIGKILL alone has many senders, so its cause stays unknown.
EXPECTED = {
    "learns": ("success", "success"),
    "wrong_config": ("failed", "traceback"),
    "out_of_memory": ("failed", "ram_oom"),
    "broken_kernel": ("failed", "segfault"),
    "diverges": ("failed", "nan_loss"),
    "killed": ("failed", "unknown"),
    "missing_module": ("failed", "missing_module"),
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the demo in ``tmp_path / "demo"``; one that is still there at the end of the test is asked to stop."""
    started = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tools.demo", "--folder", str(tmp_path / "demo"), "--once", *arguments]
        environment = {**os.environ, "COLUMNS": "200", "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        pipe = subprocess.PIPE
        demo = subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment
        )
        started.append(demo)
        return demo

    yield run
    for demo in started:
        if demo.poll() is None:
            demo.terminate()
            demo.communicate(timeout=120)


def rows(said: str) -> dict[str, tuple[str, str]]:
    """Task to (state, class), read from the table as a person would."""
    found = re.findall(r"^(\w+) +(success|failed|upstream_failed) +(\S+) ", said, re.M)
    return {task: (state, failure_class) for task, state, failure_class in found}


def left_running(folder: Path) -> list[str]:
    """Command lines of processes that stand in the demo's folder or speak of it."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line or os.readlink(f"/proc/{entry}/cwd").startswith(str(folder)):
                found.append(line)
        except OSError:  # ended while we looked
            continue
    return found


@pytest.mark.parametrize("host", ["openssh", "embedded"])
def test_it_shows_one_success_and_six_failures_with_their_causes(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], host: str
) -> None:
    """States, classes, evidence and logs are those of real trainings; then everything is gone but the folder."""
    if host == "openssh":
        try:
            find_sshd()
        except SshdMissing as missing:
            pytest.skip(str(missing))
    folder = tmp_path / "demo"

    demo = start("--deadline", "500", *(["--embedded"] if host == "embedded" else []))
    said = demo.communicate(timeout=550)[0]

    assert demo.returncode == 0, said
    assert rows(said) == EXPECTED, said
    assert "As it should be" in said
    logs = re.findall(r"(\S+/log)$", said, re.M)
    assert len(logs) == 7
    assert all(Path(log).is_file() for log in logs)
    wait_until(lambda: not left_running(folder), 20, lambda: f"nothing is left running: {left_running(folder)}")


def test_ctrl_c_in_the_middle_stops_all_that_was_started(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Whoever loses patience loses nothing else."""
    folder = tmp_path / "demo"
    demo = start()
    triggerer = folder / "airflow" / "component-logs" / "triggerer.log"
    wait_until(lambda: triggerer.exists() or demo.poll() is not None, 60, "the triggerer is started")

    demo.send_signal(signal.SIGINT)
    said = demo.communicate(timeout=120)[0]

    assert demo.returncode == 130, said
    assert "Stopped before the trainings had ended." in said
    wait_until(lambda: not left_running(folder), 20, lambda: f"nothing is left running: {left_running(folder)}")

"""A terminal for one command: a pseudo-terminal whose other end a test reads and types into, and an isolated gpualert.

The command line under test runs in a process of its own with a home of its own, so that no launch of the user is seen.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from gpualert import procfs
from gpualert.child import kill_tree
from gpualert.errors import GpuAlertError
from gpualert.rundir import RunDirectory
from tools.rig.waiting import DidNotHappen, wait_until

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


class Gpualert:
    """
    The command line with a home of its own.

    :param home: an empty folder; run directories appear below it.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / ".local" / "state" / "gpualert"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        # A dumb terminal: a shell's line editing adds no control sequences of its own.
        return {**kept, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "TERM": "dumb"}

    def argv(self, *words: str) -> list[str]:
        # Without site-packages: what the core needs is the standard library, and a test environment is slow to start.
        return [sys.executable, "-S", str(Path(__file__).with_name("isolated_gpualert.py")), *words]

    def run(self, *words: str, **changes: object) -> subprocess.CompletedProcess[bytes]:
        """Run to the end, without a terminal; what it printed is kept apart."""
        arguments: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "capture_output": True,
            "env": self.environment,
            "timeout": DEADLINE_S,
            **changes,
        }
        if "input" in changes:
            del arguments["stdin"]
        return subprocess.run(self.argv(*words), **arguments)  # type: ignore[call-overload,no-any-return]

    def run_directories(self) -> list[Path]:
        """The oldest first."""
        found = [path for path in self.root.glob("launches/*/[0-9]*") if path.is_dir()]
        return sorted(found, key=lambda path: path.stat().st_ctime_ns)

    def run_directory(self) -> Path:
        """The one that there is, or will be in a moment, with a log in it."""

        def complete() -> list[Path]:
            return [path for path in self.run_directories() if (path / "log").exists()]

        return wait_until(complete, DEADLINE_S, "a run directory with a log appears")[0]

    def end_all(self) -> None:
        """What a failed test left running: keepers first, then the command's tree."""
        for directory in self.run_directories():
            try:
                started = RunDirectory(str(directory)).read_started()
            except GpuAlertError:
                continue  # damaged on purpose
            if started is None:
                continue
            child, guard = (procfs.ProcessIdentity.from_json(started[who]) for who in ("child", "guard"))
            for who in ("guard", "supervisor"):
                keeper = procfs.ProcessIdentity.from_json(started[who])
                if procfs.alive(keeper):
                    os.kill(keeper.pid, signal.SIGKILL)
            kill_tree(child, guard, started["launch_id"], (os.getpid(),))


@pytest.fixture
def gpualert(tmp_path: Path) -> Iterator[Gpualert]:
    """The command line, with a home of its own; nothing that it launched outlives the test."""
    command_line = Gpualert(tmp_path)
    yield command_line
    command_line.end_all()


class Terminal:
    """
    A process that has a terminal of its own as its controlling one; a context manager that ends it.

    :param argv: what runs there. Its exit status is :meth:`wait`'s answer.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> None:
        self.seen = b""
        pid, self.master = pty.fork()
        if pid == 0:
            try:
                if cwd is not None:
                    os.chdir(cwd)
                os.execvpe(argv[0], list(argv), dict(environment))
            finally:
                os._exit(126)
        self.pid = pid
        self._status: int | None = None

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read_some(self, timeout_s: float = 0.05) -> bool:
        """Take what has arrived. :return: False when nothing came."""
        if not select.select([self.master], [], [], timeout_s)[0]:
            return False
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        self.seen += piece
        return bool(piece)

    def expect(self, words: bytes, deadline_s: float = DEADLINE_S) -> bytes:
        """Read until ``words`` have appeared. :return: all that was seen so far."""
        end = time.monotonic() + deadline_s
        while words not in self.seen:
            self.read_some()
            if time.monotonic() > end:
                raise DidNotHappen(f"not within {deadline_s:g} s: {words!r} on the terminal; it shows {self.seen!r}")
        return self.seen

    def state(self) -> str:
        """Of the process, as in /proc: R, S, T (stopped), Z."""
        return process_state(self.pid)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """The exit status, or minus the signal; the output that comes meanwhile is read."""
        end = time.monotonic() + deadline_s
        while self._status is None:
            self.read_some(0.01)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise DidNotHappen(f"not within {deadline_s:g} s: the command ends; the terminal shows {self.seen!r}")
        while self.read_some(0.05):
            pass
        return self._status

    def without_output_processing(self) -> None:
        """Let the terminal pass bytes as they are (it makes CR LF of LF otherwise)."""
        attributes = termios.tcgetattr(self.master)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(self.master, termios.TCSANOW, attributes)

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self.master)
        self.master = -1

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(self.pid, number)
                except ProcessLookupError:
                    pass
            os.waitpid(self.pid, 0)
        if self.master >= 0:
            os.close(self.master)


def process_state(pid: int) -> str:
    """The state letter of /proc/PID/stat; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lives(pid: int) -> bool:
    return process_state(pid) not in ("", "Z", "X")

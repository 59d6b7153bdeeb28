"""Processes that a rig starts: each in a session of its own, known by pid, and gone when the rig is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def start(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a new session, with empty input and its output appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask the process to end, insist after ``grace_s``, and end what is left of its session's first process group."""
    send(process.pid, signal.SIGCONT)  # a frozen process cannot hear the request
    if process.poll() is None:
        send(process.pid, signal.SIGTERM)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            send(process.pid, signal.SIGKILL)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def send(pid: int, number: int) -> bool:
    """Send a signal; False when the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """Pids of all descendants, parents before children; one whose own parent died first is not among them."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            status = Path(f"/proc/{entry}/stat").read_bytes()
        except OSError:  # ended while we looked
            continue
        # The name in parentheses may itself hold parentheses and blanks: fields count from the last one (proc(5)).
        yield int(entry), int(status[status.rindex(b")") + 2 :].split()[1])


def free_port(address: str = "127.0.0.1") -> int:
    """A port that was free a moment ago. Somebody else may take it first: check after the start that it is yours."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])

"""A program that may hang in the driver's hands, asked within bounds: in time, in what it says, and in what it leaves.

A process in uninterruptible sleep does not even die of SIGKILL. So nobody waits for one longer than a moment: it is
killed, left to a thread that collects it whenever the kernel lets go of it, and the caller goes on.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Mapping, Sequence

#: How long a killed process is waited for, seconds.
KILL_PATIENCE_S = 0.2
#: The child's end is looked for so often, beside what it says: a descendant of its own may keep the pipe open.
_LOOK_EVERY_S = 0.05
ENDED, MISSING, HANGS, TALKS_TOO_MUCH = "ended", "missing", "hangs", "talks_too_much"


@dataclass(frozen=True)
class Said:
    """
    :param how: ``ended``; ``missing`` (it could not be started: ``output`` says why); ``hangs`` (the bound came first);
        ``talks_too_much`` (more than it may say). In the last two cases it was killed, and ``output`` is what it had
        said.
    :param status: exit status, negative for a signal; None unless it ended.
    :param output: stdout and stderr together.
    """

    how: str
    status: int | None
    output: bytes

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")


def ask(
    argv: Sequence[str], until: float, environment: Mapping[str, str] | None = None, max_bytes: int = 256 * 1024
) -> Said:
    """
    Run a program to its end or to the bound, with no standard input, and in ``/``.

    :param until: on ``time.monotonic()``; passed by at most :data:`KILL_PATIENCE_S`.
    :param environment: None for our own.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",  # an empty entry of LD_LIBRARY_PATH means this folder, and it holds no library of a stranger
            env=None if environment is None else dict(environment),
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        return Said(MISSING, None, str(error).encode("utf-8", "replace"))
    assert process.stdout is not None
    try:
        return _listen(process, process.stdout.fileno(), until, max_bytes)
    finally:
        process.stdout.close()
        _end(process)


def _listen(process: subprocess.Popen[bytes], pipe: int, until: float, max_bytes: int) -> Said:
    os.set_blocking(pipe, False)
    said = bytearray()
    open_ = True
    while True:
        ended = process.poll()  # before the last look at the pipe, so that nothing said is missed
        left = until - time.monotonic()
        wait = 0.0 if ended is not None else max(0.0, min(left, _LOOK_EVERY_S))
        if not open_:
            time.sleep(wait)
        elif select.select([pipe], [], [], wait)[0]:
            piece = os.read(pipe, 65536)
            open_ = bool(piece)
            said += piece
            if len(said) > max_bytes:
                return Said(TALKS_TOO_MUCH, None, bytes(said[:max_bytes]))
            continue
        if ended is not None:
            return Said(ENDED, ended, bytes(said))
        if left <= 0:
            return Said(HANGS, None, bytes(said))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of it, and see to it that it is collected some day."""
    try:
        os.killpg(process.pid, 9)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(KILL_PATIENCE_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="gpualert-collect", daemon=True).start()

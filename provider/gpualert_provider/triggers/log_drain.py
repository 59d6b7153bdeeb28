"""Wait until what a trigger printed has left the triggerer's runner process.

Airflow 3.3's triggerer reads its runner's log 4 KiB at a time, once per round of its main loop, and closes a trigger's
log file as soon as it hears, over another socket, that the trigger has finished. What is still on its way then is not
in the task log. So a trigger that has printed much must not finish before it has been read.

Source: ``make_buffered_socket_reader`` (airflow/sdk/execution_time/supervisor.py), ``TriggerStateChanges`` in
airflow/jobs/triggerer_job_runner.py; SIOCOUTQ in unix(7).
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import stat
import termios
import time

_LOOK_EVERY_S = 0.2


async def log_drained(limit_s: float = 60.0) -> bool:
    """
    Wait until nothing that this process has written to its supervisor is unread, for ``limit_s`` at most.

    :return: whether that came true. False on a triggerer that is never idle, or where it cannot be seen.
    """
    end = time.monotonic() + limit_s
    while True:
        waiting = unread_bytes()
        if waiting == 0:
            return True
        if waiting is None or time.monotonic() >= end:
            return False
        await asyncio.sleep(_LOOK_EVERY_S)


def unread_bytes() -> int | None:
    """Bytes in this process's Unix sockets that their other ends have not read; None where Linux does not tell."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return None
    total = 0
    for name in names:
        try:
            fd = int(name)
            if not stat.S_ISSOCK(os.fstat(fd).st_mode) or not _is_unix(fd):
                continue
            size = array.array("i", [0])
            fcntl.ioctl(fd, termios.TIOCOUTQ, size)  # SIOCOUTQ has the same number
            total += size[0]
        except (OSError, ValueError):  # closed meanwhile
            continue
    return total


def _is_unix(fd: int) -> bool:
    """SSH connections are sockets too, and their unsent bytes are none of our business."""
    import socket

    peek = socket.socket(fileno=os.dup(fd))
    try:
        return peek.family == socket.AF_UNIX
    finally:
        peek.close()

"""See how much of what a trigger printed its supervisor has not read yet, and wait for it.

Airflow 3.3's triggerer reads its runner's log 4 KiB at a time, once per round of its main loop. Two things follow. A
write that finds the socket's buffer full (some 200 KiB) blocks the runner's event loop, and with it every trigger of
the triggerer. And the supervisor closes a trigger's log file as soon as it hears, over another socket, that the trigger
has finished: what is still on its way then is not in the task log. So we print only when there is room, and finish only
when everything was read.

Source: ``make_buffered_socket_reader`` (airflow/sdk/execution_time/supervisor.py), ``TriggerStateChanges`` in
airflow/jobs/triggerer_job_runner.py; SIOCOUTQ in unix(7).
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import socket
import stat
import termios
import time

#: With at most so much unread, a record of 64 KiB (some more as JSON) still finds room without blocking.
ROOM_BYTES = 32 * 1024
_LOOK_EVERY_S = 0.05


class OwnSockets:
    """The Unix sockets that this process has now; those to the supervisor are open as long as it lives."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int]] | None = None

    def unread_bytes(self) -> int | None:
        """Bytes in them that their other ends have not read; None where the system does not tell."""
        if self._found is None:
            try:
                self._found = list(_unix_sockets())
            except OSError:
                return None
        total = 0
        for fd, inode in self._found:
            try:
                if os.fstat(fd).st_ino == inode:
                    size = array.array("i", [0])
                    fcntl.ioctl(fd, termios.TIOCOUTQ, size)  # SIOCOUTQ has the same number
                    total += size[0]
            except OSError:  # closed meanwhile
                continue
        return total


_OWN = OwnSockets()


async def log_drained(limit_s: float = 60.0, down_to: int = 0, sockets: OwnSockets = _OWN) -> bool:
    """
    Wait until at most ``down_to`` bytes of what this process has written to its supervisor are unread.

    :param limit_s: seconds; a triggerer that is never idle must not keep a trigger for ever.
    :return: whether that came true. False also where it cannot be seen.
    """
    end = time.monotonic() + limit_s
    while True:
        waiting = sockets.unread_bytes()
        if waiting is not None and waiting <= down_to:
            return True
        if waiting is None or time.monotonic() >= end:
            return False
        await asyncio.sleep(_LOOK_EVERY_S)


async def log_has_room(limit_s: float = 30.0, sockets: OwnSockets = _OWN) -> bool:
    """Wait until a record can be printed without making every other trigger wait; as :func:`log_drained`."""
    return await log_drained(limit_s, ROOM_BYTES, sockets)


def _unix_sockets() -> list[tuple[int, int]]:
    """(descriptor, inode) of each. SSH connections are sockets too, and their unsent bytes are none of our business."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            facts = os.fstat(int(name))
            if not stat.S_ISSOCK(facts.st_mode):
                continue
            peek = socket.socket(fileno=os.dup(int(name)))
        except (OSError, ValueError):  # the listing's own descriptor, or one closed meanwhile
            continue
        try:
            if peek.family == socket.AF_UNIX:
                found.append((int(name), facts.st_ino))
        finally:
            peek.close()
    return found

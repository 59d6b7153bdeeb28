"""How much of what this process has written to its supervisor is not read yet. Whoever prints looks there first: see
:mod:`.press`.

Source: SIOCOUTQ in unix(7).
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import stat
import termios


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


OWN_SOCKETS = OwnSockets()


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

"""A proxy command as a socket: what it reads and writes is the way to the host. The same for both SSH libraries.

paramiko's own spins when the command has ended, and asyncssh's knows nothing of the words that it leaves behind.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import tempfile

from gpualert_provider.hooks.errors import TransportError


class ProxyProcess:
    """
    The running command. It belongs to one connection, and is gone when :meth:`close` returns.

    :param command: split as a shell would, but run without one; placeholders are filled in already.
    :ivar socket: our end. It reads as ended when the command has ended.
    :raises TransportError: ``unreachable``, when it cannot be started.
    """

    def __init__(self, command: str, peer: str) -> None:
        self._peer = peer
        self._words = tempfile.TemporaryFile()
        self.socket, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                shlex.split(command),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._words.fileno(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.socket.close()
            self._words.close()
            raise TransportError(
                "unreachable", f"{peer}: the proxy command could not be started ({error}); no shell is involved."
            ) from error
        finally:
            theirs.close()

    def failure(self) -> TransportError | None:
        """An error that says how the command ended; None while it runs."""
        try:
            code = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return None
        self._words.seek(0)
        words = self._words.read()[-2000:].decode("utf-8", "replace").strip()
        said = f"it said: {words}" if words else "it said nothing"
        return TransportError("unreachable", f"{self._peer}: the proxy command ended with status {code}; {said}.")

    def close(self) -> None:
        """Any number of times."""
        self.socket.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._words.close()

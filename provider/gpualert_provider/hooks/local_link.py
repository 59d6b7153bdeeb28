"""The same conversation without SSH: with a child process on this machine, over two pipes."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gpualert
from gpualert_provider.hooks import errors
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.target import LocalTarget

_STDERR_KEPT = 8192
# Not `-m` with PYTHONPATH: the training inherits this environment, and must not find our package in it.
_START = (
    "import runpy, sys; sys.path.insert(0, {path!r}); sys.argv[0] = 'gpualert'; "
    "runpy.run_module('gpualert', run_name='__main__')"
)


class LocalLink:
    """
    A child process that speaks the protocol.

    :param arguments: as of ``Conversation.local_arguments``: ``-m gpualert serve …``.
    """

    def __init__(self, target: LocalTarget, arguments: Sequence[str]) -> None:
        self.target = target
        if list(arguments[:2]) != ["-m", "gpualert"]:
            raise ValueError(f"expected arguments that begin with -m gpualert, found {list(arguments)!r}")
        start = _START.format(path=str(Path(gpualert.__file__).resolve().parent.parent))
        # -I -S: as on a host, nothing of the user's site-packages or PYTHONPATH reaches the core.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", start, *arguments[2:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._in, self._out, self._err = self._process.stdin, self._process.stdout, self._process.stderr
        os.set_blocking(self._in.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._selector.register(self._err, selectors.EVENT_READ)
        self._stderr = b""
        self._received = b""
        self._ended = False

    def send(self, data: bytes, timeout_s: float | None) -> None:
        """:raises TransportError: dropped, or timeout when nothing is taken."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        view = memoryview(data)
        while view:
            try:
                written = self._in.write(view)
            except OSError as error:
                raise TransportError(
                    "dropped", f"{self.target.peer}: the helper process is gone. {self.last_words()}"
                ) from error
            if written:
                view = view[written:]
                continue
            if deadline is not None and time.monotonic() >= deadline:
                raise errors.timed_out(self.target.peer, "room to send to the helper process", timeout_s)
            # It may be unable to read because we do not: take its words meanwhile.
            self._take(0.05)

    def receive(self, timeout_s: float | None) -> bytes | None:
        """Some bytes; empty at the end of the stream; None when nothing came in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._received and not self._ended:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._take(left)
        data, self._received = self._received, b""
        return data

    def last_words(self) -> str:
        while not self._ended:
            if not self._take(0.5):
                break
        words = self._stderr.decode("utf-8", "replace").strip()
        try:
            code = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return words
        return f"{words}{' ' if words else ''}[the helper process ended with status {code}]"

    @property
    def command_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End of input asks it to leave; it is made to after 5 seconds. What it has launched goes on."""
        self._in.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        self._out.close()
        self._err.close()

    def _take(self, timeout_s: float | None) -> bool:
        took = False
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 65536)
            if key.fileobj is self._err:
                self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
                if not data:
                    self._selector.unregister(self._err)
            else:
                self._received += data
                if not data:
                    self._ended = True
                    self._selector.unregister(self._out)
            took = True
        return took

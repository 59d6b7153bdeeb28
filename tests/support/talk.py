"""A client of the wire protocol over any process: an OpenSSH client, a shell, or ``python -m gpualert serve``.

It knows what crosses the wire (bytes counted, frames kept) and nothing of Airflow.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gpualert import protocol
from gpualert.protocol import ArchiveWanted, Closed, Conversation, Event, Frame, Hello, NotOurs
from tests.support.sshd import SshHost

T = TypeVar("T")
PATIENCE_S = 30.0


class Talk:
    """
    One conversation over one process. A context manager.

    :ivar sent_bytes: what went to the far end's stdin.
    :ivar events: everything heard so far.
    """

    def __init__(
        self,
        command: Sequence[str],
        conversation: Conversation,
        *,
        env: Mapping[str, str] | None = None,
        first: Mapping[str, Any] | None = None,
    ) -> None:
        self.conversation = conversation
        self.events: list[Event] = []
        self.sent_bytes = 0
        self._stderr = tempfile.TemporaryFile()
        self._unread: list[Event] = []
        self._held: bytes | None = None
        self._raw = b""
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=None if env is None else dict(env),
            bufsize=0,
        )
        if first is not None:
            conversation.send(first)

    @classmethod
    def over_ssh(cls, host: SshHost, login: str | None = None, *, first: Any = None, **how: Any) -> Talk:
        conversation = Conversation(**how)
        return cls(host.ssh_command(conversation.command, login=login), conversation, first=first)

    @classmethod
    def over_shell(cls, *, env: Mapping[str, str] | None = None, first: Any = None, **how: Any) -> Talk:
        """The bootstrap without SSH: what sshd would give to the login shell, given to ``/bin/sh``."""
        conversation = Conversation(**how)
        return cls(["/bin/sh", "-c", conversation.command], conversation, env=env, first=first)

    @classmethod
    def local(cls, python: str = sys.executable, *, env: Mapping[str, str] | None = None, **how: Any) -> Talk:
        conversation = Conversation(local=True, **how)
        return cls([python, *conversation.local_arguments], conversation, env=env)

    def wait(self, choose: Callable[[Event], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
        """The first event for which ``choose`` gives something; those before it are passed over."""
        deadline = time.monotonic() + patience_s
        while True:
            while self._unread:
                found = choose(self._unread.pop(0))
                if found is not None:
                    return found
            if self.conversation.over or not (self._pump(deadline - time.monotonic()) or self._unread):
                raise AssertionError(f"did not come: {what}; heard: {self.events[-10:]}; stderr: {self.stderr!r}")

    def hello(self) -> Mapping[str, Any]:
        return self.wait(lambda e: e.header if isinstance(e, Hello) else None, "hello")

    def refusal(self) -> NotOurs:
        return self.wait(lambda e: e if isinstance(e, NotOurs) else None, "NotOurs")

    def frame(self, *types: str, patience_s: float = PATIENCE_S) -> Frame:
        """The next frame of one of these types; an ``error`` that is not among them fails the test."""

        def choose(event: Event) -> Frame | None:
            if not isinstance(event, Frame):
                return None
            if event.type == "error" and "error" not in types:
                raise AssertionError(f"waited for {types}, the host says {event.header}")
            return event if event.type in types else None

        return self.wait(choose, " or ".join(types), patience_s)

    def ask(self, request: Mapping[str, Any], *types: str) -> Frame:
        self.conversation.send(request)
        return self.frame(*types)

    def follow_to_end(self, request: Mapping[str, Any]) -> tuple[list[Frame], Frame]:
        """All ``log`` frames, and ``ended``."""
        self.conversation.send(request)
        logs: list[Frame] = []
        while True:
            frame = self.frame("log", "ended")
            if frame.type == "ended":
                return logs, frame
            logs.append(frame)

    def send(self, request: Mapping[str, Any]) -> None:
        self.conversation.send(request)
        self._flush()

    def hold_archive(self) -> bytes:
        """Go on until the host wants the archive, and keep it back: it is the caller's now, for :meth:`send_raw`."""
        self._held = b""
        self.wait(lambda e: e if isinstance(e, ArchiveWanted) else None, "the archive is wanted")
        held, self._held = self._held, None
        return held

    def send_raw(self, data: bytes) -> None:
        """Bytes that no conversation would send so."""
        self._raw += data
        self._flush()

    @property
    def stderr(self) -> bytes:
        self._stderr.seek(0)
        return self._stderr.read()

    def hang_up(self) -> int:
        """Close our end and wait for theirs; what the far end still says is heard. The exit status."""
        assert self.process.stdin is not None
        self._flush()
        self.process.stdin.close()
        deadline = time.monotonic() + PATIENCE_S
        while self._pump(deadline - time.monotonic()):
            pass
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._stderr.close()

    def _pump(self, patience_s: float) -> bool:
        """Move bytes once; False when the far end is at its end or nothing came in time."""
        self._flush()
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return False
        out = self.process.stdout.fileno()
        if patience_s <= 0 or not select.select([out], [], [], patience_s)[0]:
            return False
        data = os.read(out, 65536)
        new = self.conversation.receive(data) if data else self.conversation.receive_end(self._status(), self.stderr)
        if self._held is not None and any(isinstance(event, ArchiveWanted) for event in new):
            self._held = self.conversation.data_to_send()
        self.events += new
        self._unread += new
        return bool(data)

    def _status(self) -> int | None:
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            return None

    def _flush(self) -> None:
        assert self.process.stdin is not None
        data, self._raw = self._raw + self.conversation.data_to_send(), b""
        self.sent_bytes += len(data)
        view = memoryview(data)
        while view:
            try:
                view = view[self.process.stdin.write(view) :]
            except BrokenPipeError:
                return  # what the far end said before it left is still to be read


def closed(event: Event) -> Closed | None:
    return event if isinstance(event, Closed) else None


__all__ = ["PATIENCE_S", "Talk", "closed", "protocol"]

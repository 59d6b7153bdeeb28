"""A conversation with one host for an event loop: the triggerer's side. The same as :mod:`.blocking`, asynchronously.

Nothing here logs: a line logged on the triggerer's loop lands in the log of whichever task's context it runs in.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import asyncssh

from gpualert import protocol
from gpualert.protocol import Conversation, Event, Frame, Hello
from gpualert_provider.hooks import connections, errors, talk
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.target import SshTarget

_STDERR_KEPT = 8192
_CHUNK = 256 * 1024


class StreamingSession:
    """
    One host, used by one coroutine at a time. An asynchronous context manager; made by :meth:`open`.

    :ivar hello: what the host says of itself: ``version digest python machine_id boot_id hostname user roots`` and
        more.
    """

    def __init__(self, target: SshTarget, conversation: Conversation) -> None:
        self.target = target
        self.hello: Mapping[str, Any] = {}
        self._conversation = conversation
        self._events: deque[Event] = deque()
        self._borrowed: AbstractAsyncContextManager[asyncssh.SSHClientConnection] | None = None
        self._connection: asyncssh.SSHClientConnection | None = None
        self._process: asyncssh.SSHClientProcess[bytes] | None = None
        self._stderr = b""
        self._stderr_task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[bytes] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls, target: SshTarget, *, root: str | None = None, remote_python: str | None = None
    ) -> StreamingSession:
        """
        Connect, and wait until the host has said hello.

        :raises TransportError: any kind; the message says which step it was and what to do.
        :raises HostError: the host can run nothing of ours: ``no_root`` and the like.
        """
        # Building the archive reads files, the first time.
        conversation = await asyncio.to_thread(Conversation, root=root, remote_python=remote_python, with_pynvml=None)
        session = cls(target, conversation)
        try:
            await session._start()
        except BaseException:
            await session.close()
            raise
        return session

    async def call(
        self, request: Mapping[str, Any], payload: bytes = b"", timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its answer; see :meth:`BlockingSession.call`."""
        self._conversation.send(Frame(request, payload))
        reply = dict((await self._answer(request, timeout_s)).header)
        while reply.get("more"):
            talk.extend(reply, (await self._answer(request, timeout_s)).header)
        return reply

    async def follow(
        self,
        launch_id: str,
        from_: str | Mapping[str, int] = "ack",
        attach: bool = True,
        who: str = "",
        *,
        silence_s: float = talk.SILENCE_S,
        tick_s: float | None = None,
    ) -> AsyncIterator[Frame]:
        """
        Frames of one launch as they come: ``attached``, then ``log gap state beat``, and ``ended`` as the last one.

        :param silence_s: longest time without any frame before the link counts as dead.
        :param tick_s: yield :data:`talk.TICK` after so long without a frame.
        :raises HostError: ``unknown_launch`` and the like.
        :raises TransportError: dropped, timeout, protocol.
        """
        self._conversation.send(protocol.follow_request(launch_id, from_=from_, attach=attach, who=who))
        heard_at = time.monotonic()
        while True:
            quiet_s = time.monotonic() - heard_at
            if quiet_s >= silence_s:
                raise errors.timed_out(self.target.peer, "a sign of life from the host", silence_s)
            left = silence_s - quiet_s
            event = await self._next(left if tick_s is None else min(left, tick_s))
            if event is None:
                if tick_s is not None:
                    yield talk.TICK
                continue
            frame = talk.frame_of(event, self.target.peer)
            if frame.type == "error":
                raise protocol.HostError.from_frame(frame.header)
            yield frame
            if frame.type == "ended":
                return
            heard_at = time.monotonic()  # what our user did in between is not the host's silence

    async def send_ack(self, generation: int, offset: int, ended: bool = False) -> None:
        """Everything before ``offset`` is safely delivered; with ``ended``, the outcome too. No answer comes."""
        self._conversation.send(protocol.ack_message(generation, offset, ended=ended))
        await self._flush()

    async def detach(self) -> None:
        """
        Stop following; other requests can be made afterwards. Frames that are already on their way are passed over.
        """
        self._conversation.send(protocol.detach_message())
        await self._flush()

    async def close(self) -> None:
        """Any number of times. What was launched goes on."""
        if self._closed:
            return
        self._closed = True
        if self._process is not None:
            self._process.close()
        helpers = [task for task in (self._stderr_task, self._reading) if task is not None]
        for task in helpers:
            task.cancel()
        if helpers:
            await asyncio.gather(*helpers, return_exceptions=True)
        if self._borrowed is not None:
            await self._borrowed.__aexit__(None, None, None)

    async def __aenter__(self) -> StreamingSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- how

    async def _start(self) -> None:
        target = self.target
        borrowed = connections.acquire(target)
        self._connection = await borrowed.__aenter__()
        self._borrowed = borrowed
        try:
            process = await connections.within(
                self._connection.create_process(self._conversation.command, encoding=None, request_pty=False),
                target.auth_timeout_s,
            )
        except TimeoutError as error:
            raise errors.timed_out(target.peer, "a session on the open connection", target.auth_timeout_s) from error
        except asyncssh.ChannelOpenError as error:
            raise errors.channel_refused(target.peer, f"{error.code}: {error.reason}") from error
        except asyncssh.ProcessError as error:
            raise errors.channel_refused(target.peer, str(error)) from error
        except (asyncssh.Error, OSError) as error:
            raise TransportError(
                "dropped", f"{target.peer}: the host closed the connection after login ({error})."
            ) from error
        self._process = process
        self._stderr_task = connections.detached(self._drain_stderr(process))
        event = await self._next(target.command_timeout_s)
        if event is None:
            raise talk.no_greeting(target.peer, self._conversation.printed, target.command_timeout_s)
        if not isinstance(event, Hello):
            raise talk.not_a_frame(event, self.target.peer)
        self.hello = event.header

    async def _drain_stderr(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        """Unread stderr would fill the window and stop the host's other words too."""
        try:
            while data := await process.stderr.read(4096):
                self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
        except (asyncssh.Error, OSError):
            pass  # the reader of stdout meets the same and tells it

    async def _answer(self, request: Mapping[str, Any], timeout_s: float | None) -> Frame:
        limit_s = timeout_s if timeout_s is not None else talk.patience(request, self.target.command_timeout_s)
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            event = await self._next(None if end is None else max(0.0, end - time.monotonic()))
            if event is None:
                raise errors.timed_out(self.target.peer, f"the answer to {request['type']!r}", limit_s)
            found = talk.answer(talk.frame_of(event, self.target.peer))
            if found is not None:
                return found

    async def _flush(self) -> None:
        data = self._conversation.data_to_send()
        if not data:
            return
        assert self._process is not None
        limit_s = self.target.command_timeout_s
        try:
            self._process.stdin.write(data)
            await connections.within(self._process.stdin.drain(), limit_s)
        except TimeoutError as error:
            raise errors.timed_out(self.target.peer, "room to send to the host", limit_s) from error
        except (asyncssh.Error, OSError) as error:
            raise TransportError(
                "dropped", f"{self.target.peer}: the connection was lost ({error or type(error).__name__})."
            ) from error

    async def _next(self, timeout_s: float | None) -> Event | None:
        """The next event that matters; None when it did not come in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while self._events:
                event = self._events.popleft()
                if not isinstance(event, protocol.ArchiveWanted):
                    return event
            if self._closed or self._process is None:
                raise TransportError("dropped", f"{self.target.peer}: the session was closed.")
            try:
                await self._flush()
            except TransportError:
                # A shell that left early does not read its input; what it printed says more than the failed write.
                if self._conversation.hello is not None:
                    raise
            left = None if end is None else max(0.0, end - time.monotonic())
            if self._reading is None:
                self._reading = connections.detached(self._process.stdout.read(_CHUNK))
            # A read that is not done stays for the next call: cancelling one could lose what it has read.
            if not (await asyncio.wait({self._reading}, timeout=left))[0]:
                return None
            reading, self._reading = self._reading, None
            try:
                data = reading.result()
            except (asyncssh.Error, OSError) as error:
                raise TransportError("dropped", f"{self.target.peer}: the connection was lost ({error}).") from error
            if data:
                self._events.extend(self._conversation.receive(data))
            else:
                await self._ended()

    async def _ended(self) -> None:
        """The channel has no more to say: was it the command that ended, or the connection?"""
        if self._conversation.over:
            raise TransportError("dropped", f"{self.target.peer}: the conversation is over.")
        assert self._process is not None
        status: int | None = None
        try:
            await connections.within(self._process.wait_closed(), 1.0)
            status = self._process.exit_status
        except (asyncssh.Error, OSError):
            pass
        # A connection that is lost takes the channel with it, and nobody says how the command ended.
        if status is None and self._process.exit_signal is None:
            raise TransportError("dropped", f"{self.target.peer}: the connection was lost.")
        self._events.extend(
            self._conversation.receive_end(status if status is not None and status >= 0 else None, self._stderr)
        )

"""One connection and one command per host for all that a triggerer has to say there.

Whoever opens a conversation (a *stream*) borrows the link of its target; the first one makes it, the last one closes
it. The link belongs to nobody's task: what it runs in the background runs in an empty context and logs nothing, since a
line logged there would land in the log of whichever task was there first.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import asyncssh

from gpualert import protocol
from gpualert.errors import GpuAlertError
from gpualert.protocol import ArchiveWanted, Conversation, Event, Frame, Hello
from gpualert_provider.hooks import connections, errors, talk
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.target import SshTarget

_STDERR_KEPT = 8192
_CHUNK = 256 * 1024
#: Log on its way or waiting in this process: a new stream has a share of this, within bounds.
_WINDOWS_BYTES = 64 * 1024 * 1024
_LARGEST_WINDOW_BYTES = 512 * 1024
_SMALLEST_WINDOW_BYTES = 32 * 1024
#: How long a host may take to let go of what a stream followed.
_LET_GO_S = 2.0
#: After a failed attempt nobody knocks at the same host for a while, however many wait for it.
_FIRST_REST_S = 0.5
_LONGEST_REST_S = 10.0


@dataclass(frozen=True)
class LinkKey:
    """Conversations with the same of these share a link."""

    target: SshTarget = field(compare=False)
    root: str | None
    remote_python: str | None
    #: of all that the target says, keys and passwords included: none of them may be compared with less
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        text = json.dumps(asdict(self.target), sort_keys=True, default=str)
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest())


class Stream:
    """
    One conversation's end of a link: what the host has said to it and it has not yet heard.

    :ivar window_bytes: how much of a followed log may be under way.
    """

    def __init__(self, link: HostLink, number: int, window_bytes: int) -> None:
        self.link = link
        self.number = number
        self.window_bytes = window_bytes
        self._inbox: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._consumed_bytes = 0
        self._closed = False

    def put(self, frame: Frame) -> None:
        """A frame for this conversation has come."""
        self._inbox.append(frame)
        self.wake()

    def wake(self) -> None:
        """There is something new, or the link is over."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def send(self, request: Mapping[str, Any], payload: bytes = b"") -> None:
        """
        Queue a request.

        :raises TransportError: the link is over.
        """
        self.link.send(Frame(protocol.on_stream(request, self.number), payload))

    async def next(self, timeout_s: float | None) -> Frame | None:
        """
        The next frame; None when none came in time.

        :raises TransportError, HostError: the link is over, and all that it had brought is heard.
        """
        if not self._inbox:
            await self._something(timeout_s)
        if self._inbox:
            frame = self._inbox.popleft()
            self._consume(len(frame.payload))
            return frame
        if self.link.problem is not None:
            raise self.link.problem
        if self._closed:
            raise TransportError("dropped", f"{self.link.target.peer}: the session was closed.")
        return None

    async def close(self) -> None:
        """
        Any number of times. The link closes with its last stream.

        The host is given a moment to write down what was acknowledged, so that whoever follows next repeats nothing.
        """
        if self._closed:
            return
        self._closed = True
        self.wake()
        try:
            await self._let_go()
        finally:
            await self.link.leave(self)

    async def _let_go(self) -> None:
        try:
            self.send(protocol.detach_message())
        except GpuAlertError:
            return  # the link is over, and the host has noticed or will
        loop = asyncio.get_running_loop()
        until = loop.time() + _LET_GO_S
        while self.link.problem is None and (left := until - loop.time()) > 0:
            while self._inbox:
                if self._inbox.popleft().type == "detached":
                    return
            self._waiter = loop.create_future()
            alarm = loop.call_later(left, self.wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                alarm.cancel()

    async def _something(self, timeout_s: float | None) -> None:
        if self.link.problem is not None or self._closed:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        alarm = None if timeout_s is None else loop.call_later(timeout_s, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def _consume(self, size: int) -> None:
        """The host may send so much more; told in large pieces."""
        self._consumed_bytes += size
        if self._consumed_bytes >= self.window_bytes // 2 and self.link.problem is None:
            credit, self._consumed_bytes = self._consumed_bytes, 0
            self.send(protocol.credit_message(credit))


class HostLink:
    """
    A connection with one command of ours at its other end. Made by :func:`borrow`.

    :ivar hello: what the host says of itself.
    :ivar problem: why the link is over; None while it is not.
    :ivar heard_at: monotonic seconds of the last byte from the host.
    """

    def __init__(self, key: LinkKey) -> None:
        self.key = key
        self.target = key.target
        self.hello: Mapping[str, Any] = {}
        self.problem: GpuAlertError | None = None
        self.streams: dict[int, Stream] = {}
        self.heard_at = time.monotonic()
        self._count = 0
        self._conversation: Conversation | None = None
        self._borrowed: AbstractAsyncContextManager[asyncssh.SSHClientConnection] | None = None
        self._process: asyncssh.SSHClientProcess[bytes] | None = None
        self._stderr = b""
        self._tasks: list[asyncio.Task[None]] = []
        self._early: deque[Event] = deque()
        self._closing: asyncio.Task[None] | None = None
        self._writing = False

    # -- for streams

    def stream(self, window_bytes: int) -> Stream:
        """A new conversation."""
        self._count += 1
        stream = self.streams[self._count] = Stream(self, self._count, window_bytes)
        return stream

    async def leave(self, stream: Stream) -> None:
        """A conversation is over. With the last one, the link closes."""
        if self.streams.pop(stream.number, None) is not None and not self.streams:
            _forget(self)
            await self.close()

    def send(self, frame: Frame) -> None:
        """
        Write a request, together with what others have to say in the same moment: a packet costs more than what is in
        it. asyncssh keeps what the host does not take yet.

        :raises TransportError: the link is over.
        """
        if self.problem is not None:
            raise self.problem
        assert self._conversation is not None
        self._conversation.send(frame)
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write_all, context=contextvars.Context())

    def _write_all(self) -> None:
        self._writing = False
        try:
            if self.problem is None:
                self._write()
        except GpuAlertError as error:
            self._over(error)
            _forget(self)

    def silent(self, problem: TransportError, limit_s: float) -> TransportError:
        """
        Nothing came to a stream for too long. Where nothing came to anybody, the link is over for all.

        :return: ``problem``, to be raised.
        """
        if time.monotonic() - self.heard_at >= limit_s - 1.0:
            self._over(problem)
            _forget(self)
        return problem

    async def drained(self, limit_s: float | None) -> None:
        """
        Wait until the host has taken what was sent.

        :raises TransportError: it does not, or the link is over.
        """
        self._write_all()
        if self.problem is not None:
            raise self.problem
        assert self._process is not None
        try:
            await connections.within(self._process.stdin.drain(), limit_s)
        except TimeoutError as error:
            raise errors.timed_out(self.target.peer, "room to send to the host", limit_s) from error
        except (asyncssh.Error, OSError) as error:
            raise self.problem or _lost(self.target, error) from error

    # -- life

    async def open(self) -> None:
        """
        Connect, and wait until the host has said hello.

        :raises TransportError, HostError: it did not; nothing is left open.
        """
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        self._tasks.append(connections.detached(self._read_on()))

    async def close(self) -> None:
        """Once; whoever comes second waits for the first. What was launched goes on."""
        if self._closing is None:
            # Not cancelled with whoever happens to be the last to leave.
            self._closing = connections.detached(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._over(TransportError("dropped", f"{self.target.peer}: the session was closed."))
        if self._process is not None:
            self._process.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._borrowed is not None:
            await self._borrowed.__aexit__(None, None, None)

    def _over(self, problem: GpuAlertError) -> None:
        """The first reason counts; every stream hears of it after what had come before."""
        if self.problem is None:
            self.problem = problem
        for stream in self.streams.values():
            stream.wake()

    async def _open(self) -> None:
        target = self.target
        # Building the archive reads files, the first time.
        self._conversation = await asyncio.to_thread(
            Conversation, root=self.key.root, remote_python=self.key.remote_python, with_pynvml=None
        )
        borrowed = connections.acquire(target)
        connection = await borrowed.__aenter__()
        self._borrowed = borrowed
        try:
            process = await connections.within(
                connection.create_process(self._conversation.command, encoding=None, request_pty=False),
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
        self._tasks.append(connections.detached(self._drain_stderr(process)))
        try:
            await connections.within(self._greet(), target.command_timeout_s)
        except TimeoutError as error:
            raise talk.no_greeting(target.peer, self._conversation.printed, target.command_timeout_s) from error

    async def _greet(self) -> None:
        """Until the host has said hello."""
        assert self._conversation is not None
        while not self.hello:
            try:
                self._write()
            except TransportError:
                pass  # a shell that left early does not read its input; what it printed says more
            for event in await self._events():
                if isinstance(event, Hello):
                    self.hello = event.header
                elif self.hello:
                    self._early.append(event)
                elif not isinstance(event, ArchiveWanted):
                    raise talk.not_a_frame(event, self.target.peer)

    async def _read_on(self) -> None:
        """Hand out what the host says, to the end."""
        try:
            while True:
                while self._early:
                    self._hand_out(self._early.popleft())
                self._early.extend(await self._events())
        except GpuAlertError as error:
            self._over(error)
        except Exception as error:  # a fault of ours must not leave streams waiting for ever
            self._over(TransportError("protocol", f"{self.target.peer}: {type(error).__name__}: {error}"))
        finally:
            _forget(self)

    def _hand_out(self, event: Event) -> None:
        frame = talk.frame_of(event, self.target.peer)
        stream = self.streams.get(frame.stream)
        if stream is not None:  # else it has left, and this was on its way
            stream.put(frame)

    async def _events(self) -> list[Event]:
        """What the next bytes mean."""
        assert self._process is not None and self._conversation is not None
        if self._conversation.over:
            raise TransportError("dropped", f"{self.target.peer}: the conversation is over.")
        try:
            data = await self._process.stdout.read(_CHUNK)
        except (asyncssh.Error, OSError) as error:
            raise _lost(self.target, error) from error
        if data:
            self.heard_at = time.monotonic()
            return self._conversation.receive(data)
        status: int | None = None
        try:
            await connections.within(self._process.wait_closed(), 1.0)
            status = self._process.exit_status
        except (asyncssh.Error, OSError):
            pass
        # A connection that is lost takes the channel with it, and nobody says how the command ended.
        if status is None and self._process.exit_signal is None:
            raise TransportError("dropped", f"{self.target.peer}: the connection was lost.")
        return self._conversation.receive_end(status if status is not None and status >= 0 else None, self._stderr)

    def _write(self) -> None:
        assert self._process is not None and self._conversation is not None
        data = self._conversation.data_to_send()
        if not data:
            return
        try:
            self._process.stdin.write(data)
        except (asyncssh.Error, OSError) as error:
            raise _lost(self.target, error) from error

    async def _drain_stderr(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        """Unread stderr would fill the window and stop the host's other words too."""
        try:
            while data := await process.stderr.read(4096):
                self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
        except (asyncssh.Error, OSError):
            pass  # the reader of stdout meets the same and tells it


def _lost(target: SshTarget, error: BaseException) -> TransportError:
    return TransportError("dropped", f"{target.peer}: the connection was lost ({error or type(error).__name__}).")


# -- who has which link


class _Links:
    """Links of one event loop."""

    def __init__(self) -> None:
        self.open: dict[LinkKey, HostLink] = {}
        self.opening: dict[LinkKey, asyncio.Task[HostLink]] = {}
        self.resting: dict[LinkKey, _Rest] = {}
        self.waiting: dict[LinkKey, int] = {}

    def window_bytes(self) -> int:
        """A new stream's share."""
        streams = 1 + sum(len(link.streams) for link in self.open.values())
        return max(_SMALLEST_WINDOW_BYTES, min(_LARGEST_WINDOW_BYTES, _WINDOWS_BYTES // streams))


@dataclass
class _Rest:
    """After a failure: until when its error answers for the host, and how long the next rest will be."""

    until: float
    length_s: float
    error: GpuAlertError


_ALL: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Links] = weakref.WeakKeyDictionary()


async def borrow(
    target: SshTarget, root: str | None = None, remote_python: str | None = None, *, insist: bool = False
) -> Stream:
    """
    A conversation on the target's link, which is made when there is none. However many ask at once, one connects.

    :param insist: knock also at a host that has just failed to answer.
    :raises TransportError: any kind; the message says which step it was and what to do. For a while after a failure
        the same error is given without another attempt.
    :raises HostError: the host can run nothing of ours: ``no_root`` and the like.
    """
    links = _ALL.setdefault(asyncio.get_running_loop(), _Links())
    key = LinkKey(target, root, remote_python)
    while True:
        link = links.open.get(key)
        if link is not None and link.problem is None:
            return link.stream(links.window_bytes())
        rest = links.resting.get(key)
        if rest is not None and time.monotonic() < rest.until and not insist and key not in links.opening:
            raise rest.error.with_traceback(None)
        links.waiting[key] = links.waiting.get(key, 0) + 1
        try:
            if key not in links.opening:
                links.opening[key] = connections.detached(_open(links, key))
            # Whoever is cancelled while waiting must not take the attempt away from the others.
            link = await asyncio.shield(links.opening[key])
            if link.problem is None:
                return link.stream(links.window_bytes())
        finally:
            links.waiting[key] -= 1
            if not links.waiting[key]:
                del links.waiting[key]


async def _open(links: _Links, key: LinkKey) -> HostLink:
    link = HostLink(key)
    try:
        await link.open()
    except GpuAlertError as error:
        before = links.resting.get(key)
        length_s = _FIRST_REST_S if before is None else min(_LONGEST_REST_S, before.length_s * 2)
        links.resting[key] = _Rest(time.monotonic() + length_s, length_s, error)
        raise
    finally:
        del links.opening[key]
    links.resting.pop(key, None)
    if key in links.waiting:
        links.open[key] = link
    else:  # all who wanted it were cancelled meanwhile
        await link.close()
    return link


def _forget(link: HostLink) -> None:
    links = _ALL.get(asyncio.get_running_loop())
    if links is not None and links.open.get(link.key) is link:
        del links.open[link.key]

"""A conversation with one host for code that may block: the worker's side, over SSH or with a process on this machine.

Every wait has a limit with a name (connect, banner, authentication, command, silence), and closing is deterministic. A
job's end is what a frame says it is; the exit status of the SSH channel is never read as one.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

from gpualert import protocol
from gpualert.protocol import Conversation, Event, Frame, Hello
from gpualert_provider.hooks import errors, talk
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.local_link import LocalLink
from gpualert_provider.hooks.paramiko_link import ParamikoLink
from gpualert_provider.hooks.target import LocalTarget, SshTarget

Target = SshTarget | LocalTarget
#: sshd's MaxStartups hangs up at random on whoever comes when many are logging in; MaxSessions refuses a session.
_CROWDED = frozenset({"banner", "channel"})
#: With waits of up to 2, 4, 8 and 16 s in between.
CROWDED_TRIES = 5


class Link(Protocol):
    """Bytes to and from a host. See :class:`ParamikoLink`."""

    def send(self, data: bytes, timeout_s: float | None) -> None: ...

    def receive(self, timeout_s: float | None) -> bytes | None: ...

    def last_words(self) -> str: ...

    @property
    def command_ended(self) -> bool: ...

    def close(self) -> None: ...


def open_session(
    target: Target,
    *,
    root: str | None = None,
    remote_python: str | None = None,
    first: Mapping[str, Any] | None = None,
    tries: int = CROWDED_TRIES,
) -> BlockingSession:
    """
    Connect, and wait until the host has said hello.

    :param root: configured root for run directories on the host.
    :param remote_python: the first Python to try there.
    :param first: a request that travels with the bootstrap, so that its answer takes one round trip; fetch it with
        :meth:`BlockingSession.first_reply`.
    :param tries: how often to knock at a host that turns us away because too many log in at once.
    :raises TransportError: any kind; the message says which step it was and what to do.
    :raises HostError: the host can run nothing of ours: ``no_root`` and the like.
    """
    for made in range(1, tries):
        try:
            return _open_session(target, root, remote_python, first)
        except TransportError as error:
            if error.kind not in _CROWDED:
                raise
        # Random, so that two hundred mapped tasks do not come back together.
        time.sleep(random.uniform(0.2, 2.0**made))
    return _open_session(target, root, remote_python, first)


def _open_session(
    target: Target, root: str | None, remote_python: str | None, first: Mapping[str, Any] | None
) -> BlockingSession:
    local = isinstance(target, LocalTarget)
    conversation = Conversation(root=root, remote_python=remote_python, local=local, with_pynvml=None)
    if first is not None:
        conversation.send(first)
    link: Link
    if isinstance(target, LocalTarget):
        link = LocalLink(target, conversation.local_arguments)
    else:
        link = ParamikoLink(target, conversation.command)
    try:
        return BlockingSession(target, link, conversation, first)
    except BaseException:
        link.close()
        raise


class BlockingSession:
    """
    One host, one request at a time. A context manager; made by :func:`open_session`.

    :ivar hello: what the host says of itself: ``version digest python machine_id boot_id hostname user roots`` and
        more.
    """

    def __init__(
        self, target: Target, link: Link, conversation: Conversation, first: Mapping[str, Any] | None = None
    ) -> None:
        self.target = target
        self._link = link
        self._conversation = conversation
        self._events: deque[Event] = deque()
        self._first = first
        self._closed = False
        self.hello: Mapping[str, Any] = self._greet()

    def call(self, request: Mapping[str, Any], payload: bytes = b"", timeout_s: float | None = None) -> dict[str, Any]:
        """
        Send a request and wait for its answer.

        :param request: as built by ``gpualert.protocol``.
        :param timeout_s: instead of the connection's ``cmd_timeout`` (to which ``wait_s`` and ``verdict_wait_s`` of the
            request are added).
        :return: the answer's header, with its ``type``.
        :raises HostError: the host says no; ``kind`` says why.
        :raises TransportError: timeout, dropped or protocol.
        """
        reply = dict(self.exchange(request, payload, timeout_s).header)
        while reply.get("more"):  # a long list comes in several frames
            talk.extend(reply, self._answer(request, timeout_s).header)
        return reply

    def exchange(self, request: Mapping[str, Any], payload: bytes = b"", timeout_s: float | None = None) -> Frame:
        """Like :meth:`call`, with the answer's payload."""
        self._conversation.send(Frame(request, payload))
        return self._answer(request, timeout_s)

    def exchange_many(
        self, requests: Iterable[Mapping[str, Any]], ahead: int, timeout_s: float | None = None
    ) -> Iterator[Frame]:
        """
        The answers to ``requests``, in order, of which up to ``ahead`` are on their way at a time: the host works on
        the next while an answer travels. Whoever stops before the last has to close the session, for answers still
        come.

        :param timeout_s: for each answer; as of :meth:`call`.
        :raises HostError, TransportError: as :meth:`call`.
        """
        asked: deque[Mapping[str, Any]] = deque()
        for request in requests:
            self._conversation.send(Frame(request))
            asked.append(request)
            if len(asked) >= ahead:
                yield self._answer(asked.popleft(), timeout_s)
        while asked:
            yield self._answer(asked.popleft(), timeout_s)

    def first_reply(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The answer to ``first`` of :func:`open_session`."""
        if self._first is None:
            raise ValueError(
                "first_reply: no first request was given to open_session, or its answer was already fetched"
            )
        request, self._first = self._first, None
        return dict(self._answer(request, timeout_s).header)

    def follow(
        self,
        launch_id: str,
        from_: str | Mapping[str, int] = "ack",
        attach: bool = True,
        who: str = "",
        *,
        for_s: float | None = None,
        silence_s: float = talk.SILENCE_S,
        tick_s: float | None = None,
        budget: Mapping[str, Any] | None = None,
    ) -> Iterator[Frame]:
        """
        Frames of one launch as they come: ``attached``, then ``log gap skipped state beat``, and ``ended`` last.

        :param from_: ``ack`` (what was last acknowledged), or {generation, offset}.
        :param attach: raise the epoch, so that earlier followers may no longer stop the launch.
        :param for_s: stop iterating after so many seconds even if nothing ended; None: never.
        :param silence_s: longest time without any frame before the link counts as dead.
        :param tick_s: yield :data:`talk.TICK` after so long without a frame.
        :param budget: what of a long log is sent, see :func:`.protocol.follow_request`; None: all of it.
        :raises HostError: ``unknown_launch`` and the like.
        :raises TransportError: dropped, timeout, protocol.
        """
        request = protocol.follow_request(launch_id, from_=from_, attach=attach, who=who, budget=budget)
        self._conversation.send(request)
        heard_at = time.monotonic()
        end = None if for_s is None else heard_at + for_s
        finished = attached = False
        try:
            while not finished:
                now = time.monotonic()
                waits = [heard_at + silence_s - now]
                if waits[0] <= 0:
                    raise errors.timed_out(self.target.peer, "a sign of life from the host", silence_s)
                if end is not None:
                    if now >= end:
                        return
                    waits.append(end - now)
                if tick_s is not None:
                    waits.append(tick_s)
                event = self._next(min(waits))
                if event is None:
                    if tick_s is not None:
                        yield talk.TICK
                    continue
                frame = talk.frame_of(event, self.target.peer)
                finished = frame.type == "error" or (attached and frame.type == "ended")
                if frame.type == "error":
                    raise protocol.HostError.from_frame(frame.header)
                attached = attached or frame.type == "attached"
                if attached:  # else it belongs to what was followed before
                    yield frame
                heard_at = time.monotonic()  # what our user did in between is not the host's silence
        finally:
            if not finished and not self._closed and not self._conversation.over:
                self._conversation.send(protocol.detach_message())
                try:
                    self._flush()
                except TransportError:
                    pass  # whoever left does not want to know

    def send_ack(self, generation: int, offset: int, ended: bool = False) -> None:
        """Everything before ``offset`` is safely delivered; with ``ended``, the outcome too. No answer comes."""
        self._conversation.send(protocol.ack_message(generation, offset, ended=ended))
        self._flush()

    def close(self) -> None:
        """Any number of times. What was launched goes on."""
        if not self._closed:
            self._closed = True
            self._link.close()

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- how

    def _greet(self) -> Mapping[str, Any]:
        limit_s = self.target.command_timeout_s
        event = self._next(limit_s)
        if event is None:
            raise talk.no_greeting(self.target.peer, self._conversation.printed, limit_s)
        if isinstance(event, Hello):
            return event.header
        raise talk.not_a_frame(event, self.target.peer)

    def _answer(self, request: Mapping[str, Any], timeout_s: float | None) -> Frame:
        limit_s = timeout_s if timeout_s is not None else talk.patience(request, self.target.command_timeout_s)
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            event = self._next(left)
            if event is None:
                raise errors.timed_out(self.target.peer, f"the answer to {request['type']!r}", limit_s)
            found = talk.answer(talk.frame_of(event, self.target.peer))
            if found is not None:
                return found

    def _flush(self) -> None:
        data = self._conversation.data_to_send()
        if data:
            self._link.send(data, self.target.command_timeout_s)

    def _next(self, timeout_s: float | None) -> Event | None:
        """The next event that matters; None when it did not come in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while self._events:
                event = self._events.popleft()
                if not isinstance(event, protocol.ArchiveWanted):
                    return event
            if self._closed:
                raise TransportError("dropped", f"{self.target.peer}: the session was closed.")
            try:
                self._flush()
            except TransportError:
                # A shell that left early does not read its input; what it printed says more than the failed write.
                if self._conversation.hello is not None:
                    raise
            data = self._link.receive(None if end is None else max(0.0, end - time.monotonic()))
            if data is None:
                return None
            if data:
                self._events.extend(self._conversation.receive(data))
                continue
            if self._conversation.over:
                raise TransportError("dropped", f"{self.target.peer}: the conversation is over.")
            words = self._link.last_words()
            if not self._link.command_ended and isinstance(self.target, SshTarget):
                raise TransportError(
                    "dropped", f"{self.target.peer}: the connection was lost.{f' {words}' if words else ''}"
                )
            self._events.extend(self._conversation.receive_end(stderr=words.encode()))

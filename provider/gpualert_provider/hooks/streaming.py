"""A conversation with one host for an event loop: the triggerer's side. The same as :mod:`.blocking`, asynchronously.

All conversations with a host share one connection and one command there (:mod:`.host_link`). Nothing here logs: a line
logged on the triggerer's loop lands in the log of whichever task's context it runs in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

from gpualert import protocol
from gpualert.protocol import Frame
from gpualert_provider.hooks import errors, host_link, talk
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.target import SshTarget


class StreamingSession:
    """
    One host, used by one coroutine at a time. An asynchronous context manager; made by :meth:`open`.

    :ivar hello: what the host says of itself: ``version digest python machine_id boot_id hostname user roots`` and
        more.
    """

    def __init__(self, target: SshTarget, stream: host_link.Stream) -> None:
        self.target = target
        self.hello: Mapping[str, Any] = stream.link.hello
        self._stream = stream

    @classmethod
    async def open(
        cls, target: SshTarget, *, root: str | None = None, remote_python: str | None = None, insist: bool = False
    ) -> StreamingSession:
        """
        Connect where nobody is connected yet, and wait until the host has said hello.

        :param insist: knock also at a host that has just failed to answer.
        :raises TransportError: any kind; the message says which step it was and what to do.
        :raises HostError: the host can run nothing of ours: ``no_root`` and the like.
        """
        return cls(target, await host_link.borrow(target, root, remote_python, insist=insist))

    async def call(
        self, request: Mapping[str, Any], payload: bytes = b"", timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its answer; see :meth:`BlockingSession.call`."""
        self._stream.send(request, payload)
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
        budget: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Frame]:
        """
        Frames of one launch as they come: ``attached``, then ``log gap skipped state beat``, and ``ended`` last.

        :param silence_s: longest time without any frame before the link counts as dead.
        :param tick_s: yield :data:`talk.TICK` after so long without a frame.
        :param budget: what of a long log is sent, see :func:`.protocol.follow_request`; None: all of it.
        :raises HostError: ``unknown_launch`` and the like.
        :raises TransportError: dropped, timeout, protocol.
        """
        self._stream.send(
            protocol.follow_request(
                launch_id,
                from_=from_,
                attach=attach,
                who=who,
                window_bytes=self._stream.window_bytes,
                budget=budget,
            )
        )
        heard_at = time.monotonic()
        attached = False
        while True:
            quiet_s = time.monotonic() - heard_at
            if quiet_s >= silence_s:
                raise self._silent(
                    errors.timed_out(self.target.peer, "a sign of life from the host", silence_s), silence_s
                )
            left = silence_s - quiet_s
            frame = await self._stream.next(left if tick_s is None else min(left, tick_s))
            if frame is None:
                if tick_s is not None:
                    yield talk.TICK
                continue
            if frame.type == "error":
                raise protocol.HostError.from_frame(frame.header)
            attached = attached or frame.type == "attached"
            if not attached:  # it belongs to what was followed before
                continue
            yield frame
            if frame.type == "ended":
                return
            heard_at = time.monotonic()  # what our user did in between is not the host's silence

    async def send_ack(self, generation: int, offset: int, ended: bool = False) -> None:
        """Everything before ``offset`` is safely delivered; with ``ended``, the outcome too. No answer comes."""
        self.note_ack(generation, offset, ended)
        await self._stream.link.drained(self.target.command_timeout_s)

    def note_ack(self, generation: int, offset: int, ended: bool = False) -> None:
        """
        The same without a wait: it leaves with whatever is said to the host next.

        :raises TransportError: the link is over.
        """
        self._stream.send(protocol.ack_message(generation, offset, ended=ended))

    async def detach(self) -> None:
        """
        Stop following; other requests can be made afterwards. Frames that are already on their way are passed over.
        """
        self._stream.send(protocol.detach_message())
        await self._stream.link.drained(self.target.command_timeout_s)

    async def close(self) -> None:
        """Any number of times. What was launched goes on."""
        await self._stream.close()

    async def __aenter__(self) -> StreamingSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _answer(self, request: Mapping[str, Any], timeout_s: float | None) -> Frame:
        limit_s = timeout_s if timeout_s is not None else talk.patience(request, self.target.command_timeout_s)
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            frame = await self._stream.next(None if end is None else max(0.0, end - time.monotonic()))
            if frame is None:
                assert limit_s is not None
                raise self._silent(
                    errors.timed_out(self.target.peer, f"the answer to {request['type']!r}", limit_s), limit_s
                )
            found = talk.answer(frame)
            if found is not None:
                return found

    def _silent(self, problem: TransportError, limit_s: float) -> TransportError:
        return self._stream.link.silent(problem, limit_s)

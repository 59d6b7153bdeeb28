"""
What the blocking and the streaming session have in common: what answers a request, how long it may take, what a bad
start means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpualert.protocol import Closed, Event, Frame, HostError, NotOurs
from gpualert_provider.hooks.errors import TransportError

#: Frames that come by themselves while a launch is followed; no request waits for one of them.
STREAM_TYPES = frozenset({"attached", "log", "gap", "skipped", "state", "beat", "ended", "detached"})
#: What a follower yields when nothing came for a while, so that its user can see to other things. Never sent by a host.
TICK = Frame({"type": "tick"})
#: A follower hears at least a beat in this time, or the link is dead.
SILENCE_S = 45.0
_PYTHON_KINDS = frozenset({"no_python", "python_too_old", "python_incomplete"})


def failed_start(event: NotOurs | Closed, peer: str) -> TransportError | HostError:
    """The error to raise for a conversation that is over."""
    if isinstance(event, Closed):
        cut = (
            f" in the middle of a message ({event.unfinished_bytes} bytes of it came)" if event.unfinished_bytes else ""
        )
        return TransportError("dropped", f"{peer}: the host ended the conversation{cut}.")
    details = {"kind": event.kind, "printed": event.printed}
    if event.kind == "shell":
        return TransportError("shell", f"{peer}: logged in, but {event.message}", details)
    if event.kind in _PYTHON_KINDS:
        return TransportError("python", f"{peer}: {event.message}", details)
    if event.kind == "protocol":
        return TransportError("protocol", f"{peer}: {event.message}", details)
    return HostError(event.kind, f"{peer}: {event.message}", {"printed": event.printed} if event.printed else None)


def frame_of(event: Event, peer: str) -> Frame:
    """The event, which has to be a frame. :raises TransportError, HostError: it is something else."""
    if isinstance(event, Frame):
        return event
    raise not_a_frame(event, peer)


def not_a_frame(event: Event, peer: str) -> Exception:
    """The error to raise where something else than an answer came."""
    if isinstance(event, (NotOurs, Closed)):
        return failed_start(event, peer)
    return TransportError("protocol", f"{peer}: expected an answer, found {type(event).__name__}")


def no_greeting(peer: str, printed: str, limit_s: float | None) -> TransportError:
    """
    The account's shell runs, and nothing of ours came: an interactive menu, a hanging rc file, a host that stands
    still.
    """
    said = f" So far it printed: {printed}" if printed else " It printed nothing."
    within = "" if limit_s is None else f" within {limit_s:g} s"
    kind = "shell" if printed else "timeout"
    return TransportError(
        kind,
        f"{peer}: logged in, but our program did not begin{within}. The login shell may wait for input, an rc file "
        "may hang, "
        f"or the host is overloaded (cmd_timeout in the connection's extra sets the limit).{said}",
        {"printed": printed},
    )


def answer(frame: Frame) -> Frame | None:
    """
    The frame, if it answers a request; None for one that belongs to a stream.

    :raises HostError: the host says no.
    """
    if frame.type == "error":
        raise HostError.from_frame(frame.header)
    return None if frame.type in STREAM_TYPES else frame


def patience(request: Mapping[str, Any], command_timeout_s: float | None) -> float | None:
    """How long the answer may take: the connection's limit, and what the request itself allows the host to wait."""
    if command_timeout_s is None:
        return None
    waits = [request.get(name) for name in ("wait_s", "verdict_wait_s")]
    return command_timeout_s + sum(float(wait) for wait in waits if isinstance(wait, (int, float)))


def extend(reply: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the lists of a further frame to a long answer's first one."""
    for name, value in more.items():
        if isinstance(value, list):
            reply[name] = [*reply.get(name, ()), *value]
        else:
            reply[name] = value

"""What client and host say to each other, as bytes in and bytes out. Nothing here sends, waits or looks at a clock.

The blocking hook and the asynchronous trigger both drive one :class:`Conversation`; the host's end uses the same
frames. What comes from the far end is hostile until checked: sizes are bounded before anything is kept, and whatever is
wrong with it becomes an event, never a crash. The format is described in ``docs/explanation/wire.md``.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Any, Mapping, NoReturn, Union

from gpualert import archive, bootstrap
from gpualert.errors import GpuAlertError, InvalidSpec, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:  # the host imports this at every connection, and needs neither before a launch
    from gpualert.key import Attempt, LaunchKey
    from gpualert.spec import LaunchSpec

#: Versions of the frames' meaning that this end speaks, oldest and newest.
PROTOCOL_VERSIONS = (1, 1)
#: JSON from the host, and payload in either direction.
MAX_JSON_BYTES = 1024 * 1024
MAX_PAYLOAD_BYTES = 1024 * 1024
#: JSON from the client: a spec may hold a command of 4 MiB.
MAX_REQUEST_BYTES = 8 * 1024 * 1024
#: What a host may print before our marker (rc files, banners).
MAX_NOISE_BYTES = 1024 * 1024
_MAX_MARKED_LINE = 16 * 1024
_MAX_DIGITS = 40
_HEAD = struct.Struct("!II")

#: Every type of frame that a host of this version sends.
REPLIES = frozenset(
    "hello need launched existing record unknown attached log gap skipped state beat ended detached stopping stopped"
    " tombstoned outcome bytes digest launches cleaned findings error".split()
)


class HostError(GpuAlertError):
    """
    The host answered with an ``error`` frame.

    :ivar kind: a stable word: ``invalid_spec refused superseded tombstoned stale_epoch unknown_launch
        root_unreadable no_root disk newer_format cwd_missing internal``, …
    :ivar details: what else the host said, by name.
    """

    def __init__(self, kind: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, kind)
        self.details = dict(details or {})

    @classmethod
    def from_frame(cls, header: Mapping[str, Any]) -> HostError:
        details = header.get("details")
        return cls(
            str(header.get("kind") or "internal"),
            str(header.get("message") or "the host gave no message"),
            details if isinstance(details, dict) else None,
        )


@dataclass(frozen=True)
class Frame:
    """One message: a JSON object that has a ``type``, and bytes."""

    header: Mapping[str, Any]
    payload: bytes = b""

    @property
    def type(self) -> str:
        return str(self.header["type"])

    @property
    def stream(self) -> int:
        """
        Which of the channel's conversations it belongs to. Each has its own requests, answers and followed launch; a
        client that has only one says nothing, which is stream 0.
        """
        number = self.header.get("stream", 0)
        return number if type(number) is int else 0


@dataclass(frozen=True)
class Hello:
    """The host is ours: the ``hello`` frame's content. ``header["placed"]``: the archive had to be sent."""

    header: Mapping[str, Any]


@dataclass(frozen=True)
class ArchiveWanted:
    """The host has no intact copy of our archive; it has been put into the bytes to send."""

    digest: str
    size_bytes: int


@dataclass(frozen=True)
class NotOurs:
    """
    The far end is not a host of ours, or not any more: nothing else will follow.

    :param kind: ``shell`` (the command was not run as given), ``no_python``, ``python_too_old``,
        ``python_incomplete``, ``no_root``, ``archive``, ``unsupported_os``, ``protocol``, ``internal``.
    :param message: for people; ends with what the host printed, where that helps.
    :param printed: what the host printed before the marker, made printable, at most 2,000 characters of its end.
    """

    kind: str
    message: str
    printed: str = ""


@dataclass(frozen=True)
class Closed:
    """
    The channel ended after the marker.

    :param unfinished_bytes: bytes of a frame that did not arrive whole; 0 when it ended between two frames.
    """

    unfinished_bytes: int = 0


Event = Union[Hello, ArchiveWanted, Frame, NotOurs, Closed]


def encode(frame: Frame, max_json_bytes: int = MAX_REQUEST_BYTES) -> bytes:
    """
    :raises ProtocolError: it holds what JSON has not (NaN), or is larger than the other end would take.
    """
    try:
        text = json.dumps(frame.header, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # File names that are no UTF-8 come as lone surrogates; as escapes they survive the way.
        text = json.dumps(frame.header, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"frame {frame.header.get('type')!r}: expected plain JSON, found {error}") from error
    for what, size, limit in (("JSON", len(text), max_json_bytes), ("payload", len(frame.payload), MAX_PAYLOAD_BYTES)):
        if size > limit:
            raise ProtocolError(
                f"frame {frame.header.get('type')!r}: expected at most {limit} bytes of {what}, found {size}"
            )
    return _HEAD.pack(len(text), len(frame.payload)) + text + frame.payload


class Decoder:
    """
    Bytes to frames, in whatever pieces the bytes come.

    :ivar error: what was wrong with the stream; once set, nothing more is decoded, for nobody can say where the
        next frame would begin.
    """

    def __init__(self, max_json_bytes: int = MAX_JSON_BYTES) -> None:
        self.error: ProtocolError | None = None
        self._max_json_bytes = max_json_bytes
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not yet whole."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        while self.error is None and len(self._buffer) - at >= _HEAD.size:
            json_size, payload_size = _HEAD.unpack_from(self._buffer, at)
            try:
                self._check_sizes(json_size, payload_size)
                end = at + _HEAD.size + json_size + payload_size
                if len(self._buffer) < end:
                    break
                text = bytes(self._buffer[at + _HEAD.size : at + _HEAD.size + json_size])
                frames.append(Frame(_object(text), bytes(self._buffer[end - payload_size : end])))
                at = end
            except ProtocolError as error:
                self.error = error
        del self._buffer[:at]
        if self.error is not None:
            self._buffer.clear()
        return frames

    def _check_sizes(self, json_size: int, payload_size: int) -> None:
        if json_size > self._max_json_bytes or payload_size > MAX_PAYLOAD_BYTES:
            raise ProtocolError(
                f"frame: expected at most {self._max_json_bytes} bytes of JSON and {MAX_PAYLOAD_BYTES} of payload,"
                f" found {json_size} and {payload_size}"
            )


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_no_constant, parse_int=_bounded_int)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"frame: expected a JSON object in UTF-8, found {_shown(text)} ({error})") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ProtocolError(f"frame: expected a JSON object with a type, found {_shown(text)}")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bounded_int(digits: str) -> int:
    # Python before 3.11 turns a million digits into a number in quadratic time.
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


class Conversation:
    """
    The client's end. The caller moves bytes: :meth:`data_to_send` out, :meth:`receive` and :meth:`receive_end` in.

    :param root: configured root on the host, or None for the usual ones.
    :param remote_python: the first Python to try there, a name or a path; None for the usual order.
    :param local: talk to ``python -m gpualert serve`` (:meth:`local_arguments`), which needs no bootstrap and no
        archive.
    :param with_pynvml: see ``archive.build``: the host reads its GPUs' state with it.
    """

    def __init__(
        self,
        *,
        root: str | None = None,
        remote_python: str | None = None,
        local: bool = False,
        with_pynvml: bool | None = False,
        nonce: str | None = None,
    ) -> None:
        self.nonce = os.urandom(16).hex() if nonce is None else nonce
        self.hello: Mapping[str, Any] | None = None
        self._marker = b"\n" + bootstrap.marker(self.nonce).encode() + b" "
        self._noise = bytearray()
        self._searched = 0
        self._decoder: Decoder | None = None
        self._over = False
        self._root = root
        self._archive: archive.Archive | None = None
        self._outgoing = bytearray()
        if not local:
            self._archive = archive.build(with_pynvml)
            settings = {
                "digest": self._archive.digest,
                "size": len(self._archive.data),
                "root": root,
                "protocol": list(PROTOCOL_VERSIONS),
            }
            self._outgoing += bootstrap.preamble(self.nonce, settings, remote_python)

    @property
    def command(self) -> str:
        """What to execute on the SSH channel."""
        return bootstrap.COMMAND

    @property
    def local_arguments(self) -> list[str]:
        """For a conversation with ``local=True``: what to run, as arguments after the Python interpreter."""
        arguments = ["-m", "gpualert", "serve", "--nonce", self.nonce]
        return arguments if self._root is None else [*arguments, "--root", self._root]

    @property
    def over(self) -> bool:
        """After NotOurs or Closed: nothing more will be heard or should be sent."""
        return self._over

    @property
    def printed(self) -> str:
        """
        What the host has printed before the marker so far, made printable: for the error text of whoever gives up
        waiting.
        """
        return _printable(bytes(self._noise))

    def send(self, request: Mapping[str, Any] | Frame) -> None:
        """
        Queue a request. It may be queued before the host has answered anything: then it arrives with the bootstrap,
        and the answer takes one round trip.

        :raises InvalidSpec: a launch request that is too large to be sent.
        :raises ProtocolError: any other frame that cannot be sent.
        """
        frame = request if isinstance(request, Frame) else Frame(request)
        try:
            self._outgoing += encode(frame)
        except ProtocolError as error:
            if frame.type == "launch":
                raise InvalidSpec(f"spec: {error}") from error
            raise

    def data_to_send(self) -> bytes:
        """Bytes to be written to the channel now; they are the caller's from here on."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def receive(self, data: bytes) -> list[Event]:
        """
        What ``data`` from the channel's stdout means. Any way of cutting the stream into pieces gives the same events.
        """
        events: list[Event] = []
        if not self._over and self._decoder is None:
            data = self._seek_marker(data, events)
        if not self._over and self._decoder is not None:
            self._read_frames(self._decoder, data, events)
        return events

    def receive_end(self, exit_status: int | None = None, stderr: bytes = b"") -> list[Event]:
        """
        The channel's stdout has ended.

        :param exit_status: the command's, where the transport knows it.
        :param stderr: what came there, for the error text.
        """
        if self._over:
            return []
        self._over = True
        if self._decoder is not None:
            return [Closed(self._decoder.pending_bytes)]
        printed = _printable(bytes(self._noise) + (b"\n" + stderr if stderr else b""))
        status = "" if exit_status is None else f" with status {exit_status}"
        said = f"it printed: {printed}" if printed else "it printed nothing"
        return [
            NotOurs(
                "shell",
                f"the login shell: expected it to run our command through /bin/sh, found that the channel ended{status}"
                f" before our program began (an account without a shell, a forced command, or no /bin/sh); {said}",
                printed,
            )
        ]

    def _seek_marker(self, data: bytes, events: list[Event]) -> bytes:
        """Takes noise away; what follows the marked line is returned."""
        self._noise += data
        noise, marker = self._noise, self._marker
        # The marker begins with a line break of ours, so it is found even behind a last line that has none.
        at = noise.find(marker, self._searched, MAX_NOISE_BYTES + len(marker))
        if at < 0:
            self._searched = max(0, len(noise) - len(marker))
            if len(noise) >= MAX_NOISE_BYTES + len(marker):
                del noise[MAX_NOISE_BYTES:]
                message = (
                    f"the host: expected our start marker within {MAX_NOISE_BYTES} bytes, found other output;"
                    f" it ends: {self.printed[-400:]}"
                )
                self._give_up(events, "shell", message)
            return b""
        start = at + len(marker)
        end = noise.find(b"\n", start, start + _MAX_MARKED_LINE)
        if end < 0 and len(noise) < start + _MAX_MARKED_LINE:
            return b""
        line = bytes(noise[start : end if end >= 0 else start + _MAX_MARKED_LINE]).decode("utf-8", "replace")
        rest = bytes(noise[end + 1 :])
        del noise[at:]
        if line == "start":
            self._decoder = Decoder()
            return rest
        word, _, rest_of_line = line.partition(" ")
        kind, _, found = rest_of_line.partition(" ")
        if word == "error" and kind in ("no_python", "python_too_old", "python_incomplete"):
            self._give_up(events, kind, _python_message(kind, found))
        else:
            self._give_up(events, "protocol", f"the start marker: expected 'start' behind it, found {line[:200]!r}")
        return b""

    def _read_frames(self, decoder: Decoder, data: bytes, events: list[Event]) -> None:
        for frame in decoder.feed(data):
            self._take(frame, events)
            if self._over:
                return
        if decoder.error is not None:
            self._give_up(events, "protocol", str(decoder.error))

    def _take(self, frame: Frame, events: list[Event]) -> None:
        if frame.type not in REPLIES:
            self._give_up(
                events, "protocol", f"reply: expected one that this version knows, found type {frame.type[:100]!r}"
            )
        elif self.hello is not None:
            if frame.type in ("hello", "need"):
                self._give_up(events, "protocol", f"reply: expected one to a request, found {frame.type!r} again")
            else:
                events.append(frame)
        elif frame.type == "hello":
            spoken = frame.header.get("protocol")
            if type(spoken) is not int or not PROTOCOL_VERSIONS[0] <= spoken <= PROTOCOL_VERSIONS[1]:
                self._give_up(
                    events,
                    "protocol",
                    f"protocol: expected version {PROTOCOL_VERSIONS[0]} to {PROTOCOL_VERSIONS[1]}, found {spoken!r}",
                )
                return
            self.hello = frame.header
            events.append(Hello(frame.header))
        elif frame.type == "need":
            self._place(frame, events)
        elif frame.type == "error":
            error = HostError.from_frame(frame.header)
            self._give_up(events, error.kind, str(error))
        else:
            self._give_up(events, "protocol", f"reply: expected hello first, found {frame.type!r}")

    def _place(self, frame: Frame, events: list[Event]) -> None:
        wanted, ours = frame.header.get("digest"), self._archive
        if ours is None or wanted != ours.digest:
            self._give_up(events, "protocol", f"archive: the host asks for one that we did not offer: {wanted!r:.100}")
            return
        import zlib

        packed = zlib.compress(ours.data, 6)
        text = json.dumps({"type": "archive", "encoding": "zlib"}).encode()
        # Larger than other payloads may be: this one frame is read by the receiver, which knows the size to expect.
        self._outgoing += _HEAD.pack(len(text), len(packed)) + text + packed
        self._archive = None
        events.append(ArchiveWanted(ours.digest, len(ours.data)))

    def _give_up(self, events: list[Event], kind: str, message: str) -> None:
        self._over = True
        self._outgoing.clear()
        events.append(NotOurs(kind, message, self.printed))


def _python_message(kind: str, found: str) -> str:
    oldest = ".".join(map(str, bootstrap.OLDEST_PYTHON))
    if kind == "no_python":
        return (
            f"python: expected Python {oldest} or newer on the host, found none on PATH or in the usual places;"
            " install one, or name it as remote_python"
        )
    if kind == "python_incomplete":
        return (
            f"python: expected the whole standard library, found {_printable(found.encode())}; install the full Python"
            " (Debian's python3-minimal is not enough), or name another as remote_python"
        )
    return (
        f"python: expected Python {oldest} or newer on the host, found only {_printable(found.encode()).rstrip(', ')};"
        " install a newer one beside it, or name it as remote_python"
    )


def _printable(data: bytes, limit: int = 2000) -> str:
    """
    The end of ``data`` as text that may stand in a log: no control characters, so no terminal can be driven by it.
    """
    text = data[-4 * limit :].decode("utf-8", "replace")
    kept = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return "\n".join(line.rstrip() for line in kept.splitlines() if line.strip())[-limit:]


def _shown(text: bytes) -> str:
    return repr(text[:100]) + ("…" if len(text) > 100 else "")


# ---- requests


def launch_request(
    key: LaunchKey, attempt: Attempt, spec: LaunchSpec, *, after: int = 0, secrets: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """
    :param after: number of the last launch of this key that the caller knows to be over; 0 for none.
    :param secrets: values for the names in ``spec.secret_env``.
    """
    return {
        "type": "launch",
        "key": key.to_json(),
        "attempt": attempt.to_json(),
        "after": after,
        "spec": spec.to_json(),
        "secrets": dict(secrets or {}),
    }


def inspect_request(*, key: LaunchKey | None = None, launch_id: str | None = None) -> dict[str, Any]:
    """The latest launch of ``key``, or one by its id."""
    return {"type": "inspect", "key": None if key is None else key.to_json(), "launch_id": launch_id}


def follow_request(
    launch_id: str,
    *,
    from_: str | Mapping[str, int] = "ack",
    attach: bool = True,
    who: str = "",
    window_bytes: int | None = None,
    budget: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """
    :param from_: ``ack`` (what was last acknowledged) or {generation, offset}.
    :param attach: raise the epoch: earlier followers may no longer stop the launch.
    :param window_bytes: so much of the log may be on its way; more is sent for each :func:`credit_message`. None: as
        much as the channel takes.
    :param budget: {head_bytes, tail_bytes, sample_every_s, sample_bytes}: what of a long log is sent, see
        :mod:`gpualert.skipping`; None: all of it.
    """
    where = from_ if isinstance(from_, str) else dict(from_)
    request: dict[str, Any] = {"type": "follow", "launch_id": launch_id, "from": where, "attach": attach, "who": who}
    if window_bytes is not None:
        request["window_bytes"] = window_bytes
    if budget is not None:
        request["budget"] = dict(budget)
    return request


def credit_message(size_bytes: int) -> dict[str, Any]:
    """So many more bytes of the followed log may be sent."""
    return {"type": "credit", "bytes": size_bytes}


def on_stream(request: Mapping[str, Any], stream: int) -> dict[str, Any]:
    """The request as one of a conversation that shares its channel with others; the answers carry the number too."""
    return {**request, "stream": stream}


def ack_message(generation: int, offset: int, *, ended: bool = False) -> dict[str, Any]:
    """
    All bytes before ``offset`` of ``generation`` are safely delivered.

    :param ended: the outcome has been reported too.
    """
    return {"type": "ack", "generation": generation, "offset": offset, "ended": ended}


def detach_message() -> dict[str, Any]:
    """Stop following; ``detached`` says that what was acknowledged is on disk, for whoever follows next."""
    return {"type": "detach"}


def stop_request(
    *,
    launch_id: str | None = None,
    key: LaunchKey | None = None,
    attempt: Attempt | None = None,
    epoch: int | None = None,
    reason: str,
    who: str,
    wait_s: float = 0.0,
) -> dict[str, Any]:
    """
    By ``launch_id``, or by ``key`` and ``attempt`` (which also refuses a launch of that attempt that is still to come).

    :param epoch: the follower's own, which must not be outdated; None for an operator's own word.
    :param wait_s: how long the host may wait for the end before it answers ``stopping``.
    """
    return {
        "type": "stop",
        "launch_id": launch_id,
        "key": None if key is None else key.to_json(),
        "attempt": None if attempt is None else attempt.to_json(),
        "epoch": epoch,
        "reason": reason,
        "who": who,
        "wait_s": wait_s,
    }


def report_request(launch_id: str, *, verdict_wait_s: float = 5.0) -> dict[str, Any]:
    return {"type": "report", "launch_id": launch_id, "verdict_wait_s": verdict_wait_s}


def read_request(launch_id: str, generation: int, offset: int, length: int) -> dict[str, Any]:
    return {"type": "read", "launch_id": launch_id, "generation": generation, "offset": offset, "length": length}


def digest_request(launch_id: str, generation: int, length: int) -> dict[str, Any]:
    return {"type": "digest", "launch_id": launch_id, "generation": generation, "length": length}


def list_request() -> dict[str, Any]:
    return {"type": "list"}


def clean_request(
    *,
    older_than_s: float,
    keep_bytes: int | None = None,
    keep_count: int | None = None,
    damaged: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    limits = {"older_than_s": older_than_s, "keep_bytes": keep_bytes, "keep_count": keep_count}
    return {"type": "clean", **limits, "damaged": damaged, "dry_run": dry_run}


def doctor_request() -> dict[str, Any]:
    return {"type": "doctor"}

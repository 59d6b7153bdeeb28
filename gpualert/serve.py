"""The host's end of the protocol: requests on one channel, until the client hangs up.

A channel carries one conversation, or many side by side (streams), each with the launch that it follows: a triggerer
watches all of a host's launches through one. No stream can hold up another: logs are sent in turns and only as far as
the client has given credit, and what has to wait waits in a thread of its own.

Nothing that was launched depends on this process. Every failure becomes an ``error`` frame with a kind; the end of the
channel is no failure at all.
"""

from __future__ import annotations

import _signal
import _thread
import os
import sys
import time
from typing import Any, Callable, Iterator, Mapping

from gpualert import __version__
from gpualert.errors import GpuAlertError, InvalidSpec, ProtocolError
from gpualert.key import Attempt, LaunchKey
from gpualert.protocol import (
    MAX_JSON_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_REQUEST_BYTES,
    PROTOCOL_VERSIONS,
    Decoder,
    Frame,
    encode,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.follow import Follower
    from gpualert.records import RunRecord

#: Bytes of one launch's log that are sent before others have their turn.
_TURN_BYTES = 128 * 1024
#: Requests that may have to wait. On a stream of its own each waits beside the others; a launch does not, since it
#: forks.
_MAY_WAIT = frozenset({"stop", "report", "doctor", "clean", "list", "read", "digest"})
#: Records in one frame of a list; the frame stays far below the limit whatever they hold.
_RECORDS_PER_FRAME = 100


class _Fields(dict):  # type: ignore[type-arg]
    """A request's header. A field that is missing is the client's error, and named."""

    def __missing__(self, name: str) -> Any:
        raise ProtocolError(f"{self.get('type')}: expected the field {name!r}, found none")


class HungUp(Exception):
    """The client is gone: the channel ended, or cannot be written to."""


class Channel:
    """
    Frames from and to the client, over two blocking descriptors.

    :param early: bytes that were already read.
    """

    def __init__(self, stdin: int, stdout: int, early: bytes = b"") -> None:
        self.stdin = stdin
        self._stdout = stdout
        self._decoder = Decoder(MAX_REQUEST_BYTES)
        self._waiting: list[Frame] = []
        self._ended = False
        self._sending = _thread.allocate_lock()
        self._feed(early)

    def next(self) -> Frame:
        """
        The next frame, waited for.

        :raises HungUp: there will be none.
        :raises ProtocolError: what came is no frame; the stream is lost.
        """
        while not self._waiting:
            if self._decoder.error is not None:
                raise self._decoder.error
            if self._ended:
                raise HungUp
            self._read()
        return self._waiting.pop(0)

    def waiting(self, timeout_s: float | None) -> bool:
        """
        Whether :meth:`next` has something to return (or to raise) without waiting; looks for at most ``timeout_s``,
        or as long as it takes.
        """
        import select

        while not (self._waiting or self._ended or self._decoder.error):
            if not select.select([self.stdin], [], [], timeout_s)[0]:
                return False
            self._read()
            timeout_s = 0.0
        return True

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """
        Waits as long as the client does not read: that is what keeps our memory flat.

        :raises HungUp: nobody will ever read.
        """
        data = memoryview(encode(Frame(header, payload), MAX_JSON_BYTES))
        with self._sending:
            try:
                while data:
                    data = data[os.write(self._stdout, data) :]
            except (BrokenPipeError, ConnectionResetError) as error:
                raise HungUp from error

    def _read(self) -> None:
        try:
            data = os.read(self.stdin, 256 * 1024)
        except ConnectionResetError:
            data = b""
        if data:
            self._feed(data)
        else:
            self._ended = True

    def _feed(self, data: bytes) -> None:
        self._waiting += self._decoder.feed(data)


class Stream:
    """
    One conversation of a channel.

    :ivar follower: of the launch that it follows, or followed last (an acknowledgement may come after the end).
    :ivar credit_bytes: how much of its log may still be sent; None: as much as the channel takes.
    :ivar due_at: monotonic seconds of its next turn.
    """

    __slots__ = ("credit_bytes", "due_at", "follower", "number", "streaming")

    def __init__(self, number: int) -> None:
        self.number = number
        self.follower: Follower | None = None
        self.streaming = False
        self.credit_bytes: int | None = None
        self.due_at = 0.0

    @property
    def may_send(self) -> bool:
        """It follows a launch, and the client has room for some of its log."""
        return self.streaming and (self.credit_bytes is None or self.credit_bytes > 0)

    def leave(self) -> None:
        """Stop following. What was acknowledged is kept."""
        self.streaming = False
        follower, self.follower = self.follower, None
        if follower is not None:
            try:
                follower.save_acknowledged()
            finally:
                follower.close()


class Server:
    """
    Answers requests.

    :param facts: how we came to be here: ``digest`` of the archive, ``placed``, ``pythons_passed_over``; for ``hello``.
    :param root: configured root, or None.
    """

    def __init__(self, channel: Channel, facts: Mapping[str, Any], root: str | None = None) -> None:
        self._channel = channel
        self._facts = facts
        self._root = root
        self._streams: dict[int, Stream] = {}
        self._verbs: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "ack": self._acknowledge,
            "credit": self._credit,
            "detach": self._detach,
            "launch": self._launch,
            "inspect": self._inspect,
            "follow": self._follow,
            "stop": self._stop,
            "report": self._report,
            "read": self._read,
            "digest": self._digest,
            "list": self._list,
            "clean": self._clean,
            "doctor": self._doctor,
        }

    def run(self) -> int:
        """Serve until the client hangs up. The return value is an exit status: 0, or 1 when the stream was broken."""
        try:
            self._guarded({"type": "hello"}, self._hello)
            while True:
                # What the client has to say goes first: a detach must not wait for the end of a flood.
                while self._channel.waiting(self._pause_s()):
                    self.answer(self._channel.next())
                self._take_turns()
        except HungUp:
            return 0
        except ProtocolError as error:
            try:
                self._send_error({}, "protocol", str(error))
            except HungUp:
                pass
            return 1
        finally:
            for stream in self._streams.values():
                stream.leave()

    def answer(self, request: Frame) -> None:
        """One request, to its last reply; one that may wait, beside whatever else there is to do."""
        header = _Fields(request.header)
        verb = self._verbs.get(request.type)
        if verb is None:
            known = ", ".join(sorted(self._verbs))
            self._send_error(header, "protocol", f"request: expected one of {known}, found {request.type[:100]!r}")
        elif request.stream and request.type in _MAY_WAIT:
            _thread.start_new_thread(self._beside, (header, verb))
        else:
            self._guarded(header, lambda: verb(header))

    def _beside(self, request: Mapping[str, Any], verb: Callable[[Mapping[str, Any]], None]) -> None:
        try:
            self._guarded(request, lambda: verb(request))
        except HungUp:
            pass  # whoever reads the channel meets the same

    def _guarded(self, request: Mapping[str, Any], act: Callable[[], None]) -> None:
        try:
            act()
        except (HungUp, SystemExit, KeyboardInterrupt):
            raise
        except GpuAlertError as error:
            self._send_error(request, error.kind, str(error), getattr(error, "details", None))
        except Exception as error:
            self._send_internal(request, error)

    def _reply(self, request: Mapping[str, Any], header: Mapping[str, Any], payload: bytes = b"") -> None:
        number = request.get("stream")
        self._channel.send({**header, "stream": number} if number else header, payload)

    def _send_internal(self, request: Mapping[str, Any], error: Exception) -> None:
        import traceback

        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        said = f"{request.get('type')}: {type(error).__name__}: {error}"[:2000]
        self._send_error(request, "internal", said, {"traceback": text[-4000:]})

    def _send_error(
        self, request: Mapping[str, Any], kind: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        self._reply(request, {"type": "error", "kind": kind, "message": message, "details": dict(details or {})})

    # ---- followed launches

    def _pause_s(self) -> float | None:
        """How long there is nothing to send; None: until the client says something."""
        due = [stream.due_at for stream in self._streams.values() if stream.may_send]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _take_turns(self) -> None:
        """Each followed launch says what is new, a bounded piece at a time."""
        now = time.monotonic()
        for stream in [stream for stream in self._streams.values() if stream.may_send and stream.due_at <= now]:
            address = {"type": "follow", "stream": stream.number}
            self._guarded(address, lambda stream=stream, address=address: self._take_turn(stream, address))  # type: ignore[misc]

    def _take_turn(self, stream: Stream, address: Mapping[str, Any]) -> None:
        follower = stream.follower
        assert follower is not None
        room = _TURN_BYTES if stream.credit_bytes is None else min(_TURN_BYTES, stream.credit_bytes)
        try:
            messages = follower.poll(room)
        except BaseException:
            stream.leave()  # the error is the last word about it
            raise
        stream.due_at = time.monotonic() + follower.delay_s
        for header, payload in messages:
            if stream.credit_bytes is not None:
                stream.credit_bytes -= len(payload)
            self._reply(address, header, payload)
        if follower.finished:
            stream.streaming = False

    # ---- verbs

    def _hello(self) -> None:
        from gpualert import procfs

        warnings = [f"python: {name} was passed over" for name in self._facts.get("pythons_passed_over", ())]
        self._channel.send(
            {
                "type": "hello",
                "protocol": self._facts.get("protocol", PROTOCOL_VERSIONS[1]),
                "version": __version__,
                "digest": self._facts.get("digest"),
                "placed": bool(self._facts.get("placed")),
                "archive": self._facts.get("archive"),
                "python": {"executable": sys.executable, "version": sys.version.split()[0]},
                "machine_id": procfs.machine_id(),
                "boot_id": procfs.boot_id(),
                "hostname": os.uname().nodename,
                "user": _user(),
                "roots": self._roots(),
                "warnings": warnings,
            }
        )

    def _roots(self) -> list[dict[str, Any]]:
        from gpualert import rundir

        return [{"path": r.path, "usable": r.usable, "why": r.why} for r in rundir.find_roots(self._root)]

    def _launch(self, request: Mapping[str, Any]) -> None:
        from gpualert import launch
        from gpualert.spec import LaunchSpec

        value = dict(request["spec"])
        if value.get("root") is None:
            value["root"] = self._root
        elif self._root is None:
            self._root = value["root"]  # where whoever goes on to follow it will look, too
        secrets = request.get("secrets") or {}
        if not all(isinstance(name, str) and isinstance(text, str) for name, text in secrets.items()):
            raise InvalidSpec("secrets: expected text for each name")
        word, record = launch.launch(
            LaunchKey.from_json(request["key"]),
            Attempt.from_json(request["attempt"]),
            LaunchSpec.from_json(value),
            secrets,
            int(request.get("after") or 0),
            archive_digest=self._facts.get("digest"),
        )
        self._reply(request, {"type": word, "record": record.to_json()})

    def _inspect(self, request: Mapping[str, Any]) -> None:
        from gpualert import control
        from gpualert.errors import UnknownLaunch

        key = request.get("key")
        if key is None and request.get("launch_id") is None:
            raise ProtocolError("inspect: expected a key or a launch_id, found neither")
        try:
            record = control.inspect(
                key=None if key is None else LaunchKey.from_json(key),
                launch_id=request.get("launch_id"),
                root=self._root,
            )
        except UnknownLaunch as error:
            self._reply(request, {"type": "unknown", "message": str(error)})
        else:
            self._reply(request, {"type": "record", "record": record.to_json()})

    def _follow(self, request: Mapping[str, Any]) -> None:
        from gpualert import control, follow, skipping

        number = Frame(request).stream
        stream = self._streams.setdefault(number, Stream(number))
        if stream.streaming:
            found = "expected one at a time on a stream, found another; detach first"
            self._send_error(request, "protocol", f"follow: {found}")
            return
        stream.leave()
        launch_id, where = request["launch_id"], request.get("from", "ack")
        wanted = request.get("budget")
        budget = None if wanted is None else skipping.LogBudget.from_json(wanted)
        record = control.inspect(launch_id=launch_id, root=self._root)
        epoch = None
        if request.get("attach"):
            epoch = control.attach(launch_id, str(request.get("who") or ""), root=self._root)
            record = control.inspect(launch_id=launch_id, root=self._root)
        position = None if where == "ack" else (int(where["generation"]), int(where["offset"]))
        window = request.get("window_bytes")
        stream.credit_bytes = None if window is None else max(1, int(window))
        stream.follower = follow.Follower(record.run_directory, position, epoch=epoch, budget=budget)
        stream.streaming, stream.due_at = True, 0.0
        self._reply(request, {"type": "attached", "epoch": epoch, "record": record.to_json()})

    def _credit(self, request: Mapping[str, Any]) -> None:
        stream = self._streams.get(Frame(request).stream)
        if stream is not None and stream.credit_bytes is not None:
            stream.credit_bytes += max(0, int(request["bytes"]))

    def _detach(self, request: Mapping[str, Any]) -> None:
        """Also of what has ended already: the client may not have known."""
        stream = self._streams.pop(Frame(request).stream, None)
        if stream is not None:
            stream.leave()
        self._reply(request, {"type": "detached"})

    def _acknowledge(self, request: Mapping[str, Any]) -> None:
        """An acknowledgement; also one that comes after ``ended``, as the last of each launch does."""
        stream = self._streams.get(Frame(request).stream)
        follower = None if stream is None else stream.follower
        if follower is None:
            raise ProtocolError("ack: expected a follow before it, found none on this stream")
        generation, offset, ended = int(request["generation"]), int(request["offset"]), bool(request.get("ended"))
        follower.acknowledge(generation, offset, ended)
        if follower.finished:
            follower.save_acknowledged()

    def _stop(self, request: Mapping[str, Any]) -> None:
        from gpualert import control

        reason, who = str(request.get("reason") or ""), str(request.get("who") or "")
        wait_s, epoch = float(request.get("wait_s") or 0.0), request.get("epoch")
        launch_id = request.get("launch_id")
        record: RunRecord | None
        if launch_id is not None:
            record = control.stop(launch_id, epoch=epoch, reason=reason, who=who, wait_s=wait_s, root=self._root)
        else:
            key, attempt = LaunchKey.from_json(request["key"]), Attempt.from_json(request["attempt"])
            record = control.stop_key(key, attempt, reason=reason, who=who, wait_s=wait_s, root=self._root)
        if record is None:
            self._reply(request, {"type": "tombstoned"})
        else:
            self._reply(request, {"type": "stopped" if record.state.ended else "stopping", "record": record.to_json()})

    def _report(self, request: Mapping[str, Any]) -> None:
        from gpualert import control, report

        record = control.inspect(launch_id=request["launch_id"], root=self._root)
        wait_s = float(request.get("verdict_wait_s", 5.0))
        outcome = report.build(record.run_directory, verdict_wait_s=wait_s)
        self._reply(request, {"type": "outcome", "outcome": outcome.to_json()})

    def _read(self, request: Mapping[str, Any]) -> None:
        from gpualert import control
        from gpualert.follow import current_generation
        from gpualert.logfile import LogReader, TimeIndex
        from gpualert.rundir import RunDirectory

        record = control.inspect(launch_id=request["launch_id"], root=self._root)
        generation, offset = int(request["generation"]), int(request["offset"])
        length = max(0, min(int(request["length"]), MAX_PAYLOAD_BYTES))
        current = current_generation(record, TimeIndex(RunDirectory(record.run_directory).index_path), generation)
        if current > generation:  # the bytes that were asked for are gone
            generation, offset = current, 0
        with LogReader(record.log_path, generation, offset) as reader:
            size = reader.size()
            chunks = reader.read(length) if length else []
        data = chunks[0].data if chunks else b""
        at = (chunks[0].generation, chunks[0].offset) if chunks else (generation, offset)
        self._reply(
            request,
            {"type": "bytes", "generation": at[0], "offset": at[1], "size": size, "state": record.state.value},
            data,
        )

    def _digest(self, request: Mapping[str, Any]) -> None:
        from gpualert import control, log_digest

        record = control.inspect(launch_id=request["launch_id"], root=self._root)
        found = log_digest.of_beginning(record, int(request["generation"]), int(request["length"]))
        self._reply(request, {"type": "digest", **found})

    def _list(self, request: Mapping[str, Any]) -> None:
        from gpualert import control

        found, damaged = control.survey(self._root)
        last = {"damaged": damaged[:_RECORDS_PER_FRAME]}
        self._send_many(request, "launches", [record.to_json() for record in found], last)

    def _clean(self, request: Mapping[str, Any]) -> None:
        from gpualert import housekeeping

        cleaned = housekeeping.clean(
            self._root,
            older_than_s=float(request["older_than_s"]),
            keep_bytes=request.get("keep_bytes"),
            keep_count=request.get("keep_count"),
            damaged=bool(request.get("damaged")),
            dry_run=bool(request.get("dry_run")),
        )
        self._send_many(request, "cleaned", cleaned)

    def _doctor(self, request: Mapping[str, Any]) -> None:
        from gpualert import doctor

        self._send_many(request, "findings", [finding.to_json() for finding in doctor.examine(self._root)])

    def _send_many(
        self,
        request: Mapping[str, Any],
        word: str,
        items: list[dict[str, Any]],
        last: Mapping[str, Any] | None = None,
    ) -> None:
        """One frame or several; ``more`` is false in the last, which also has what ``last`` holds."""
        for piece, more in _pieces(items, _RECORDS_PER_FRAME):
            self._reply(request, {"type": word, word: piece, "more": more, **({} if more else last or {})})


def main(
    stdin: int,
    stdout: int,
    *,
    early: bytes = b"",
    facts: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> int:
    """
    Serve one client.

    :param stdin: where frames come from; ``stdout``, where they go. Nobody else may use either.
    :param early: bytes of frames that were read already.
    :param facts: what the receiver found; see :class:`Server`.
    :param settings: what the client told the receiver: ``root``, ``protocol``.
    :return: an exit status.
    """
    # A hang-up of the terminal or session says nothing that the end of stdin does not say, and must not cut a launch in
    # two.
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    settings = settings or {}
    known = dict(facts or {})
    oldest, newest = settings.get("protocol") or PROTOCOL_VERSIONS
    known["protocol"] = min(newest, PROTOCOL_VERSIONS[1])
    channel = Channel(stdin, stdout, early)
    if known["protocol"] < max(oldest, PROTOCOL_VERSIONS[0]):
        spoken = f"{PROTOCOL_VERSIONS[0]} to {PROTOCOL_VERSIONS[1]}"
        message = f"protocol: the client speaks versions {oldest} to {newest}, this host {spoken}"
        channel.send({"type": "error", "kind": "protocol", "message": message, "details": {}})
        return 1
    return Server(channel, known, settings.get("root")).run()


def main_local(arguments: list[str]) -> int:
    """
    ``python -m gpualert serve [--nonce WORD] [--root PATH]``: the same conversation on stdin and stdout, without SSH.

    :param arguments: what follows ``serve``.
    """
    from gpualert import bootstrap, receiver

    options = {"--nonce": "", "--root": ""}
    words = iter(arguments)
    for word in words:
        value = next(words, None)
        if word not in options or value is None:
            sys.stderr.write("usage: python -m gpualert serve [--nonce WORD] [--root PATH]\n")
            return 2
        options[word] = value
    stdin, stdout = receiver.private_streams()
    receiver.write(stdout, f"\n{bootstrap.marker(options['--nonce'])} start\n".encode())
    return main(stdin, stdout, settings={"root": options["--root"] or None})


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _pieces(items: list[dict[str, Any]], size: int) -> Iterator[tuple[list[dict[str, Any]], bool]]:
    for at in range(0, max(len(items), 1), size):
        yield items[at : at + size], at + size < len(items)

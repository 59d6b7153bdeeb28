"""The host's end of the protocol: one request after another on one channel, until the client hangs up.

Nothing that was launched depends on this process. Every failure becomes an ``error`` frame with a kind; the end of the
channel is no failure at all.
"""

from __future__ import annotations

import _signal
import os
import sys
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

    def waiting(self, timeout_s: float) -> bool:
        """
        Whether :meth:`next` has something to return (or to raise) without waiting; looks for at most ``timeout_s``.
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
        self._followed: Follower | None = None
        self._verbs: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "ack": self._acknowledge,
            "launch": self._launch,
            "inspect": self._inspect,
            "follow": self._follow,
            "stop": self._stop,
            "report": self._report,
            "read": self._read,
            "list": self._list,
            "clean": self._clean,
            "doctor": self._doctor,
        }

    def run(self) -> int:
        """Serve until the client hangs up. The return value is an exit status: 0, or 1 when the stream was broken."""
        try:
            self._guarded("hello", self._hello)
            while True:
                self.answer(self._channel.next())
        except HungUp:
            return 0
        except ProtocolError as error:
            try:
                self._send_error("protocol", str(error))
            except HungUp:
                pass
            return 1

    def answer(self, request: Frame) -> None:
        """One request, to its last reply."""
        if request.type == "detach":
            return  # sent before the client saw that what it followed has ended
        verb = self._verbs.get(request.type)
        if verb is None:
            known = ", ".join(sorted(self._verbs))
            self._send_error("protocol", f"request: expected one of {known}, found {request.type[:100]!r}")
        else:
            self._guarded(request.type, lambda: verb(_Fields(request.header)))

    def _guarded(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (HungUp, SystemExit, KeyboardInterrupt):
            raise
        except GpuAlertError as error:
            self._send_error(error.kind, str(error), getattr(error, "details", None))
        except Exception as error:
            self._send_internal(what, error)

    def _send_internal(self, what: str, error: Exception) -> None:
        import traceback

        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self._send_error("internal", f"{what}: {type(error).__name__}: {error}"[:2000], {"traceback": text[-4000:]})

    def _send_error(self, kind: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        self._channel.send({"type": "error", "kind": kind, "message": message, "details": dict(details or {})})

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
        self._channel.send({"type": word, "record": record.to_json()})

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
            self._channel.send({"type": "unknown", "message": str(error)})
        else:
            self._channel.send({"type": "record", "record": record.to_json()})

    def _follow(self, request: Mapping[str, Any]) -> None:
        from gpualert import control, follow

        launch_id, where = request["launch_id"], request.get("from", "ack")
        record = control.inspect(launch_id=launch_id, root=self._root)
        epoch = None
        if request.get("attach"):
            epoch = control.attach(launch_id, str(request.get("who") or ""), root=self._root)
            record = control.inspect(launch_id=launch_id, root=self._root)
        position = None if where == "ack" else (int(where["generation"]), int(where["offset"]))
        with follow.Follower(record.run_directory, position, epoch=epoch) as follower:
            self._followed = follower
            self._channel.send({"type": "attached", "epoch": epoch, "record": record.to_json()})
            self._stream(follower)

    def _stream(self, follower: Follower) -> None:
        """Frames out, and acknowledgements in, until the launch has ended, or the client detaches or hangs up."""
        try:
            while not follower.finished:
                for header, payload in follower.poll():
                    self._channel.send(header, payload)
                timeout_s = follower.delay_s
                # What comes after the end is for a server that follows nothing any more.
                while not follower.finished and self._channel.waiting(timeout_s):
                    timeout_s = 0.0
                    request = self._channel.next()
                    if request.type == "detach":
                        return
                    if request.type == "follow":
                        found = "expected one at a time on a channel, found another; detach first"
                        self._send_error("protocol", f"follow: {found}")
                    else:
                        self.answer(request)
        finally:
            follower.save_acknowledged()

    def _acknowledge(self, request: Mapping[str, Any]) -> None:
        """An acknowledgement; also one that comes after ``ended``, as the last of each launch does."""
        if self._followed is None:
            raise ProtocolError("ack: expected a follow before it, found none on this channel")
        generation, offset, ended = int(request["generation"]), int(request["offset"]), bool(request.get("ended"))
        self._followed.acknowledge(generation, offset, ended)
        if self._followed.finished:
            self._followed.save_acknowledged()

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
            self._channel.send({"type": "tombstoned"})
        else:
            self._channel.send({"type": "stopped" if record.state.ended else "stopping", "record": record.to_json()})

    def _report(self, request: Mapping[str, Any]) -> None:
        from gpualert import control, report

        record = control.inspect(launch_id=request["launch_id"], root=self._root)
        wait_s = float(request.get("verdict_wait_s", 5.0))
        outcome = report.build(record.run_directory, verdict_wait_s=wait_s)
        self._channel.send({"type": "outcome", "outcome": outcome.to_json()})

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
        self._channel.send(
            {"type": "bytes", "generation": at[0], "offset": at[1], "size": size, "state": record.state.value}, data
        )

    def _list(self, request: Mapping[str, Any]) -> None:
        from gpualert import control

        self._send_many("launches", [record.to_json() for record in control.list_launches(root=self._root)])

    def _clean(self, request: Mapping[str, Any]) -> None:
        from gpualert import control

        cleaned = control.clean(
            self._root,
            older_than_s=float(request["older_than_s"]),
            keep_bytes=request.get("keep_bytes"),
            keep_count=request.get("keep_count"),
            dry_run=bool(request.get("dry_run")),
        )
        self._send_many("cleaned", cleaned)

    def _doctor(self, request: Mapping[str, Any]) -> None:
        from gpualert import doctor

        self._send_many("findings", [finding.to_json() for finding in doctor.examine(self._root)])

    def _send_many(self, word: str, items: list[dict[str, Any]]) -> None:
        """One frame or several; ``more`` is false in the last."""
        for piece, more in _pieces(items, _RECORDS_PER_FRAME):
            self._channel.send({"type": word, word: piece, "more": more})


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

"""Bring a launch's whole log from its host to a file here: byte for byte, or not under its name.

The bytes lie in ``PATH.part`` until there are as many as the log had and they hash to what the host's hash to. So the
file of that name is always whole, and what a cut connection or a killed process leaves behind is a beginning that the
next run checks and goes on from. Bytes of two generations of a log never meet in one file.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from gpualert import protocol
from gpualert.errors import GpuAlertError
from gpualert_provider.hooks import blocking
from gpualert_provider.hooks.blocking import BlockingSession, Target
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.target import SshTarget

T = TypeVar("T")

_PIECE_BYTES = protocol.MAX_PAYLOAD_BYTES
#: Pieces asked for and not yet here. With one, host and connection wait for each other: less than half as fast.
_AHEAD = 4
#: Waits between two tries of a connection; the last one is repeated.
_RECONNECT_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: A log that is cut again and again while it is fetched is given up after so many new beginnings.
_MAX_CUTS = 5
#: How slowly a host may hash, for the limit on its answer.
_SLOWEST_HASH = 20e6


class FetchIncomplete(GpuAlertError):
    """
    The log did not come whole. What came lies in the ``.part`` file, and the next run goes on from there.

    :param details: ``path``, ``part_path``, ``part_bytes``.
    """

    kind = "incomplete"

    def __init__(self, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.details = details


class FetchRefused(GpuAlertError):
    """Nothing was fetched, for a reason that lies on this machine."""

    kind = "refused"


class _Cut(Exception):
    """The log is another generation than the one that is being fetched."""

    def __init__(self, generation: int) -> None:
        super().__init__(generation)
        self.generation = generation


@dataclass(frozen=True)
class _Extent:
    """What is to be fetched: the beginning of one generation of the log, as long as it was when we asked."""

    generation: int
    size: int
    state: str


def fetch(conn_id: str, launch_id: str, path: str, **how: Any) -> dict[str, Any]:
    """
    Fetch from the host of an Airflow ``ssh`` connection; see :func:`fetch_from`, which takes ``how``.

    :raises InvalidConnection: the connection cannot be used.
    """
    from gpualert_provider.doctor import resolve

    return fetch_from(resolve(conn_id), launch_id, path, **how)


def fetch_from(
    target: Target,
    launch_id: str,
    path: str,
    *,
    generation: int | None = None,
    patience_s: float = 300.0,
    root: str | None = None,
    replace: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] | None = None,
    open_session: Callable[..., BlockingSession] = blocking.open_session,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """
    :param path: of the file to be; readable by its owner alone.
    :param generation: the only one wanted; None takes the one that is there now, and begins anew if the log is cut.
    :param patience_s: how long to go on without a new byte after the host was reached once.
    :param root: configured root on the host.
    :param replace: a file at ``path`` may be replaced.
    :param tell: is given sentences for people.
    :param progress: is given (bytes here, bytes wanted).
    :return: ``path launch_id generation size_bytes sha256 state resumed_at_bytes growing``. ``growing``: the training
        had not ended, and the log may be longer by now.
    :raises FetchIncomplete: see there.
    :raises FetchRefused: something is in the way here.
    :raises HostError: ``unknown_launch`` and the like.
    :raises TransportError: the host could not be reached at all, or for a reason that does not pass.
    :raises OSError: the file cannot be written; what was fetched stays in the ``.part`` file.
    """
    if isinstance(target, SshTarget):
        # Compressing costs more time than it saves on any link faster than about 20 MB/s, and is what limits us there.
        target = dataclasses.replace(target, compress=False)
    if os.path.lexists(path) and not replace:
        raise FetchRefused(f"{path}: expected no file of that name, found one; it was left as it is (see --force)")
    with _open_part(path + ".part") as part:
        fetching = _Fetch(target, launch_id, part, path, root, patience_s, tell, progress, open_session, sleep)
        try:
            found = fetching.run(generation)
        except BaseException:
            if os.fstat(part.fileno()).st_size == 0:
                os.unlink(path + ".part")
            raise
        os.replace(path + ".part", path)
    _sync_folder(path)
    return found


class _Fetch:
    def __init__(
        self,
        target: Target,
        launch_id: str,
        part: BinaryIO,
        path: str,
        root: str | None,
        patience_s: float,
        tell: Callable[[str], None],
        progress: Callable[[int, int], None] | None,
        open_session: Callable[..., BlockingSession],
        sleep: Callable[[float], None],
    ) -> None:
        self._target = target
        self._launch_id = launch_id
        self._part = part
        self._path = path
        self._root = root
        self._patience_s = patience_s
        self._tell = tell
        self._progress = progress
        self._open_session = open_session
        self._sleep = sleep
        self._session: BlockingSession | None = None
        self._hash = hashlib.sha256()
        self._have = 0
        self._resumed_at = 0
        self._wanted: int | None = None

    def run(self, wanted: int | None) -> dict[str, Any]:
        self._wanted = wanted
        self._session = self._open_session(self._target, root=self._root)
        try:
            return self._with_new_beginnings()
        finally:
            self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _with_new_beginnings(self) -> dict[str, Any]:
        extent = self._begin()
        for _ in range(_MAX_CUTS):
            try:
                return self._whole(extent)
            except _Cut as cut:
                if self._wanted is not None:
                    raise self._gone(cut.generation) from cut
                self._tell(
                    f"{self._launch_id}: the training cut its log; generation {extent.generation} is gone and "
                    f"generation {cut.generation} is fetched from its beginning. {self._have} bytes that nobody can "
                    "check any more are dropped"
                )
                self._close()  # answers about the old generation may still be on their way
                self._drop()
                extent = self._extent(cut.generation)
        raise self._incomplete(f"the training cut its log {_MAX_CUTS} times while it was fetched")

    def _begin(self) -> _Extent:
        """What to fetch; and what an earlier run left is kept if it is the beginning of that."""
        extent = self._extent(
            0
        )  # the host answers with the one that is there; a number that is too high it would repeat
        if self._wanted is not None and extent.generation != self._wanted:
            raise self._gone(extent.generation)
        self._read_part()
        if self._have:
            found = self._digest(extent.generation, self._have)
            if found != (extent.generation, self._have, self._hash.hexdigest()):
                self._tell(
                    f"{self._part_path}: its {self._have} bytes are not the beginning of this log; it is fetched from "
                    "its own beginning"
                )
                self._drop()
        self._resumed_at = self._have
        if self._have:
            self._tell(f"{self._part_path}: {self._have} bytes are here and checked; the rest is fetched")
        return extent

    def _whole(self, extent: _Extent) -> dict[str, Any]:
        size = max(extent.size, self._have)  # an earlier run may have seen it longer than it was when this one asked
        growing = extent.state not in ("SUCCEEDED", "FAILED", "STOPPED", "TIMED_OUT", "LOST")
        self._persistently(lambda session: self._take_rest(session, extent.generation, size))
        self._part.flush()
        os.fsync(self._part.fileno())
        ours = self._hash.hexdigest()
        generation, length, theirs = self._digest(extent.generation, size)
        if generation != extent.generation or length < size:
            raise _Cut(max(generation, extent.generation + 1) if length < size else generation)
        if theirs != ours:
            raise self._incomplete(
                f"expected SHA-256 {theirs} for {size} bytes as on the host, found {ours}; the log was written over "
                "meanwhile, or something between there and here changes bytes. The next run begins anew"
            )
        if growing:
            self._tell(f"{self._launch_id}: the training goes on; these are the {size} bytes that its log had")
        return {
            "path": self._path,
            "launch_id": self._launch_id,
            "generation": extent.generation,
            "size_bytes": size,
            "sha256": ours,
            "state": extent.state,
            "growing": growing,
            "resumed_at_bytes": self._resumed_at,
        }

    def _take_rest(self, session: BlockingSession, generation: int, size: int) -> None:
        requests = (
            protocol.read_request(self._launch_id, generation, offset, min(_PIECE_BYTES, size - offset))
            for offset in range(self._have, size, _PIECE_BYTES)
        )
        for reply in session.exchange_many(requests, _AHEAD):
            header, length = reply.header, min(_PIECE_BYTES, size - self._have)
            if header["generation"] != generation:
                raise _Cut(int(header["generation"]))
            if len(reply.payload) < length:  # shorter than it was: cut, and the host's observer has not seen it yet
                raise _Cut(generation + 1)
            if header["offset"] != self._have or len(reply.payload) > length:
                raise TransportError(
                    "protocol",
                    f"{self._target.peer}: expected {length} bytes from {self._have}, found {len(reply.payload)} from "
                    f"{header['offset']}",
                )
            left = memoryview(reply.payload)
            while left:  # a disk that is nearly full takes a part, and refuses the next
                left = left[self._part.write(left) :]
            self._hash.update(reply.payload)
            self._have += length
            if self._progress is not None:
                self._progress(self._have, size)

    def _extent(self, generation: int) -> _Extent:
        header = self._ask(protocol.read_request(self._launch_id, generation, 0, 0)).header
        if header["size"] is None:
            raise GpuAlertError(f"{self._launch_id}: the host has the launch, and no log of it", "no_log")
        return _Extent(int(header["generation"]), int(header["size"]), str(header["state"]))

    def _digest(self, generation: int, length: int) -> tuple[int, int, str | None]:
        request = protocol.digest_request(self._launch_id, generation, length)
        header = self._ask(request, hashed=length).header
        return int(header["generation"]), int(header["length"]), header["sha256"]

    def _ask(self, request: dict[str, Any], hashed: int = 0) -> protocol.Frame:
        limit_s = self._target.command_timeout_s
        if limit_s is not None:
            limit_s += hashed / _SLOWEST_HASH
        return self._persistently(lambda session: session.exchange(request, timeout_s=limit_s))

    def _persistently(self, act: Callable[[BlockingSession], T]) -> T:
        """Do it, over another connection if this one is lost, as long as bytes come or patience lasts."""
        lost_at, tries, had = None, 0, self._have
        while True:
            try:
                if self._session is None:
                    self._session = self._open_session(self._target, root=self._root)
                return act(self._session)
            except TransportError as error:
                self._close()
                now = time.monotonic()
                if lost_at is None or self._have > had:
                    lost_at, tries, had = now, 0, self._have
                wait_s = _RECONNECT_S[min(tries, len(_RECONNECT_S) - 1)]
                tries += 1
                if not error.transient or now + wait_s - lost_at > self._patience_s:
                    raise self._incomplete(str(error)) from error
                self._tell(f"{error} {self._have} bytes are here; trying again in {wait_s:g} s")
                self._sleep(wait_s)

    # ---- what is here

    @property
    def _part_path(self) -> str:
        return self._path + ".part"

    def _read_part(self) -> None:
        self._part.seek(0)
        while piece := self._part.read(_PIECE_BYTES):
            self._hash.update(piece)
            self._have += len(piece)

    def _drop(self) -> None:
        self._part.seek(0)
        self._part.truncate(0)
        self._hash = hashlib.sha256()
        self._have = self._resumed_at = 0

    def _gone(self, current: int) -> GpuAlertError:
        return GpuAlertError(
            f"{self._launch_id}: expected generation {self._wanted} of its log, found generation {current}; of a log "
            "that its training cut only the newest generation exists",
            "generation_gone",
        )

    def _incomplete(self, why: str) -> FetchIncomplete:
        self._part.flush()
        details = {"path": self._path, "part_path": self._part_path, "part_bytes": self._have}
        return FetchIncomplete(
            f"{self._launch_id}: not fetched whole: {why.rstrip('.')}. {self._have} bytes are in {self._part_path}; "
            "the same command goes on from there",
            details,
        )


def _open_part(path: str) -> BinaryIO:
    """Ours alone: whoever else fetches to the same name at the same time is refused."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise FetchRefused(f"{path}: expected a file of ours or nothing, found something else")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(fd, 0o600)
            # Whoever held the lock before us may have given the file its final name meanwhile.
            if os.stat(path, follow_symlinks=False).st_ino != status.st_ino:
                raise FetchRefused(f"{path}: another fetch has just finished with it")
            return os.fdopen(fd, "r+b", buffering=0)
        except BaseException:
            os.close(fd)
            raise
    except BlockingIOError as error:
        raise FetchRefused(f"{path}: another fetch is writing to it") from error


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Read a log that is being written, and say when which byte was there.

A position is (generation, offset): a child may cut its own log (``echo x > /dev/stderr`` in bash does), and bytes
written after that are a new generation that starts at offset 0. Nothing here writes to the log.
"""

from __future__ import annotations

import codecs
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

#: Bytes just before a position that must still be the same, or the log was rewritten.
FINGERPRINT_BYTES = 64
#: A line longer than this (bytes of UTF-8, or characters for :class:`LineDecoder`) is handed out in pieces.
MAX_LINE_CHARS = 64 * 1024


class LogChunk:
    """
    Bytes of the log that lie together.

    :param offset: of the first byte of ``data``, in its generation.
    """

    __slots__ = ("data", "generation", "offset")

    def __init__(self, generation: int, offset: int, data: bytes) -> None:
        self.generation = generation
        self.offset = offset
        self.data = data

    @property
    def end(self) -> int:
        """Offset of the first byte after this chunk."""
        return self.offset + len(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogChunk) and (self.generation, self.offset, self.data) == (
            other.generation,
            other.offset,
            other.data,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LogChunk({self.generation}, {self.offset}, {len(self.data)} bytes)"


class LogReader:
    """
    Reads on from a position, as often as it is asked; it never waits.

    A log that became shorter than what was read, or whose last :data:`FINGERPRINT_BYTES` read bytes are no longer the
    same, is a new generation. A cut that happened twice between two reads counts once: nobody saw what lay between.

    :param path: of the log. It need not exist yet.
    :param fingerprint: the bytes before ``offset`` as an earlier reader saw them (its :attr:`fingerprint`); None
        believes the offset as long as the log is that long.
    """

    def __init__(self, path: str, generation: int = 0, offset: int = 0, fingerprint: bytes | None = None) -> None:
        self._path = path
        self._generation = generation
        self._offset = offset
        self._fingerprint = fingerprint
        self._fd: int | None = None

    @property
    def position(self) -> tuple[int, int]:
        """(generation, offset) of the next byte to be read."""
        return self._generation, self._offset

    @property
    def fingerprint(self) -> bytes:
        """The last bytes read before the position; empty at offset 0 or before the first read."""
        return self._fingerprint or b""

    def bytes_before(self, offset: int) -> bytes:
        """What lies before ``offset`` now: the fingerprint of a reader that starts there."""
        fd = self._open()
        start = max(0, offset - FINGERPRINT_BYTES)
        return b"" if fd is None else os.pread(fd, offset - start, start)

    def size(self) -> int | None:
        """Bytes in the log now; None when there is no log."""
        fd = self._open()
        return None if fd is None else os.fstat(fd).st_size

    def read(self, max_bytes: int = 65536) -> list[LogChunk]:
        """
        What is there after the position, at most ``max_bytes`` of it; an empty list at the end.

        :return: nothing or one chunk. Its generation is higher than before when the log was cut.
        :raises OSError: the log cannot be read (other than because it does not exist).
        """
        fd = self._open()
        if fd is None:
            return []
        if self._was_cut(fd):
            self._generation += 1
            self._offset = 0
            self._fingerprint = b""
        data = os.pread(fd, max_bytes, self._offset)
        if not data:
            return []
        chunk = LogChunk(self._generation, self._offset, data)
        self._offset += len(data)
        self._fingerprint = (self.fingerprint + data[-FINGERPRINT_BYTES:])[-FINGERPRINT_BYTES:]
        return [chunk]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> int | None:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return self._fd

    def _was_cut(self, fd: int) -> bool:
        if self._offset == 0:
            return False
        if os.fstat(fd).st_size < self._offset:
            return True
        if self._fingerprint is None:
            start = max(0, self._offset - FINGERPRINT_BYTES)
            self._fingerprint = os.pread(fd, self._offset - start, start)
            return False
        expected = self._fingerprint
        return bool(expected) and os.pread(fd, len(expected), self._offset - len(expected)) != expected


class TimeIndex:
    """
    Which byte was in the log by when: one line ``generation offset unix_time`` for each second or MiB of growth.

    A line says: by this time, the log held all bytes before this offset. The file stays bounded: when it holds
    :attr:`MAX_LINES`, every second line goes and the steps double. One writer; readers may read meanwhile.

    :param path: of the index file. It need not exist.
    """

    MAX_LINES = 16384
    FIRST_STEP_S = 1.0
    FIRST_STEP_BYTES = 1024 * 1024

    def __init__(self, path: str) -> None:
        self._path = path
        self._entries: list[tuple[int, int, float]] = []
        self._read_until = 0
        self._inode: int | None = None
        self._step_s = self.FIRST_STEP_S
        self._step_bytes = self.FIRST_STEP_BYTES
        self._fd: int | None = None
        self._last: tuple[int, int, float] | None = None
        self._held_back: tuple[int, int, float] | None = None
        self._torn = False
        self._lines = 0

    # -- the writer's side

    def append(self, generation: int, offset: int, unix_time: float, force: bool = False) -> bool:
        """
        Note that the log held ``offset`` bytes of ``generation`` at ``unix_time``, if it is time for another line.

        :param force: write the line although the step is not over (the last line of a log).
        :return: whether a line was written.
        :raises OSError: the index cannot be written.
        """
        if self._fd is None:
            self._open_for_append()
        last = self._last
        if last is not None and last[0] == generation:
            if offset <= last[1]:
                return False
            if not force and offset - last[1] < self._step_bytes and 0 <= unix_time - last[2] < self._step_s:
                self._held_back = (generation, offset, unix_time)
                return False
        if self._held_back is not None and self._held_back[0] != generation:
            self._write(self._held_back)  # the end of a generation that is over
        self._write((generation, offset, unix_time))
        if self._lines >= self.MAX_LINES:
            self._thin()
        return True

    def _write(self, entry: tuple[int, int, float]) -> None:
        assert self._fd is not None
        line = (b"\n" if self._torn else b"") + b"%d %d %.3f\n" % entry
        self._torn = os.write(self._fd, line) != len(line)  # a disk that is full takes what it can
        self._last = entry
        self._held_back = None
        self._lines += 1

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open_for_append(self) -> None:
        self._refresh()
        self._lines = len(self._entries)
        self._last = self._entries[-1] if self._entries else None
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        if size != self._read_until:  # an earlier writer died within a line
            os.write(self._fd, b"\n")

    def _thin(self) -> None:
        self._refresh()
        kept = [
            entry
            for number, entry in enumerate(self._entries)
            if number % 2 == 0 or number + 1 == len(self._entries) or self._entries[number + 1][0] != entry[0]
        ]
        temporary = self._path + ".new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"".join(b"%d %d %.3f\n" % entry for entry in kept))
        finally:
            os.close(fd)
        os.replace(temporary, self._path)
        self.close()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._lines = len(kept)
        self._step_s *= 2
        self._step_bytes *= 2

    # -- the readers' side

    def lookup(self, generation: int, offset: int) -> float | None:
        """
        By when the byte at ``offset`` of ``generation`` was in the log.

        :return: seconds since the epoch on the host's clock, late by at most one step; None when not known (yet).
        """
        self._refresh_if_beyond(generation, offset)
        found = _first_beyond(self._entries, generation, offset)
        return None if found is None else found[2]

    def bytes_before_generation(self, generation: int) -> int:
        """How much all generations before this one held, as far as the index knows."""
        self._refresh()
        sizes: dict[int, int] = {}
        for number, offset, _ in self._entries:
            if number < generation:
                sizes[number] = max(offset, sizes.get(number, 0))
        return sum(sizes.values())

    def _refresh_if_beyond(self, generation: int, offset: int) -> None:
        if _first_beyond(self._entries, generation, offset) is None:
            self._refresh()

    def _refresh(self) -> None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            status = os.fstat(fd)
            if self._inode != status.st_ino or status.st_size < self._read_until:
                self._inode = status.st_ino
                self._entries = []
                self._read_until = 0
            data = b""
            while True:
                piece = os.pread(fd, 1024 * 1024, self._read_until + len(data))
                if not piece:
                    break
                data += piece
        finally:
            os.close(fd)
        whole = data.rfind(b"\n") + 1  # a line that is still being written is for the next time
        self._read_until += whole
        self._entries.extend(_parse(data[:whole]))


def _parse(data: bytes) -> Iterator[tuple[int, int, float]]:
    for line in data.splitlines():
        words = line.split()
        # A line torn by a writer's death or a full disk is short of a word or of decimals; its neighbours say enough.
        if len(words) != 3 or words[2][-4:-3] != b".":
            continue
        try:
            yield int(words[0]), int(words[1]), float(words[2])
        except ValueError:
            continue


def _first_beyond(entries: list[tuple[int, int, float]], generation: int, offset: int) -> tuple[int, int, float] | None:
    """The first entry of this generation whose offset lies beyond ``offset``; entries are in the order written."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if entries[middle][:2] > (generation, offset):
            high = middle
        else:
            low = middle + 1
    if low == len(entries) or entries[low][0] != generation:
        return None
    return entries[low]


class LineDecoder:
    """
    Bytes in, whole lines of text out: UTF-8 decoded across any boundary, bytes that are not UTF-8 as U+FFFD.

    A line ends at ``\\n`` (as for ``grep -n``); a ``\\r`` before it is taken off, one within the line stays. A line
    longer than :data:`MAX_LINE_CHARS` comes in pieces, so that memory stays flat.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes, without their line ends."""
        pieces = (self._rest + self._decoder.decode(data)).split("\n")
        self._rest = pieces.pop()
        lines = [piece[:-1] if piece.endswith("\r") else piece for piece in pieces]
        while len(self._rest) > MAX_LINE_CHARS:
            lines.append(self._rest[:MAX_LINE_CHARS])
            self._rest = self._rest[MAX_LINE_CHARS:]
        return lines

    def finish(self) -> list[str]:
        """What follows the last line end, as a line; an empty list when there is nothing."""
        rest = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        self._decoder.reset()
        return [rest] if rest else []

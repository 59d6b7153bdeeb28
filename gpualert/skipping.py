"""What of a long log is sent: its head, now and then a few lines of its middle, its end. The host counts the rest.

Nobody reads 5 GB in a task log, so they need not cross the network. What is left out is told as a number of lines, and
stays on the host. Counting goes on as the log grows, a bounded piece at a time, so that no neighbour waits for it.
"""

from __future__ import annotations

from typing import Any, Mapping

from gpualert.errors import ProtocolError
from gpualert.logfile import LogChunk, LogReader

#: Bytes that are looked through in one call of :meth:`Skipper.count`.
COUNT_BYTES = 8 * 1024 * 1024
#: When the launch has ended, at most so much more is counted: its end is not to wait for a number.
END_COUNT_BYTES = 256 * 1024 * 1024
#: The line that crosses the head's end is sent whole, if it is no longer than this beyond it.
HEAD_LINE_BYTES = 64 * 1024
#: So few bytes more than the tail are sent rather than left out.
SLACK_BYTES = 4096
_PIECE_BYTES = 1024 * 1024


class LogBudget:
    """
    How much of a log is sent.

    :param head_bytes: from the log's beginning, all generations counted together; then whole lines of it are left out.
    :param tail_bytes: of the end, when the launch has ended.
    :param sample_every_s: seconds between two samples of the middle.
    :param sample_bytes: of one sample, at most.
    """

    __slots__ = ("head_bytes", "sample_bytes", "sample_every_s", "tail_bytes")

    def __init__(self, head_bytes: int, tail_bytes: int, sample_every_s: float, sample_bytes: int) -> None:
        self.head_bytes = head_bytes
        self.tail_bytes = tail_bytes
        self.sample_every_s = sample_every_s
        self.sample_bytes = sample_bytes

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LogBudget:
        """:raises ProtocolError: a field is missing, is no number, or is negative."""
        numbers: dict[str, float] = {}
        for name in cls.__slots__:
            found = value.get(name) if isinstance(value, Mapping) else None
            if isinstance(found, bool) or not isinstance(found, (int, float)) or found < 0:
                raise ProtocolError(f"follow: budget.{name}: expected a number of at least 0, found {found!r:.100}")
            numbers[name] = found
        return cls(
            int(numbers["head_bytes"]),
            int(numbers["tail_bytes"]),
            numbers["sample_every_s"],
            int(numbers["sample_bytes"]),
        )


class Skipper:
    """
    What has been left out since the last byte that was sent: counted up to where the log's reader has come.

    :param reader: of the log; counting moves it.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.start = self.seen = reader.position
        self.lines = 0
        self.caught_up = False

    def count(self, up_to: int | None = None) -> LogChunk | None:
        """
        Look through what is there, at most :data:`COUNT_BYTES` of it.

        :param up_to: an offset to stop at.
        :return: None; or a chunk that was read but not counted, since it begins a new generation: the log was cut.
        """
        self.caught_up = False
        left = COUNT_BYTES
        while left > 0:
            wanted = _PIECE_BYTES if up_to is None else min(_PIECE_BYTES, up_to - self._reader.position[1])
            chunks = self._reader.read(max(0, wanted))  # also none: it looks whether the log was cut
            if not chunks:
                self.caught_up = True
                return None
            if chunks[0].generation != self.start[0]:
                return chunks[0]
            self.lines += chunks[0].data.count(b"\n")
            self.seen = (chunks[0].generation, chunks[0].end)
            left -= len(chunks[0].data)
        return None

    def message(self, to: tuple[int, int], lines: int, at_least: bool = False) -> dict[str, Any]:
        """``skipped``: what lies between the last byte that was sent and ``to``."""
        return {
            "type": "skipped",
            "from": {"generation": self.start[0], "offset": self.start[1]},
            "to": {"generation": to[0], "offset": to[1]},
            "lines": lines,
            "at_least": at_least,
        }


def last_lines(chunk: LogChunk, whole: bool) -> LogChunk | None:
    """
    The complete lines of a chunk.

    :param whole: it begins with a line's first byte.
    """
    start = 0 if whole else chunk.data.find(b"\n") + 1
    stop = chunk.data.rfind(b"\n") + 1
    if stop <= start or (not whole and start == 0):
        return None
    return LogChunk(chunk.generation, chunk.offset + start, chunk.data[start:stop])

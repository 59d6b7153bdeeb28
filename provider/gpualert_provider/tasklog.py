"""From bytes of a training's log to records of Airflow's task log, exactly once.

A record costs a triggerer 0.46 ms of CPU whatever its size, so lines are gathered: one record of many lines a second.
What
was emitted is told as a position in the log, and only that position may be acknowledged to the host; so a follower that
takes over repeats nothing that was printed and loses nothing that was not.

A task log is not the place for a gigabyte. What of a long log is sent is the host's business, which is given a budget;
here it is said how many lines were left out and where all of them are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpualert_provider.redaction import Redactor

#: Longest record, in bytes of log.
RECORD_BYTES = 64 * 1024
#: Default ceiling per task, for head and tail together.
CEILING_BYTES = 5_000_000
#: Of the ceiling, this much at most is kept for the end of the log.
TAIL_BYTES = 256 * 1024
#: Of what lies between head and tail, a few lines are shown so often.
SAMPLE_EVERY_S = 300.0
SAMPLE_BYTES = 4096
#: A line without an end (a progress bar) is shown as it stands after so long.
PARTIAL_AGE_S = 10.0

# Colours say nothing in a task log: SGR sequences are taken out. Every other escape is shown as text, so that it cannot
# act.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Also C1 controls, line separators that only some viewers know, and marks that turn the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_REPLACEMENT = b"\xef\xbf\xbd"


@dataclass(frozen=True, order=True)
class Position:
    """Everything before ``offset_bytes`` of this generation of the log has been dealt with."""

    generation: int
    offset_bytes: int


@dataclass(frozen=True)
class Record:
    """
    One entry for the task log.

    :param text: one line or several, without the last line break; decoded, harmless, redacted.
    :param time: unix time on the host at which the last line in it had been written; None where it is not known.
    :param lines: how many lines of the log it shows.
    """

    text: str
    time: float | None
    lines: int


class TaskLogWriter:
    """
    Takes pieces of a log in order and emits records.

    :param emit: puts one record into the task log. It is done when it returns.
    :param redactor: masks the task's secrets.
    :param log_path: where the whole log is, for the message about lines left out.
    :param start: where this follower begins; what lies before it, others have dealt with.
    """

    def __init__(
        self,
        emit: Callable[[Record], None],
        redactor: Redactor | None = None,
        *,
        log_path: str = "the run directory on the host",
        start: Position = Position(0, 0),
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        self._emit = emit
        self._redactor = redactor or Redactor()
        self._masking = self._redactor.stream()
        self._log_path = log_path
        self._record_bytes = record_bytes
        self._shown_to = start  # first byte that is not yet in a record
        self._pending = b""  # masked, begins at _shown_to
        self._partial_since: float | None = None
        self._time: float | None = None
        self._dropped_from: Position | None = None
        self._dropped_lines = 0
        self.replaced_characters = 0
        self.more = False
        self.records = 0

    @property
    def position(self) -> Position:
        """What may be acknowledged: everything before it is in the task log, or it says there that it is not."""
        return self._shown_to if self._dropped_from is None else self._dropped_from

    @property
    def end(self) -> Position:
        """Where the next byte is expected: behind all that was taken, printed or not."""
        return Position(self._shown_to.generation, self._shown_to.offset_bytes + self._unshown_bytes)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the next :meth:`flush` could emit."""
        return len(self._pending)

    def feed(self, generation: int, offset_bytes: int, data: bytes, time: float | None = None) -> None:
        """
        The next piece of the log. Nothing is emitted before :meth:`flush`.

        :param time: unix time on the host when its last byte had been written.
        """
        end = self.end
        if generation != end.generation or offset_bytes > end.offset_bytes:
            self._jump(Position(generation, offset_bytes), end)
        elif offset_bytes < end.offset_bytes:
            # Sent twice (a follower that took over): what was taken already is left out.
            data = data[end.offset_bytes - offset_bytes :]
        if not data:
            return
        if time is not None:
            self._time = time
        self._pending += self._masking.feed(data)

    def skip(self, to: Position, lines: int, at_least: bool = False) -> None:
        """
        What lies between :attr:`end` and ``to`` will not come; it is told at once, after all that came before it.

        :param lines: how many lines that is; ``at_least``: nobody counted to the end.
        """
        end = self.end
        if to <= end:
            return
        self._leave()
        if to.generation != end.generation:
            self._say_truncated(end)
        if lines or at_least:
            self._say_left_out(lines, at_least)
        else:
            self._say(f"[the rest of a line is not shown; all of it at {self._log_path}]")
        self._shown_to = to

    def drop_beyond(self, limit_bytes: int) -> None:
        """
        When more than ``limit_bytes`` wait to be emitted, leave out the older half of them, as whole lines. The next
        :meth:`flush` tells of it.
        """
        if len(self._pending) <= limit_bytes:
            return
        at = self._pending.find(b"\n", len(self._pending) - limit_bytes // 2) + 1
        if not at:
            return  # one line: it goes out in parts
        self._dropped_from = self.position
        self._dropped_lines += self._pending.count(b"\n", 0, at)
        self._pending = self._pending[at:]
        self._advance(at)

    def flush(self, now: float, final: bool = False, budget_bytes: int | None = None) -> bool:
        """
        Emit what is complete: whole lines, and a line without an end once it is old enough.

        :param now: monotonic seconds.
        :param final: the log has ended: everything goes out.
        :param budget_bytes: emit only about so much now; :attr:`more` tells whether to call again.
        :return: whether :attr:`position` moved.
        """
        before = self.position
        self._say_dropped()
        if final and self._masking.held_bytes:
            self._pending += self._masking.finish()
        self.more = self._drain(now, final, budget_bytes)
        return self.position != before

    # -- how much

    @property
    def _unshown_bytes(self) -> int:
        return len(self._pending) + self._masking.held_bytes

    def _drain(self, now: float, final: bool, budget_bytes: int | None = None) -> bool:
        """Whether the budget ended it."""
        at, pending = 0, self._pending
        enough = False
        while not enough and (size := self._ready(pending, at, now, final)):
            self._take(pending[at : at + size])
            at += size
            enough = budget_bytes is not None and at >= budget_bytes
        self._pending = pending[at:]
        return enough

    def _ready(self, pending: bytes, at: int, now: float, final: bool) -> int:
        """How many bytes from ``at`` on make the next record; 0 for none yet."""
        left = len(pending) - at
        if not left:
            self._partial_since = None
            return 0
        size = self._cut(pending, at)
        if size:
            self._partial_since = None
            return size
        if final:
            return left
        if self._partial_since is None:
            self._partial_since = now
        if now - self._partial_since < PARTIAL_AGE_S:
            return 0
        self._partial_since = None
        # A progress bar redraws its line: everything up to the last complete drawing is over.
        end = pending.rfind(b"\r", at + 1) + 1
        return end - at if end else _whole_characters(pending, at, left)

    def _cut(self, data: bytes, at: int) -> int:
        """
        The largest record from ``at`` on: of whole lines, or a part of a line that is too long; 0 when there is none.
        """
        end = data.rfind(b"\n", at, at + self._record_bytes) + 1
        if end:
            return end - at
        return _whole_characters(data, at, self._record_bytes) if len(data) - at >= self._record_bytes else 0

    def _take(self, piece: bytes) -> None:
        self._show(piece)
        self._advance(len(piece))

    def _advance(self, size: int) -> None:
        self._shown_to = Position(self._shown_to.generation, self._shown_to.offset_bytes + size)

    def _jump(self, to: Position, end: Position) -> None:
        """The log goes on elsewhere: it was truncated, or its beginning is gone."""
        self._leave()
        if to.generation != end.generation:
            self._say_truncated(end)
        else:
            self._say(f"[bytes {end.offset_bytes} to {to.offset_bytes} of the log are not there]")
        self._shown_to = to

    def _leave(self) -> None:
        """Emit all that was taken: what comes next does not follow it, and no mask reaches over."""
        self._pending += self._masking.finish()
        self._masking = self._redactor.stream()
        self._say_dropped()
        self._drain(0.0, True)
        self._partial_since = None

    def _say_left_out(self, lines: int, at_least: bool = False) -> None:
        count = f"{'at least ' if at_least else ''}{lines:,} line{'' if lines == 1 else 's'}"
        self._say(f"[{count} not shown; all of them at {self._log_path}]")

    def _say_dropped(self) -> None:
        if self._dropped_from is not None:
            self._say_left_out(self._dropped_lines)
            self._dropped_from, self._dropped_lines = None, 0

    def _say_truncated(self, end: Position) -> None:
        self._say(
            f"[the log was truncated by its writer at byte {end.offset_bytes}; what follows was written after that]"
        )

    # -- out

    def _show(self, piece: bytes) -> None:
        if b"\r" in piece:
            piece = b"\n".join(last_drawing(line) if b"\r" in line else line for line in piece.split(b"\n"))
        text = piece.removesuffix(b"\n").decode("utf-8", "replace")
        if "\ufffd" in text:
            self.replaced_characters += text.count("\ufffd") - piece.count(_REPLACEMENT)
        self._send(Record(self._redactor.text(harmless(text)), self._time, text.count("\n") + 1))

    def _say(self, text: str) -> None:
        self._send(Record(self._redactor.text(text), None, 0))

    def _send(self, record: Record) -> None:
        self.records += 1
        self._emit(record)


def log_budget(ceiling_bytes: int | None) -> dict[str, Any] | None:
    """
    What the host is asked to send of a log, as ``follow`` wants it.

    :param ceiling_bytes: head and tail together; the samples between them come on top. None: everything.
    """
    if ceiling_bytes is None:
        return None
    tail_bytes = min(TAIL_BYTES, ceiling_bytes // 4)
    return {
        "head_bytes": ceiling_bytes - tail_bytes,
        "tail_bytes": tail_bytes,
        "sample_every_s": SAMPLE_EVERY_S,
        "sample_bytes": min(SAMPLE_BYTES, tail_bytes),
    }


def last_drawing(line: bytes) -> bytes:
    """What a terminal would end up showing of a line that carriage returns redraw: its last part that is not empty."""
    for part in reversed(line.split(b"\r")):
        if part.strip():
            return part
    return b""


def harmless(text: str) -> str:
    """Text without colours, in which control characters are visible instead of active. Tabs stay."""
    return _CONTROL.sub(lambda match: _escaped(match.group()), _COLOUR.sub("", text))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _whole_characters(data: bytes, at: int, size: int) -> int:
    """
    The largest cut of at most ``size`` bytes from ``at`` on that splits no UTF-8 character; ``size`` where it is no
    UTF-8.
    """
    for back in range(1, min(4, size) + 1):
        byte = data[at + size - back]
        if byte & 0xC0 == 0x80:
            continue
        needs = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return size - back if needs > back and size > back else size
    return size

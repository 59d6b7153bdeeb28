"""Follow one launch: its log from a position on, its state when that changes, and at last its outcome.

The bytes of a launch are on the host's disk whether anybody follows or not; following only reads. So a follower may
stop at any byte, and the next one goes on from the last position that was acknowledged: nothing is lost, and in normal
running nothing comes twice.
"""

from __future__ import annotations

import _thread
import time
from typing import Any, Callable, Iterator

from gpualert import control, procfs, records, report
from gpualert.errors import ProtocolError, RunDirectoryError
from gpualert.logfile import LogChunk, LogReader, TimeIndex
from gpualert.records import RunRecord, RunState
from gpualert.rundir import RunDirectory
from gpualert.skipping import END_COUNT_BYTES, HEAD_LINE_BYTES, SLACK_BYTES, LogBudget, Skipper, last_lines

#: Bytes of log in one frame, and in one call of :meth:`Follower.poll`.
CHUNK_BYTES = 64 * 1024
BATCH_BYTES = 512 * 1024
#: Seconds between looks at a log: short while it grows, longer while it is quiet.
SHORTEST_DELAY_S = 0.02
LONGEST_DELAY_S = 0.5
#: Seconds between full looks at the state; the end itself is noticed at every look at the log.
STATE_EVERY_S = 1.0
BEAT_EVERY_S = 10.0
ACK_EVERY_S = 1.0
#: An outcome that is there in so short a time is not asked for twice.
_REPORT_PATIENCE_S = 0.02
#: How long the end may wait for what the child left running to be ended too (10 s of grace, 5 s of killing): whoever is
#: told of the end may start the next training on the same GPU.
TREE_WAIT_S = 16.0


class Follower:
    """
    Gives the contents of frames, whenever asked; it never waits.

    :param position: (generation, offset) of the first byte wanted; None: what the last follower acknowledged, else the
        log's first byte.
    :param epoch: the epoch taken by attaching; None for a mere reader, whose acknowledgements are not kept.
    :param budget: what of a long log is given; None: all of it.
    :param clock: seconds since the epoch; ``monotonic``: seconds since whenever.
    :raises RunDirectoryError: there is no such launch, or its files cannot be read.
    """

    def __init__(
        self,
        run_directory: str,
        position: tuple[int, int] | None = None,
        *,
        epoch: int | None = None,
        verdict_wait_s: float = 5.0,
        budget: LogBudget | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = RunDirectory(run_directory)
        self._epoch = epoch
        self._report = _Report(self._files.path, verdict_wait_s)
        self._clock = clock
        self._monotonic = monotonic
        self.record: RunRecord = records.read(run_directory)
        self._leftovers_are_kept = (self._files.read_spec() or {}).get("leftovers") == "keep"
        self.finished = False
        self.delay_s = 0.0
        generation, offset = self._acknowledged() if position is None else position
        self._index = TimeIndex(self._files.index_path)
        current = current_generation(self.record, self._index, generation)
        # A log that was cut since is read from its new beginning: `offset` means another byte there.
        start = (generation, offset) if current == generation else (current, 0)
        self._reader = LogReader(self._files.log_path, *start)
        self._caught_up = self._ever_caught_up = False
        self._sent = (generation, offset)
        self._ack: tuple[int, int, bool] | None = None
        self._ack_saved_at = self._looked_at = self._beat_at = monotonic()
        self._end_seen_at: float | None = None
        self._goal: int | None = None
        self._budget = budget
        self._before_bytes = 0 if budget is None else self._index.bytes_before_generation(start[0])
        self._skipper: Skipper | None = None
        self._sample_at = self._looked_at
        self._line_is_whole = True
        if budget is not None and self._before_bytes + start[1] >= budget.head_bytes:
            self._skip(self._looked_at)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """All messages to the end, waiting in between."""
        while not self.finished:
            yield from self.poll()
            if self.delay_s and not self.finished:
                time.sleep(self.delay_s)

    def close(self) -> None:
        self._reader.close()

    @property
    def position(self) -> tuple[int, int]:
        """(generation, offset) behind the last byte that :meth:`poll` gave."""
        return self._sent

    def poll(self, max_bytes: int = BATCH_BYTES) -> list[tuple[dict[str, Any], bytes]]:
        """
        What is new, in order: ``state``, ``gap``, ``skipped`` and ``log``, ``beat``, ``ended``.

        :param max_bytes: of log, at most so much; 0 for none now.

        ``delay_s`` then says when to ask again; ``finished``, whether ``ended`` was given.
        """
        messages: list[tuple[dict[str, Any], bytes]] = []
        if self.finished:
            return messages
        now = self._monotonic()
        self._look(now, messages)
        if self._skipper is not None:
            self._read_beyond_head(self._skipper, now, messages, max_bytes)
        else:
            self._read_log(messages, max_bytes)
        # Not in the same batch as the last bytes of the log, which need not wait for the verdict.
        outcome = self._report.outcome() if not messages and self._all_is_read(now) else None
        if outcome is not None:
            messages.append(({"type": "ended", "outcome": outcome}, b""))
            self.finished = True
        elif messages:
            self._beat_at = now
        elif now - self._beat_at >= BEAT_EVERY_S:
            self._beat_at = now
            messages.append(({"type": "beat", "time": self._clock()}, b""))
        if self._ack is not None and now - self._ack_saved_at >= ACK_EVERY_S:
            self.save_acknowledged()
        self._set_delay(any(header["type"] == "log" for header, _ in messages))
        return messages

    def acknowledge(self, generation: int, offset: int, ended: bool = False) -> None:
        """
        All bytes before this position are safely delivered; kept at once or a little later.

        :param ended: the outcome has been reported too.
        :raises ProtocolError: that byte was never given.
        """
        if (generation, offset) > self._sent:
            raise ProtocolError(f"ack: expected a position up to {self._sent}, found {(generation, offset)}")
        if self._ack is None or (generation, offset, ended) > self._ack:
            self._ack = (generation, offset, ended)

    def save_acknowledged(self) -> None:
        """
        Write the last acknowledgement down, unless a later follower has taken over: its word counts then.

        It never takes back what an earlier one said: who was given nothing acknowledges the end with (0, 0). Where the
        disk refuses, it is tried again later: at worst the next follower is sent once more what this one has had.
        """
        if self._ack is None or self._epoch is None:
            return
        if self._files.epoch() <= self._epoch:
            before = self._files.read_ack() or {}
            generation, offset = max(self._ack[:2], self._acknowledged())
            try:
                self._files.write_ack(generation, offset, self._ack[2] or bool(before.get("ended")))
            except RunDirectoryError:
                self._ack_saved_at = self._monotonic()
                return
        self._ack_saved_at = self._monotonic()
        self._ack = None

    # ---- state

    def _look(self, now: float, messages: list[tuple[dict[str, Any], bytes]]) -> None:
        """Read the state when it is time. The end must be known *before* the log is read for the last time."""
        if self._end_seen_at is not None and self.record.survivors is not None:
            return
        if now - self._looked_at < STATE_EVERY_S and self._end_seen_at is None and not self._files.has_ended():
            return
        before, self.record = self.record, records.read(self._files.path)
        self._looked_at = now
        if self.record.supervised is False:
            control.tend(self._files)
        if _face(before) != _face(self.record):
            messages.append(({"type": "state", "record": self.record.to_json()}, b""))
        if self.record.state.ended and self._end_seen_at is None:
            self._end_seen_at = now

    def _all_is_read(self, now: float) -> bool:
        """The child has ended, what it left running was seen to, and the log as it was then has been given."""
        if self._skipper is not None or not self._is_over(now):
            return False
        if self._goal is None:
            # What was left running on purpose may write for ever; the log as it is now is the launch's.
            self._goal = self._reader.size() or 0
        return self._caught_up or self._reader.position[1] >= self._goal

    def _is_over(self, now: float) -> bool:
        if self._end_seen_at is None:
            return False
        return not self._tree_is_awaited() or now - self._end_seen_at >= TREE_WAIT_S

    def _tree_is_awaited(self) -> bool:
        record = self.record
        if record.survivors is not None or record.state is RunState.LOST:
            return False
        if record.stopped_by is None and self._leftovers_are_kept:
            return False
        started = self._files.read_started() or {}
        keepers = [started[name] for name in ("supervisor", "guard") if started.get(name)]
        return any(procfs.alive(procfs.ProcessIdentity.from_json(keeper)) is not False for keeper in keepers)

    # ---- log

    def _read_log(self, messages: list[tuple[dict[str, Any], bytes]], max_bytes: int) -> None:
        was_caught_up, self._caught_up = self._caught_up, False
        total = 0
        while total < max_bytes:
            chunks = self._reader.read(min(CHUNK_BYTES, max_bytes - total))
            if not chunks:
                self._caught_up = self._ever_caught_up = True
                return
            for chunk in chunks:
                if chunk.generation != self._sent[0]:
                    self._before_bytes += self._sent[1]
                    messages.append((self._gap(chunk), b""))
                kept = self._within_head(chunk)
                messages.extend(self._timed(kept, was_caught_up))
                self._sent = (kept.generation, kept.end)
                total += len(kept.data)
                if self._skipper is not None:
                    return

    def _within_head(self, chunk: LogChunk) -> LogChunk:
        """The chunk, up to the end of the line that uses up the budget's head; what follows is to be skipped."""
        budget = self._budget
        if budget is None:
            return chunk
        left = budget.head_bytes - self._before_bytes - chunk.offset
        if left > len(chunk.data):
            return chunk
        at = chunk.data.find(b"\n", max(0, left - 1)) + 1
        if not at:
            if len(chunk.data) - left < HEAD_LINE_BYTES:
                return chunk
            at = len(chunk.data)
        kept = LogChunk(chunk.generation, chunk.offset, chunk.data[:at])
        self._read_from(kept.generation, kept.end)
        self._skip(self._monotonic())
        self._line_is_whole = kept.data.endswith(b"\n")
        return kept

    # ---- beyond the head of a log with a budget

    def _read_from(self, generation: int, offset: int) -> None:
        self._reader.close()
        self._reader = LogReader(self._files.log_path, generation, offset)

    def _skip(self, now: float) -> None:
        self._skipper = Skipper(self._reader)
        self._sample_at = now
        self._caught_up = False

    def _read_beyond_head(
        self, skipper: Skipper, now: float, messages: list[tuple[dict[str, Any], bytes]], max_bytes: int
    ) -> None:
        assert self._budget is not None
        over = self._is_over(now)
        if over and self._goal is None:
            # What was left running on purpose may write for ever; the log as it is now is the launch's.
            self._goal = self._reader.size() or 0
        cut = skipper.count(self._goal)
        self._caught_up = skipper.caught_up and self._goal is None
        if cut is not None:
            self._begin_generation(skipper, cut, messages)
            return
        generation, offset = self._reader.position
        if generation != skipper.start[0]:
            # It was cut to nothing: its first byte will tell, if there is to be one.
            if self._goal is not None and not self._reader.size():
                self._tell_skipped(skipper, skipper.seen, skipper.lines, False, messages)
                self._skipper = self._budget = None
            return
        if self._goal is not None:
            if skipper.caught_up or self._goal - offset > END_COUNT_BYTES + self._budget.tail_bytes:
                self._show_tail(skipper, self._goal, messages)
        elif now - self._sample_at >= self._budget.sample_every_s and max_bytes > 0 and offset > skipper.start[1]:
            self._sample_at = now
            self._show_sample(skipper, min(self._budget.sample_bytes, max_bytes), messages)

    def _begin_generation(self, skipper: Skipper, cut: LogChunk, messages: list[tuple[dict[str, Any], bytes]]) -> None:
        """The log was cut while it was skipped: what was seen of it until then is told, then the gap."""
        self._tell_skipped(skipper, skipper.seen, skipper.lines, False, messages)
        self._before_bytes += skipper.seen[1]
        messages.append((self._gap(cut), b""))
        self._sent = (cut.generation, cut.offset)
        self._goal = None
        self._read_from(*self._sent)
        self._skipper, self._line_is_whole = Skipper(self._reader), True

    def _show_sample(self, skipper: Skipper, size: int, messages: list[tuple[dict[str, Any], bytes]]) -> None:
        """The last complete lines before where counting has come to."""
        generation, end = self._reader.position
        found = self._piece_before(skipper, end, size)
        if found is None:
            return
        piece, data = found
        lines = skipper.lines - data.count(b"\n", piece.offset - (end - len(data)))
        self._tell_skipped(skipper, (generation, piece.offset), lines, False, messages)
        messages.extend(self._timed(piece, False))
        self._sent = (generation, piece.end)
        # What follows the last complete line has no line break in it: nothing is counted twice.
        skipper.start, skipper.lines = self._sent, 0
        self._line_is_whole = True

    def _piece_before(self, skipper: Skipper, end: int, size: int) -> tuple[LogChunk, bytes] | None:
        """Complete lines, and all the bytes up to ``end`` that they were found in."""
        start = max(skipper.start[1], end - size)
        with LogReader(self._files.log_path, skipper.start[0], start) as reader:
            chunks = reader.read(end - start)
        self._reader.read(0)
        if self._reader.position[0] != skipper.start[0] or not chunks or chunks[0].end != end:
            return None  # cut meanwhile: these may be other bytes
        piece = last_lines(chunks[0], start == skipper.start[1] and self._line_is_whole)
        return None if piece is None else (piece, chunks[0].data)

    def _show_tail(self, skipper: Skipper, goal: int, messages: list[tuple[dict[str, Any], bytes]]) -> None:
        """The launch has ended: say what is left out for good; what follows is read as any log."""
        assert self._budget is not None
        generation, counted_to = self._reader.position
        start, tail = skipper.start[1], self._budget.tail_bytes
        if goal - start > tail + SLACK_BYTES:
            with LogReader(self._files.log_path, generation, goal - tail) as reader:
                data = b"".join(chunk.data for chunk in reader.read(tail)) if tail else b""
            cut = data.find(b"\n") + 1
            lines = skipper.lines - (data.count(b"\n", cut) if counted_to == goal else 0)
            start = goal - tail + cut
            self._tell_skipped(skipper, (generation, start), lines, counted_to != goal, messages)
        self._read_from(generation, start)
        self._skipper = self._budget = None

    def _tell_skipped(
        self,
        skipper: Skipper,
        to: tuple[int, int],
        lines: int,
        at_least: bool,
        messages: list[tuple[dict[str, Any], bytes]],
    ) -> None:
        if to > skipper.start:
            messages.append((skipper.message(to, lines, at_least), b""))
            self._sent = to

    def _gap(self, chunk: LogChunk) -> dict[str, Any]:
        """Somebody cut the log: what was not read until then is gone."""
        generation, offset = self._sent
        return {
            "type": "gap",
            "from": {"generation": generation, "offset": offset},
            "to": {"generation": chunk.generation, "offset": chunk.offset},
        }

    def _timed(self, chunk: LogChunk, fresh: bool) -> Iterator[tuple[dict[str, Any], bytes]]:
        """
        The chunk as ``log`` messages, cut where the time changes.

        ``time`` says by when the bytes were in the log: now for what was not there a moment ago, else what the index
        knows; null when nobody saw.
        """
        now, start = self._clock(), 0
        while start < len(chunk.data):
            offset, end = chunk.offset + start, len(chunk.data)
            when: float | None = now
            if not fresh:
                when, end = self._from_index(chunk, start)
                if when is None:
                    when = self._time_without_index(now)
            header = {"type": "log", "generation": chunk.generation, "offset": offset, "time": when}
            yield header, chunk.data[start:end]
            start = end

    def _from_index(self, chunk: LogChunk, start: int) -> tuple[float | None, int]:
        """The index's time for the byte at ``start`` of the chunk, and where in the chunk that time ends."""
        when = self._index.lookup(chunk.generation, chunk.offset + start)
        low, high = start + 1, len(chunk.data)
        if self._index.lookup(chunk.generation, chunk.offset + high - 1) == when:
            return when, high
        while low < high:  # the first byte with another time; the index is in order
            middle = (low + high) // 2
            if self._index.lookup(chunk.generation, chunk.offset + middle) == when:
                low = middle + 1
            else:
                high = middle
        return when, low

    def _time_without_index(self, now: float) -> float | None:
        """A time not later than the truth by more than a step of the index; else None."""
        if self._ever_caught_up:
            return now
        began, ended = self.record.started_at, self.record.ended_at
        latest = now if ended is None else ended
        short = began is not None and 0 <= latest - began <= TimeIndex.FIRST_STEP_S
        return latest if short else None

    # ---- small things

    def _acknowledged(self) -> tuple[int, int]:
        found = self._files.read_ack()
        return (0, 0) if found is None else (int(found["generation"]), int(found["offset"]))

    def _set_delay(self, busy: bool) -> None:
        if self._skipper is not None and self._goal is None and not self._caught_up:
            self.delay_s = SHORTEST_DELAY_S  # counting is no reason to keep a processor busy
        elif not self._caught_up or (busy and self._end_seen_at is not None):
            self.delay_s = 0.0
        elif busy or self._end_seen_at is not None:
            self.delay_s = SHORTEST_DELAY_S
        else:
            self.delay_s = min(LONGEST_DELAY_S, max(SHORTEST_DELAY_S, self.delay_s * 1.5))


class _Report:
    """
    The outcome, built beside whoever follows: it may have to wait for the observer, or to scan the log itself, and one
    launch's end must not hold up its neighbours' lines.
    """

    def __init__(self, path: str, verdict_wait_s: float) -> None:
        self._path = path
        self._verdict_wait_s = verdict_wait_s
        self._begun = False
        self._done = _thread.allocate_lock()
        self._found: dict[str, Any] | None = None
        self._error: BaseException | None = None

    def outcome(self) -> dict[str, Any] | None:
        """None as long as it is being built. Raises what building it raised."""
        if not self._begun:
            self._begun = True
            self._done.acquire()
            _thread.start_new_thread(self._build, ())
        if not self._done.acquire(timeout=_REPORT_PATIENCE_S):
            return None
        self._done.release()
        if self._error is not None:
            raise self._error
        return self._found

    def _build(self) -> None:
        try:
            self._found = report.build(self._path, verdict_wait_s=self._verdict_wait_s).to_json()
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()


def current_generation(record: RunRecord, index: TimeIndex, known: int) -> int:
    """
    Which generation the log's first byte belongs to now, as far as the observer or the supervisor has seen.

    :param known: the generation that the caller has heard of; never less than this is returned.
    """
    current = max(known, record.log_generation)
    while index.lookup(current + 1, 0) is not None:
        current += 1
    return current


def _face(record: RunRecord) -> tuple[Any, ...]:
    """What a watcher wants to hear of when it changes."""
    return (
        record.state,
        record.child_pid,
        record.supervised,
        record.stop_requested,
        record.setup_failed,
        record.log_truncated,
        record.survivors is None,
        record.epoch,
    )

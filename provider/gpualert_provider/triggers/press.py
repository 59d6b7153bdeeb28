"""Who prints when: all triggers of one triggerer share one way into Airflow's task logs, and it is narrow.

Airflow 3.3's triggerer reads its runner's log 4 KiB at a time, and goes through its main loop, with some database
queries, after each piece: about 5 ms of CPU (measured with SQLite). So what counts is how many pieces it is woken for.
A hundred triggers that print a line each, one after another, cost half a core; the same lines in four bursts a second
cost a tenth of that. And more than some 600 KiB a second cannot get through at all. A write that finds the socket full
blocks the runner's event loop, and with it every trigger.

Hence: printing happens in bursts, in turns, with so many bytes a second and only where there is room. A trigger never
waits for its turn; it goes on reading what its host sends. What is waiting has a bound that all triggers share, and
what does not fit is left out with a word where it is, so that no flood can delay the word that a training has ended.

Source: ``make_buffered_socket_reader`` (airflow/sdk/execution_time/supervisor.py), ``TriggerRunnerSupervisor.run_once``
in airflow/jobs/triggerer_job_runner.py.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpualert_provider.hooks import connections
from gpualert_provider.triggers.own_sockets import OWN_SOCKETS, OwnSockets

#: How often there is a burst while somebody has something to print.
BURST_S = 0.25
#: The same while a training's end waits for its last lines.
_URGENT_S = 0.05
#: A trigger prints no more often.
SHORTEST_INTERVAL_S = 1.0
#: So much of all training logs goes to task logs in a second, what Airflow adds to each record included.
BYTES_PER_S = 80 * 1024
#: What Airflow adds to a record: time, level, logger and trigger, as JSON.
_RECORD_OVERHEAD_BYTES = 300
#: With at most so much unread, a record of 64 KiB (some more as JSON) still finds room without blocking.
ROOM_BYTES = 32 * 1024
#: Of log that has come and is not printed, all triggers together; when it is more, each has an equal share, or at least
#: the second of these.
WAITING_BYTES = 2 * 1024 * 1024
_LEAST_WAITING_BYTES = 8 * 1024
#: Of the beginnings of all logs that are followed, together; and of one log at least.
HEADS_BYTES = 64 * 1024 * 1024
_LEAST_CEILING_BYTES = 256 * 1024

#: Prints a record or a few; returns how many bytes of text, and whether there is more to print now.
Printer = Callable[[], tuple[int, bool]]


@dataclass(eq=False)
class _Turn:
    """One trigger's wish to print."""

    printer: Printer
    context: contextvars.Context
    not_before: float
    done: asyncio.Future[None] | None = None  # of one that has to print all it has


@dataclass(eq=False)
class _Reader:
    """Somebody who waits until all that was written before has been read."""

    written_bytes: int
    read: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Press:
    """
    Of all triggers of one event loop.

    :param sockets: those to the triggerer's supervisor.
    :param clock: monotonic seconds.
    """

    def __init__(self, sockets: OwnSockets = OWN_SOCKETS, clock: Callable[[], float] = time.monotonic) -> None:
        self._sockets = sockets
        self._clock = clock
        self._followers = weakref.WeakSet[object]()
        self._turns: dict[object, _Turn] = {}  # in the order in which they come
        self._urgent: deque[_Turn] = deque()
        self._waiting: dict[object, int] = {}
        self._waiting_bytes = 0
        self._last_at = weakref.WeakKeyDictionary[object, float]()
        self._allowance = 0.0
        self._earned_at = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._written_bytes = 0
        self._readers: list[_Reader] = []
        self._reading: asyncio.TimerHandle | None = None

    # -- what everybody may have

    def joins(self, who: object) -> None:
        """``who`` follows a log from here on, as long as it lives or until it :meth:`leaves`."""
        self._followers.add(who)

    def leaves(self, who: object) -> None:
        self._followers.discard(who)
        self._turns.pop(who, None)
        self._waiting_bytes -= self._waiting.pop(who, 0)

    def may_wait(self, who: object, waiting_bytes: int) -> int:
        """
        How much log ``who`` may have waiting now, when it has ``waiting_bytes``: all of it as long as there is room for
        everybody's.
        """
        self._waiting_bytes += waiting_bytes - self._waiting.get(who, 0)
        self._waiting[who] = waiting_bytes
        if self._waiting_bytes <= WAITING_BYTES:
            return WAITING_BYTES
        return max(_LEAST_WAITING_BYTES, WAITING_BYTES // max(1, len(self._turns) + len(self._urgent)))

    def ceiling_bytes(self, wanted: int | None) -> int | None:
        """Of ``wanted`` bytes of one log, how many are to be asked for among so many followers."""
        if wanted is None:
            return None
        return min(wanted, max(_LEAST_CEILING_BYTES, HEADS_BYTES // max(1, len(self._followers))))

    # -- printing

    def ask(self, who: object, printer: Printer, context: contextvars.Context) -> None:
        """
        ``who`` has something to print, and will be called when it may. Asking again before that changes nothing.

        :param printer: called in ``context``, which decides in which task's log it prints. It must not raise.
        """
        if who not in self._turns:
            last = self._last_at.get(who)
            not_before = self._clock() if last is None else last + SHORTEST_INTERVAL_S
            self._turns[who] = _Turn(printer, context, not_before)
            self._wind(BURST_S)

    async def finish(self, who: object, printer: Printer, context: contextvars.Context) -> None:
        """Print all of it, before anybody else prints: an end waits for it."""
        self._turns.pop(who, None)
        turn = _Turn(printer, context, 0.0, asyncio.get_running_loop().create_future())
        self._urgent.append(turn)
        self._wind(0.0)
        try:
            assert turn.done is not None
            await turn.done
        finally:
            if turn in self._urgent:
                self._urgent.remove(turn)

    def _wind(self, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + after_s:
                return
            self._timer.cancel()
        # In an empty context: what is printed belongs to whoever prints it.
        self._timer = loop.call_later(after_s, self._burst, context=contextvars.Context())

    def _burst(self) -> None:
        self._timer = None
        now = self._clock()
        self._allowance = min(BYTES_PER_S, self._allowance + BYTES_PER_S * (now - self._earned_at))
        self._earned_at = now
        unread = self._sockets.unread_bytes()
        room = float(ROOM_BYTES - (unread or 0))
        for _ in range(len(self._urgent)):
            if room <= 0:
                break
            turn = self._urgent.popleft()
            size, more = self._print(turn)
            room -= size
            self._allowance -= size
            if more:
                self._urgent.append(turn)
            elif turn.done is not None and not turn.done.done():
                turn.done.set_result(None)
        for who, turn in list(self._turns.items()):
            if room <= 0 or self._allowance <= 0 or self._urgent:
                break
            if turn.not_before > now:
                continue
            del self._turns[who]
            size, more = self._print(turn)
            room -= size
            self._allowance -= size
            if size:
                self._last_at[who] = now
            if more:
                self._turns[who] = _Turn(turn.printer, turn.context, now)
        if self._urgent:
            self._wind(_URGENT_S)
        elif self._turns:
            self._wind(BURST_S)

    def _print(self, turn: _Turn) -> tuple[int, bool]:
        size, more = turn.context.run(turn.printer)
        self._written_bytes += size
        return (size + _RECORD_OVERHEAD_BYTES if size else 0), more

    # -- the other end

    async def read(self, limit_s: float = 60.0) -> bool:
        """
        Wait until the supervisor has read all that was printed until now: it closes a trigger's log file as soon as it
        hears, over another socket, that the trigger has finished.

        :param limit_s: seconds; a supervisor that is stuck must not keep a trigger for ever.
        :return: whether that came true. False also where it cannot be seen.
        """
        if self._sockets.unread_bytes() is None:
            return False
        reader = _Reader(self._written_bytes)
        self._readers.append(reader)
        self._look()
        try:
            await connections.within(reader.read, limit_s)
            return True
        except TimeoutError:
            return False
        finally:
            if reader in self._readers:
                self._readers.remove(reader)

    def _look(self) -> None:
        """One look for all who wait. What is unread is the end of what was written; JSON is never shorter than text."""
        if self._reading is not None:
            return
        unread = self._sockets.unread_bytes() or 0
        for reader in list(self._readers):
            if unread <= self._written_bytes - reader.written_bytes:
                self._readers.remove(reader)
                if not reader.read.done():
                    reader.read.set_result(None)
        if self._readers:
            self._reading = asyncio.get_running_loop().call_later(
                _URGENT_S, self._look_again, context=contextvars.Context()
            )

    def _look_again(self) -> None:
        self._reading = None
        self._look()


_OF_LOOP = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Press]()


def press() -> Press:
    """The running event loop's."""
    return _OF_LOOP.setdefault(asyncio.get_running_loop(), Press())

"""How often a trigger prints: a record costs the same whatever its size, and all triggers share one process.

Two measures. The more triggers have something to print, the longer each gathers lines before it does; and no more than
so many records a second leave one event loop, whatever anybody has gathered.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Callable

#: Records a second in one triggerer: at 0.46 ms each, a quarter of a core.
RECORDS_PER_S = 500
SHORTEST_INTERVAL_S = 1.0
#: So much of a second's records may leave at once.
_BURST_S = 0.1


class Pace:
    """
    Of all triggers of one event loop.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._printing = weakref.WeakSet[object]()
        self._next_at = 0.0

    def interval_s(self) -> float:
        """How long each trigger gathers lines now."""
        return max(SHORTEST_INTERVAL_S, len(self._printing) / RECORDS_PER_S)

    def first_s(self) -> float:
        """How long a trigger that begins waits for its first record: a thousand do not print in the same moment."""
        return random.random() * self.interval_s()

    def note(self, who: object, prints: bool) -> None:
        """Whether ``who`` has something to print."""
        if prints:
            self._printing.add(who)
        else:
            self._printing.discard(who)

    def reserve_s(self) -> float:
        """Take the next record's place; how long to wait for it."""
        now = self._clock()
        self._next_at = max(now, self._next_at) + 1.0 / RECORDS_PER_S
        return max(0.0, self._next_at - now - _BURST_S)

    async def turn(self) -> None:
        """Wait until a record may be printed."""
        wait_s = self.reserve_s()
        if wait_s:
            await asyncio.sleep(wait_s)


_OF_LOOP = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Pace]()


def pace() -> Pace:
    """The running event loop's."""
    return _OF_LOOP.setdefault(asyncio.get_running_loop(), Pace())

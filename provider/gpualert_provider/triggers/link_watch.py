"""How long the link to a host has been gone, when to try again, and when to say so. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds of silence after which people are told, and then once every hour.
TELL_AT_S = (60.0, 300.0, 1800.0)
TELL_EVERY_S = 3600.0
#: Waits between tries are random between nothing and a bound that doubles: a host that comes back is not run over.
FIRST_BOUND_S = 1.0
LARGEST_BOUND_S = 60.0
#: For what does not pass by itself (a wrong key, no Python); it is tried all the same, since somebody may repair it.
LASTING_BOUND_S = 300.0


class LinkWatch:
    """
    Told of every failure and every sign of life.

    :param patience_s: silence after which :attr:`exhausted` is true.
    :param clock: monotonic seconds.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience_s = patience_s
        self._clock = clock
        self._heard_at = clock()
        self._failures = 0
        self._lasting = False
        self._next_tell_s: float | None = None
        self._told_lasting: str | None = None
        self.last_problem = ""

    @property
    def lost_for_s(self) -> float:
        return self._clock() - self._heard_at

    @property
    def exhausted(self) -> bool:
        return self._failures > 0 and self.lost_for_s >= self.patience_s

    def failed(self, problem: str, lasting: bool = False) -> None:
        """:param lasting: it will not pass by itself; people are told at once."""
        if not self._failures:
            self._next_tell_s = TELL_AT_S[0]
        self._failures += 1
        self._lasting = lasting
        self.last_problem = problem

    def succeeded(self) -> list[str]:
        """The host was heard. What to say: something only if its absence had been told."""
        gone_s, told = (
            self.lost_for_s,
            self._failures > 0 and (self._told_lasting is not None or (self._next_tell_s or 0) > TELL_AT_S[0]),
        )
        self._heard_at = self._clock()
        if not self._failures:
            return []
        self._failures = 0
        self._next_tell_s = self._told_lasting = None
        return [f"reached again after {_duration(gone_s)}; nothing of the log is lost."] if told else []

    def due(self) -> list[str]:
        """What to say now; most often nothing."""
        if not self._failures:
            return []
        if self._lasting and self._told_lasting != self.last_problem:
            self._told_lasting = self.last_problem
            return [self.last_problem]
        if self._next_tell_s is not None and self.lost_for_s >= self._next_tell_s:
            self._next_tell_s = self._after(self.lost_for_s)
            left = max(0.0, self.patience_s - self.lost_for_s)
            return [
                f"Not reached for {_duration(self.lost_for_s)}; trying on for another {_duration(left)}. "
                f"{self.last_problem}"
            ]
        return []

    def next_wait_s(self, random: float) -> float:
        """:param random: from 0 to 1."""
        largest = LASTING_BOUND_S if self._lasting else LARGEST_BOUND_S
        bound = min(largest, FIRST_BOUND_S * 2.0 ** min(self._failures - 1, 20))
        waits = [bound * random, max(0.0, self.patience_s - self.lost_for_s)]
        if self._next_tell_s is not None:
            waits.append(max(0.0, self._next_tell_s - self.lost_for_s) + 0.01)
        return min(waits)

    @staticmethod
    def _after(lost_for_s: float) -> float:
        for moment in TELL_AT_S:
            if moment > lost_for_s:
                return moment
        return TELL_AT_S[-1] + TELL_EVERY_S * (int((lost_for_s - TELL_AT_S[-1]) // TELL_EVERY_S) + 1)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""Wait for a condition with a deadline, and say which one did not come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DidNotHappen(AssertionError):
    """The deadline passed first. The message names what was awaited and what was seen instead."""


def wait_until(
    predicate: Callable[[], T],
    deadline_s: float,
    what: str | Callable[[], str],
    interval_s: float = 0.05,
    ignore: tuple[type[Exception], ...] = (),
) -> T:
    """
    Ask again and again until the answer is true.

    :param predicate: asked every ``interval_s``, the last time after the deadline, so that a machine that stood still
        for the whole wait is not taken for a condition that never came true.
    :param deadline_s: seconds from now.
    :param what: what should happen, as a clause ("the task is deferred"); a callable is asked at the end and may add
        details.
    :param ignore: exceptions of the predicate that mean "not yet" (a server that is still starting); others pass.
    :return: the predicate's first true answer.
    :raises DidNotHappen: with ``what`` and the last answer or the last ignored exception.
    """
    end = time.monotonic() + deadline_s
    while True:
        late = time.monotonic() > end
        try:
            seen: object = predicate()
        except ignore as error:
            seen = error
        else:
            if seen:
                return seen  # type: ignore[return-value]
        if late:
            clause = what() if callable(what) else what
            raise DidNotHappen(f"not within {deadline_s:g} s: {clause}; last seen: {_bounded(seen)}")
        time.sleep(interval_s)


def _bounded(value: object, limit: int = 2000) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"

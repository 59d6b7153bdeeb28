"""All triggers of one triggerer share one way into the task logs: in bursts, in turns, and never more than fits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gpualert_provider.triggers import press as presses
from gpualert_provider.triggers.press import BYTES_PER_S, HEADS_BYTES, ROOM_BYTES, WAITING_BYTES, Press
from tests.support.waiting import wait_until

WHOSE: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")


class Sockets:
    """The way to the supervisor, as far as the test lets it be read."""

    def __init__(self) -> None:
        self.unread: int | None = 0
        self.looks = 0  # one before each burst

    def unread_bytes(self) -> int | None:
        self.looks += 1
        return self.unread


class Printer:
    """Has so many records of so many bytes to print."""

    def __init__(self, records: int = 1, size: int = 100, whose: str = "mine") -> None:
        self.left, self.size = records, size
        self.bursts: list[float] = []
        self.whose: list[str] = []
        self.context = contextvars.copy_context()
        self.context.run(WHOSE.set, whose)

    def __call__(self) -> tuple[int, bool]:
        if not self.left:
            return 0, False
        self.left -= 1
        self.bursts.append(asyncio.get_running_loop().time())
        self.whose.append(WHOSE.get())
        return self.size, self.left > 0


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes ten times as fast."""
    for name in ("BURST_S", "_URGENT_S", "SHORTEST_INTERVAL_S"):
        monkeypatch.setattr(presses, name, getattr(presses, name) / 10)
    monkeypatch.setattr(presses, "BYTES_PER_S", BYTES_PER_S * 10)


def with_press(story: Callable[[Press, Sockets], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        sockets = Sockets()
        return await story(Press(sockets), sockets)  # type: ignore[arg-type]

    return asyncio.run(whole())


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, 20, "it is printed", interval_s=0.002)


def test_many_print_in_the_same_burst(fast: None) -> None:
    """The supervisor is woken once for all of them."""
    printers = [Printer() for _ in range(50)]

    async def story(press: Press, sockets: Sockets) -> int:
        for printer in printers:
            press.ask(printer, printer, printer.context)
        await until(lambda: not any(printer.left for printer in printers))
        return sockets.looks

    assert with_press(story) <= 3, "fifty have asked, and so many bursts were needed"


def test_each_prints_in_its_own_context(fast: None) -> None:
    """Airflow sorts lines into task logs by context variables."""
    printers = [Printer(records=2, whose=name) for name in ("one", "two")]

    async def story(press: Press, sockets: Sockets) -> None:
        press.ask(printers[0], printers[0], printers[0].context)
        await press.finish(printers[1], printers[1], printers[1].context)
        await until(lambda: not printers[0].left)

    with_press(story)
    assert [printer.whose for printer in printers] == [["one"] * 2, ["two"] * 2]


def test_a_trigger_prints_no_more_often_than_once_an_interval(fast: None) -> None:
    printer = Printer(records=1)

    async def story(press: Press, sockets: Sockets) -> None:
        for _ in range(3):
            printer.left = 1
            press.ask(printer, printer, printer.context)
            await until(lambda: not printer.left)

    with_press(story)
    gaps = [later - earlier for earlier, later in zip(printer.bursts, printer.bursts[1:], strict=False)]
    assert all(gap >= presses.SHORTEST_INTERVAL_S * 0.95 for gap in gaps)


def test_a_flood_leaves_its_neighbours_their_turns(fast: None) -> None:
    """Whoever has a thousand records to print goes to the end of the line after each."""
    flood, quiet = Printer(records=1000, size=8000), [Printer() for _ in range(20)]

    async def story(press: Press, sockets: Sockets) -> None:
        press.ask(flood, flood, flood.context)
        for printer in quiet:
            press.ask(printer, printer, printer.context)
        await until(lambda: not any(printer.left for printer in quiet))
        press.leaves(flood)

    with_press(story)
    assert flood.left > 900


def test_no_more_bytes_than_allowed(fast: None) -> None:
    printers = [Printer(records=100, size=8000) for _ in range(20)]

    async def story(press: Press, sockets: Sockets) -> float:
        began = asyncio.get_running_loop().time()
        for printer in printers:
            press.ask(printer, printer, printer.context)
        await asyncio.sleep(0.5)
        return asyncio.get_running_loop().time() - began

    took_s = with_press(story)
    printed = sum(100 - printer.left for printer in printers) * 8000
    assert 0 < printed <= presses.BYTES_PER_S * took_s + ROOM_BYTES


def test_nothing_is_printed_while_there_is_no_room(fast: None) -> None:
    """A write that finds the socket full would block every trigger of the triggerer."""
    printer = Printer()

    async def story(press: Press, sockets: Sockets) -> tuple[int, int]:
        sockets.unread = ROOM_BYTES
        press.ask(printer, printer, printer.context)
        await asyncio.sleep(presses.BURST_S * 4)
        before = printer.left
        sockets.unread = 0
        await until(lambda: not printer.left)
        return before, printer.left

    assert with_press(story) == (1, 0)


def test_an_end_goes_before_everybody_and_is_whole(fast: None) -> None:
    crowd, last = [Printer(records=50, size=8000) for _ in range(50)], Printer(records=30, size=8000)

    async def story(press: Press, sockets: Sockets) -> int:
        for printer in crowd:
            press.ask(printer, printer, printer.context)
        await press.finish(last, last, last.context)
        return sum(50 - printer.left for printer in crowd)

    others = with_press(story)
    assert last.left == 0 and others <= 10


def test_an_end_that_is_given_up_leaves_nothing_behind(fast: None) -> None:
    printer = Printer(records=1000, size=64_000)

    async def story(press: Press, sockets: Sockets) -> int:
        sockets.unread = ROOM_BYTES
        waiting = asyncio.create_task(press.finish(printer, printer, printer.context))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        sockets.unread = 0
        await asyncio.sleep(presses.BURST_S * 2)
        return printer.left

    assert with_press(story) == 1000


def test_what_may_wait_is_shared() -> None:
    """One may have all that there is room for; when everybody wants it, each keeps a little."""

    async def story(press: Press, sockets: Sockets) -> list[int]:
        sockets.unread = ROOM_BYTES
        printers = [Printer() for _ in range(1000)]
        for printer in printers:
            press.ask(printer, printer, printer.context)
        found = [press.may_wait(printers[0], WAITING_BYTES)]
        found += [press.may_wait(printers[1], 10_000), press.may_wait(printers[1], 5_000)]
        press.leaves(printers[0])
        return [*found, press.may_wait(printers[1], 1_000_000)]

    alone, among, still, again = with_press(story)
    assert alone == again == WAITING_BYTES and among == still == 8 * 1024


def test_beginnings_are_shared_among_those_who_follow() -> None:
    """And whoever is gone takes no share."""

    async def story(press: Press, sockets: Sockets) -> list[int | None]:
        found = [press.ceiling_bytes(5_000_000), press.ceiling_bytes(None)]
        followers = [Printer() for _ in range(100)]
        for follower in followers:
            press.joins(follower)
        found.append(press.ceiling_bytes(5_000_000))
        press.leaves(followers.pop())
        followers.clear()
        follower = None
        found.append(press.ceiling_bytes(5_000_000))
        return found

    assert with_press(story) == [5_000_000, None, HEADS_BYTES // 100, 5_000_000]


def test_waiting_ends_when_what_was_printed_before_has_been_read(fast: None) -> None:
    """Others may go on printing: there need not be a moment in which nothing is unread."""
    printer, other = Printer(size=5000), Printer(records=1000, size=5000)

    async def story(press: Press, sockets: Sockets) -> tuple[bool, bool]:
        await press.finish(printer, printer, printer.context)
        sockets.unread = 5000
        early = await press.read(presses._URGENT_S * 4)
        press.ask(other, other, other.context)
        later = await press.read(20)  # ours has been read when only theirs can be unread
        press.leaves(other)
        return early, later

    assert with_press(story) == (False, True)


def test_where_it_cannot_be_seen_nobody_waits() -> None:
    async def story(press: Press, sockets: Sockets) -> bool:
        sockets.unread = None
        return await press.read(20)

    assert with_press(story) is False

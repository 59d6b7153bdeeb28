"""A follower with a budget: head, samples of the middle, end; and the number of lines of all that lies between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpualert import follow
from gpualert.errors import ProtocolError
from gpualert.follow import Follower
from gpualert.skipping import LogBudget
from tests.unit.test_follow import Clock, Launch

BUDGET = LogBudget(head_bytes=1000, tail_bytes=1000, sample_every_s=60.0, sample_bytes=200)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def launch(tmp_path: Path, clock: Clock) -> Launch:
    return Launch(tmp_path, clock)


class Watcher:
    """Takes what a follower gives, checks that positions follow each other, and adds up."""

    def __init__(self, launch: Launch, clock: Clock, position: tuple[int, int] | None = (0, 0)) -> None:
        self.follower = Follower(
            launch.files.path, position, budget=BUDGET, verdict_wait_s=0.0, clock=clock, monotonic=clock
        )
        self.at = self.follower.position
        self.shown = b""
        self.skipped: list[tuple[int, bool]] = []
        self.types: list[str] = []

    def poll(self) -> None:
        for header, payload in self.follower.poll():
            self.types.append(header["type"])
            if header["type"] == "log":
                assert (header["generation"], header["offset"]) == self.at
                self.at = (header["generation"], header["offset"] + len(payload))
                self.shown += payload
            elif header["type"] in ("skipped", "gap"):
                assert (header["from"]["generation"], header["from"]["offset"]) == self.at
                self.at = (header["to"]["generation"], header["to"]["offset"])
                if header["type"] == "skipped":
                    self.skipped.append((header["lines"], header["at_least"]))

    def to_end(self) -> None:
        polls = 0
        while not self.follower.finished:
            self.poll()
            polls += 1
            assert polls < 2000

    @property
    def lines(self) -> int:
        """Shown and not shown."""
        return self.shown.count(b"\n") + sum(lines for lines, _ in self.skipped)


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %06d\n" % n for n in range(first, first + count))


def test_head_samples_and_tail_add_up(launch: Launch, clock: Clock) -> None:
    """Whole lines are shown, few of them; the others are counted to the last one."""
    watcher = Watcher(launch, clock)
    for minute in range(5):
        launch.say(lines(minute * 10_000, 10_000))
        watcher.poll()
        clock.now += 61
        watcher.poll()
    launch.say(lines(50_000, 10_000))
    launch.end()
    watcher.to_end()

    shown = watcher.shown.splitlines()
    assert watcher.lines == 60_000 and len(watcher.skipped) == 6
    assert all(len(line) == 11 for line in shown) and shown == sorted(set(shown))
    assert (shown[0], shown[-1]) == (b"line 000000", b"line 059999")
    assert b"line 019999" in shown  # the last one before the second sample
    assert len(watcher.shown) <= 1000 + 5 * 200 + 1000 + 12
    assert watcher.at == (0, 60_000 * 12)


@pytest.mark.parametrize("count", [0, 1, 80, 84, 170, 400])
def test_a_log_within_its_budget_is_given_whole(launch: Launch, clock: Clock, count: int) -> None:
    """Nothing is left out for the sake of a few bytes."""
    launch.say(lines(0, count))
    launch.end()
    watcher = Watcher(launch, clock)
    watcher.to_end()

    assert watcher.shown == lines(0, count) and watcher.skipped == []


def test_what_grows_slowly_is_given_whole(launch: Launch, clock: Clock) -> None:
    """A minute's lines that fit into a sample leave nothing to skip."""
    watcher = Watcher(launch, clock)
    launch.say(lines(0, 84))
    watcher.poll()
    for number in range(84, 94):
        launch.say(lines(number, 1))
        clock.now += 61
        watcher.poll()

    assert watcher.shown == lines(0, 94) and watcher.skipped == []


@pytest.mark.parametrize("offset", [1000, 1003, 6000, 120_000])
def test_a_follower_that_begins_beyond_the_head(launch: Launch, clock: Clock, offset: int) -> None:
    """Ten triggerers one after another are not sent ten heads."""
    launch.say(lines(0, 10_000))
    watcher = Watcher(launch, clock, (0, offset))
    watcher.poll()
    assert watcher.shown == b""
    watcher.follower.acknowledge(0, offset)
    launch.end()
    watcher.to_end()
    assert len(watcher.shown) <= 1000
    assert watcher.lines == lines(0, 10_000)[offset:].count(b"\n")


def test_what_was_skipped_may_be_acknowledged_and_no_more(launch: Launch, clock: Clock) -> None:
    """A position that was told is one that the next follower may begin at."""
    watcher = Watcher(launch, clock)
    launch.say(lines(0, 10_000))
    watcher.poll()
    with pytest.raises(ProtocolError):
        watcher.follower.acknowledge(0, 60_000)
    clock.now += 61
    watcher.poll()
    watcher.follower.acknowledge(*watcher.at)
    assert watcher.at == (0, 120_000)


def test_a_log_cut_while_it_is_skipped(launch: Launch, clock: Clock) -> None:
    """What was seen until then is counted, the gap told, and the new generation does not get a head of its own."""
    watcher = Watcher(launch, clock)
    launch.say(lines(0, 5000))
    watcher.poll()
    watcher.poll()
    os.truncate(launch.files.log_path, 0)
    launch.say(lines(5000, 3000))
    watcher.poll()
    assert watcher.types.count("gap") == 1
    launch.end()
    watcher.to_end()

    assert watcher.lines == 8000 and watcher.at == (1, 36_000)
    assert len(watcher.shown) <= 2100 and watcher.shown.endswith(b"line 007999\n")


def test_a_log_cut_to_nothing_while_it_is_skipped_ends(launch: Launch, clock: Clock) -> None:
    """There is no byte left to wait for."""
    watcher = Watcher(launch, clock)
    launch.say(lines(0, 5000))
    watcher.poll()
    watcher.poll()
    os.truncate(launch.files.log_path, 0)
    launch.end()
    watcher.to_end()

    assert watcher.lines == 5000


def test_generations_share_one_head(launch: Launch, clock: Clock) -> None:
    """A job that cuts its log each minute does not get its head each minute."""
    watcher = Watcher(launch, clock)
    for generation in range(4):
        if generation:
            os.truncate(launch.files.log_path, 0)
        launch.say(b"generation %d\n" % generation + lines(generation * 100, 50))
        watcher.poll()
    assert len(watcher.shown) <= 1012


def test_the_end_does_not_wait_for_the_count(launch: Launch, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a backlog of any size, what is quick is counted, and the number is said to be no more than that."""
    monkeypatch.setattr(follow, "END_COUNT_BYTES", 1024 * 1024)
    launch.say(lines(0, 2_000_000))
    launch.end()
    watcher = Watcher(launch, clock, (0, 6000))
    watcher.to_end()

    ((count, at_least),) = watcher.skipped
    assert at_least and 0 < count < 2_000_000
    assert watcher.shown.endswith(b"line 1999999\n") and len(watcher.shown) <= 1000


def test_a_line_without_end_is_no_way_round_the_budget(launch: Launch, clock: Clock) -> None:
    """The head is cut within a line that never ends; the tail begins within it."""
    launch.say(b"x" * 1_000_000)
    watcher = Watcher(launch, clock)
    watcher.poll()
    clock.now += 61
    watcher.poll()
    launch.end()
    watcher.to_end()

    assert len(watcher.shown) <= 1000 + 2 * 64 * 1024 + 1000 and watcher.at == (0, 1_000_000)


@pytest.mark.parametrize("value", [{}, [], {"head_bytes": -1}, {"head_bytes": "1"}, {"head_bytes": True}])
def test_a_budget_that_is_none_is_refused(value: object) -> None:
    """It names the field."""
    with pytest.raises(ProtocolError, match=r"budget\.head_bytes"):
        LogBudget.from_json(value)  # type: ignore[arg-type]

"""A follower by a clock of the test's own: beats, times, delays and the order of the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpualert import follow, procfs
from gpualert.errors import ProtocolError, UnknownLaunch
from gpualert.follow import Follower
from gpualert.key import Attempt, LaunchKey
from gpualert.logfile import TimeIndex
from gpualert.rundir import KeyDirectory, RunDirectory
from tests.support.waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Launch:
    """A run directory in the test's hands; its child and keepers are this very process."""

    def __init__(self, root: Path, clock: Clock, **spec: Any) -> None:
        key = LaunchKey(["a"], "task")
        folder = KeyDirectory(f"{root}/launches/{key.directory_name}")
        os.makedirs(os.path.dirname(folder.path))
        folder.create(key.to_json())
        me = procfs.identify(os.getpid())
        assert me is not None
        claim = {"launch_id": key.launch_id(1), "attempt": Attempt(1, "1").to_json(), "created_at": clock()}
        folder.claim(1, claim, durable=False)
        self.files: RunDirectory = folder.run_directory(1)
        self.files.create()
        Path(self.files.spec_path).write_text(json.dumps({"command": "true", **spec}))
        identities = {name: me.to_json() for name in ("child", "supervisor", "guard")}
        self.files.write_started({"launch_id": key.launch_id(1), "number": 1, "started_at": clock(), **identities})

    def say(self, data: bytes) -> None:
        with open(self.files.log_path, "ab") as log:
            log.write(data)

    def end(self, code: int = 0, *, tree: bool = True, ended_at: float = 1_000_001.0) -> None:
        self.files.write_exit(
            {"code": code, "signal": None, "ended_at": ended_at, "elapsed_s": 1.0, "witness": "supervisor"}
        )
        if tree:
            self.end_tree()

    def end_tree(self) -> None:
        self.files.write_tree({"killed": [], "survivors": []})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def launch(tmp_path: Path, clock: Clock) -> Launch:
    return Launch(tmp_path, clock)


def follower(launch: Launch, clock: Clock, position: tuple[int, int] | None = None, **how: Any) -> Follower:
    return Follower(launch.files.path, position, clock=clock, monotonic=clock, verdict_wait_s=0.0, **how)


def until_something(following: Follower) -> list:
    """The outcome is built beside the follower; nothing comes until it is there."""
    return wait_until(following.poll, 30, "a message")


def types(messages: list) -> list[str]:
    return [header["type"] for header, _ in messages]


def test_a_launch_that_is_not_there(tmp_path: Path) -> None:
    """It is named before anything is followed."""
    with pytest.raises(UnknownLaunch):
        Follower(f"{tmp_path}/launches/task-000000000000/0001")


def test_the_end_comes_after_the_last_byte_and_not_with_it(launch: Launch, clock: Clock) -> None:
    """The log's last words do not wait for the verdict."""
    following = follower(launch, clock)
    launch.say(b"last words\n")
    launch.end(3)
    assert types(following.poll()) == ["state", "log"]
    assert (following.finished, following.delay_s) == (False, 0.0)
    ((header, payload),) = until_something(following)
    assert (header["type"], header["outcome"]["exit_code"], payload) == ("ended", 3, b"")
    assert following.finished and following.poll() == []


def test_bytes_that_come_between_the_end_and_the_last_look(launch: Launch, clock: Clock) -> None:
    """The end is looked for before the log is read, so what the child wrote last is always read."""
    following = follower(launch, clock)
    read = following._read_log

    def late(messages: list, max_bytes: int) -> None:
        read(messages, max_bytes)
        launch.say(b"written just before the end\n")
        launch.end()
        following._read_log = read  # type: ignore[method-assign]

    following._read_log = late  # type: ignore[method-assign]
    assert following.poll() == []
    said = b""
    while not following.finished:
        said += b"".join(payload for _, payload in until_something(following))
    assert said == b"written just before the end\n"


def test_a_beat_after_ten_quiet_seconds(launch: Launch, clock: Clock) -> None:
    """Only when nothing else was sent."""
    following = follower(launch, clock)
    clock.now += 9.9
    assert following.poll() == []
    clock.now += 0.1
    assert types(following.poll()) == ["beat"]
    clock.now += 6
    launch.say(b"x")
    assert types(following.poll()) == ["log"]
    clock.now += 9
    assert following.poll() == []


def test_looks_become_rarer_while_it_is_quiet(launch: Launch, clock: Clock) -> None:
    """From 20 ms to half a second, and back at the first byte."""
    following = follower(launch, clock)
    delays = []
    for _ in range(20):
        following.poll()
        delays.append(following.delay_s)
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (follow.SHORTEST_DELAY_S, follow.LONGEST_DELAY_S)
    launch.say(b"x")
    following.poll()
    assert following.delay_s == follow.SHORTEST_DELAY_S


def test_a_flood_comes_in_bounded_batches(launch: Launch, clock: Clock) -> None:
    """At most half a MiB at a time, with no pause in between."""
    launch.say(b"x" * 2_000_000)
    following = follower(launch, clock)
    batch = following.poll()
    assert sum(len(payload) for _, payload in batch) == follow.BATCH_BYTES
    assert max(len(payload) for _, payload in batch) <= follow.CHUNK_BYTES
    assert following.delay_s == 0.0


def test_old_bytes_carry_the_time_of_the_index(launch: Launch, clock: Clock) -> None:
    """A follower that comes hours later says when the bytes came, cut where the time changes."""
    index = TimeIndex(launch.files.index_path)
    for offset, when in ((10, 1.0), (20, 5.0)):
        index.append(0, offset, when)
    launch.say(b"a" * 10 + b"b" * 10 + b"c" * 10)
    clock.now += 7200
    messages = follower(launch, clock).poll()
    logs = [(h["offset"], h["time"], p) for h, p in messages if h["type"] == "log"]
    assert logs == [(0, 1.0, b"a" * 10), (10, 5.0, b"b" * 10), (20, None, b"c" * 10)]


@pytest.mark.parametrize(("lasted_s", "expected"), [(0.2, True), (500.0, False)])
def test_bytes_that_no_index_knows(lasted_s: float, expected: bool, launch: Launch, clock: Clock) -> None:
    """A launch too short for an index has one time; of a longer one nobody knows which byte came when."""
    launch.say(b"x")
    launch.end(ended_at=clock.now + lasted_s)
    clock.now += 7200
    ((header, _),) = [m for m in follower(launch, clock).poll() if m[0]["type"] == "log"]
    assert header["time"] == (1_000_000.0 + lasted_s if expected else None)


def test_fresh_bytes_carry_the_time_of_now(launch: Launch, clock: Clock) -> None:
    """Whoever has read all there was knows when the next byte came."""
    following = follower(launch, clock)
    following.poll()
    clock.now += 50
    launch.say(b"x")
    ((header, _),) = [m for m in following.poll() if m[0]["type"] == "log"]
    assert header["time"] == clock.now


def test_a_log_that_was_cut_while_nobody_followed(launch: Launch, clock: Clock) -> None:
    """The acknowledged offset means nothing in the new generation, however long that has become."""
    launch.files.write_ack(0, 15)
    index = TimeIndex(launch.files.index_path)
    index.append(0, 15, 1.0)
    index.append(1, 30, 2.0)
    launch.say(b"x" * 30)
    (gap, _), (log, payload) = (m for m in follower(launch, clock).poll())
    assert gap == {"type": "gap", "from": {"generation": 0, "offset": 15}, "to": {"generation": 1, "offset": 0}}
    assert (log["generation"], log["offset"], log["time"]) == (1, 0, 2.0)
    assert payload == b"x" * 30


def test_the_end_waits_for_the_tree(launch: Launch, clock: Clock) -> None:
    """As long as somebody is ending what was left behind, and no longer than a limit."""
    following = follower(launch, clock)
    launch.end(tree=False)
    assert types(following.poll()) == ["state"]
    clock.now += 5
    assert following.poll() == []
    launch.end_tree()
    assert types(following.poll()) == ["state"]
    assert types(following.poll()) == ["ended"]


def test_the_end_does_not_wait_for_the_tree_for_ever(launch: Launch, clock: Clock) -> None:
    """The keepers live and do not finish."""
    following = follower(launch, clock)
    launch.end(tree=False)
    following.poll()
    clock.now += follow.TREE_WAIT_S
    assert "ended" in types(following.poll())


def test_nobody_ends_what_is_kept_on_purpose(tmp_path: Path, clock: Clock) -> None:
    """``leftovers="keep"``: there will be no list of survivors to wait for."""
    launch = Launch(tmp_path, clock, leftovers="keep")
    following = follower(launch, clock)
    launch.end(tree=False)
    following.poll()
    assert types(following.poll()) == ["ended"]


def test_acknowledgements_are_written_at_most_once_a_second(launch: Launch, clock: Clock) -> None:
    """And the last one when somebody asks for it."""
    following = follower(launch, clock, epoch=1)
    launch.say(b"0123456789")
    following.poll()
    following.acknowledge(0, 3)
    assert following.poll() == [] and launch.files.read_ack() is None
    clock.now += 1
    following.poll()
    assert launch.files.read_ack() == {"generation": 0, "offset": 3, "ended": False}
    following.acknowledge(0, 7)
    following.acknowledge(0, 5)  # late, and of no use
    following.save_acknowledged()
    assert launch.files.read_ack() == {"generation": 0, "offset": 7, "ended": False}
    assert follower(launch, clock).position == (0, 7)


def test_a_mere_reader_leaves_no_acknowledgement(launch: Launch, clock: Clock) -> None:
    """Where the next follower starts is for those who attached to say."""
    following = follower(launch, clock)
    launch.say(b"0123456789")
    following.poll()
    following.acknowledge(0, 10)
    following.save_acknowledged()
    assert launch.files.read_ack() is None


def test_what_was_not_given_cannot_be_acknowledged(launch: Launch, clock: Clock) -> None:
    """Neither a later byte nor a later generation."""
    following = follower(launch, clock, epoch=1)
    launch.say(b"0123456789")
    following.poll()
    for position in ((0, 11), (1, 0)):
        with pytest.raises(ProtocolError, match="ack"):
            following.acknowledge(*position)


def test_iterating_gives_the_same_to_the_end(launch: Launch) -> None:
    """What ``gpualert attach`` does."""
    launch.say(b"all of it\n")
    launch.end()
    with Follower(launch.files.path, verdict_wait_s=0.0) as following:
        assert [header["type"] for header, _ in following] == ["log", "ended"]

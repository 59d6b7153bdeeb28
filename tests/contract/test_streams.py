"""Many conversations on one channel: none holds up another, whatever it follows, waits for or fails at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpualert import protocol
from gpualert.key import Attempt, LaunchKey
from gpualert.protocol import Event, Frame
from gpualert.spec import LaunchSpec
from tests.support.talk import Talk
from tests.support.waiting import wait_until


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Talk]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Talk.local(root=str(tmp_path / "root")) as talk:
        talk.hello()
        yield talk


def launch(talk: Talk, command: str, **spec: object) -> str:
    key = LaunchKey([os.urandom(8).hex()], "task")
    request = protocol.launch_request(key, Attempt(1, "11111111"), LaunchSpec(command, **spec))  # type: ignore[arg-type]
    return str(talk.ask(request, "launched").header["record"]["launch_id"])


def follow(talk: Talk, stream: int, launch_id: str, **how: object) -> None:
    talk.send(protocol.on_stream(protocol.follow_request(launch_id, **how), stream))  # type: ignore[arg-type]


def frame_on(talk: Talk, stream: int, *types: str) -> Frame:
    def choose(event: Event) -> Frame | None:
        return event if isinstance(event, Frame) and event.stream == stream and event.type in types else None

    return talk.wait(choose, f"{' or '.join(types)} on stream {stream}")


def log_of(talk: Talk, stream: int) -> bytes:
    return b"".join(
        event.payload
        for event in talk.events
        if isinstance(event, Frame) and event.stream == stream and event.type == "log"
    )


def until(path: Path) -> str:
    return f"while [ ! -e '{path}' ]; do sleep 0.05; done"


def test_two_launches_are_followed_side_by_side(talk: Talk, tmp_path: Path) -> None:
    """Each stream carries its own launch's words and end."""
    go = tmp_path / "go"
    first = launch(talk, f"echo first; {until(go)}; exit 3")
    second = launch(talk, f"echo second; {until(go)}; exit 4")
    follow(talk, 1, first)
    follow(talk, 2, second)
    frame_on(talk, 2, "attached")
    go.touch()

    ends = {}
    for _ in range(2):
        frame = talk.frame("ended")
        ends[frame.stream] = frame.header["outcome"]["exit_code"]

    assert ends == {1: 3, 2: 4}
    assert (log_of(talk, 1), log_of(talk, 2)) == (b"first\n", b"second\n")


def test_a_flood_that_nobody_takes_holds_up_nobody(talk: Talk, tmp_path: Path) -> None:
    """The log of one is sent as far as its window goes; its neighbour is followed to its end meanwhile."""
    go = tmp_path / "go"
    flood = launch(talk, f"head -c 5000000 /dev/zero | tr '\\0' x; {until(go)}")
    quiet = launch(talk, "echo one; exit 5")
    follow(talk, 1, flood, window_bytes=65536)
    follow(talk, 2, quiet, window_bytes=65536)

    assert frame_on(talk, 2, "ended").header["outcome"]["exit_code"] == 5
    assert len(log_of(talk, 1)) == 65536
    go.touch()


def test_credit_lets_exactly_so_much_more_through(talk: Talk) -> None:
    """To the last byte, and then the end."""
    launch_id = launch(talk, "head -c 100000 /dev/zero | tr '\\0' x")
    follow(talk, 7, launch_id, window_bytes=30000)
    for expected in (30000, 60000, 90000):
        talk.wait(
            lambda event, expected=expected: True if len(log_of(talk, 7)) >= expected else None,  # type: ignore[misc]
            f"{expected} bytes",
        )
        assert len(log_of(talk, 7)) == expected
        talk.send(protocol.on_stream(protocol.credit_message(30000), 7))

    assert frame_on(talk, 7, "ended").header["outcome"]["exit_code"] == 0
    assert len(log_of(talk, 7)) == 100000


def test_a_stop_that_waits_holds_up_nobody(talk: Talk, tmp_path: Path) -> None:
    """The host may wait for the end of a launch that takes its time; others are answered meanwhile."""
    ready = tmp_path / "ready"
    stubborn = launch(talk, f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done", grace_period_s=3.0)
    wait_until(ready.exists, 30, "the trap is set")
    request = protocol.stop_request(launch_id=stubborn, reason="test", who="test", wait_s=20.0)
    talk.send(protocol.on_stream(request, 1))
    talk.send(protocol.on_stream(protocol.inspect_request(launch_id=stubborn), 2))

    first = talk.frame("record", "stopped", "stopping")
    second = talk.frame("stopped", "stopping")

    assert (first.type, first.stream) == ("record", 2)
    assert (second.type, second.stream) == ("stopped", 1)


def test_an_error_belongs_to_its_stream(talk: Talk) -> None:
    """The others do not hear of it."""
    launch_id = launch(talk, "echo one")
    follow(talk, 1, "no-such-launch-000000000000.1")
    follow(talk, 2, launch_id)

    assert frame_on(talk, 1, "error").header["kind"] == "unknown_launch"
    assert frame_on(talk, 2, "ended").header["outcome"]["state"] == "SUCCEEDED"


def test_a_stream_follows_one_launch_at_a_time(talk: Talk, tmp_path: Path) -> None:
    """A second follow is refused until the first is given up; then the number is free again."""
    go = tmp_path / "go"
    first, second = launch(talk, until(go)), launch(talk, "echo two")
    follow(talk, 1, first)
    frame_on(talk, 1, "attached")
    follow(talk, 1, second)
    assert "one at a time" in frame_on(talk, 1, "error").header["message"]

    talk.send(protocol.on_stream(protocol.detach_message(), 1))
    follow(talk, 1, second)

    assert frame_on(talk, 1, "ended").header["outcome"]["launch_id"] == second
    go.touch()


def test_each_stream_acknowledges_its_own_launch(talk: Talk, tmp_path: Path) -> None:
    """What one has delivered is not taken for the other's."""
    go = tmp_path / "go"
    first, second = launch(talk, f"echo first; {until(go)}"), launch(talk, f"echo second; {until(go)}")
    for stream, launch_id in ((1, first), (2, second)):
        follow(talk, stream, launch_id)
        frame_on(talk, stream, "log")
    talk.send(protocol.on_stream(protocol.ack_message(0, 6), 1))
    talk.send(protocol.on_stream(protocol.detach_message(), 1))
    talk.send(protocol.on_stream(protocol.detach_message(), 2))

    follow(talk, 3, first)
    follow(talk, 4, second)
    frame_on(talk, 4, "log")
    go.touch()
    for _ in range(2):
        talk.frame("ended")

    assert (log_of(talk, 3), log_of(talk, 4)) == (b"", b"second\n")

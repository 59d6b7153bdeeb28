"""What is noted on the way is cheap, bounded, and cannot hang with a process that hangs."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from gpualert import procfs, samples
from gpualert.samples import Samples
from tests.support.waiting import wait_until

BOUND_S = 20.0


def me() -> procfs.ProcessIdentity:
    found = procfs.identify(os.getpid())
    assert found is not None
    return found


def until_tree(taken: Samples) -> None:
    """Take samples until the tree has been looked at."""

    def look() -> bool:
        taken.take(me(), None)
        return bool(taken.pids)

    wait_until(look, BOUND_S, "the tree has been looked at")


def test_a_sample_knows_memory_and_processes() -> None:
    taken = Samples("launch.1")
    until_tree(taken)
    found = taken.to_json()
    assert os.getpid() in found["pids"]
    assert 0 < found["least_available_bytes"] <= found["total_bytes"]
    assert found["most_open_files"] >= 3 and found["touched_gpu"] is False
    assert found["age_s"] >= 0
    json.dumps(found)


def test_nothing_is_taken_before_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Samples("launch.1")
    taken.take(me(), None)
    for _ in range(50):
        taken.take(me(), None)
    assert taken.taken == 1
    taken.stop()


def test_a_tree_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading about a process in uninterruptible sleep can block like that process; memory is sampled all the same."""

    def hang(*_: Any) -> dict[str, Any]:
        while True:
            time.sleep(3600)

    monkeypatch.setattr(samples, "look_at_tree", hang)
    monkeypatch.setattr(samples, "EVERY_S", 0.0)
    taken = Samples("launch.1")
    for _ in range(3):
        taken.take(me(), None)
    taken.stop()
    assert taken.taken == 3 and taken.available_bytes
    assert taken.to_json()["pids"] == []


def test_the_dearer_the_tree_the_rarer_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with ten thousand processes one look takes a second."""
    taken = Samples("launch.1")
    until_tree(taken)
    assert taken._next_tree_s >= taken._tree_began_s + samples.TREE_EVERY_S
    monkeypatch.setattr(samples, "_TREE_SHARE", 1e-9)
    taken._next_tree_s = taken._next_s = float("-inf")
    taken.pids.clear()
    until_tree(taken)
    assert taken._next_tree_s > taken._tree_began_s + 1000 * samples.TREE_EVERY_S


@pytest.mark.parametrize(
    "answer", [{}, {"not_seen": "x"}, {"seen": None}, {"seen": {"pids": list(range(1, 100_000)), "groups": []}}]
)
def test_whatever_the_tree_says_is_bounded(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> None:
    monkeypatch.setattr(samples, "look_at_tree", lambda *_: answer)
    monkeypatch.setattr(samples, "EVERY_S", 0.0)
    taken = Samples("launch.1")

    def collected() -> bool:
        taken.take(me(), None)
        return taken._next_tree_s > 0

    wait_until(collected, BOUND_S, "the answer is there")
    assert len(taken.to_json()["pids"]) <= samples.MAX_PIDS


def test_a_kill_in_a_group_that_the_launch_was_seen_in() -> None:
    """Also in one that it moved into after the first look."""
    taken = Samples("launch.1")
    until_tree(taken)
    assert taken.grown() is None or taken.groups  # others may share our group
    known = {name: counters for name, counters in taken.groups.items() if counters["oom_kill"] is not None}
    if not known:
        pytest.skip("needs a memory cgroup that counts kills, and this machine has none mounted")
    name, counters = next(iter(known.items()))
    counters["oom_kill"] -= 1
    grown = taken.grown()
    assert grown is not None and grown[0] == name and grown[1] >= 1

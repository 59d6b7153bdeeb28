"""Whatever a probe does, its asker gets an entry within the bound, and nothing else happens to it."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest

from gpualert import probe_fork
from gpualert.probe_fork import Fork, start, wait
from tests.support.waiting import wait_until

BOUND_S = 20.0


def ask(probe: Any, bound_s: float = BOUND_S) -> dict[str, Any]:
    return wait(start({"it": (probe, bound_s)}), BOUND_S)["it"]


def say_megabytes() -> dict[str, Any]:
    return {"seen": "x" * (8 << 20)}


def hang() -> dict[str, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    while True:
        time.sleep(3600)


def crash() -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def leave() -> dict[str, Any]:
    os._exit(0)


def quit_python() -> dict[str, Any]:
    sys.exit("goodbye")


def test_an_answer_comes_back() -> None:
    assert ask(lambda: {"seen": {"a": [1, None, "ü"]}}) == {"seen": {"a": [1, None, "ü"]}}


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (crash, "killed by signal 11"),
        (say_megabytes, "said more than"),
        (leave, "without an answer"),
        (quit_python, "SystemExit: goodbye"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: {"seen": object()}, "TypeError"),
        (lambda: [1, 2], "without an answer"),
    ],
)
def test_trouble_is_an_entry(probe: Any, words: str) -> None:
    assert words in ask(probe)["not_seen"]


def test_one_that_hangs_is_killed_and_costs_only_its_own_entry() -> None:
    forks = start({"bad": (hang, 0.2), "good": (lambda: {"seen": {}}, BOUND_S)})
    found = wait(forks, BOUND_S)
    assert found["good"] == {"seen": {}}
    assert found["bad"] == {"not_seen": "did not answer within 0.2 s", "kind": "late"}
    assert isinstance(forks["bad"], Fork)
    pid = forks["bad"].pid
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), BOUND_S, "the hanging probe to be gone")


def test_the_bound_for_all_together_holds() -> None:
    found = wait(start({"bad": (hang, 3600.0), "good": (lambda: {"seen": {}}, BOUND_S)}), 0.5)
    assert found["good"] == {"seen": {}}
    assert found["bad"] == {"not_seen": "was not waited for", "kind": "late"}


def test_it_holds_nothing_of_the_askers() -> None:
    """A probe that cannot be killed must not keep a channel or a terminal open."""
    read, write = os.pipe()
    ours = os.readlink(f"/proc/self/fd/{write}")

    def held() -> dict[str, Any]:
        links = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                links[name] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue  # the one that listed the folder
        return {"seen": links}

    try:
        found = ask(held)["seen"]
    finally:
        os.close(read)
        os.close(write)
    assert [found[name] for name in ("0", "1", "2")] == ["/dev/null"] * 3
    assert ours not in found.values() and len(found) == 4  # and the pipe for its answer


def test_where_no_process_can_be_made_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = set(os.listdir("/proc/self/fd"))
    found = wait(start({"it": (dict, 1.0)}), 1.0)
    assert found == {"it": {"not_seen": "no process could be made: Resource temporarily unavailable"}}
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_without_probes_there_is_nothing_to_wait_for() -> None:
    assert probe_fork.wait({}, 5.0) == {}

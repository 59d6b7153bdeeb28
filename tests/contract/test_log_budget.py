"""A long log followed with a budget: little crosses the wire, and every line that does not is counted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpualert import protocol
from gpualert_provider import tasklog
from gpualert_provider.hooks.target import SshTarget
from tests.contract.test_follow import launch, log_of, waits_for
from tests.contract.test_trigger import connect, trigger_for
from tests.support.sessions import started, target_of
from tests.support.sshd import SshHost
from tests.support.talk import Talk
from tests.support.triggering import Log, run, run_until, supervisor

__all__ = ["supervisor"]

BUDGET = {"head_bytes": 75_000, "tail_bytes": 25_000, "sample_every_s": 0.2, "sample_bytes": 2000}
#: 50 MB: 500,000 lines of 100 bytes, numbered from ``$1 + 1`` on.
FLOOD = """awk -v n={first} 'BEGIN {{ for (i = n + 1; i <= n + {count}; i++) printf "%099d\\n", i }}'"""


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk.over_shell(root=str(tmp_path / "root"))
    talk.hello()
    yield talk
    talk.__exit__()


class Sum:
    """What came of a log, checked for its order."""

    def __init__(self, at: tuple[int, int] = (0, 0)) -> None:
        self.at = at
        self.shown = b""
        self.skips: list[int] = []
        self.gaps = 0
        self.sent_bytes = 0

    def take(self, frame: protocol.Frame) -> None:
        header = frame.header
        self.sent_bytes += len(protocol.encode(frame))
        if frame.type == "log":
            assert (header["generation"], header["offset"]) == self.at
            self.at = (header["generation"], header["offset"] + len(frame.payload))
            self.shown += frame.payload
        elif frame.type in ("skipped", "gap"):
            assert (header["from"]["generation"], header["from"]["offset"]) == self.at
            self.at = (header["to"]["generation"], header["to"]["offset"])
            if frame.type == "gap":
                self.gaps += 1
            else:
                assert not header["at_least"]
                self.skips.append(header["lines"])

    def follow(self, talk: Talk, until: Callable[[Sum], bool] = lambda _: False) -> None:
        while not until(self):
            frame = talk.frame("log", "skipped", "gap", "ended")
            if frame.type == "ended":
                return
            self.take(frame)

    @property
    def lines(self) -> int:
        return self.shown.count(b"\n") + sum(self.skips)


def test_fifty_megabytes_cross_the_wire_as_a_hundred_thousand_bytes(talk: Talk) -> None:
    """Head, samples, tail; shown and not shown make all lines."""
    command = f"{FLOOD.format(first=0, count=250_000)}; sleep 1; {FLOOD.format(first=250_000, count=250_000)}"
    record = launch(talk, command)
    talk.send(protocol.follow_request(record["launch_id"], budget=BUDGET))
    found = Sum()
    found.follow(talk)

    shown = [int(line) for line in found.shown.splitlines()]
    assert found.lines == 500_000 and found.at == (0, 50_000_000)
    assert shown == sorted(set(shown)) and shown[:750] == list(range(1, 751)) and shown[-240:][-1] == 500_000
    assert len(found.skips) > 1, "no sample of the middle"
    assert found.sent_bytes <= 100_000 + len(found.skips) * 3000 + 5000
    assert len(log_of(record)) == 50_000_000


def test_another_follower_takes_over_in_the_middle(talk: Talk, tmp_path: Path) -> None:
    """It is sent no second head, and goes on counting where the first one's word was acknowledged."""
    go = tmp_path / "go"
    flood = FLOOD.format(first=0, count=100_000)
    record = launch(talk, f"{flood}; {waits_for(go)}; {FLOOD.format(first=100_000, count=100_000)}")
    talk.send(protocol.follow_request(record["launch_id"], budget=BUDGET))
    first = Sum()
    first.follow(talk, lambda found: bool(found.skips) and found.at[1] > 1_000_000)
    talk.send(protocol.ack_message(*first.at))
    talk.ask(protocol.detach_message(), "detached")
    talk.send(protocol.follow_request(record["launch_id"], budget=BUDGET))
    go.touch()
    second = Sum(first.at)
    second.follow(talk)

    assert first.lines + second.lines == 200_000 and second.at == (0, 20_000_000)
    assert not second.shown.startswith(b"%099d" % 1) and len(second.shown) < 75_000


def test_a_log_cut_by_its_child_while_it_is_skipped(talk: Talk, tmp_path: Path) -> None:
    """The gap is told, between what is counted of both generations."""
    go = tmp_path / "go"
    flood = FLOOD.format(first=0, count=20_000)
    record = launch(talk, f"{flood}; {waits_for(go)}; : > /dev/stderr; {FLOOD.format(first=20_000, count=10_000)}")
    talk.send(protocol.follow_request(record["launch_id"], budget={**BUDGET, "sample_every_s": 1.0}))
    found = Sum()
    found.follow(talk, lambda found: found.at == (0, 2_000_000))
    go.touch()
    found.follow(talk)

    assert found.gaps == 1 and found.at == (1, 1_000_000) and found.lines == 30_000


@pytest.fixture
def target(ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch) -> SshTarget:
    connect(ssh_host, monkeypatch)
    monkeypatch.setattr(tasklog, "SAMPLE_EVERY_S", 0.3)
    return target_of(ssh_host)


def not_shown(*logs: Log) -> int:
    told = "\n".join(log.told for log in logs)
    return sum(int(n.replace(",", "")) for n in re.findall(r"\[([0-9,]+) lines? not shown; all of them at", told))


def sign(target: SshTarget) -> Path:
    """A file that the training's account can see; pytest's own folders are closed to it."""
    return Path(os.path.expanduser(f"~{target.user}")) / "go"


def test_a_flood_through_the_trigger(target: SshTarget) -> None:
    """The task log has head, middle and tail of 50 MB, and says what it has not."""
    go = sign(target)
    command = f"{FLOOD.format(first=0, count=250_000)}; {waits_for(go)}; {FLOOD.format(first=250_000, count=250_000)}"
    trigger = trigger_for(started(target, command), ceiling_bytes=100_000)
    printing = trigger._print

    def going_on_after_a_skip(record: tasklog.Record) -> None:
        printing(record)
        if "not shown" in record.text:
            go.touch()

    trigger._print = going_on_after_a_skip  # type: ignore[method-assign]
    (event,), log = run(trigger)

    shown = [int(line) for line in log.training_lines]
    assert event["outcome"]["state"] == "SUCCEEDED"
    assert len(shown) + not_shown(log) == 500_000
    assert shown == sorted(set(shown)) and (shown[0], shown[-1]) == (1, 500_000)
    assert any(1000 < n < 499_000 for n in shown), "no sample of the middle"
    assert len(shown) < 1600


def test_a_trigger_takes_over_while_lines_are_skipped(target: SshTarget, supervisor: Callable[..., object]) -> None:
    """Both task logs together account for every line once."""
    supervisor(None)
    go = sign(target)
    command = f"{FLOOD.format(first=0, count=50_000)}; {waits_for(go)}; {FLOOD.format(first=50_000, count=50_000)}"
    launch_id = started(target, command)
    first = run_until(trigger_for(launch_id, ceiling_bytes=100_000), lambda log: "not shown" in log.told, kill=False)
    go.touch()
    (event,), second = run(trigger_for(launch_id, ceiling_bytes=100_000))

    assert event["outcome"]["state"] == "SUCCEEDED"
    # What the first one had printed and not acknowledged within its last second comes again.
    shown = [int(line) for line in first.training_lines + second.training_lines]
    assert shown[0] == 1 and shown[-1] == 100_000
    assert len(shown) + not_shown(first, second) >= 100_000
    assert len(second.training_lines) < 1000

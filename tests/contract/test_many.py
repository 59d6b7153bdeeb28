"""Many trainings on few hosts: ends that come together, a link that a hundred share, and a sshd that lets few in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpualert_provider.hooks.target import SshTarget
from tests.contract.test_host_link import attempts
from tests.contract.test_trigger import connect, no_waiting_after_failures, trigger_for
from tests.support.sessions import started, target_of
from tests.support.sshd import SshHost
from tests.support.triggering import Log, Triggerer
from tests.support.waiting import wait_until

__all__ = ["attempts", "no_waiting_after_failures"]


@pytest.fixture
def gate(ssh_host: SshHost) -> Path:
    """A file of the hosts' account; the trainings end when it is there."""
    path = Path(f"~{ssh_host.username}").expanduser() / "gate"
    path.unlink(missing_ok=True)
    return path


def all_started(target: SshTarget, commands: list[str], **how: Any) -> list[str]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda item: started(target, item[1], f"job{item[0]}", **how), enumerate(commands)))


def waits_for(gate: Path, rest: str) -> str:
    return f"echo begin; while [ ! -e {gate} ]; do sleep 0.5; done; {rest}"


async def followed(triggers: list[Any], meanwhile: Callable[[list[Log]], Any]) -> tuple[dict[str, Any], list[Log]]:
    """Events by launch id, and what each trigger said; ``meanwhile`` runs when all have printed their first line."""
    triggerer = Triggerer()
    running = [triggerer.start(trigger) for trigger in triggers]
    logs = [log for _, log in running]
    async with asyncio.timeout(240):
        await asyncio.to_thread(wait_until, lambda: all(log.training_lines for log in logs), 120, "all are followed")
        await asyncio.to_thread(meanwhile, logs)
        await asyncio.gather(*(task for task, _ in running))
    return {event["launch_id"]: event["outcome"] for event in triggerer.events()}, logs


def test_sixty_ends_at_once_are_sixty_events_that_tell_the_truth(
    ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch, attempts: list[float], gate: Path
) -> None:
    """Each its own exit status, over one connection, whatever the others do in that moment."""
    connect(ssh_host, monkeypatch)
    ids = all_started(target_of(ssh_host), [waits_for(gate, f"echo end; exit {number % 5}") for number in range(60)])
    attempts.clear()

    events, logs = asyncio.run(followed([trigger_for(launch_id) for launch_id in ids], lambda _: gate.touch()))

    assert {launch_id: events[launch_id]["exit_code"] for launch_id in ids} == {
        launch_id: number % 5 for number, launch_id in enumerate(ids)
    }
    assert all(log.training_lines == ["begin", "end"] for log in logs)
    assert len(attempts) == 1


def test_forty_who_share_a_link_come_back_over_one(
    ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch, attempts: list[float], gate: Path
) -> None:
    """A cut link is no storm of logins: whoever comes first knocks for all."""
    connect(ssh_host, monkeypatch)
    ids = all_started(target_of(ssh_host), [waits_for(gate, "echo end")] * 40)
    attempts.clear()

    def cut(_: list[Log]) -> None:
        assert ssh_host.kill_sessions()
        gate.touch()

    events, logs = asyncio.run(followed([trigger_for(launch_id) for launch_id in ids], cut))

    assert {outcome["state"] for outcome in events.values()} == {"SUCCEEDED"} and len(events) == 40
    assert all(log.training_lines == ["begin", "end"] for log in logs)
    assert 2 <= len(attempts) <= 4


def test_a_flood_does_not_delay_its_neighbours_end(
    ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch, gate: Path
) -> None:
    """Five jobs that write as fast as they can, and one that ends: its event comes while they still write."""
    connect(ssh_host, monkeypatch)
    flood = f"echo begin; while [ ! -e {gate} ]; do head -c 200000 /dev/zero | tr '\\0' 'x' | fold -w 100; done"
    ids = all_started(target_of(ssh_host), [flood] * 5)
    quiet = started(target_of(ssh_host), "echo begin; sleep 4; exit 7", "quiet")

    async def story() -> tuple[list[str], float]:
        triggerer = Triggerer()
        running = [triggerer.start(trigger_for(launch_id))[0] for launch_id in ids]
        began = time.monotonic()
        await triggerer.start(trigger_for(quiet))[0]
        took_s = time.monotonic() - began
        first = [event["launch_id"] for event in triggerer.events()]
        gate.touch()
        async with asyncio.timeout(120):
            await asyncio.gather(*running)
        return first, took_s

    first, took_s = asyncio.run(story())
    assert first == [quiet], "the floods ended first"
    assert took_s < 20


def test_one_session_for_each_connection_is_enough(
    ssh_host_with: Callable[..., SshHost], ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch, gate: Path
) -> None:
    """All of a host's trainings are followed through one session, so MaxSessions 1 is no limit."""
    host = ssh_host_with(username=ssh_host.username, options=["MaxSessions 1"])
    connect(host, monkeypatch)
    ids = all_started(target_of(host), [waits_for(gate, "echo end")] * 20)

    events, _ = asyncio.run(followed([trigger_for(launch_id) for launch_id in ids], lambda _: gate.touch()))

    assert {outcome["state"] for outcome in events.values()} == {"SUCCEEDED"} and len(events) == 20


def test_whoever_is_turned_away_at_the_door_comes_again(
    ssh_host_with: Callable[..., SshHost], ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch, gate: Path
) -> None:
    """Twelve connections at once where sshd lets two log in (MaxStartups): all get in, and no log tells of it."""
    folder = Path(f"~{ssh_host.username}").expanduser()
    roots = [str(folder / f"root{number}") for number in range(12)]
    ids = [started(target_of(ssh_host), waits_for(gate, "exit 3"), "job", root=root) for root in roots]
    host = ssh_host_with(username=ssh_host.username, options=["MaxStartups 2:100:2"])
    connect(host, monkeypatch)

    triggers = [trigger_for(launch_id, root=root) for launch_id, root in zip(ids, roots, strict=True)]
    events, logs = asyncio.run(followed(triggers, lambda _: gate.touch()))

    assert [events[launch_id]["exit_code"] for launch_id in ids] == [3] * 12
    assert all(log.told == "" for log in logs), "a door that is crowded for a moment is not worth a word"
    refused = host.log.read_text(errors="replace").count("drop connection")
    assert refused > 0, "nobody was turned away, so nothing was shown"

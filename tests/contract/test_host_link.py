"""One connection for all that a triggerer says to a host: shared, made once, closed by the last, and over for all."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpualert import protocol
from gpualert_provider.hooks import connections, host_link
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.streaming import StreamingSession
from gpualert_provider.hooks.target import SshTarget
from tests.support.sessions import started, target_of
from tests.support.sshd import SshHost
from tests.support.waiting import wait_until

BEGINNING = {"generation": 0, "offset": 0}


@pytest.fixture
def target(ssh_host: SshHost) -> SshTarget:
    return target_of(ssh_host)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """When a connection was tried."""
    made: list[float] = []
    connect = connections._connect

    async def counted(*arguments: object) -> object:
        made.append(time.monotonic())
        return await connect(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(connections, "_connect", counted)
    yield made


async def log_to_the_end(session: StreamingSession, launch_id: str) -> bytes:
    log = b""
    async for frame in session.follow(launch_id, BEGINNING):
        log += frame.payload
    return log


def test_thirty_conversations_use_one_connection(ssh_host: SshHost, target: SshTarget, attempts: list[float]) -> None:
    """Each hears its own launch to the end, and the last one closes the connection."""
    launches = [started(target, f"echo {number}; sleep 1; echo end {number}", f"many{number}") for number in range(10)]
    attempts.clear()

    async def follow_all() -> list[bytes]:
        async def one(number: int) -> bytes:
            async with await StreamingSession.open(target) as session:
                return await log_to_the_end(session, launches[number % 10])

        return list(await asyncio.gather(*(one(number) for number in range(30))))

    logs = asyncio.run(follow_all())

    assert logs == [f"{number % 10}\nend {number % 10}\n".encode() for number in range(30)]
    assert len(attempts) == 1
    wait_until(lambda: not ssh_host.session_pids(), 10, "the host has no session left")


def test_a_slow_listener_holds_up_nobody(ssh_host: SshHost, target: SshTarget) -> None:
    """Whoever does not take its log gets a window of it, and its neighbour everything."""
    flood = started(target, "head -c 3000000 /dev/zero | tr '\\0' x", "flood")
    quiet = started(target, "echo one; sleep 1; echo two", "quiet")

    async def both() -> tuple[bytes, int, bytes]:
        async with await StreamingSession.open(target) as slow, await StreamingSession.open(target) as other:
            lazy = slow.follow(flood, BEGINNING)
            await anext(lazy)
            heard = await log_to_the_end(other, quiet)
            held = sum(len(frame.payload) for frame in slow._stream._inbox)
            rest = b""
            async for frame in lazy:
                rest += frame.payload
            return heard, held, rest

    heard, held, rest = asyncio.run(both())

    assert heard == b"one\ntwo\n"
    assert 0 < held <= 512 * 1024
    assert rest == b"x" * 3_000_000


def test_a_lost_connection_is_lost_for_all_and_made_once_again(
    ssh_host: SshHost, target: SshTarget, attempts: list[float], tmp_path: Path
) -> None:
    """Everybody hears why; those who try again share the next one."""
    launch_id = started(target, "echo begin; sleep 30", "lost")
    attempts.clear()

    async def until_lost(session: StreamingSession, seen: asyncio.Event) -> str:
        try:
            async for frame in session.follow(launch_id, BEGINNING):
                if frame.type == "log":
                    seen.set()
        except TransportError as error:
            return error.kind
        finally:
            await session.close()
        return "ended"

    async def story() -> list[str]:
        sessions = [await StreamingSession.open(target) for _ in range(5)]
        seen = [asyncio.Event() for _ in sessions]
        tasks = [asyncio.create_task(until_lost(*pair)) for pair in zip(sessions, seen, strict=True)]
        await asyncio.gather(*(event.wait() for event in seen))
        await asyncio.to_thread(ssh_host.kill_sessions)
        kinds = list(await asyncio.gather(*tasks))
        again = await asyncio.gather(*(StreamingSession.open(target) for _ in range(5)))
        await again[0].call(protocol.stop_request(launch_id=launch_id, reason="end", who="test", wait_s=10))
        for session in again:
            await session.close()
        return kinds

    assert asyncio.run(story()) == ["dropped"] * 5
    assert len(attempts) == 2


def test_whoever_is_cancelled_while_connecting_takes_nothing_from_the_others(
    ssh_host: SshHost, target: SshTarget, attempts: list[float]
) -> None:
    """The first one asked; the second one still gets the connection."""

    async def story() -> str:
        first = asyncio.create_task(StreamingSession.open(target))
        second = asyncio.create_task(StreamingSession.open(target))
        await asyncio.sleep(0)
        first.cancel()
        async with await second as session:
            return str(session.hello["user"])

    assert asyncio.run(story()) == target.user
    assert len(attempts) == 1


def test_a_connection_that_nobody_waits_for_any_more_is_closed(ssh_host: SshHost, target: SshTarget) -> None:
    """Cancelled before it was there: no session stays on the host."""

    async def story() -> None:
        only = asyncio.create_task(StreamingSession.open(target))
        await asyncio.sleep(0)
        only.cancel()
        await asyncio.wait({only})
        links = host_link._ALL[asyncio.get_running_loop()]
        while links.opening:
            await asyncio.wait(set(links.opening.values()))
        assert not links.open

    asyncio.run(story())
    wait_until(lambda: not ssh_host.session_pids(), 10, "the host has no session left")


def test_fifty_who_wait_for_a_dead_host_knock_once(target: SshTarget, attempts: list[float]) -> None:
    """The others are told what the first one met; whoever insists knocks again."""
    import dataclasses

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = dataclasses.replace(target, port=unused.getsockname()[1])

    async def kind(insist: bool = False) -> str:
        try:
            await StreamingSession.open(nobody, insist=insist)
        except TransportError as error:
            return error.kind
        return "open"

    async def story() -> list[str]:
        together = list(await asyncio.gather(*(kind() for _ in range(50))))
        return [*together, await kind(), await kind(insist=True)]

    assert asyncio.run(story()) == ["refused"] * 52
    assert len(attempts) == 2


def test_conversations_with_other_credentials_do_not_share(
    ssh_host: SshHost, target: SshTarget, attempts: list[float]
) -> None:
    """A wrong password beside a right key gets its own answer."""
    import dataclasses

    wrong = dataclasses.replace(target, identities=(), use_agent=False, password="wrong")

    async def story() -> str:
        async with await StreamingSession.open(target):
            try:
                async with await StreamingSession.open(wrong):
                    return "open"
            except TransportError as error:
                return error.kind

    assert asyncio.run(story()) == "authentication"
    assert len(attempts) == 2

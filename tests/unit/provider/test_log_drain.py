"""A trigger can see whether its supervisor has read what it printed, and prints only when there is room."""

from __future__ import annotations

import asyncio
import socket

from gpualert_provider.triggers.log_drain import OwnSockets, log_drained


def test_unread_bytes_of_a_unix_socket_are_seen_and_drain():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sockets = OwnSockets()
        before = sockets.unread_bytes()
        ours.sendall(b"x" * 10_000)
        assert sockets.unread_bytes() >= before + 10_000

        theirs.recv(20_000)
        assert sockets.unread_bytes() == before


def test_waiting_ends_when_it_was_read_and_is_bounded_when_it_was_not():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"x" * 1000)

        async def read_later():
            waiting = asyncio.create_task(log_drained(30, sockets=OwnSockets()))
            await asyncio.sleep(0)
            assert not waiting.done()
            theirs.recv(2000)
            return await waiting

        assert asyncio.run(log_drained(0, sockets=OwnSockets())) is False
        assert asyncio.run(log_drained(0, down_to=1_000_000, sockets=OwnSockets())) is True
        assert asyncio.run(read_later()) is True


def test_a_socket_that_was_closed_meanwhile_counts_no_more():
    """Its descriptor may belong to something else by then."""
    ours, theirs = socket.socketpair()
    sockets = OwnSockets()
    before = sockets.unread_bytes()
    ours.sendall(b"x" * 1000)
    assert sockets.unread_bytes() > before
    ours.close()
    theirs.close()

    with socket.create_server(("127.0.0.1", 0)):
        assert sockets.unread_bytes() == before


def test_network_connections_do_not_count():
    """An SSH connection with unsent bytes is no log."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        sockets = OwnSockets()
        before = sockets.unread_bytes()
        client.sendall(b"x" * 1000)
        assert sockets.unread_bytes() == before

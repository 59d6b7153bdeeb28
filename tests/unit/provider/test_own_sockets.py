"""It can be seen how much of what this process has written its supervisor has not read."""

from __future__ import annotations

import socket

from gpualert_provider.triggers.own_sockets import OwnSockets


def test_unread_bytes_of_a_unix_socket_are_seen_and_drain():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sockets = OwnSockets()
        before = sockets.unread_bytes()
        ours.sendall(b"x" * 10_000)
        assert sockets.unread_bytes() >= before + 10_000

        theirs.recv(20_000)
        assert sockets.unread_bytes() == before


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

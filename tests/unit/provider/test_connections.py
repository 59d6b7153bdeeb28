"""What a lost connection means, by how far the handshake had come."""

from __future__ import annotations

import dataclasses

import asyncssh
import pytest

from gpualert_provider.hooks.connections import _Client, _failed
from gpualert_provider.hooks.target import SshTarget


class Handshake:
    """A connection that knows so much of itself."""

    def __init__(self, **known: str) -> None:
        self._known = known

    def get_extra_info(self, name: str) -> str | None:
        return self._known.get(name)


@pytest.fixture
def target() -> SshTarget:
    return SshTarget(conn_id="gpu", host="gpu1", port=22, user="train")


@pytest.mark.parametrize(
    ("known", "ciphers", "kind"),
    [
        ({"server_version": "OpenSSH_9"}, ("aes128-ctr",), "protocol"),
        ({"server_version": "OpenSSH_9"}, None, "dropped"),
        ({"server_version": "OpenSSH_9", "send_cipher": "aes128-ctr"}, ("aes128-ctr",), "dropped"),
        ({}, ("aes128-ctr",), "banner"),
    ],
)
def test_a_server_that_hangs_up(target: SshTarget, known: dict[str, str], ciphers: tuple[str, ...] | None, kind: str):
    """During the key exchange, with ciphers set by hand, it has found none in common; later, or without, it is lost."""
    client = _Client()
    client.connection = Handshake(**known)  # type: ignore[assignment]

    error = _failed(dataclasses.replace(target, ciphers=ciphers), client, asyncssh.ConnectionLost("lost"), [])

    assert error.kind == kind

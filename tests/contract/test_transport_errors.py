"""Each way in which a host cannot be reached has a kind and a message of its own; both SSH libraries tell it alike."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpualert_provider.hooks.errors import TransportError
from tests.support import mounts, needs
from tests.support.accounts import Account
from tests.support.sessions import greet, kind, target_of
from tests.support.sshd import SshHost
from tools.rig.processes import free_port

__all__ = ["kind"]


class Somewhere:
    """An address that has no SSH host behind it, for ``target_of``."""

    def __init__(self, address: str, port: int, key: Path | None = None) -> None:
        self.address, self.port, self.username = address, port, "nobody"

    def connection_extra(self, **changes: Any) -> dict[str, Any]:
        return {"no_host_key_check": True, **changes}


def failure(kind: str, host: Any, **how: Any) -> TransportError:
    with pytest.raises(TransportError) as caught:
        greet(kind, target_of(host, **how))
    message = str(caught.value)
    assert "connection 'gpu_box'" in message and host.address in message, "a message names who was called"
    return caught.value


def test_dns(kind: str):
    """A name that nobody knows."""
    error = failure(kind, Somewhere("no-such-host.invalid", 22))

    assert error.kind == "dns" and "could not be resolved" in str(error)


def test_refused(kind: str):
    """A port where nobody listens."""
    error = failure(kind, Somewhere("127.0.0.1", free_port()))

    assert error.kind == "refused" and "no SSH server listens" in str(error)


@pytest.mark.slow
def test_timeout_in_a_black_hole(kind: str, machine_with: Callable[..., Any]):
    """A firewall that drops packets: nobody says no."""
    machine = machine_with()
    machine.drop()

    error = failure(kind, machine, conn_timeout=1)

    assert error.kind == "timeout" and "within 1 s" in str(error) and "TCP connection" in str(error)


def test_unreachable_without_a_route(kind: str):
    """A network that this machine has no way to."""
    needs.network_namespaces()
    # In a namespace with loopback only, every other address has no route; the code under test runs inside it.
    script = (
        "import sys; from tests.contract.test_transport_errors import Somewhere, failure;"
        "error = failure(sys.argv[1], Somewhere('10.255.0.1', 22)); print(error.kind, error)"
    )
    done = subprocess.run(
        ["unshare", "--net", os.sys.executable, "-c", script, kind],  # type: ignore[attr-defined]
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": ".:provider"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unreachable ")


@contextmanager
def speaking(words: bytes | None) -> Iterator[int]:
    """A server on loopback that says ``words`` and hangs up; with None it says nothing and stays. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                if words is None:
                    held.append(peer)
                    continue
                peer.sendall(words)
                peer.shutdown(socket.SHUT_WR)
                held.append(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for peer in held:
            peer.close()
    thread.join(5)


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["http", "hang up"])
def test_banner_of_something_else(kind: str, words: bytes):
    """A web server, or a server that hangs up at once as sshd does beyond MaxStartups."""
    with speaking(words) as port:
        error = failure(kind, Somewhere("127.0.0.1", port))

    assert error.kind == "banner" and "SSH server" in str(error)


def test_a_server_that_never_greets_times_out(kind: str):
    """A frozen host: the kernel accepts, nobody speaks. Not mixed up with a network that loses packets."""
    with speaking(None) as port:
        error = failure(kind, Somewhere("127.0.0.1", port), banner_timeout=1, auth_timeout=1)

    assert error.kind == "timeout" and "SSH banner" in str(error)


def test_too_many_logins_at_once(kind: str, ssh_host_with: Callable[..., SshHost]):
    """sshd's MaxStartups hangs up before its banner; the message names that."""
    host = ssh_host_with(options=["MaxStartups 1:100:1"])
    with socket.create_connection((host.address, host.port)) as idle:
        idle.recv(64)
        error = failure(kind, host)

    assert error.kind == "banner" and "MaxStartups" in str(error) and error.transient


def test_unknown_host_key(kind: str, ssh_host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Strict by default, and the message holds the very text that pins the key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    error = failure(kind, ssh_host, host_key=None)

    assert error.kind == "host_key" and not error.transient
    assert f'"host_key": "{ssh_host.host_key_line}"' in str(error) and "ssh-keyscan" in str(error)
    assert greet(kind, target_of(ssh_host, host_key=error.details["found"]))["type"] == "hello"


def test_changed_host_key(kind: str, ssh_host: SshHost, ssh_host_with: Callable[..., SshHost]):
    """Another key than the pinned one: what was expected, what was found, and that it may be an impostor."""
    other = ssh_host_with()
    error = failure(kind, ssh_host, host_key=other.host_key_line)

    assert error.kind == "host_key" and "another machine answers in its name" in str(error)
    assert str(error).count("SHA256:") == 2 and error.details["found"] == ssh_host.host_key_line


def test_unchecked_host_key_is_a_choice(kind: str, ssh_host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """no_host_key_check takes an unknown key, and still refuses a known host with another key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert greet(kind, target_of(ssh_host, host_key=None, no_host_key_check=True))["type"] == "hello"

    known = tmp_path / ".ssh/known_hosts"
    known.parent.mkdir()
    other = "AAAAC3NzaC1lZDI1NTE5AAAAIJ4DFWPoYBaVnLNdN+V+1bBSJWfcVAfT1YwUFkvRTWsb"
    known.write_text(f"[{ssh_host.address}]:{ssh_host.port} ssh-ed25519 {other}\n")
    assert failure(kind, ssh_host, host_key=None, no_host_key_check=True).kind == "host_key"
    assert greet(kind, target_of(ssh_host, host_key=None, allow_host_key_change=True))["type"] == "hello"


def test_wrong_key(kind: str, ssh_host: SshHost, tmp_path: Path):
    """A key that the host does not know: what was offered, what the host takes, and where to look."""
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True)

    error = failure(kind, ssh_host, key_file=str(wrong))

    assert error.kind == "authentication" and not error.transient
    assert f"key_file {wrong}" in str(error) and "publickey" in str(error) and "authorized_keys" in str(error)


def test_nothing_to_offer(kind: str, ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch):
    """No key, no password, no agent: the message says that, instead of "authentication failed"."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)

    assert "no key and no password" in str(failure(kind, ssh_host, key_file=None))


def test_wrong_password(kind: str, ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch):
    """The password is offered and never shown."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    error = failure(kind, ssh_host, key_file=None, password="pa55word")

    assert error.kind == "authentication" and "password" in str(error) and "pa55word" not in str(error)


def test_nologin(kind: str, ssh_host_with: Callable[..., SshHost], account_with: Callable[..., Account]):
    """An account without a shell: what the host printed stands in the message."""
    account = account_with(needs.program("nologin"))
    error = failure(kind, ssh_host_with(username=account.name))

    assert error.kind == "shell" and "This account is currently not available" in str(error)


def test_forced_command(kind: str, ssh_host_with: Callable[..., SshHost], plain_account: Account | None):
    """A menu that answers to everything: its words stand in the message."""
    login = plain_account.name if plain_account else None
    error = failure(kind, ssh_host_with(username=login, options=["ForceCommand echo 'backup access only'"]))

    assert error.kind == "shell" and "backup access only" in str(error)


def test_a_shell_that_waits(kind: str, ssh_host_with: Callable[..., SshHost], plain_account: Account | None):
    """An rc file that asks a question: bounded by cmd_timeout, with what it asked."""
    login = plain_account.name if plain_account else None
    host = ssh_host_with(username=login, options=["ForceCommand echo 'Choose a project:'; sleep 60"])
    error = failure(kind, host, cmd_timeout=2)

    assert error.kind == "shell" and "Choose a project:" in str(error) and "within 2 s" in str(error)


def test_no_python(kind: str, ssh_host_with: Callable[..., SshHost], account_with: Callable[..., Account]):
    """A bare host: what is needed, and how to name one."""
    account = account_with("bash")
    error = failure(kind, ssh_host_with(username=account.name, mounts=mounts.without_python()))

    assert error.kind == "python" and "remote_python" in str(error) and "3.8" in str(error)


def test_a_session_refused(kind: str, ssh_host_with: Callable[..., SshHost], plain_account: Account | None):
    """Logged in, but MaxSessions leaves no room for a command."""
    login = plain_account.name if plain_account else None
    error = failure(kind, ssh_host_with(username=login, options=["MaxSessions 0"]))

    assert error.kind == "channel" and "MaxSessions" in str(error)


def test_no_common_cipher(kind: str, ssh_host_with: Callable[..., SshHost], plain_account: Account | None):
    """An extra that the host cannot meet is named."""
    login = plain_account.name if plain_account else None
    host = ssh_host_with(username=login, options=["Ciphers aes256-gcm@openssh.com"])
    error = failure(kind, host, ciphers=["aes128-ctr"])

    assert error.kind == "protocol" and "ciphers" in str(error)


def test_a_proxy_command_that_fails(kind: str, ssh_host: SshHost):
    """It is our own configuration that is wrong, not the host."""
    error = failure(kind, ssh_host, host_proxy_cmd="false %h")

    assert error.kind in ("unreachable", "banner") and "proxy command" in str(error)

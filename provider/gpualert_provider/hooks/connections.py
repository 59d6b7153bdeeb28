"""SSH connections of a triggerer's event loop, through asyncssh and to exactly the target that the worker launched on.

Whoever needs a connection borrows it: today each borrower gets one of its own, and nothing but :func:`acquire` has to
change
for borrowers of one target to share one.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncssh

from gpualert_provider.hooks import errors
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.paramiko_link import fingerprint_of
from gpualert_provider.hooks.proxy import ProxyProcess
from gpualert_provider.hooks.target import SshTarget

# A line per connection and channel at INFO, and it would land in the task's log.
asyncssh.set_log_level("WARNING")

_CLOSE_S = 5.0
T = TypeVar("T")


@asynccontextmanager
async def acquire(target: SshTarget) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """
    Borrow a connection to the target.

    :raises TransportError: dns, refused, timeout, unreachable, banner, host_key, authentication, dropped or protocol.
    """
    proxy: ProxyProcess | None = None
    try:
        if target.proxy_command is not None:
            proxy = await asyncio.to_thread(ProxyProcess, target.proxy_command, target.peer)
        connection = await _connect(target, proxy)
        try:
            yield connection
        finally:
            await close(connection)
    finally:
        if proxy is not None:
            await asyncio.to_thread(proxy.close)


async def close(connection: asyncssh.SSHClientConnection) -> None:
    """Close, politely for at most 5 seconds; when this returns, the socket is closed."""
    connection.close()
    try:
        await within(connection.wait_closed(), _CLOSE_S)
    except TimeoutError:
        connection.abort()


def detached(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """
    Run in the background with no context of the caller's.

    Airflow sends what a trigger logs to the task named by a context variable, so a helper must not carry one along.
    """
    return contextvars.Context().run(asyncio.get_running_loop().create_task, coroutine)


async def within(awaitable: Awaitable[T], limit_s: float | None) -> T:
    """
    The result, if it comes in time; else the work is cancelled.

    Not ``asyncio.wait_for``: before Python 3.12 that one forgets a cancellation which arrives together with the result,
    and a trigger that was cancelled once is never cancelled again.

    :raises TimeoutError: it did not come in time.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({task}, timeout=limit_s)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise TimeoutError
    return task.result()


class _Client(asyncssh.SSHClient):
    """Notes how far the handshake came, for the error message."""

    def __init__(self) -> None:
        self.connection: asyncssh.SSHClientConnection | None = None
        self.shown_key: str | None = None
        self.auth_methods: list[str] = []

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        # Asked only about keys that are not among the trusted ones.
        self.shown_key = " ".join(key.export_public_key("openssh").decode().split()[:2])
        return False

    @property
    def greeted(self) -> bool:
        return self.connection is not None and bool(self.connection.get_extra_info("server_version"))

    @property
    def keys_exchanged(self) -> bool:
        return self.connection is not None and self.connection.get_extra_info("send_cipher") is not None

    def public_key_auth_requested(self) -> None:
        # Asked when no key of ours is left to offer; later the library has crossed its list off.
        if self.connection is not None and not self.auth_methods:
            self.auth_methods = list(self.connection.get_server_auth_methods())


async def _connect(target: SshTarget, proxy: ProxyProcess | None) -> asyncssh.SSHClientConnection:
    client = _Client()
    agent: asyncssh.SSHAgentClient | None = None
    sock: socket.socket | None = None
    try:
        keys, tried, agent = await _keys(target)
        options = _options(target, keys)
        sock = await _open_socket(target) if proxy is None else proxy.socket
        limit_s = target.banner_timeout_s + target.auth_timeout_s
        try:
            return await within(
                asyncssh.connect(target.host, target.port, sock=sock, client_factory=lambda: client, **options), limit_s
            )
        except TimeoutError as error:
            awaited = "login" if client.greeted else "the SSH banner"
            raise errors.timed_out(target.peer, awaited, limit_s) from error
        except (asyncssh.Error, OSError, ValueError) as error:
            problem = None if proxy is None or client.greeted else await asyncio.to_thread(proxy.failure)
            raise problem or _failed(target, client, error, tried) from error
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    finally:
        if agent is not None:
            agent.close()


async def _open_socket(target: SshTarget) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        addresses = await within(
            loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM), target.connect_timeout_s
        )
    except TimeoutError as error:
        raise TransportError(
            "dns", f"{target.peer}: the name server did not answer within {target.connect_timeout_s:g} s."
        ) from error
    except (OSError, UnicodeError) as error:
        problem = error if isinstance(error, OSError) else socket.gaierror(0, str(error))
        raise errors.from_os_error(problem, target.peer, "connecting") from error
    first: BaseException | None = None
    for family, kind, proto, _, address in addresses:
        sock = socket.socket(family, kind, proto)
        sock.setblocking(False)
        try:
            await within(loop.sock_connect(sock, address), target.connect_timeout_s)
            return sock
        except OSError as error:
            sock.close()
            first = first or error
        except BaseException:
            sock.close()
            raise
    if isinstance(first, OSError) and not isinstance(first, TimeoutError):
        raise errors.from_os_error(first, target.peer, "connecting") from first
    raise errors.timed_out(target.peer, "a TCP connection", target.connect_timeout_s) from first


async def _keys(target: SshTarget) -> tuple[list[Any], list[str], asyncssh.SSHAgentClient | None]:
    """The keys to offer, in paramiko's order (the connection's own, then the agent's), and what to call them."""
    keys: list[Any] = []
    tried: list[str] = []
    for identity in target.identities:
        # In a thread: opening an encrypted key is made slow on purpose.
        key = await asyncio.to_thread(asyncssh.import_private_key, identity.text, identity.passphrase)
        keys.append(key if identity.certificate is None else (key, asyncssh.import_certificate(identity.certificate)))
        tried.append(identity.source)
    agent = None
    path = os.environ.get("SSH_AUTH_SOCK")
    if target.use_agent and path:
        try:
            agent = await asyncssh.connect_agent(path)
            held = list(await agent.get_keys())
            keys += held
            tried += [f"ssh agent {key.algorithm.decode()}" for key in held]
        except (OSError, ValueError):
            pass  # as with ssh: an agent that does not answer has no keys
    if target.password is not None:
        tried.append("password")
    return keys, tried, agent


def _options(target: SshTarget, keys: list[Any]) -> dict[str, Any]:
    """All that asyncssh would otherwise look up by itself."""
    trusted = [asyncssh.import_public_key(str(key)) for key in target.trusted_host_keys]
    options: dict[str, Any] = {
        "config": None,
        "username": target.user,
        "password": target.password,
        "client_keys": keys or None,
        "agent_path": None,
        "gss_host": None,
        "known_hosts": None if target.accept_unknown_host_key and not trusted else (trusted, [], []),
        "compression_algs": ["zlib@openssh.com", "none"] if target.compress else ["none"],
        "keepalive_interval": target.keepalive_interval_s,
        "keepalive_count_max": 3,
        "login_timeout": 0,  # bounded from outside, so that the message can say what was awaited
    }
    if target.ciphers is not None:
        options["encryption_algs"] = list(target.ciphers)
    options |= _without_disabled(target)
    return options


def _without_disabled(target: SshTarget) -> dict[str, list[str]]:
    if not target.disabled_algorithms:
        return {}
    from asyncssh.encryption import get_default_encryption_algs
    from asyncssh.kex import get_default_kex_algs
    from asyncssh.mac import get_default_mac_algs
    from asyncssh.public_key import get_default_public_key_algs

    names = {
        "ciphers": ("encryption_algs", get_default_encryption_algs()),
        "macs": ("mac_algs", get_default_mac_algs()),
        "kex": ("kex_algs", get_default_kex_algs()),
        "pubkeys": ("signature_algs", get_default_public_key_algs()),
        "keys": ("server_host_key_algs", get_default_public_key_algs()),
    }
    options = {}
    for kind, disabled in target.disabled_algorithms.items():
        option, available = names[kind]
        if kind == "ciphers" and target.ciphers is not None:
            available = [name.encode() for name in target.ciphers]
        if kind == "keys" and target.trusted_host_keys:
            known = {key.type for key in target.trusted_host_keys}
            available = [n for n in available if n.decode() in known or (n.startswith(b"rsa-") and "ssh-rsa" in known)]
        options[option] = [name.decode() for name in available if name.decode() not in disabled]
    return options


def _failed(target: SshTarget, client: _Client, error: Exception, tried: list[str]) -> TransportError:
    peer, text = target.peer, str(error)
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        if client.shown_key is None:
            return TransportError("host_key", f"{peer}: the host's key could not be checked ({text}).")
        fingerprint = fingerprint_of(client.shown_key).split()[1]
        if target.trusted_host_keys:
            expected = [fingerprint_of(str(key)) for key in target.trusted_host_keys]
            return errors.host_key_changed(peer, client.shown_key, fingerprint, expected, target.host_key_source)
        return errors.host_key_unknown(
            peer, target.host, target.port, client.shown_key, fingerprint, target.host_key_source
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return errors.not_authenticated(peer, tried, client.auth_methods or None)
    if isinstance(error, asyncssh.DisconnectError) and "authentication" in text.lower():
        return errors.not_authenticated(peer, tried, client.auth_methods or None, text)
    if isinstance(error, asyncssh.KeyExchangeFailed):
        if "host key" in text.lower() and target.trusted_host_keys:
            known = ", ".join(key.type for key in target.trusted_host_keys)
            return TransportError(
                "host_key",
                f"{peer}: the host offers no key of the types that {target.host_key_source} has for it ({known}).",
            )
        return errors.no_common_algorithm(peer, text)
    if isinstance(error, ValueError):
        return errors.no_common_algorithm(peer, text)
    if not client.greeted:
        if target.proxy_command is not None:
            return TransportError(
                "unreachable", f"{peer}: the proxy command gave no SSH server ({text or 'it ended'})."
            )
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            return errors.from_os_error(error, peer, "connecting")
        return errors.banner_missing(peer, text or "a closed connection")
    if not client.keys_exchanged and (target.ciphers is not None or target.disabled_algorithms):
        # A server that finds nothing in common hangs up, and whether its reason or its end is seen first is chance.
        return errors.no_common_algorithm(
            peer, f"it hung up during the key exchange, and the ciphers or algorithms are set by hand; {text}"
        )
    if isinstance(error, OSError):
        return errors.from_os_error(error, peer, "talking")
    return TransportError("dropped", f"{peer}: the connection was lost during login ({text}).")

"""One SSH exec channel through paramiko: bytes in, bytes out, every wait bounded, every failure named.

SSH's own exit status is only ever a hint for a message. It is 255 or -1 for reasons of its own, and a job's end comes
in frames alone.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from functools import partial

import paramiko

from gpualert_provider.hooks import errors
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.proxy import ProxyProcess
from gpualert_provider.hooks.target import SshTarget

# paramiko writes tracebacks of its transport thread to this logger for failures that we report ourselves.
_LIBRARY_LOG = "gpualert.paramiko"
logging.getLogger(_LIBRARY_LOG).setLevel(logging.CRITICAL)
_STDERR_KEPT = 8192


class ParamikoLink:
    """
    An open exec channel, and the connection that belongs to it alone.

    :raises TransportError: dns, refused, timeout, unreachable, banner, host_key, authentication, channel or protocol.
    """

    def __init__(self, target: SshTarget, command: str) -> None:
        self.target = target
        self._stderr = b""
        self._proxy: ProxyProcess | None = None
        self._transport: paramiko.Transport | None = None
        self._channel: paramiko.Channel | None = None
        try:
            self._transport = self._open_transport()
            self._check_host_key(self._transport)
            _authenticate(self._transport, target)
            self._channel = self._open_channel(self._transport, command)
        except BaseException:
            self.close()
            raise

    def send(self, data: bytes, timeout_s: float | None) -> None:
        """:raises TransportError: dropped, or timeout when the host takes no more bytes."""
        assert self._channel is not None
        self._channel.settimeout(timeout_s)
        try:
            self._channel.sendall(data)
        except TimeoutError as error:
            raise errors.timed_out(self.target.peer, "room to send to the host", timeout_s) from error
        except (EOFError, OSError) as error:
            raise self._lost(error) from error

    def receive(self, timeout_s: float | None) -> bytes | None:
        """Some bytes; empty at the end of the stream; None when nothing came in time."""
        assert self._channel is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = 1.0 if deadline is None else min(1.0, max(0.0, deadline - time.monotonic()))
            self._channel.settimeout(max(left, 0.001))
            try:
                data = self._channel.recv(65536)
            except TimeoutError:
                data = None
            except (EOFError, OSError) as error:  # reading sends, too: room for more bytes
                raise self._lost(error) from error
            # Unread stderr would fill the window and stop the host's other words too.
            while self._channel.recv_stderr_ready():
                self._stderr = (self._stderr + self._channel.recv_stderr(65536))[-_STDERR_KEPT:]
            if data is not None:
                return data
            assert self._transport is not None
            if not self._transport.is_active():
                return b""
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def last_words(self) -> str:
        """What the host wrote to stderr, and how SSH says the command ended; for messages to people."""
        assert self._channel is not None
        while self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(65536))[-_STDERR_KEPT:]
        words = self._stderr.decode("utf-8", "replace").strip()
        # An exit status may follow the end of the stream a moment later.
        self._channel.status_event.wait(0.5)
        if self.command_ended:
            words += f"{' ' if words else ''}[the remote command ended with status {self._channel.exit_status}]"
        return words

    @property
    def command_ended(self) -> bool:
        """The host has said that the command ended; when a connection is lost, nobody says it."""
        return self._channel is not None and self._channel.exit_status_ready() and self._channel.exit_status >= 0

    def close(self) -> None:
        """Close channel, connection and proxy process. Any number of times."""
        for part in (self._channel, self._transport):
            if part is not None:
                try:
                    part.close()
                except (EOFError, OSError):  # its word of farewell met a connection that was just lost
                    pass
        if self._transport is not None:
            self._transport.join(5)
        if self._proxy is not None:
            self._proxy.close()

    # -- how

    def _lost(self, error: EOFError | OSError) -> TransportError:
        """paramiko says EOFError where it meets the end of a connection while it sends."""
        problem = error if isinstance(error, OSError) else ConnectionResetError("Connection reset by peer")
        return errors.from_os_error(problem, self.target.peer, "talking")

    def _open_socket(self) -> socket.socket:
        target = self.target
        if target.proxy_command is not None:
            self._proxy = ProxyProcess(target.proxy_command, target.peer)
            return self._proxy.socket
        try:
            addresses = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            problem = error if isinstance(error, OSError) else socket.gaierror(0, str(error))
            raise errors.from_os_error(problem, target.peer, "connecting") from error
        first: OSError | None = None
        for family, kind, proto, _, address in addresses:
            connection = socket.socket(family, kind, proto)
            connection.settimeout(target.connect_timeout_s)
            try:
                connection.connect(address)
                return connection
            except OSError as error:
                connection.close()
                first = first or error
        assert first is not None
        if isinstance(first, TimeoutError):
            raise errors.timed_out(target.peer, "a TCP connection", target.connect_timeout_s) from first
        raise errors.from_os_error(first, target.peer, "connecting") from first

    def _open_transport(self) -> paramiko.Transport:
        target = self.target
        sock = self._open_socket()
        try:
            transport = paramiko.Transport(
                sock, disabled_algorithms={k: list(v) for k, v in target.disabled_algorithms.items()}
            )
        except Exception:
            sock.close()
            raise
        self._transport = transport
        transport.set_log_channel(_LIBRARY_LOG)
        transport.daemon = True
        transport.use_compression(target.compress)
        transport.banner_timeout = target.banner_timeout_s
        transport.auth_timeout = target.auth_timeout_s
        options = transport.get_security_options()
        try:
            if target.ciphers is not None:
                options.ciphers = target.ciphers
            if target.trusted_host_keys:
                options.key_types = _wanted_host_key_types(target, tuple(options.key_types))
        except ValueError as error:
            raise errors.no_common_algorithm(target.peer, str(error)) from error
        try:
            transport.start_client(timeout=target.banner_timeout_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise (self._proxy and self._proxy.failure()) or self._handshake_failed(error) from error
        if not transport.initial_kex_done:  # start_client says nothing when its time is over
            awaited = "SSH's key exchange" if transport.remote_version else "the SSH banner"
            raise errors.timed_out(target.peer, awaited, target.banner_timeout_s)
        if target.keepalive_interval_s:
            transport.set_keepalive(max(1, int(target.keepalive_interval_s)))
        return transport

    def _handshake_failed(self, error: Exception) -> TransportError:
        peer, text = self.target.peer, str(error)
        if isinstance(error, EOFError):
            return errors.banner_missing(peer, "a closed connection")
        if isinstance(error, OSError):
            return errors.from_os_error(error, peer, "connecting")
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            if self.target.trusted_host_keys and "host key" in text.lower():
                known = ", ".join(key.type for key in self.target.trusted_host_keys)
                return TransportError(
                    "host_key",
                    f"{peer}: the host offers no key of the types that {self.target.host_key_source} has for it "
                    f"({known}).",
                )
            return errors.no_common_algorithm(peer, text)
        if "banner" in text.lower():
            assert self._transport is not None
            if "timed out" in text.lower() or isinstance(error.__cause__ or error.__context__, TimeoutError):
                return errors.timed_out(peer, "the SSH banner", self.target.banner_timeout_s)
            return errors.banner_missing(peer, text)
        if "timeout" in text.lower() or "timed out" in text.lower() or text.startswith("No existing session"):
            return errors.timed_out(peer, "SSH's key exchange", self.target.banner_timeout_s)
        return TransportError("dropped", f"{peer}: the connection was lost before login ({text}).")

    def _check_host_key(self, transport: paramiko.Transport) -> None:
        target = self.target
        key = transport.get_remote_server_key()
        found = f"{key.get_name()} {key.get_base64()}"
        if target.trusted_host_keys:
            if found not in {str(trusted) for trusted in target.trusted_host_keys}:
                expected = [fingerprint_of(str(trusted)) for trusted in target.trusted_host_keys]
                raise errors.host_key_changed(target.peer, found, key.fingerprint, expected, target.host_key_source)
        elif not target.accept_unknown_host_key:
            raise errors.host_key_unknown(
                target.peer, target.host, target.port, found, key.fingerprint, target.host_key_source
            )

    def _open_channel(self, transport: paramiko.Transport, command: str) -> paramiko.Channel:
        target = self.target
        try:
            channel = transport.open_session(timeout=target.auth_timeout_s)
            channel.exec_command(command.encode() if isinstance(command, str) else command)
        except paramiko.ChannelException as error:
            raise errors.channel_refused(target.peer, f"{error.code}: {error.text}") from error
        except paramiko.SSHException as error:
            if not transport.is_active():
                raise TransportError(
                    "dropped", f"{target.peer}: the host closed the connection after login ({error})."
                ) from error
            raise errors.channel_refused(target.peer, str(error)) from error
        except (EOFError, OSError) as error:
            raise TransportError("dropped", f"{target.peer}: the host closed the connection after login.") from error
        return channel


def fingerprint_of(key_line: str) -> str:
    """``ssh-ed25519 SHA256:…`` of a ``type base64`` text."""
    import base64
    import hashlib

    kind, data = key_line.split()[:2]
    digest = hashlib.sha256(base64.b64decode(data)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _wanted_host_key_types(target: SshTarget, available: tuple[str, ...]) -> tuple[str, ...]:
    """Ask for the types we know; a server with several keys must not show us another one."""
    wanted: list[str] = []
    for key in target.trusted_host_keys:
        wanted += ["rsa-sha2-512", "rsa-sha2-256"] if key.type == "ssh-rsa" else [key.type]
    known = [name for name in available if name in wanted]
    # The others stay at the end: a host with only such keys is then told apart as "changed".
    return tuple(known + [name for name in available if name not in wanted])


def _authenticate(transport: paramiko.Transport, target: SshTarget) -> None:
    tried: list[str] = []
    accepted: list[str] | None = None
    last: Exception | None = None

    def attempt(what: str, log_in: Callable[[], object]) -> bool:
        nonlocal accepted, last
        tried.append(what)
        try:
            more = log_in()
        except paramiko.BadAuthenticationType as error:
            accepted, last = list(error.allowed_types), error
        except paramiko.AuthenticationException as error:
            last = error
        except paramiko.SSHException as error:
            if not transport.is_active():
                raise _lost_during_login(target, tried, error) from error
            last = error
        except (EOFError, OSError) as error:
            raise _lost_during_login(target, tried, error) from error
        else:
            if not more:
                return True
            # A key was accepted as the first of two factors.
            accepted = [str(method) for method in more] if isinstance(more, list) else None
        return transport.is_authenticated()

    for identity in target.identities:
        key = identity.paramiko_key()
        if attempt(identity.source, partial(transport.auth_publickey, target.user, key)):
            return
    if target.use_agent:
        agent = paramiko.Agent()
        try:
            for key in agent.get_keys():
                if attempt(f"ssh agent {key.get_name()}", partial(transport.auth_publickey, target.user, key)):
                    return
        finally:
            agent.close()
    if target.password is not None and attempt(
        "password", lambda: transport.auth_password(target.user, target.password)
    ):
        return
    if not tried:
        attempt("none", lambda: transport.auth_none(target.user))
        tried.clear()
        if transport.is_authenticated():
            return
    if transport.is_authenticated():
        return
    if accepted is None and transport.is_active():
        try:  # costs no try on the host, and is answered with what it takes
            transport.auth_none(target.user)
        except paramiko.BadAuthenticationType as error:
            accepted = list(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError):
            pass
    detail = "" if last is None else str(last).strip().rstrip(".")
    raise errors.not_authenticated(target.peer, tried, accepted, detail)


def _lost_during_login(target: SshTarget, tried: list[str], error: Exception) -> TransportError:
    # sshd closes the connection after MaxAuthTries; that is about keys, not about the network.
    if len(tried) > 1:
        return errors.not_authenticated(
            target.peer, tried, None, f"the host closed the connection after {len(tried)} tries: {error}"
        )
    return TransportError("dropped", f"{target.peer}: the connection was lost during login ({error}).")


__all__ = ["ParamikoLink", "fingerprint_of"]

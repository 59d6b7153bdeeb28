"""What can go wrong between Airflow and a GPU host, told apart: which step failed, with whom, and what to do about it.

None of these says anything about the training. A job that failed is an outcome; here it is only us who could not look,
launch or follow.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from gpualert.errors import GpuAlertError

#: Every kind of transport error, with the sentence that explains it.
KINDS: dict[str, str] = {
    "dns": "the host name could not be resolved",
    "refused": "the host answered, and no server listens on that port",
    "timeout": "nobody answered in time",
    "unreachable": "the network has no way to the host",
    "banner": "something answered that is not a ready SSH server",
    "host_key": "the host's key is not the expected one",
    "authentication": "the host did not let the user in",
    "shell": "the account's shell did not run our command",
    "python": "no suitable Python was found on the host",
    "channel": "the host refused to open a session or to run a command",
    "dropped": "the connection was lost",
    "protocol": "the other end said something that this version does not understand",
}
#: Kinds that usually pass by themselves. The others stay until a person changes something.
TRANSIENT = frozenset({"refused", "timeout", "unreachable", "banner", "channel", "dropped", "dns"})


class TransportError(GpuAlertError):
    """
    We could not reach the host, or lost it.

    :param kind: one of :data:`KINDS`.
    :param message: for people: who was called, what was expected, what was found, what to do.
    :param details: small plain values for code that wants more than the kind.
    """

    def __init__(self, kind: str, message: str, details: dict[str, Any] | None = None) -> None:
        if kind not in KINDS:
            raise ValueError(f"transport error kind: expected one of {', '.join(KINDS)}, found {kind!r}")
        super().__init__(message, kind)
        self.details = dict(details or {})

    @property
    def transient(self) -> bool:
        """Trying again later may help without anybody changing anything."""
        return self.kind in TRANSIENT


class InvalidConnection(GpuAlertError, ValueError):
    """An Airflow connection that cannot be used as it is written. The message names the connection and the field."""

    kind = "connection"


def from_os_error(error: OSError, peer: str, doing: str) -> TransportError:
    """
    A :class:`TransportError` for a failed name lookup, connect, read or write.

    :param peer: who was called, as ``user@host:port (connection 'x')``.
    :param doing: ``connecting`` (before SSH has begun) or ``talking`` (after).
    """
    if isinstance(error, socket.gaierror):
        return TransportError(
            "dns",
            f"{peer}: the host name could not be resolved ({error.strerror or error}). Expected a name that this "
            "machine's "
            "resolver knows, or an address. Check the connection's host field; names from ~/.ssh/config are not "
            "followed.",
        )
    if doing == "connecting":
        if isinstance(error, ConnectionRefusedError):
            return TransportError(
                "refused",
                f"{peer}: connection refused. The machine is up, and no SSH server listens on that port. "
                "Check the port, and that sshd runs there.",
            )
        if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
            return timed_out(peer, "a TCP connection", None)
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN):
            return TransportError(
                "unreachable",
                f"{peer}: {error.strerror or error}. There is no way to the host from this machine: "
                "is it switched on, is a VPN or a route missing?",
            )
        if isinstance(error, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
            return TransportError(
                "banner", f"{peer}: the connection was closed before SSH began ({_text(error)}). {_BUSY}"
            )
        return TransportError("unreachable", f"{peer}: could not connect ({_text(error)}).")
    return TransportError("dropped", f"{peer}: the connection was lost ({_text(error)}).")


def timed_out(peer: str, awaited: str, limit_s: float | None) -> TransportError:
    """:param awaited: what did not come: ``a TCP connection``, ``the SSH banner``, …"""
    within = "" if limit_s is None else f" within {limit_s:g} s"
    return TransportError(
        "timeout",
        f"{peer}: no answer{within} while waiting for {awaited}. The host may be off, overloaded or behind a firewall "
        "that drops packets; conn_timeout and cmd_timeout in the connection's extra set the limits.",
        {"awaited": awaited, "limit_s": limit_s},
    )


def banner_missing(peer: str, found: str) -> TransportError:
    return TransportError("banner", f"{peer}: expected the greeting of an SSH server, found {found}. {_BUSY}")


def host_key_unknown(peer: str, host: str, port: int, found: str, fingerprint: str, looked_in: str) -> TransportError:
    """:param found: the key that the host showed, as ``type base64``."""
    return TransportError(
        "host_key",
        f"{peer}: the host showed a key that is not known here: {found.split()[0]} {fingerprint}. Looked in: "
        f"{looked_in}. "
        f"If this is the host's real key (compare with `ssh-keygen -lf /etc/ssh/ssh_host_*.pub` there), pin it: "
        f'put "host_key": "{found}" into the connection\'s extra, or run '
        f"`ssh-keyscan -p {port} {host} >> ~/.ssh/known_hosts` on every worker and triggerer.",
        {"found": found, "fingerprint": fingerprint},
    )


def host_key_changed(
    peer: str, found: str, fingerprint: str, expected: list[str], expected_from: str
) -> TransportError:
    return TransportError(
        "host_key",
        f"{peer}: the host showed {found.split()[0]} {fingerprint}, but {expected_from} expects {', '.join(expected)}. "
        "Either the host was installed anew, or another machine answers in its name. "
        f'If the change is right, replace the old key: the new one is "host_key": "{found}".',
        {"found": found, "fingerprint": fingerprint, "expected": expected},
    )


def not_authenticated(peer: str, tried: list[str], accepted: list[str] | None, detail: str = "") -> TransportError:
    """
    :param tried: what we offered, in words: ``key_file /path``, ``ssh agent (2 keys)``, ``password``.
    :param accepted: methods that the host says it takes; None when it did not say.
    """
    said = "" if not accepted else f" The host takes: {', '.join(accepted)}."
    offered = ", ".join(tried) if tried else "nothing: the connection has no key and no password, and no agent answered"
    return TransportError(
        "authentication",
        f"{peer}: authentication failed{f' ({detail})' if detail else ''}. Offered: {offered}.{said} "
        "Check the login, and that the public key stands in the account's ~/.ssh/authorized_keys on the host.",
        {"tried": tried, "accepted": accepted},
    )


def channel_refused(peer: str, detail: str) -> TransportError:
    return TransportError(
        "channel",
        f"{peer}: logged in, but the host refused to open a session ({detail}). "
        "sshd's MaxSessions may be reached, or the account may not run commands.",
    )


def no_common_algorithm(peer: str, detail: str) -> TransportError:
    return TransportError(
        "protocol",
        f"{peer}: the two ends have no algorithm in common ({detail}). Check ciphers and disabled_algorithms in the "
        "connection's extra, and the age of the server.",
    )


_BUSY = (
    "Too many logins at once (sshd's MaxStartups), a blocked address (fail2ban, hosts.deny), or something else than "
    "sshd "
    "on this port are the usual causes."
)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__

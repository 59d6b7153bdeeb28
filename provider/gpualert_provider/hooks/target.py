"""Where a launch goes: everything that both SSH libraries need, resolved once from Airflow's own `ssh` connection.

The worker launches through paramiko and the triggerer follows through asyncssh. Left to themselves the two read other
files, other defaults and
other keys, and may reach different machines; so neither reads anything: they get this value. What is ambiguous is
refused, by field.
"""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpualert_provider.hooks import ssh_config
from gpualert_provider.hooks.errors import InvalidConnection
from gpualert_provider.hooks.identity import Identity, default_identities, load_identity, read_identity
from gpualert_provider.hooks.ssh_config import KNOWN_HOSTS, HostKey, known_host_keys, parse_host_key

if TYPE_CHECKING:
    from airflow.sdk import Connection

SSH_PORT = 22
#: The documented defaults of Airflow's SSH hook for a TCP connection and for SSH's greeting.
CONNECT_TIMEOUT_S = 10.0
BANNER_TIMEOUT_S = 30.0
AUTH_TIMEOUT_S = 30.0
#: How long an answer of the host may take. The hook allows 10 s, for a shell that is already there; ours may have to
#: unpack the archive on a slow network file system first.
COMMAND_TIMEOUT_S = 60.0
KEEPALIVE_INTERVAL_S = 30.0
_ALGORITHM_KINDS = ("ciphers", "macs", "keys", "pubkeys", "kex")


@dataclass(frozen=True)
class LocalTarget:
    """This very machine, reached through a child process."""

    conn_id: None = None

    @property
    def peer(self) -> str:
        """How messages call it."""
        return "this machine"

    @property
    def host_name(self) -> str:
        return "localhost"

    @property
    def command_timeout_s(self) -> float | None:
        return COMMAND_TIMEOUT_S

    @property
    def secrets(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class SshTarget:
    """
    One account on one host, and how to prove each to the other. Secrets are in no repr.

    :param conn_id: the Airflow connection it was read from.
    :param host: name or address that is dialled.
    :param user: login; the current account's name when the connection has none, as in Airflow's hook.
    :param identities: private keys to offer, in order; then the agent's (if ``use_agent``), then the password.
    :param trusted_host_keys: the host must show one of these, if there are any: the pinned one, else those in
        known_hosts.
    :param accept_unknown_host_key: what to do when ``trusted_host_keys`` is empty. False: refuse.
    :param host_key_source: where ``trusted_host_keys`` come from, in words.
    :param connect_timeout_s: for the TCP connection; ``banner_timeout_s`` and ``auth_timeout_s`` come on top.
    :param command_timeout_s: longest silence of the host while it owes an answer; None: as long as the connection
        lives.
    :param keepalive_interval_s: seconds between SSH keepalives; 0 for none.
    :param ciphers: in order of preference; None for the library's own.
    :param disabled_algorithms: lists by ``ciphers macs keys pubkeys kex``, as paramiko names them.
    :param proxy_command: run instead of a TCP connection, without a shell; placeholders are filled in.
    :param warnings: what people should know about this connection, in sentences.
    """

    conn_id: str
    host: str
    port: int
    user: str
    password: str | None = field(default=None, repr=False)
    identities: tuple[Identity, ...] = ()
    use_agent: bool = True
    trusted_host_keys: tuple[HostKey, ...] = field(default=(), repr=False)
    accept_unknown_host_key: bool = False
    host_key_source: str = ""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    banner_timeout_s: float = BANNER_TIMEOUT_S
    auth_timeout_s: float = AUTH_TIMEOUT_S
    command_timeout_s: float | None = COMMAND_TIMEOUT_S
    keepalive_interval_s: float = KEEPALIVE_INTERVAL_S
    compress: bool = True
    ciphers: tuple[str, ...] | None = None
    disabled_algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    proxy_command: str | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_connection(cls, connection: str | Connection) -> SshTarget:
        """
        Resolve a connection, given by id or as the object itself. Reads key files and known_hosts of this machine.

        :raises InvalidConnection: the connection does not exist, or a field of it cannot be used; the message names
            both.
        """
        if isinstance(connection, str):
            connection = _get_connection(connection)
        return cls.from_fields(connection, _extra_of(connection))

    @classmethod
    async def from_connection_async(cls, conn_id: str) -> SshTarget:
        """The same for a triggerer's event loop: asks Airflow without blocking it, and reads files in a thread."""
        import asyncio

        from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

        try:
            connection = await get_async_connection(conn_id)
        except Exception as error:
            raise _not_found(conn_id, error) from error
        _check_json(connection)
        extra = await get_async_extra_dejson(connection)
        return await asyncio.to_thread(cls.from_fields, connection, extra)

    @classmethod
    def from_fields(cls, connection: Any, extra: Mapping[str, Any]) -> SshTarget:
        """
        :param connection: anything with ``conn_id conn_type host port login password``.
        :param extra: the connection's extra, decoded.
        """
        return _Resolver(connection, extra).resolve()

    @property
    def peer(self) -> str:
        """How messages call it: ``user@host:port (connection 'gpu_box')``."""
        return f"{self.user}@{self.host}:{self.port} (connection {self.conn_id!r})"

    @property
    def host_name(self) -> str:
        return self.host

    @property
    def secrets(self) -> tuple[str, ...]:
        """Exact values that must not appear in any log."""
        found = [self.password, *(identity.passphrase for identity in self.identities)]
        return tuple({value for value in found if value})


@dataclass
class _Resolver:
    connection: Any
    extra: Mapping[str, Any]

    def resolve(self) -> SshTarget:
        connection = self.connection
        conn_type = getattr(connection, "conn_type", None) or "ssh"
        if conn_type not in ("ssh", "sftp"):
            raise self._bad("conn_type", f"expected 'ssh', found {conn_type!r}")
        host = (connection.host or "").strip()
        if not host:
            raise self._bad("host", "expected a name or an address, found nothing")
        if any(c.isspace() for c in host) or "@" in host or "://" in host:
            raise self._bad(
                "host", f"expected a bare name or address, found {host!r}; user and port have fields of their own"
            )
        port = connection.port or SSH_PORT
        if not isinstance(port, int) or not 0 < port < 65536:
            raise self._bad("port", f"expected 1 to 65535, found {port!r}")
        user = (connection.login or "").strip() or getpass.getuser()
        # As Airflow's hook does: a pasted password often ends with a line break.
        password = (connection.password or "").strip() or None
        config = ssh_config.read_user_config(host, port, user)
        trusted, accept_unknown, source, warnings = self._host_keys(host, port)
        if config.not_followed:
            warnings.append(
                f"~/.ssh/config has {', '.join(config.not_followed)} for {host!r}; Airflow connections do not follow "
                "these. "
                "Put them into the connection's own fields."
            )
        return SshTarget(
            conn_id=connection.conn_id,
            host=host,
            port=port,
            user=user,
            password=password,
            identities=self._identities(config, password),
            trusted_host_keys=trusted,
            accept_unknown_host_key=accept_unknown,
            host_key_source=source,
            connect_timeout_s=self._seconds("conn_timeout", CONNECT_TIMEOUT_S) or CONNECT_TIMEOUT_S,
            banner_timeout_s=self._seconds("banner_timeout", BANNER_TIMEOUT_S) or BANNER_TIMEOUT_S,
            auth_timeout_s=self._seconds("auth_timeout", AUTH_TIMEOUT_S) or AUTH_TIMEOUT_S,
            command_timeout_s=self._seconds("cmd_timeout", COMMAND_TIMEOUT_S),
            keepalive_interval_s=self._seconds("keepalive_interval", KEEPALIVE_INTERVAL_S) or 0.0,
            compress=self._flag("compress", True),
            ciphers=self._ciphers(),
            disabled_algorithms=self._disabled_algorithms(),
            proxy_command=self._proxy_command(config, host, port, user),
            warnings=tuple(warnings),
        )

    def _host_keys(self, host: str, port: int) -> tuple[tuple[HostKey, ...], bool, str, list[str]]:
        pinned = self._text("host_key")
        name = "no_host_key_check" if "no_host_key_check" in self.extra else "ignore_hostkey_verification"
        no_check = self._flag(name, False)
        allow_change = self._flag("allow_host_key_change", False)
        if pinned is not None:
            for other, value in ((name, no_check), ("allow_host_key_change", allow_change)):
                if value:
                    raise self._bad("host_key", f"is pinned, and {other} says not to check it; remove one of the two")
            try:
                return (parse_host_key(pinned),), False, "the connection's host_key", []
            except ValueError as error:
                raise self._bad("host_key", str(error)) from error
        if allow_change:
            return (
                (),
                True,
                "nothing",
                ["Any host key is accepted (allow_host_key_change): an impostor would not be noticed."],
            )
        found = known_host_keys(host, port)
        source = " and ".join(KNOWN_HOSTS)
        if no_check:
            return (
                found,
                True,
                source,
                ["An unknown host key is accepted (no_host_key_check): an impostor would not be noticed."],
            )
        return found, False, source, []

    def _identities(self, config: ssh_config.ConfigEntry, password: str | None) -> tuple[Identity, ...]:
        key_file, private_key = self._text("key_file"), self._text("private_key", keep=True)
        passphrase = self._text("private_key_passphrase", keep=True)
        if key_file is not None and private_key is not None:
            raise self._bad("key_file", "private_key is given as well; give one of the two")
        identities: list[Identity] = []
        try:
            if private_key is not None:
                identities.append(load_identity("private_key", private_key, passphrase))
            elif key_file is not None:
                # A password doubles as the key file's passphrase, as in paramiko.
                identities.append(read_identity("key_file", key_file, passphrase or password))
        except ValueError as error:
            raise self._bad("private_key" if private_key is not None else "key_file", str(error)) from error
        if not identities and password is None and config.identity_file is not None:
            try:
                identities.append(read_identity("~/.ssh/config IdentityFile", config.identity_file, passphrase))
            except ValueError as error:
                if os.path.exists(os.path.expanduser(config.identity_file)):
                    raise self._bad("IdentityFile (from ~/.ssh/config)", str(error)) from error
        if self._flag("look_for_keys", True):
            identities += [
                i for i in default_identities(passphrase or password) if i.text not in {j.text for j in identities}
            ]
        return tuple(identities)

    def _ciphers(self) -> tuple[str, ...] | None:
        value = self.extra.get("ciphers")
        if value in (None, "", []):
            return None
        words = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
            raise self._bad("ciphers", f"expected a list of names, found {value!r}")
        return tuple(words)

    def _disabled_algorithms(self) -> dict[str, tuple[str, ...]]:
        value = self.extra.get("disabled_algorithms")
        if value in (None, "", {}):
            return {}
        if not isinstance(value, Mapping):
            raise self._bad(
                "disabled_algorithms", f'expected an object such as {{"pubkeys": ["rsa-sha2-512"]}}, found {value!r}'
            )
        found = {}
        for kind, names in value.items():
            if kind not in _ALGORITHM_KINDS:
                raise self._bad("disabled_algorithms", f"expected {', '.join(_ALGORITHM_KINDS)}, found {kind!r}")
            if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
                raise self._bad("disabled_algorithms", f"{kind}: expected a list of names, found {names!r}")
            found[kind] = tuple(names)
        return found

    def _proxy_command(self, config: ssh_config.ConfigEntry, host: str, port: int, user: str) -> str | None:
        own = self._text("host_proxy_cmd")
        if own is None:
            return config.proxy_command
        if own.lower() == "none":
            return None
        return ssh_config.proxy_command_text(own, host, port, user)

    # -- fields, checked

    def _text(self, name: str, keep: bool = False) -> str | None:
        value = self.extra.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._bad(name, f"expected text, found {type(value).__name__}")
        if not value.strip():
            return None
        return value if keep else value.strip()

    def _flag(self, name: str, default: bool) -> bool:
        value = self.extra.get(name)
        if value is None or value == "":
            return default
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        # Anything else reads as "false" in Airflow's hook. For a switch that guards the host key, a guess is not good
        # enough.
        raise self._bad(name, f"expected true or false, found {value!r}")

    def _seconds(self, name: str, default: float) -> float | None:
        """None when the field says that there is no limit (null, 0 or empty)."""
        if name not in self.extra:
            return default
        value = self.extra[name]
        if value in (None, "", 0, "0"):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number) or number <= 0:
            raise self._bad(name, f"expected a number of seconds above 0, found {value!r}")
        return number

    def _bad(self, name: str, problem: str) -> InvalidConnection:
        return InvalidConnection(f"connection {self.connection.conn_id!r}: {name}: {problem}")


def _get_connection(conn_id: str) -> Connection:
    from airflow.sdk import BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except Exception as error:
        raise _not_found(conn_id, error) from error


def _not_found(conn_id: str, error: Exception) -> InvalidConnection:
    return InvalidConnection(
        f"connection {conn_id!r}: not found ({error}). Define it as an `ssh` connection under Admin, Connections, "
        f"with `airflow connections add`, or as AIRFLOW_CONN_{conn_id.upper()}."
    )


def _check_json(connection: Any) -> None:
    import json

    extra = getattr(connection, "extra", None)
    if extra:
        try:
            decoded = json.loads(extra)
        except ValueError:
            decoded = None
        if not isinstance(decoded, dict):
            raise InvalidConnection(
                f"connection {connection.conn_id!r}: extra: expected a JSON object; it is something else"
            )


def _extra_of(connection: Any) -> Mapping[str, Any]:
    _check_json(connection)
    return connection.extra_dejson or {}

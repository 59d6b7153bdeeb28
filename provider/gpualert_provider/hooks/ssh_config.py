"""What this machine's own SSH files say about a host: ~/.ssh/config and known_hosts, read once and the same for both
SSH libraries.

From ~/.ssh/config only ProxyCommand and IdentityFile count, as in Airflow's own SSH hook; HostName, Port, User and
ProxyJump do not. What is
there and not followed is reported, so that a name that only `ssh` can resolve does not stay a riddle.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from io import StringIO

import paramiko

from gpualert_provider.hooks.errors import InvalidConnection

USER_CONFIG = "~/.ssh/config"
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True)
class HostKey:
    """A public host key: its type (``ssh-ed25519``) and its data in base64."""

    type: str
    data: str

    def __str__(self) -> str:
        return f"{self.type} {self.data}"


@dataclass(frozen=True)
class ConfigEntry:
    """
    What ~/.ssh/config says about one host.

    :param proxy_command: with %h, %p and %r filled in; None when there is none.
    :param identity_file: the first IdentityFile; None when there is none.
    :param not_followed: settings that are there and are not used, as ``HostName gpu1.lab``.
    """

    proxy_command: str | None = None
    identity_file: str | None = None
    not_followed: tuple[str, ...] = ()


def read_user_config(host: str, port: int, user: str, path: str = USER_CONFIG) -> ConfigEntry:
    """
    :raises InvalidConnection: the file is there and cannot be understood.
    """
    file = os.path.expanduser(path)
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.read()
    except OSError:
        return ConfigEntry()
    try:
        plain = paramiko.SSHConfig.from_text(text).lookup(host)
        # The first value wins in ssh_config(5): with the connection's own values in front, %h and %p mean what we dial.
        ours = paramiko.SSHConfig.from_text(f"HostName {host}\nPort {port}\nUser {user}\n{text}").lookup(host)
    except Exception as error:  # paramiko raises its own kinds, and plain ones from inside its parser
        raise InvalidConnection(f"{path}: could not be read for host {host!r}: {error}") from error
    identities = ours.get("identityfile") or [None]
    not_followed = []
    for name in ("hostname", "port", "user", "proxyjump"):
        value = plain.get(name)
        if value is not None and str(value).lower() not in (host.lower(), str(port), user.lower(), "none"):
            not_followed.append(f"{name} {value}")
    proxy_command = ours.get("proxycommand")
    return ConfigEntry(
        proxy_command=proxy_command if proxy_command and proxy_command.lower() != "none" else None,
        identity_file=identities[0],
        not_followed=tuple(not_followed),
    )


def known_host_keys(host: str, port: int, files: tuple[str, ...] = KNOWN_HOSTS) -> tuple[HostKey, ...]:
    """
    All keys that known_hosts(5) files have for the host. Lines with markers (@cert-authority, @revoked) are passed
    over.
    """
    name = host if port == paramiko.config.SSH_PORT else f"[{host}]:{port}"
    found: list[HostKey] = []
    for file in files:
        try:
            with open(os.path.expanduser(file), encoding="utf-8", errors="replace") as opened:
                lines = opened.readlines()
        except OSError:
            continue
        for line in lines:
            words = line.split(None, 3)
            if len(words) < 3 or words[0][0] in "#@" or not _names(words[0], name):
                continue
            try:
                key = parse_host_key(f"{words[1]} {words[2]}")
            except ValueError:  # one bad line hides only itself
                continue
            if key not in found:
                found.append(key)
    return tuple(found)


def _names(patterns: str, name: str) -> bool:
    """Does the first field of a known_hosts line (hashed, or a list of patterns, `!` excluding) mean this name?"""
    matched = False
    for pattern in patterns.split(","):
        if pattern.startswith("|1|"):
            matched = matched or paramiko.HostKeys.hash_host(name, pattern) == pattern
            continue
        excluding = pattern.startswith("!")
        wanted = re.escape(pattern.lstrip("!").lower()).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(wanted, name.lower()):
            if excluding:
                return False
            matched = True
    return matched


def parse_host_key(text: str) -> HostKey:
    """
    A pinned key: ``ssh-ed25519 AAAA…``, or base64 alone, whose own type word is read from the data.

    :raises ValueError: it is not a public key, with the reason.
    """
    words = text.split()
    if not words:
        raise ValueError("it is empty")
    if words[0] == "ssh-dss":
        raise ValueError(
            "DSA host keys are no longer supported by paramiko and OpenSSH; use an Ed25519, ECDSA or RSA key"
        )
    # `ssh-keyscan` and known_hosts lines begin with the host's name.
    if len(words) >= 3 and not _looks_like_type(words[0]) and _looks_like_type(words[1]):
        words = words[1:]
    data = words[1] if len(words) >= 2 else words[0]
    if len(words) == 1 and _looks_like_type(words[0]):
        raise ValueError(f"the key data after {words[0]!r} is missing")
    try:
        raw = base64.b64decode(data, validate=True)
        length = int.from_bytes(raw[:4], "big")
        kind = raw[4 : 4 + length].decode("ascii")
    except Exception:
        raise ValueError(f"expected 'TYPE BASE64', found {text[:60]!r}") from None
    if not _looks_like_type(kind):
        raise ValueError(f"expected 'TYPE BASE64', found {text[:60]!r}")
    if len(words) >= 2 and words[0] not in (kind, "ssh-ecdsa"):
        raise ValueError(f"says {words[0]!r}, but its data is a {kind!r} key")
    try:
        paramiko.PKey.from_type_string(kind, raw)
    except Exception as error:
        raise ValueError(f"a {kind!r} key that cannot be read: {error}") from None
    return HostKey(kind, data)


def _looks_like_type(word: str) -> bool:
    return word.startswith(("ssh-", "ecdsa-sha2-", "sk-"))


def proxy_command_text(text: str, host: str, port: int, user: str) -> str:
    """Fill in %h, %p, %r and %% as OpenSSH does."""
    out = StringIO()
    position = 0
    values = {"h": host, "p": str(port), "r": user, "%": "%", "n": host}
    while position < len(text):
        if text[position] == "%" and position + 1 < len(text) and text[position + 1] in values:
            out.write(values[text[position + 1]])
            position += 2
        else:
            out.write(text[position])
            position += 1
    return out.getvalue()

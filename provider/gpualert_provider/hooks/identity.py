"""Private keys as values: read once, checked once, and handed to both SSH libraries as the same text."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from io import StringIO

import paramiko

#: In the order in which paramiko looks for them.
DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_KEY_CLASSES = (paramiko.Ed25519Key, paramiko.RSAKey, paramiko.ECDSAKey)


@dataclass(frozen=True)
class Identity:
    """
    One private key that may be offered.

    :param source: how messages call it: ``key_file /path`` or ``private_key``; never its content.
    :param text: PEM or OpenSSH text of the key.
    :param certificate: OpenSSH certificate line that goes with it, from ``<key>-cert.pub``.
    """

    source: str
    text: str = field(repr=False)
    passphrase: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)

    def paramiko_key(self) -> paramiko.PKey:
        """:raises ValueError: it is no key that paramiko can read, or the passphrase does not open it."""
        problems = []
        for kind in _KEY_CLASSES:
            try:
                key = kind.from_private_key(StringIO(self.text), password=self.passphrase)
            except paramiko.PasswordRequiredException:
                raise ValueError("the key is encrypted, and private_key_passphrase is not set") from None
            except Exception as error:  # each class refuses the others' keys in its own way
                problems.append(str(error))
                continue
            if self.certificate is not None:
                key.load_certificate(self.certificate)
            return key
        reason = "the passphrase does not open it" if self.passphrase and _is_encrypted(self.text) else problems[0]
        raise ValueError(f"not a private key that can be used (RSA, ECDSA or Ed25519 in PEM or OpenSSH form): {reason}")


def load_identity(source: str, text: str, passphrase: str | None) -> Identity:
    """
    A key given as text.

    :raises ValueError: it cannot be used, with the reason.
    """
    # Forms and environment variables turn line breaks into the two characters \n.
    if "\n" not in text.strip() and "\\n" in text:
        text = text.replace("\\n", "\n")
    identity = Identity(source, text.strip() + "\n", passphrase)
    identity.paramiko_key()
    return identity


def read_identity(source: str, path: str, passphrase: str | None) -> Identity:
    """
    A key in a file of this machine (worker and triggerer each need it).

    :raises ValueError: it cannot be read or used, with the reason.
    """
    expanded = os.path.expanduser(path)
    try:
        with open(expanded, encoding="utf-8", errors="replace") as opened:
            text = opened.read()
    except OSError as error:
        raise ValueError(
            f"{path!r} cannot be read here on {os.uname().nodename} ({error.strerror}); the file must exist on every "
            "worker "
            "and triggerer, or be given as private_key in the connection"
        ) from error
    identity = Identity(f"{source} {path}", text, passphrase, _certificate(expanded))
    try:
        identity.paramiko_key()
    except ValueError as error:
        raise ValueError(f"{path!r}: {error}") from error
    return identity


def default_identities(passphrase: str | None) -> list[Identity]:
    """The account's usual keys, as far as they exist and can be opened."""
    found = []
    for path in DEFAULT_KEYS:
        if os.path.isfile(os.path.expanduser(path)):
            try:
                found.append(read_identity("key", path, passphrase))
            except ValueError:
                continue
    return found


def _certificate(key_path: str) -> str | None:
    try:
        with open(key_path + "-cert.pub", encoding="utf-8") as opened:
            return opened.read().strip() or None
    except (OSError, UnicodeError):
        return None


def _is_encrypted(text: str) -> bool:
    return "ENCRYPTED" in text or "BEGIN OPENSSH PRIVATE KEY" in text

"""What an Airflow connection means, field by field, and that what is ambiguous is refused by name."""

from __future__ import annotations

import dataclasses
import getpass
import json
import pickle
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpualert_provider.hooks import ssh_config
from gpualert_provider.hooks.errors import InvalidConnection
from gpualert_provider.hooks.ssh_config import HostKey, known_host_keys, parse_host_key
from gpualert_provider.hooks.target import SshTarget

ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIJ4DFWPoYBaVnLNdN+V+1bBSJWfcVAfT1YwUFkvRTWsb"
RSA_TYPE_ED25519_DATA = f"ssh-rsa {ED25519}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No file of the user's own takes part."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ssh_config, "KNOWN_HOSTS", ("~/.ssh/known_hosts",))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def target(extra: dict[str, Any] | None = None, **fields: Any) -> SshTarget:
    known: dict[str, Any] = {
        "conn_id": "gpu_box",
        "conn_type": "ssh",
        "host": "gpu1.lab",
        "port": None,
        "login": "ada",
        "password": None,
    }
    return SshTarget.from_fields(SimpleNamespace(**{**known, **fields}), extra or {})


def refusal(extra: dict[str, Any] | None = None, **fields: Any) -> str:
    with pytest.raises(InvalidConnection) as caught:
        target(extra, **fields)
    return str(caught.value)


def test_defaults_are_strict():
    """Port 22, host key checked, keys and agent tried, and every wait bounded."""
    found = target()

    assert (found.host, found.port, found.user) == ("gpu1.lab", 22, "ada")
    assert not found.accept_unknown_host_key and found.trusted_host_keys == ()
    assert found.use_agent and found.identities == () and found.proxy_command is None
    assert found.connect_timeout_s == 10 and found.command_timeout_s == 60 and found.keepalive_interval_s == 30


def test_without_login_the_current_account_is_meant():
    """As in Airflow's own hook."""
    assert target(login=None).user == getpass.getuser()


def test_every_extra_of_the_ssh_connection_arrives(key_file: Path):
    """Also as text, which is what forms and URIs make of numbers and booleans."""
    found = target(
        {
            "key_file": str(key_file),
            "conn_timeout": "7",
            "cmd_timeout": 90,
            "keepalive_interval": 5,
            "compress": "false",
            "look_for_keys": "False",
            "ciphers": ["aes256-ctr"],
            "disabled_algorithms": {"pubkeys": ["rsa-sha2-512"]},
            "host_proxy_cmd": "nc -X %r %h %p",
        },
        port=2222,
    )

    assert found.connect_timeout_s == 7 and found.command_timeout_s == 90 and found.keepalive_interval_s == 5
    assert not found.compress and found.ciphers == ("aes256-ctr",)
    assert found.disabled_algorithms == {"pubkeys": ("rsa-sha2-512",)}
    assert found.proxy_command == "nc -X ada gpu1.lab 2222"
    assert [identity.source for identity in found.identities] == [f"key_file {key_file}"]


def test_no_command_timeout_means_none():
    """Null or 0, as in the hook."""
    assert target({"cmd_timeout": None}).command_timeout_s is None
    assert target({"cmd_timeout": 0}).command_timeout_s is None


def test_an_inline_key_survives_forms_that_escape_its_line_breaks(key_file: Path):
    """Environment variables often hold the two characters backslash and n."""
    text = key_file.read_text()

    for given in (text, text.replace("\n", "\\n"), f"\n{text}\n"):
        (identity,) = target({"private_key": given}).identities
        assert identity.source == "private_key" and identity.text.strip() == text.strip()


def test_an_encrypted_key_needs_its_passphrase(tmp_path: Path):
    """
    The passphrase field, or the password for a key file, opens it; else the message says which of the two is wrong.
    """
    path = make_key(tmp_path / "locked", "open sesame")

    assert target({"key_file": str(path), "private_key_passphrase": "open sesame"}).identities
    assert target({"key_file": str(path)}, password="open sesame").identities
    assert "private_key_passphrase is not set" in refusal({"private_key": path.read_text()})
    assert "passphrase does not open it" in refusal({"key_file": str(path), "private_key_passphrase": "wrong"})


def test_secrets_are_in_no_repr_and_in_no_message(tmp_path: Path):
    """A target may end up in a log or a traceback."""
    path = make_key(tmp_path / "locked", "open sesame")
    extra = {"private_key": path.read_text(), "private_key_passphrase": "open sesame"}
    found = target(extra, password="pa55word")

    for text in (repr(found), str(found), f"{found}", found.peer, repr(found.identities)):
        assert "open sesame" not in text and "pa55word" not in text and "PRIVATE KEY" not in text
    assert set(found.secrets) == {"open sesame", "pa55word"}


def test_a_target_is_one_frozen_value():
    """Both SSH libraries get the same, and nothing changes it on the way."""
    found = target()

    with pytest.raises(dataclasses.FrozenInstanceError):
        found.host = "elsewhere"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("extra", "fields", "parts"),
    [
        ({}, {"host": ""}, ["host", "found nothing"]),
        ({}, {"host": "ada@gpu1"}, ["host", "bare name"]),
        ({}, {"host": "ssh://gpu1"}, ["host", "bare name"]),
        ({}, {"port": 99999}, ["port", "65535"]),
        ({}, {"conn_type": "http"}, ["conn_type", "'ssh'", "'http'"]),
        ({"conn_timeout": "soon"}, {}, ["conn_timeout", "seconds", "'soon'"]),
        ({"conn_timeout": -1}, {}, ["conn_timeout", "above 0"]),
        ({"cmd_timeout": True}, {}, ["cmd_timeout"]),
        ({"no_host_key_check": "yes"}, {}, ["no_host_key_check", "true or false", "'yes'"]),
        ({"key_file": "/nowhere/key"}, {}, ["key_file", "/nowhere/key", "No such file"]),
        ({"private_key": "not a key"}, {}, ["private_key", "not a private key"]),
        ({"host_key": "ssh-ed25519"}, {}, ["host_key", "missing"]),
        ({"host_key": "ssh-dss AAAA"}, {}, ["host_key", "DSA"]),
        ({"host_key": RSA_TYPE_ED25519_DATA}, {}, ["host_key", "ssh-rsa", "ssh-ed25519"]),
        ({"host_key": "hello"}, {}, ["host_key", "TYPE BASE64"]),
        ({"host_key": f"ssh-ed25519 {ED25519}", "no_host_key_check": True}, {}, ["host_key", "no_host_key_check"]),
        ({"host_key": f"ssh-ed25519 {ED25519}", "allow_host_key_change": "true"}, {}, ["allow_host_key_change"]),
        ({"ciphers": 5}, {}, ["ciphers", "list of names"]),
        ({"disabled_algorithms": {"cipher": []}}, {}, ["disabled_algorithms", "ciphers", "'cipher'"]),
        ({"disabled_algorithms": ["x"]}, {}, ["disabled_algorithms", "object"]),
    ],
)
def test_what_cannot_be_right_is_refused_by_connection_and_field(
    extra: dict[str, Any], fields: dict[str, Any], parts: list[str]
):
    """The message alone must be enough to repair the connection."""
    message = refusal(extra, **fields)

    assert message.startswith("connection 'gpu_box': ")
    for part in parts:
        assert part in message


def test_two_keys_at_once_are_ambiguous(key_file: Path):
    """Which one did the author mean? Airflow's hook refuses it, too."""
    assert "private_key is given as well" in refusal({"key_file": str(key_file), "private_key": key_file.read_text()})


def test_extra_that_is_no_json_object_is_refused():
    """Airflow itself only logs it, and goes on without any extra: with defaults nobody asked for."""
    from airflow.sdk import Connection

    broken = Connection(conn_id="gpu_box", conn_type="ssh", host="h", extra="{")
    with pytest.raises(InvalidConnection, match="connection 'gpu_box': extra: expected a JSON object"):
        SshTarget.from_connection(broken)


def test_a_connection_by_id(monkeypatch: pytest.MonkeyPatch):
    """By id as by object; one that does not exist is told with where to define it."""
    value = {"conn_type": "ssh", "host": "gpu2.lab", "login": "bob", "extra": {"conn_timeout": 3}}
    monkeypatch.setenv("AIRFLOW_CONN_GPU_TWO", json.dumps(value))
    found = SshTarget.from_connection("gpu_two")
    assert (found.host, found.user, found.connect_timeout_s, found.conn_id) == ("gpu2.lab", "bob", 3, "gpu_two")

    with pytest.raises(InvalidConnection, match="connection 'nowhere': not found.*AIRFLOW_CONN_NOWHERE"):
        SshTarget.from_connection("nowhere")


def test_asynchronously_the_same(monkeypatch: pytest.MonkeyPatch):
    """The triggerer resolves what the worker resolved."""
    import asyncio

    monkeypatch.setenv("AIRFLOW_CONN_GPU_TWO", json.dumps({"conn_type": "ssh", "host": "gpu2.lab", "login": "bob"}))

    assert asyncio.run(SshTarget.from_connection_async("gpu_two")) == SshTarget.from_connection("gpu_two")


# -- host keys


def test_a_pinned_key_is_the_only_one_trusted(home: Path):
    """known_hosts may say something else; whoever pins a key has decided."""
    other = "AAAAC3NzaC1lZDI1NTE5AAAAIGUfLI1O6SwYzNlv4GzbxfvGTpQlTWnbYmGqQW+h3Y3o"
    (home / ".ssh/known_hosts").write_text(f"gpu1.lab ssh-ed25519 {other}\n")

    found = target({"host_key": f"ssh-ed25519 {ED25519}"})

    assert found.trusted_host_keys == (HostKey("ssh-ed25519", ED25519),)
    assert target().trusted_host_keys == (HostKey("ssh-ed25519", other),)


def test_pinned_keys_are_read_in_the_forms_people_paste():
    """With type, without, as ssh-keyscan prints it, with a comment."""
    for text in (f"ssh-ed25519 {ED25519}", ED25519, f"h ssh-ed25519 {ED25519}", f"ssh-ed25519 {ED25519} root@h"):
        assert parse_host_key(text) == HostKey("ssh-ed25519", ED25519)


def test_known_hosts_is_read_as_ssh_reads_it(home: Path):
    """Ports, hashed names, patterns and exclusions; broken and marked lines hide only themselves."""
    hashed = subprocess.run(
        ["ssh-keygen", "-H", "-f", str(make_known(home / "plain", f"secret.lab ssh-ed25519 {ED25519}\n"))],
        capture_output=True,
    )
    assert hashed.returncode == 0
    file = home / "known"
    file.write_text(
        "# a comment\n\nbroken\nbad.lab ssh-ed25519 AAAA\n@cert-authority * ssh-ed25519 " + ED25519 + "\n"
        f"[gpu1.lab]:2222,10.0.0.7 ssh-ed25519 {ED25519}\n"
        f"*.farm,!evil.farm ssh-ed25519 {ED25519}\n" + (home / "plain").read_text()
    )
    names = (str(file),)

    assert known_host_keys("gpu1.lab", 2222, names) and known_host_keys("10.0.0.7", 22, names)
    assert known_host_keys("a.farm", 22, names) and known_host_keys("secret.lab", 22, names)
    assert not known_host_keys("gpu1.lab", 22, names) and not known_host_keys("evil.farm", 22, names)
    assert not known_host_keys("bad.lab", 22, names) and not known_host_keys("other.lab", 22, names)


def make_known(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_unchecked_host_keys_are_warned_about(home: Path):
    """A host that is known is still held to its key, unless changes are allowed too."""
    (home / ".ssh/known_hosts").write_text(f"gpu1.lab ssh-ed25519 {ED25519}\n")

    unchecked = target({"no_host_key_check": True})
    changing = target({"allow_host_key_change": True})

    assert unchecked.accept_unknown_host_key and unchecked.trusted_host_keys and "impostor" in unchecked.warnings[0]
    assert changing.accept_unknown_host_key and not changing.trusted_host_keys and "impostor" in changing.warnings[0]


# -- ~/.ssh/config


def test_ssh_config_gives_proxy_and_identity_and_nothing_else(home: Path, key_file: Path):
    """
    As in Airflow's hook; %h and %p mean what we dial. What is not followed is told, for `ssh` would reach another host.
    """
    (home / ".ssh/config").write_text(
        f"Host gpu1.lab\n  HostName 10.1.2.3\n  Port 2200\n  ProxyCommand nc %h %p\n  IdentityFile {key_file}\n"
    )
    found = target()

    assert found.host == "gpu1.lab" and found.port == 22 and found.proxy_command == "nc gpu1.lab 22"
    assert [identity.source for identity in found.identities] == [f"~/.ssh/config IdentityFile {key_file}"]
    assert "hostname 10.1.2.3" in found.warnings[0] and "port 2200" in found.warnings[0]
    assert target(password="x").identities == ()
    assert target({"host_proxy_cmd": "none"}).proxy_command is None


def test_the_accounts_usual_keys_are_looked_for_unless_told_not_to(home: Path):
    """look_for_keys, as in the hook; a key that needs a passphrase we do not have is passed over."""
    make_key(home / ".ssh/id_ed25519")
    make_key(home / ".ssh/id_ecdsa", "locked", "ecdsa")

    assert [identity.source for identity in target().identities] == ["key ~/.ssh/id_ed25519"]
    assert target({"look_for_keys": False}).identities == ()

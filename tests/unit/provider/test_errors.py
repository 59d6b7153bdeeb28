"""Which failure becomes which kind, and that a message is enough to act on."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from gpualert.protocol import Closed, Frame, HostError, NotOurs
from gpualert_provider.hooks import errors, talk
from gpualert_provider.hooks.errors import InvalidConnection, TransportError

PEER = "ada@gpu1.lab:22 (connection 'gpu_box')"


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "doing", "kind"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "connecting", "dns"),
        (os_error(errno.ECONNREFUSED), "connecting", "refused"),
        (os_error(errno.ETIMEDOUT), "connecting", "timeout"),
        (TimeoutError("timed out"), "connecting", "timeout"),
        (os_error(errno.EHOSTUNREACH), "connecting", "unreachable"),
        (os_error(errno.ENETUNREACH), "connecting", "unreachable"),
        (os_error(errno.EACCES), "connecting", "unreachable"),
        (os_error(errno.ECONNRESET), "connecting", "banner"),
        (os_error(errno.EPIPE), "connecting", "banner"),
        (os_error(errno.ECONNRESET), "talking", "dropped"),
        (os_error(errno.EPIPE), "talking", "dropped"),
        (os_error(errno.ETIMEDOUT), "talking", "dropped"),
    ],
)
def test_what_the_operating_system_says(error: OSError, doing: str, kind: str):
    """The same errno means another thing before and after SSH has begun."""
    found = errors.from_os_error(error, PEER, doing)

    assert found.kind == kind and str(found).startswith(PEER)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("shell", "shell"),
        ("no_python", "python"),
        ("python_too_old", "python"),
        ("python_incomplete", "python"),
        ("protocol", "protocol"),
    ],
)
def test_a_bad_start_is_a_transport_error(kind: str, expected: str):
    """What the host printed stays with it."""
    found = talk.failed_start(NotOurs(kind, "the message", "printed"), PEER)

    assert isinstance(found, TransportError) and found.kind == expected and "the message" in str(found)


@pytest.mark.parametrize("kind", ["no_root", "archive", "unsupported_os", "internal"])
def test_a_host_that_was_reached_and_cannot_is_no_transport_error(kind: str):
    """A full disk is not a network."""
    found = talk.failed_start(NotOurs(kind, "the message"), PEER)

    assert isinstance(found, HostError) and found.kind == kind and PEER in str(found)


def test_an_end_in_the_middle_is_dropped():
    """It is said how much of a message was cut off."""
    found = talk.failed_start(Closed(17), PEER)

    assert found.kind == "dropped" and "17 bytes" in str(found)
    assert "middle" not in str(talk.failed_start(Closed(), PEER))


def test_answers_and_streams_are_told_apart():
    """While a launch is followed, its frames are no answers; an error is raised with its kind."""
    assert talk.answer(Frame({"type": "beat"})) is None
    assert talk.answer(Frame({"type": "record"})) == Frame({"type": "record"})
    with pytest.raises(HostError) as caught:
        talk.answer(Frame({"type": "error", "kind": "stale_epoch", "message": "m", "details": {"epoch": 4}}))
    assert caught.value.kind == "stale_epoch" and caught.value.details == {"epoch": 4}


def test_an_answer_may_take_as_long_as_the_request_allows():
    """A stop that waits 30 s for the end is not a slow host."""
    assert talk.patience({"type": "stop", "wait_s": 30.0}, 60.0) == 90.0
    assert talk.patience({"type": "report", "verdict_wait_s": 5}, 60.0) == 65.0
    assert talk.patience({"type": "list"}, 60.0) == 60.0
    assert talk.patience({"type": "stop", "wait_s": 30.0}, None) is None


def test_a_shell_that_waits_is_not_a_slow_host():
    """With words it is the shell; without any, nobody can say more than that time is over."""
    assert talk.no_greeting(PEER, "Choose a project:", 60.0).kind == "shell"
    assert talk.no_greeting(PEER, "", 60.0).kind == "timeout"


def test_messages_say_what_to_do():
    """Each names who was called, what was expected or found, and the next step."""
    unknown = errors.host_key_unknown(PEER, "gpu1.lab", 22, "ssh-ed25519 AAAA", "SHA256:x", "~/.ssh/known_hosts")
    assert '"host_key": "ssh-ed25519 AAAA"' in str(unknown) and "ssh-keyscan -p 22 gpu1.lab" in str(unknown)
    changed = errors.host_key_changed(PEER, "ssh-ed25519 AAAA", "SHA256:x", ["ssh-ed25519 SHA256:y"], "the connection")
    assert "SHA256:y" in str(changed) and "SHA256:x" in str(changed)
    refused = errors.not_authenticated(PEER, ["key_file /k"], ["publickey"])
    assert "Offered: key_file /k" in str(refused) and "The host takes: publickey" in str(refused)


def test_kinds_of_our_own_are_errors_of_the_core():
    """So one except clause catches what a host, a connection or a link can do."""
    from gpualert.errors import GpuAlertError

    assert issubclass(TransportError, GpuAlertError) and issubclass(InvalidConnection, GpuAlertError)
    assert InvalidConnection("x").kind == "connection"

"""The host's end of the wire: every request has an answer, every failure a kind; no launch depends on the channel."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpualert import protocol
from gpualert.key import Attempt, LaunchKey
from gpualert.spec import LaunchSpec
from tests.support.sshd import SshHost
from tests.support.talk import Talk
from tests.support.waiting import wait_until

KEY = LaunchKey(["replaced", "for", "each", "test"], "task")
FIRST = Attempt(1, "11111111")


@pytest.fixture(autouse=True)
def own_key_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim stands in every root of the account, so tests must not share a key, nor touch anybody's home."""
    global KEY
    KEY = LaunchKey([os.urandom(8).hex()], "task")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(params=["bootstrap", "local"])
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Talk]:
    """A conversation through the whole bootstrap, and one with ``python -m gpualert serve``."""
    root = str(tmp_path / "root")
    with Talk.over_shell(root=root) if request.param == "bootstrap" else Talk.local(root=root) as talk:
        talk.hello()
        yield talk


@pytest.fixture
def talk_again(tmp_path: Path) -> Callable[[], Talk]:
    return lambda: Talk.over_shell(root=str(tmp_path / "root"))


def launch(
    talk: Talk, command: str | list[str], attempt: Attempt = FIRST, *, secrets: dict | None = None, **spec: object
) -> dict:
    request = protocol.launch_request(KEY, attempt, LaunchSpec(command, **spec), secrets=secrets)  # type: ignore[arg-type]
    return dict(talk.ask(request, "launched", "existing").header)


def error(talk: Talk, request: dict) -> dict:
    return dict(talk.ask(request, "error").header)


def until_ended(talk: Talk, launch_id: str) -> dict:
    def state() -> dict | None:
        record = talk.ask(protocol.inspect_request(launch_id=launch_id), "record").header["record"]
        return record if record["state"] not in ("LAUNCHING", "RUNNING") else None

    return wait_until(state, 30, f"{launch_id} ends")


def waits_for(path: Path) -> str:
    return f"while [ ! -e '{path}' ]; do sleep 0.05; done"


def test_a_launch_and_its_report(talk: Talk) -> None:
    """launch, inspect, report, read, list."""
    reply = launch(talk, "echo one\n# a comment\necho two  # another\nexit 3 # and one at the end")
    launch_id = reply["record"]["launch_id"]
    assert reply["type"] == "launched"
    assert reply["record"]["archive_digest"] == talk.conversation.hello["digest"]  # type: ignore[index]
    assert until_ended(talk, launch_id)["exit"]["code"] == 3

    outcome = talk.ask(protocol.report_request(launch_id), "outcome").header["outcome"]
    assert (outcome["state"], outcome["exit_code"]) == ("FAILED", 3)
    read = talk.ask(protocol.read_request(launch_id, 0, 4, 100), "bytes")
    assert (read.payload, read.header["offset"], read.header["size"]) == (b"two\n", 4, 8)
    listed = talk.ask(protocol.list_request(), "launches").header
    assert [record["launch_id"] for record in listed["launches"]] == [launch_id] and listed["more"] is False
    by_key = talk.ask(protocol.inspect_request(key=KEY), "record").header["record"]
    assert by_key["launch_id"] == launch_id


def test_the_same_attempt_launches_once(talk: Talk, tmp_path: Path) -> None:
    """A request that is repeated, since its answer was lost, finds what it made."""
    first = launch(talk, waits_for(tmp_path / "go"))
    second = launch(talk, waits_for(tmp_path / "go"))
    (tmp_path / "go").touch()
    assert (first["type"], second["type"]) == ("launched", "existing")
    assert first["record"]["launch_id"] == second["record"]["launch_id"]
    until_ended(talk, first["record"]["launch_id"])


def test_a_command_of_200_kilobytes(talk: Talk) -> None:
    """It travels on stdin and runs from a file, so no limit of a command line applies."""
    lines = "".join(f": line {number} {'x' * 80}\n" for number in range(2200))
    assert len(lines) > 200_000
    record = launch(talk, lines + "echo the end")["record"]
    assert until_ended(talk, record["launch_id"])["exit"]["code"] == 0
    assert talk.ask(protocol.read_request(record["launch_id"], 0, 0, 100), "bytes").payload == b"the end\n"


def test_no_value_of_the_caller_stands_in_a_process_list(talk: Talk, tmp_path: Path) -> None:
    """Neither environment nor secret nor command can be seen with ps, from the launch to the end."""
    mark = os.urandom(8).hex()  # in nobody else's command line
    record = launch(
        talk,
        f"echo command-{mark}; {waits_for(tmp_path / 'go')}",
        env={"PLAIN": f"plain-{mark}"},
        secret_env=("TOKEN",),
        secrets={"TOKEN": f"secret-{mark}"},
    )["record"]
    lines = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "go").touch()
    until_ended(talk, record["launch_id"])
    assert mark not in lines
    written = b"".join(p.read_bytes() for p in (tmp_path / "root" / "launches").rglob("*") if p.is_file())
    assert f"plain-{mark}".encode() in written and f"secret-{mark}".encode() not in written


def test_the_end_of_the_channel_ends_nothing_else(talk: Talk, talk_again: Callable[[], Talk], tmp_path: Path) -> None:
    """The client hangs up at once; the training goes on to its own end."""
    record = launch(talk, f"{waits_for(tmp_path / 'go')}; echo done")["record"]
    assert talk.hang_up() == 0
    with talk_again() as again:
        again.hello()
        assert again.ask(protocol.inspect_request(key=KEY), "record").header["record"]["state"] == "RUNNING"
        (tmp_path / "go").touch()
        assert until_ended(again, record["launch_id"])["state"] == "SUCCEEDED"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGPIPE])
def test_a_signal_of_the_session_does_not_cut_a_conversation(number: int, tmp_path: Path) -> None:
    """The end of stdin is what ends it."""
    with Talk.over_shell(root=str(tmp_path / "root")) as talk:
        talk.hello()
        talk.process.send_signal(number)
        assert talk.ask(protocol.list_request(), "launches").header["launches"] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_serve_does_not_touch_the_launch(
    number: int, talk_again: Callable[[], Talk], tmp_path: Path
) -> None:
    """It dies in the middle of a follow."""
    with talk_again() as talk:
        talk.hello()
        record = launch(talk, f"echo hello; {waits_for(tmp_path / 'go')}; echo done")["record"]
        talk.ask(protocol.follow_request(record["launch_id"]), "attached")
        talk.frame("log")
        talk.process.send_signal(number)
        talk.process.wait(10)
    (tmp_path / "go").touch()
    with talk_again() as again:
        again.hello()
        assert until_ended(again, record["launch_id"])["state"] == "SUCCEEDED"


def test_stop_by_key_before_any_launch(talk: Talk) -> None:
    """A tombstone, which refuses the launch that comes too late."""
    assert talk.ask(protocol.stop_request(key=KEY, attempt=FIRST, reason="cleared", who="me"), "tombstoned")
    refused = error(talk, protocol.launch_request(KEY, FIRST, LaunchSpec("true")))
    assert refused["kind"] == "tombstoned"


def test_stop_waits_for_the_end(talk: Talk) -> None:
    """With time to wait it answers when all is over."""
    record = launch(talk, "sleep 600")["record"]
    request = protocol.stop_request(launch_id=record["launch_id"], reason="enough", who="me", wait_s=20)
    stopped = talk.ask(request, "stopped").header["record"]
    assert (stopped["state"], stopped["stop_reason"]) == ("STOPPED", "enough")


def test_a_follower_that_was_overtaken_may_not_stop(talk: Talk) -> None:
    """Its epoch is stale; the newest one's counts."""
    record = launch(talk, "sleep 600")["record"]
    epochs = []
    for _ in range(2):
        attached = talk.ask(protocol.follow_request(record["launch_id"]), "attached")
        epochs.append(attached.header["epoch"])
        talk.send(protocol.detach_message())
    request = protocol.stop_request(launch_id=record["launch_id"], epoch=epochs[0], reason="r", who="w")
    assert error(talk, request)["kind"] == "stale_epoch"
    request = protocol.stop_request(launch_id=record["launch_id"], epoch=epochs[1], reason="r", who="w", wait_s=20)
    assert talk.ask(request, "stopped").header["record"]["state"] == "STOPPED"


BAD_REQUESTS = {
    "an unknown type": ({"type": "dance"}, "protocol"),
    "a missing field": ({"type": "launch", "key": {}}, "protocol"),
    "nothing to look for": ({"type": "inspect"}, "protocol"),
    "a field of the wrong kind": ({"type": "read", "launch_id": [1], "generation": 0, "offset": 0, "length": 1}, None),
    "a launch that is not there": (protocol.report_request("nothing-000000000000.1"), "unknown_launch"),
    "no launch id": (protocol.follow_request("../../etc"), "unknown_launch"),
    "an ack for nothing": (protocol.ack_message(0, 5), "protocol"),
    "a bad spec": (
        {**protocol.launch_request(KEY, FIRST, LaunchSpec("true")), "spec": {"command": ""}},
        "invalid_spec",
    ),
    "a field from the future": (
        {**protocol.launch_request(KEY, FIRST, LaunchSpec("true")), "spec": {"command": "true", "gpus": 8}},
        "invalid_spec",
    ),
    "a folder that is not there": (
        protocol.launch_request(KEY, FIRST, LaunchSpec("true", cwd="/nowhere")),
        "cwd_missing",
    ),
    "a secret without a value": (
        protocol.launch_request(KEY, FIRST, LaunchSpec("true", secret_env=("TOKEN",))),
        "invalid_spec",
    ),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_has_a_kind_and_the_session_goes_on(name: str, talk: Talk) -> None:
    """One error frame, and the next request is answered."""
    request, kind = BAD_REQUESTS[name]
    answer = error(talk, request)
    assert answer["message"]
    assert kind is None or answer["kind"] == kind, answer
    assert talk.ask(protocol.list_request(), "launches").header["launches"] == []


def test_an_unexpected_exception_is_told_with_its_traceback(tmp_path: Path) -> None:
    """Never silence, and never the end of the session."""
    broken = tmp_path / "broken"
    broken.mkdir()
    program = (
        "import sys; from gpualert import control, serve\n"
        "control.survey = lambda root=None: 1 / 0\n"
        "sys.exit(serve.main_local(sys.argv[1:]))"
    )
    conversation = protocol.Conversation(local=True, root=str(tmp_path / "root"))
    command = [sys.executable, "-c", program, *conversation.local_arguments[3:]]
    with Talk(command, conversation, env={**os.environ, "PYTHONPATH": os.getcwd()}) as talk:
        talk.hello()
        answer = error(talk, protocol.list_request())
        assert answer["kind"] == "internal" and "ZeroDivisionError" in answer["message"]
        assert "Traceback" in answer["details"]["traceback"]
        assert talk.ask(protocol.inspect_request(key=KEY), "unknown")


def test_nobody_elses_output_gets_into_the_stream(tmp_path: Path) -> None:
    """print, warnings, and a child that inherits stdout, in the middle of a conversation."""
    program = (
        "import os, sys, warnings; from gpualert import control, serve\n"
        "def noisy(root=None):\n"
        "    print('print'); warnings.warn('warning'); os.system('echo child; cat')\n"
        "    sys.stdout.flush(); return [], []\n"
        "control.survey = noisy\n"
        "sys.exit(serve.main_local(sys.argv[1:]))"
    )
    conversation = protocol.Conversation(local=True, root=str(tmp_path / "root"))
    command = [sys.executable, "-c", program, *conversation.local_arguments[3:]]
    with Talk(command, conversation, env={**os.environ, "PYTHONPATH": os.getcwd()}) as talk:
        talk.hello()
        assert talk.ask(protocol.list_request(), "launches").header["launches"] == []
        assert talk.ask(protocol.inspect_request(key=KEY), "unknown")
        talk.hang_up()
        assert all(word in talk.stderr for word in (b"print", b"warning", b"child"))


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!II", 3, 0) + b"{]}", struct.pack("!II", 2, 0) + b"{}"],
)
def test_a_stream_that_is_broken_is_told_and_ended(rubbish: bytes, talk: Talk) -> None:
    """After a broken frame nobody can say where the next one begins."""
    talk.send_raw(rubbish)
    assert talk.frame("error").header["kind"] == "protocol"
    assert talk.process.wait(10) == 1


def test_a_launch_in_one_round_trip_over_ssh(ssh_host: SshHost) -> None:
    """The request goes out with the bootstrap, before the host has said anything."""
    request = protocol.launch_request(KEY, FIRST, LaunchSpec("echo from $USER"))
    with Talk.over_ssh(ssh_host, first=request) as talk:
        talk._flush()
        sent = talk.sent_bytes
        hello = talk.hello()
        record = talk.frame("launched").header["record"]
        assert hello["placed"] or talk.sent_bytes == sent
        logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    assert b"".join(log.payload for log in logs) == f"from {ssh_host.username}\n".encode()
    assert ended.header["outcome"]["state"] == "SUCCEEDED"
    assert ended.header["outcome"]["host"]["machine_id"] == hello["machine_id"]


def test_a_command_of_200_kilobytes_over_ssh(ssh_host: SshHost) -> None:
    """It travels with the bootstrap, and none of it through a command line."""
    lines = "".join(f": line {number} {'é' * 40}\n" for number in range(2200))
    request = protocol.launch_request(KEY, FIRST, LaunchSpec(lines + "echo the end; exit 9"))
    with Talk.over_ssh(ssh_host, first=request) as talk:
        record = talk.frame("launched").header["record"]
        logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    assert [log.payload for log in logs] == [b"the end\n"]
    assert ended.header["outcome"]["exit_code"] == 9


def test_a_list_longer_than_a_frame(tmp_path: Path) -> None:
    """It comes in several, of which the last says so."""
    from gpualert.serve import Channel, Server

    read, write = os.pipe()
    server = Server(Channel(read, write), {})
    server._send_many({"type": "list"}, "launches", [{"n": number} for number in range(250)])
    os.close(write)
    with open(read, "rb") as stream:
        frames = protocol.Decoder().feed(stream.read())
    assert [(len(frame.header["launches"]), frame.header["more"]) for frame in frames] == [
        (100, True),
        (100, True),
        (50, False),
    ]
    assert json.dumps(frames[0].header)

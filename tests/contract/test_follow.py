"""Following a launch: every byte, in order, once; over any break of the link; and then the end."""

from __future__ import annotations

import codecs
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpualert import protocol
from gpualert.key import Attempt, LaunchKey
from gpualert.protocol import Frame
from gpualert.spec import LaunchSpec
from tests.support.sshd import SshHost
from tests.support.talk import Talk
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def open_talk(tmp_path: Path) -> Iterator[Callable[[], Talk]]:
    """Conversations through the bootstrap that are closed at the end."""
    opened: list[Talk] = []

    def make() -> Talk:
        talk = Talk.over_shell(root=str(tmp_path / "root"))
        opened.append(talk)
        talk.hello()
        return talk

    yield make
    for talk in opened:
        talk.__exit__()


def launch(talk: Talk, command: str, **spec: object) -> dict:
    key = LaunchKey([os.urandom(8).hex()], "task")
    request = protocol.launch_request(key, Attempt(1, "1"), LaunchSpec(command, **spec))  # type: ignore[arg-type]
    return dict(talk.ask(request, "launched").header["record"])


def content(logs: Sequence[Frame]) -> bytes:
    """The logs' bytes; fails where one does not begin where the one before it ended."""
    for before, after in itertools.pairwise(logs):
        expected = (before.header["generation"], before.header["offset"] + len(before.payload))
        assert (after.header["generation"], after.header["offset"]) == expected
    return b"".join(log.payload for log in logs)


def log_of(record: dict) -> bytes:
    return Path(record["log_path"]).read_bytes()


def ack_of(record: dict) -> dict | None:
    path = Path(record["run_directory"]) / "ack.json"
    return json.loads(path.read_text()) if path.exists() else None


def waits_for(path: Path) -> str:
    return f"while [ ! -e '{path}' ]; do sleep 0.02; done"


def read_logs(talk: Talk, size: int) -> list[Frame]:
    """``log`` frames until so many bytes have come."""
    logs: list[Frame] = []
    while sum(len(log.payload) for log in logs) < size:
        logs.append(talk.frame("log"))
    return logs


def end(log: Frame) -> int:
    return int(log.header["offset"]) + len(log.payload)


def test_the_whole_log_and_then_the_end(open_talk: Callable[[], Talk]) -> None:
    """attached, log, ended; and nothing after that."""
    talk = open_talk()
    record = launch(talk, "for i in 1 2 3; do echo line $i; sleep 0.1; done; exit 7")
    logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"], who="me"))
    assert content(logs) == b"line 1\nline 2\nline 3\n"
    assert (ended.header["outcome"]["state"], ended.header["outcome"]["exit_code"]) == ("FAILED", 7)
    attached = next(e for e in talk.events if isinstance(e, Frame) and e.type == "attached")
    assert attached.header["epoch"] == 1 and attached.header["record"]["launch_id"] == record["launch_id"]
    assert talk.hang_up() == 0
    assert talk.events.index(ended) == len(talk.events) - 2  # only Closed comes after it


def test_a_burst_of_600_kilobytes_before_the_end(open_talk: Callable[[], Talk]) -> None:
    """Nothing is cut when the child writes and is gone."""
    talk = open_talk()
    record = launch(talk, "seq 1 100000; exit 5")
    logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    assert content(logs) == b"".join(b"%d\n" % n for n in range(1, 100_001))
    assert ended.header["outcome"]["exit_code"] == 5


def test_a_character_may_be_cut_anywhere(open_talk: Callable[[], Talk]) -> None:
    """Raw bytes cross the wire; decoded one frame after the other they are the text, whole."""
    talk = open_talk()
    # 3-byte characters behind one byte: 64 KiB frames cut some of them.
    record = launch(
        talk, "printf x; i=0; while [ $i -lt 4000 ]; do printf '%s' '損失が減った🔥損失が減った'; i=$((i+1)); done"
    )
    logs, _ = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    text = "".join(decoder.decode(log.payload) for log in logs) + decoder.decode(b"", final=True)
    assert text == "x" + "損失が減った🔥損失が減った" * 4000
    assert len(logs) > 1


def test_a_launch_that_ended_before_anybody_followed(open_talk: Callable[[], Talk]) -> None:
    """The log and the end are on disk."""
    talk = open_talk()
    record = launch(talk, "echo early")
    wait_until(lambda: Path(record["run_directory"], "exit.json").exists(), 20, "it ends")
    for _ in range(2):
        logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
        assert content(logs) == b"early\n" and ended.header["outcome"]["state"] == "SUCCEEDED"


def test_from_a_position(open_talk: Callable[[], Talk]) -> None:
    """The first byte is the one that was asked for."""
    talk = open_talk()
    record = launch(talk, "echo 0123456789")
    logs, _ = talk.follow_to_end(
        protocol.follow_request(record["launch_id"], from_={"generation": 0, "offset": 4}, attach=False)
    )
    assert content(logs) == b"456789\n" and logs[0].header["offset"] == 4


def test_a_cut_connection_is_resumed_without_a_gap(open_talk: Callable[[], Talk], tmp_path: Path) -> None:
    """The client is killed while bytes flow; the next one goes on from the last acknowledgement, byte for byte."""
    talk = open_talk()
    record = launch(talk, f"seq 1 30000; {waits_for(tmp_path / 'go')}; seq 30001 60000")
    talk.conversation.send(protocol.follow_request(record["launch_id"]))
    logs = read_logs(talk, 70_000)
    acknowledged = end(logs[0])
    talk.send(protocol.ack_message(0, acknowledged))
    talk.process.stdin.close()  # type: ignore[union-attr]
    wait_until(lambda: ack_of(record), 20, "the acknowledgement is on disk")
    talk.kill()
    (tmp_path / "go").touch()

    again = open_talk()
    resumed, ended = again.follow_to_end(protocol.follow_request(record["launch_id"]))
    assert resumed[0].header["offset"] == acknowledged
    assert content(logs)[:acknowledged] + content(resumed) == log_of(record)
    assert ended.header["outcome"]["state"] == "SUCCEEDED"


def test_a_cut_ssh_connection_is_resumed_without_a_gap(ssh_host: SshHost) -> None:
    """The same over sshd whose sessions are killed."""
    go = f"/tmp/gpualert-go-{os.urandom(6).hex()}"
    with Talk.over_ssh(ssh_host) as talk:
        talk.hello()
        record = launch(talk, f"seq 1 30000; while [ ! -e {go} ]; do sleep 0.02; done; seq 30001 60000")
        talk.conversation.send(protocol.follow_request(record["launch_id"]))
        logs = read_logs(talk, 100_000)
        acknowledged = end(logs[-1])
        talk.send(protocol.ack_message(0, acknowledged))
        with Talk.over_ssh(ssh_host) as other:
            other.hello()
            wait_until(lambda: position_on_host(other, record) == acknowledged, 20, "the acknowledgement is on disk")
        assert ssh_host.kill_sessions() > 0
    Path(go).touch()
    with Talk.over_ssh(ssh_host) as again:
        again.hello()
        resumed, ended = again.follow_to_end(protocol.follow_request(record["launch_id"]))
    Path(go).unlink()
    assert content(logs) + content(resumed) == b"".join(b"%d\n" % n for n in range(1, 60_001))
    assert ended.header["outcome"]["state"] == "SUCCEEDED"


def position_on_host(talk: Talk, record: dict) -> int:
    """Where a mere reader would start now."""
    talk.conversation.send(protocol.follow_request(record["launch_id"], attach=False))
    talk.frame("attached")
    log = talk.frame("log")
    talk.send(protocol.detach_message())
    return int(log.header["offset"])


def test_acknowledged_to_the_end_means_reported(open_talk: Callable[[], Talk]) -> None:
    """The last acknowledgement comes after ``ended``, and is what lets ``clean`` remove the launch."""
    talk = open_talk()
    record = launch(talk, "echo all")
    logs, _ = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    talk.send(protocol.ack_message(0, end(logs[-1]), ended=True))
    talk.hang_up()
    assert ack_of(record) == {"generation": 0, "offset": 4, "ended": True}


def test_only_the_newest_follower_acknowledges(open_talk: Callable[[], Talk], tmp_path: Path) -> None:
    """An older one, and a mere reader, may go on reading; where the next one starts is not theirs to say."""
    older, newer, reader = open_talk(), open_talk(), open_talk()
    record = launch(older, f"echo 0123456789; {waits_for(tmp_path / 'go')}")
    for talk, attach in ((older, True), (newer, True), (reader, False)):
        talk.conversation.send(protocol.follow_request(record["launch_id"], attach=attach))
        read_logs(talk, 11)
    for talk, position in ((older, 3), (reader, 4), (newer, 5)):
        talk.send(protocol.ack_message(0, position))
        talk.hang_up()
    (tmp_path / "go").touch()
    assert ack_of(record) == {"generation": 0, "offset": 5, "ended": False}


def test_an_acknowledgement_of_bytes_never_sent_is_refused(open_talk: Callable[[], Talk], tmp_path: Path) -> None:
    """A client that is confused must not make us skip bytes; the follow goes on."""
    talk = open_talk()
    record = launch(talk, f"echo ten bytes; {waits_for(tmp_path / 'go')}; echo more")
    talk.conversation.send(protocol.follow_request(record["launch_id"]))
    read_logs(talk, 10)
    talk.send(protocol.ack_message(0, 11))
    assert talk.frame("error").header["kind"] == "protocol"
    (tmp_path / "go").touch()
    assert talk.frame("log").payload == b"more\n"
    assert ack_of(record) is None


def test_requests_may_come_between(open_talk: Callable[[], Talk], tmp_path: Path) -> None:
    """A stop on the very channel that follows; a second follow is refused; after detach everything works."""
    talk = open_talk()
    record = launch(talk, "echo up; sleep 600")
    epoch = talk.ask(protocol.follow_request(record["launch_id"]), "attached").header["epoch"]
    read_logs(talk, 3)
    assert talk.ask(protocol.follow_request(record["launch_id"]), "error").header["kind"] == "protocol"
    talk.send(protocol.detach_message())
    assert (
        talk.ask(protocol.inspect_request(launch_id=record["launch_id"]), "record").header["record"]["epoch"] == epoch
    )
    attached = talk.ask(protocol.follow_request(record["launch_id"]), "attached")
    stop = protocol.stop_request(
        launch_id=record["launch_id"], epoch=attached.header["epoch"], reason="enough", who="test"
    )
    talk.ask(stop, "stopping", "stopped")
    ended = talk.frame("ended").header["outcome"]
    assert (ended["state"], ended["stopped_by"]) == ("STOPPED", "request")


def test_a_change_of_state_is_told(open_talk: Callable[[], Talk]) -> None:
    """Somebody else asks for a stop that takes its time: the follower hears of it before the end."""
    talk, other = open_talk(), open_talk()
    record = launch(talk, "trap '' TERM; echo up; while :; do sleep 0.1; done", grace_period_s=3)
    talk.conversation.send(protocol.follow_request(record["launch_id"]))
    read_logs(talk, 3)
    other.ask(protocol.stop_request(launch_id=record["launch_id"], reason="r", who="w"), "stopping")
    state = talk.frame("state").header["record"]
    assert (state["state"], state["stop_requested"]) == ("RUNNING", True)
    assert talk.frame("ended").header["outcome"]["state"] == "STOPPED"


def test_a_log_that_its_own_child_cuts(open_talk: Callable[[], Talk], tmp_path: Path) -> None:
    """``gap``, and then the new generation from its first byte."""
    talk = open_talk()
    record = launch(talk, f"echo before the cut; {waits_for(tmp_path / 'go')}; echo cut > /dev/stderr; echo after")
    talk.conversation.send(protocol.follow_request(record["launch_id"]))
    read_logs(talk, 15)
    (tmp_path / "go").touch()
    gap = talk.frame("gap", "log")
    assert gap.type == "gap"
    assert gap.header["from"] == {"generation": 0, "offset": 15}
    assert gap.header["to"] == {"generation": 1, "offset": 0}
    logs = read_logs(talk, 10)
    assert {log.header["generation"] for log in logs} == {1} and content(logs) == b"cut\nafter\n"
    assert talk.frame("ended").header["outcome"]["log_truncated"] is True


def test_a_client_that_does_not_read_fills_nobodys_memory(open_talk: Callable[[], Talk]) -> None:
    """The host waits, the log is on disk, and all of it comes when the client reads again."""
    talk = open_talk()
    record = launch(talk, "yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 30000000")
    wait_until(lambda: Path(record["run_directory"], "exit.json").exists(), 60, "it ends")
    talk.send(protocol.follow_request(record["launch_id"]))

    def blocked() -> bool:
        return Path(f"/proc/{talk.process.pid}/wchan").read_text().strip() in (
            "pipe_write",
            "anon_pipe_write",
            "0",
        ) and (Path(f"/proc/{talk.process.pid}/stat").read_text().rpartition(") ")[2][0] == "S")

    wait_until(blocked, 20, "serve waits for its reader")
    status = Path(f"/proc/{talk.process.pid}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0])
    assert resident < 60_000, f"{resident} kB resident"
    logs: list[Frame] = []
    while not logs or end(logs[-1]) < 30_000_000:
        logs.append(talk.frame("log"))
    assert content(logs) == log_of(record)
    assert talk.frame("ended").header["outcome"]["state"] == "SUCCEEDED"


def test_a_launch_that_vanishes(open_talk: Callable[[], Talk]) -> None:
    """Child and keepers are killed at once: nobody saw the end, and the follower is told just that."""
    talk = open_talk()
    record = launch(talk, "echo up; exec sleep 600")
    talk.conversation.send(protocol.follow_request(record["launch_id"]))
    read_logs(talk, 3)
    started = json.loads(Path(record["run_directory"], "started.json").read_text())
    pids = [started[name]["pid"] for name in ("guard", "supervisor", "child")]
    for pid in pids:  # stopped first, so that none of them can act on another's death
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    outcome = talk.frame("ended").header["outcome"]
    assert (outcome["state"], outcome["lost_reason"], outcome["exit_code"]) == ("LOST", "vanished", None)


def test_what_is_left_running_on_purpose_does_not_hold_the_end(open_talk: Callable[[], Talk]) -> None:
    """``leftovers="keep"``: a process that goes on writing does not make the follow endless."""
    talk = open_talk()
    record = launch(talk, "(while :; do echo more; sleep 0.001; done) & echo pid $!; exit 0", leftovers="keep")
    logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    for line in content(logs).splitlines():
        if line.startswith(b"pid "):
            os.kill(int(line.split()[1]), signal.SIGKILL)
    assert ended.header["outcome"]["state"] == "SUCCEEDED"


def test_the_end_waits_for_what_was_left_behind(open_talk: Callable[[], Talk]) -> None:
    """Who hears of the end may start the next training on the same GPU: the last process has let go of it."""
    talk = open_talk()
    record = launch(
        talk, "setsid sh -c 'trap \"\" TERM; echo held $$; sleep 600' & sleep 0.3; exit 0", grace_period_s=1
    )
    logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    (pid,) = [int(line.split()[1]) for line in content(logs).splitlines() if line.startswith(b"held ")]
    assert not Path(f"/proc/{pid}").exists()
    assert ended.header["outcome"]["survivors"] == []


def test_log_frames_carry_the_hosts_time(open_talk: Callable[[], Talk], tmp_path: Path) -> None:
    """What comes while somebody follows has a time: within the launch's own life, and never backwards."""
    talk = open_talk()
    steps = "; ".join(f"echo {n}; {waits_for(tmp_path / str(n))}" for n in range(4))
    record = launch(talk, steps)
    talk.conversation.send(protocol.follow_request(record["launch_id"]))
    times = []
    for number in range(4):
        times.append(read_logs(talk, 2)[-1].header["time"])
        (tmp_path / str(number)).touch()
    outcome = talk.frame("ended").header["outcome"]
    assert None not in times[1:] and times[1:] == sorted(times[1:])
    assert record["started_at"] <= times[1] and times[-1] - times[1] <= outcome["duration_s"] + 1

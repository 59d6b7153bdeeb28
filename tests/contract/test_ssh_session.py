"""
What a session promises, over a real sshd and with both SSH libraries: bytes arrive whole, waits end, nothing stays
behind.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpualert import archive, procfs, protocol
from gpualert.protocol import HostError
from gpualert_provider.hooks.blocking import BlockingSession, open_session
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.streaming import StreamingSession
from gpualert_provider.hooks.target import LocalTarget, SshTarget
from tests.support.accounts import Account
from tests.support.sessions import greet, kind, launch_request, started, target_of
from tests.support.sshd import SshHost
from tests.support.waiting import wait_until

__all__ = ["kind"]


def follow(kind: str, target: SshTarget, launch_id: str, **how: Any) -> tuple[bytes, dict[str, Any]]:
    """The whole log and the outcome, through either library."""
    log = bytearray()

    def take(frame: protocol.Frame) -> dict[str, Any] | None:
        if frame.type == "log":
            assert frame.header["offset"] == len(log), "log bytes come in order, without gap or overlap"
            log.extend(frame.payload)
        return frame.header["outcome"] if frame.type == "ended" else None

    if kind == "blocking":
        with open_session(target) as session:
            for frame in session.follow(launch_id, {"generation": 0, "offset": 0}, **how):
                outcome = take(frame)
        assert outcome is not None
        return bytes(log), outcome

    async def streaming() -> dict[str, Any]:
        async with await StreamingSession.open(target) as session:
            async for frame in session.follow(launch_id, {"generation": 0, "offset": 0}, **how):
                outcome = take(frame)
        assert outcome is not None
        return outcome

    ended = asyncio.run(streaming())
    return bytes(log), ended


@pytest.fixture
def target(ssh_host: SshHost) -> SshTarget:
    return target_of(ssh_host)


def test_hello_says_who_the_host_is(kind: str, ssh_host: SshHost, target: SshTarget):
    """Machine and boot id tell a later follower whether it speaks to the same machine."""
    hello = greet(kind, target)

    assert hello["user"] == ssh_host.username and hello["boot_id"] and hello["digest"]
    assert hello["machine_id"] == procfs.machine_id()


def test_noisy_login_shells_do_not_disturb(kind: str, shell_account: Account, ssh_host_with: Callable[..., SshHost]):
    """Whatever the rc files of bash, dash, zsh, fish and tcsh print before us."""
    assert greet(kind, target_of(ssh_host_with(username=shell_account.name)))["user"] == shell_account.name


def test_every_byte_arrives(kind: str, target: SshTarget):
    """600 KB, with every byte value, just before the end: the log is what the training wrote."""
    command = 'python3 -c "import sys; sys.stdout.buffer.write(bytes(range(256)) * 2400)"; exit 3'
    log, outcome = follow(kind, target, started(target, command, "bytes"))

    assert log == bytes(range(256)) * 2400
    assert (outcome["state"], outcome["exit_code"]) == ("FAILED", 3)


def test_a_launch_takes_one_round_trip_when_the_archive_is_there(target: SshTarget):
    """The request travels with the bootstrap."""
    with open_session(target, first=launch_request("true", "first")) as session:
        assert session.first_reply()["type"] == "launched"
        assert session.call(protocol.inspect_request(launch_id="nothing-000000000000.1"))["type"] == "unknown"


def test_a_command_of_200_kb_is_launched(target: SshTarget):
    """It goes over stdin, where no argument limit holds."""
    command = "# " + "x" * 200_000 + "\nexit 7 # trailing comment"
    log, outcome = follow("blocking", target, started(target, command, "long"))

    assert (log, outcome["exit_code"]) == (b"", 7)


def test_an_exit_status_of_255_is_the_jobs_own(kind: str, target: SshTarget):
    """255 is what OpenSSH says of a lost connection; here only frames speak of the job."""
    _, outcome = follow(kind, target, started(target, "exit 255", "status"))

    assert (outcome["state"], outcome["exit_code"]) == ("FAILED", 255)


def test_a_lost_connection_is_dropped_and_never_an_end(kind: str, ssh_host: SshHost, target: SshTarget):
    """
    The server's session processes are killed in the middle of following: the job goes on, and is followed to its end
    later.
    """
    launch_id = started(target, "echo begin; while true; do sleep 0.1; done", "drop")
    seen = threading.Event()

    def cut() -> None:
        seen.wait(30)
        ssh_host.kill_sessions()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with pytest.raises(TransportError) as caught:
            _follow_until_lost(kind, target, launch_id, seen)
    finally:
        seen.set()
        cutter.join()
    assert caught.value.kind == "dropped"

    with open_session(target) as session:
        record = session.call(protocol.inspect_request(launch_id=launch_id))["record"]
        assert record["state"] == "RUNNING"
        session.call(protocol.stop_request(launch_id=launch_id, reason="end of the test", who="test", wait_s=10))
    log, outcome = follow(kind, target, launch_id)
    assert log.startswith(b"begin\n") and outcome["state"] == "STOPPED"


def _follow_until_lost(kind: str, target: SshTarget, launch_id: str, seen: threading.Event) -> None:
    if kind == "blocking":
        with open_session(target) as session:
            for frame in session.follow(launch_id, {"generation": 0, "offset": 0}):
                if frame.type == "log":
                    seen.set()
        return

    async def streaming() -> None:
        async with await StreamingSession.open(target) as session:
            async for frame in session.follow(launch_id, {"generation": 0, "offset": 0}):
                if frame.type == "log":
                    seen.set()

    asyncio.run(streaming())


def test_a_host_that_falls_silent_is_noticed(kind: str, ssh_host: SshHost, target: SshTarget):
    """A frozen host keeps the connection open; without a beat it counts as gone."""
    launch_id = started(target, "echo begin; sleep 60", "silent")
    seen = threading.Event()

    def freeze() -> None:
        seen.wait(30)
        ssh_host.freeze()

    freezer = threading.Thread(target=freeze)
    freezer.start()
    try:
        with pytest.raises(TransportError) as caught:
            _follow_silent(kind, target, launch_id, seen)
    finally:
        seen.set()
        freezer.join()
        ssh_host.thaw()
    assert caught.value.kind == "timeout" and "sign of life" in str(caught.value)
    with open_session(target) as session:
        session.call(protocol.stop_request(launch_id=launch_id, reason="end of the test", who="test", wait_s=10))


def _follow_silent(kind: str, target: SshTarget, launch_id: str, seen: threading.Event) -> None:
    if kind == "blocking":
        with open_session(target) as session:
            for _ in session.follow(launch_id, silence_s=2):
                seen.set()
        return

    async def streaming() -> None:
        async with await StreamingSession.open(target) as session:
            async for _ in session.follow(launch_id, silence_s=2):
                seen.set()

    asyncio.run(streaming())


def test_closing_leaves_nothing_behind(kind: str, ssh_host: SshHost, target: SshTarget):
    """No connection, no thread, no descriptor; also when the session is left by an exception."""
    greet(kind, target)
    wait_until(lambda: not ssh_host.session_pids(), 10, "the host has no session left")
    threads, descriptors = threading.active_count(), set(os.listdir("/proc/self/fd"))

    for _ in range(3):
        greet(kind, target)
    wait_until(lambda: not ssh_host.session_pids(), 10, "the host has no session left")

    wait_until(lambda: threading.active_count() <= threads, 10, "no thread is left")
    assert len(set(os.listdir("/proc/self/fd")) - descriptors) <= 1, "the listing itself has one open"


def test_an_error_of_the_host_has_its_kind(kind: str, target: SshTarget):
    """What the host refuses is not a transport error."""
    with pytest.raises(HostError) as caught:
        follow(kind, target, "nothing-000000000000.1")

    assert caught.value.kind == "unknown_launch"


def test_a_follower_that_leaves_early_can_go_on_asking(target: SshTarget):
    """The worker watches for its early window, and then has other things to say on the same connection."""
    launch_id = started(target, "for i in $(seq 1000); do echo $i; sleep 0.02; done", "early")
    with open_session(target) as session:
        types = [frame.type for frame in session.follow(launch_id, for_s=1, tick_s=0.2)]
        assert types[0] == "attached" and "ended" not in types
        reply = session.call(
            protocol.stop_request(launch_id=launch_id, reason="end of the test", who="test", wait_s=10)
        )
    assert reply["type"] == "stopped" and reply["record"]["state"] == "STOPPED"


def test_quiet_trainings_tick(kind: str, target: SshTarget):
    """A follower gets a word at least every tick, so that it can see to other things."""
    launch_id = started(target, "sleep 3", "quiet")

    async def streaming() -> list[str]:
        async with await StreamingSession.open(target) as session:
            return [frame.type async for frame in session.follow(launch_id, tick_s=0.3)]

    if kind == "streaming":
        types = asyncio.run(streaming())
    else:
        with open_session(target) as session:
            types = [frame.type for frame in session.follow(launch_id, tick_s=0.3)]
    assert types.count("tick") >= 3 and types[-1] == "ended"


# -- ways to log in and to get there


def test_a_proxy_command_leads_there(kind: str, ssh_host: SshHost, tmp_path: Path):
    """It is used instead of a TCP connection of ours, and it is gone when the session is closed."""
    script = tmp_path / "proxy.py"
    script.write_text(
        "import os, select, socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "while True:\n"
        "    for r in select.select([0, s], [], [])[0]:\n"
        "        data = os.read(0, 65536) if r == 0 else s.recv(65536)\n"
        "        if not data: sys.exit()\n"
        "        (s.sendall(data) if r == 0 else os.write(1, data))\n"
    )
    command = f"/usr/bin/env python3 {script} %h %p"

    assert greet(kind, target_of(ssh_host, host_proxy_cmd=command))["type"] == "hello"

    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 10, "the proxy command has ended")


def test_an_inline_key_logs_in(kind: str, ssh_host: SshHost):
    """As in a secrets backend: the key is in the connection, no file is needed on worker or triggerer."""
    key = ssh_host.key_path.read_text()

    assert greet(kind, target_of(ssh_host, key_file=None, private_key=key))["type"] == "hello"


def test_an_encrypted_key_logs_in(kind: str, ssh_host: SshHost, tmp_path: Path):
    """With its passphrase."""
    path = tmp_path / "locked"
    path.write_text(ssh_host.key_path.read_text())
    path.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(path)], check=True)

    target = target_of(ssh_host, key_file=str(path), private_key_passphrase="open sesame")
    assert greet(kind, target)["type"] == "hello"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """An ssh-agent of our own; call it with a key file to add that key."""
    address = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(address)], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
    wait_until(address.exists, 10, "the agent listens")
    yield lambda key: subprocess.run(["ssh-add", "-q", str(key)], check=True) and None
    process.terminate()
    process.wait()


def test_an_agents_key_logs_in(kind: str, ssh_host: SshHost, agent: Callable[[Path], None]):
    """The connection has no key; the agent of worker and triggerer has."""
    agent(ssh_host.key_path)

    assert greet(kind, target_of(ssh_host, key_file=None))["type"] == "hello"


def test_the_connections_key_comes_before_an_agents_many(
    kind: str, ssh_host_with: Callable[..., SshHost], agent: Callable[[Path], None], tmp_path: Path
):
    """sshd closes after MaxAuthTries; a full agent must not use them up."""
    host = ssh_host_with(options=["MaxAuthTries 2"])
    for n in range(4):
        path = tmp_path / f"other{n}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        agent(path)

    assert greet(kind, target_of(host))["type"] == "hello"


def test_disabled_algorithms_and_ciphers_hold_for_both(kind: str, ssh_host: SshHost):
    """The same restrictions on both sides of the deferral."""
    target = target_of(
        ssh_host, ciphers=["aes256-ctr"], disabled_algorithms={"kex": ["mlkem768x25519-sha256"], "pubkeys": ["ssh-rsa"]}
    )

    assert greet(kind, target)["type"] == "hello"


def test_many_logins_at_once_all_get_in(ssh_host_with: Callable[..., SshHost], plain_account: Account | None):
    """A mapped task starts twelve tries in one second on a host that takes three at a time (apache/airflow#68115)."""
    login = plain_account.name if plain_account else None
    target = target_of(ssh_host_with(username=login, options=["MaxStartups 3:100:3"]))

    def one(_: int) -> str:
        with open_session(target) as session:
            return str(session.hello["user"])

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(one, range(12))) == [target.user] * 12


# -- this machine


def test_the_local_form_speaks_the_same(tmp_path: Path):
    """
    Without a connection the worker itself is the host, behind the same interface; nothing of ours is in the child's
    path.
    """
    root = str(tmp_path / "root")
    command = "echo here; echo PYTHONPATH=$PYTHONPATH; python3 -c 'import gpualert' 2>&1 | tail -1; exit 5"
    with open_session(LocalTarget(), root=root) as session:
        reply = session.call(launch_request(command, "local", root=root, env={"PYTHONPATH": ""}))
        launch_id = reply["record"]["launch_id"]
        frames = list(session.follow(launch_id))
    log = b"".join(frame.payload for frame in frames if frame.type == "log").decode()

    assert log.startswith("here\nPYTHONPATH=\n") and "ModuleNotFoundError" in log
    assert frames[-1].header["outcome"]["exit_code"] == 5


def test_the_local_helper_leaves_when_the_session_is_closed(tmp_path: Path):
    """A worker slot that is freed leaves no process."""
    session = open_session(LocalTarget(), root=str(tmp_path))
    assert isinstance(session, BlockingSession)
    pid = session._link._process.pid  # type: ignore[attr-defined]
    began = time.monotonic()
    session.close()

    assert not os.path.exists(f"/proc/{pid}") and time.monotonic() - began < 30


def test_the_host_gets_the_module_that_reads_its_gpus(kind: str, target: SshTarget):
    """Both libraries offer the same archive, so a host keeps one, and pynvml can be imported beside the package."""
    hello = greet(kind, target)

    assert hello["digest"] == archive.build(with_pynvml=True).digest
    assert (Path(hello["archive"]) / "pynvml.py").is_file()

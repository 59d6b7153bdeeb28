"""`gpualert fetch` over a real sshd: the file of that name is the log, byte for byte, or there is none of that name."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpualert import protocol
from gpualert.errors import GpuAlertError
from gpualert.protocol import HostError
from gpualert_provider.fetch import FetchIncomplete, FetchRefused, fetch_from
from gpualert_provider.hooks.blocking import open_session
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.target import SshTarget
from tests.support.sessions import started, target_of
from tests.support.sshd import SshHost
from tests.support.waiting import wait_until

MB = 1_000_000
#: Digits that differ, so that a piece in the wrong place would show.
WRITE = (
    "python3 -c 'import sys\n"
    'for n in range({lines}): sys.stdout.write("step %09d of a training whose lines have a hundred bytes, '
    'of which this is one%s\\n" % (n, "." * 27))\''
)


@pytest.fixture
def gates() -> Iterator[Path]:
    """A folder in which the host's account and this test leave each other signs."""
    folder = Path(tempfile.mkdtemp(prefix="gpualert-gates-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def target(ssh_host: SshHost) -> SshTarget:
    return target_of(ssh_host)


def record_of(target: SshTarget, launch_id: str) -> dict[str, Any]:
    with open_session(target) as session:
        return dict(session.call(protocol.inspect_request(launch_id=launch_id))["record"])


def generation_of(target: SshTarget, launch_id: str) -> int:
    with open_session(target) as session:
        return int(session.call(protocol.read_request(launch_id, 0, 0, 0))["generation"])


def ended(target: SshTarget, command: str) -> tuple[str, Path]:
    """A launch that is over, and its log on the host (which is this machine)."""
    launch_id = started(target, command)

    def log() -> Path | None:
        record = record_of(target, launch_id)
        return Path(record["log_path"]) if record["state"] in ("SUCCEEDED", "FAILED") else None

    return launch_id, wait_until(log, 60, f"launch {launch_id} ends")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class CutOnce:
    """Progress that cuts every connection of the host when so many bytes have come."""

    def __init__(self, host: SshHost, after: int) -> None:
        self.host, self.after, self.cut = host, after, 0

    def __call__(self, done: int, size: int) -> None:
        if not self.cut and done >= self.after:
            self.cut = self.host.kill_sessions()


def test_the_file_is_the_log(target: SshTarget, tmp_path: Path) -> None:
    """And only its owner can read it, for what a training prints may be secret."""
    launch_id, log = ended(target, WRITE.format(lines=50_000))
    to = tmp_path / "train.log"

    found = fetch_from(target, launch_id, str(to))

    assert to.read_bytes() == log.read_bytes()
    assert found["sha256"] == sha256(log) and found["size_bytes"] == log.stat().st_size and not found["growing"]
    assert stat.S_IMODE(to.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["train.log"]


def test_an_empty_log_is_a_log(target: SshTarget, tmp_path: Path) -> None:
    launch_id, _ = ended(target, "true")

    assert fetch_from(target, launch_id, str(tmp_path / "log"))["size_bytes"] == 0
    assert (tmp_path / "log").read_bytes() == b""


def test_a_cut_connection_goes_on_from_the_last_byte(ssh_host: SshHost, target: SshTarget, tmp_path: Path) -> None:
    launch_id, log = ended(target, WRITE.format(lines=60_000))
    progress, said = CutOnce(ssh_host, 2 * MB), list[str]()
    to = tmp_path / "log"

    fetch_from(target, launch_id, str(to), progress=progress, tell=said.append)

    assert progress.cut, "the connection was not cut, so nothing was shown"
    assert any("trying again" in text for text in said), said
    assert sha256(to) == sha256(log)


def test_patience_ends_and_the_next_run_goes_on(ssh_host: SshHost, target: SshTarget, tmp_path: Path) -> None:
    """What came is checked against the host before it is believed, and not fetched again."""
    launch_id, log = ended(target, WRITE.format(lines=60_000))
    to = tmp_path / "log"

    with pytest.raises(FetchIncomplete) as caught:
        fetch_from(target, launch_id, str(to), progress=CutOnce(ssh_host, 2 * MB), patience_s=0)
    kept = caught.value.details["part_bytes"]
    assert not to.exists() and (tmp_path / "log.part").stat().st_size == kept >= 2 * MB
    found = fetch_from(target, launch_id, str(to))

    assert found["resumed_at_bytes"] == kept
    assert sha256(to) == sha256(log)


@pytest.mark.parametrize("left", [b"not of this log", b"x" * 9 * MB], ids=["other bytes", "longer than the log"])
def test_what_is_no_beginning_of_the_log_is_not_gone_on_from(target: SshTarget, tmp_path: Path, left: bytes) -> None:
    launch_id, log = ended(target, WRITE.format(lines=20_000))
    (tmp_path / "log.part").write_bytes(left)
    said: list[str] = []

    found = fetch_from(target, launch_id, str(tmp_path / "log"), tell=said.append)

    assert found["resumed_at_bytes"] == 0 and "not the beginning" in said[0]
    assert sha256(tmp_path / "log") == sha256(log)


def test_a_byte_that_changed_on_the_way_is_found(target: SshTarget, tmp_path: Path) -> None:
    """Changed on the host after it was read, which is the same to us; the file does not get its name."""
    launch_id, log = ended(target, WRITE.format(lines=20_000))

    def spoil(done: int, size: int) -> None:
        if done == size:
            with log.open("r+b") as file:
                file.write(b"X")

    with pytest.raises(FetchIncomplete, match="expected SHA-256"):
        fetch_from(target, launch_id, str(tmp_path / "log"), progress=spoil)

    assert not (tmp_path / "log").exists()
    assert fetch_from(target, launch_id, str(tmp_path / "log"))["sha256"] == sha256(log)


def test_of_a_growing_log_comes_what_it_held(target: SshTarget, tmp_path: Path, gates: Path) -> None:
    gate = gates / "go"
    launch_id = started(target, f"echo before; while [ ! -e {gate} ]; do sleep 0.05; done; echo after")
    log = Path(record_of(target, launch_id)["log_path"])
    wait_until(lambda: log.read_bytes() == b"before\n", 30, "the first line is in the log")
    said: list[str] = []

    first = fetch_from(target, launch_id, str(tmp_path / "log"), tell=said.append)
    assert (first["growing"], first["size_bytes"]) == (True, 7)
    assert any("goes on" in text for text in said)
    gate.touch()
    wait_until(lambda: record_of(target, launch_id)["state"] == "SUCCEEDED", 30, "the training ends")
    fetch_from(target, launch_id, str(tmp_path / "log"), replace=True)

    assert (tmp_path / "log").read_bytes() == b"before\nafter\n"


def test_two_generations_never_meet_in_one_file(target: SshTarget, tmp_path: Path, gates: Path) -> None:
    """The child cuts its log while it is fetched: said, and the new generation comes whole."""
    gate = gates / "go"
    old, new = WRITE.format(lines=40_000), "echo new generation"
    launch_id = started(
        target,
        f"{old}; touch {gate}.full; while [ ! -e {gate} ]; do sleep 0.05; done; {new} > /dev/stdout; touch {gate}.cut;"
        f" while [ ! -e {gate}.more ]; do sleep 0.05; done;"
        f" while [ ! -e {gate}.end ]; do echo more; sleep 0.2; done",
    )
    wait_until(lambda: Path(f"{gate}.full").exists(), 60, "the log is written")
    index = Path(record_of(target, launch_id)["run_directory"], "observer", "index")
    wait_until(lambda: index.exists() and index.stat().st_size, 60, "the observer has read it")
    said: list[str] = []

    def cut(done: int, size: int) -> None:
        if not gate.exists() and done >= MB:
            gate.touch()
            wait_until(lambda: Path(f"{gate}.cut").exists(), 30, "the log is cut")

    try:
        found = fetch_from(target, launch_id, str(tmp_path / "log"), progress=cut, tell=said.append)
        with pytest.raises(GpuAlertError, match="only the newest generation exists") as caught:
            Path(f"{gate}.more").touch()  # the observer notes a cut when the log grows after it has read beyond it
            wait_until(lambda: generation_of(target, launch_id) == 1, 60, "the host has seen the cut")
            fetch_from(target, launch_id, str(tmp_path / "other"), generation=0)
    finally:
        Path(f"{gate}.end").touch()

    assert (tmp_path / "log").read_bytes() == b"new generation\n"
    assert found["generation"] == 1 and any("cut its log" in text for text in said)
    assert caught.value.kind == "generation_gone"


def test_no_such_launch(target: SshTarget, tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        fetch_from(target, "train-000000000000.1", str(tmp_path / "log"))

    assert caught.value.kind == "unknown_launch" and not list(tmp_path.iterdir())


def test_a_generation_that_never_was(target: SshTarget, tmp_path: Path) -> None:
    """The host goes along with any number that is not too low, so the answer must not be taken from it."""
    launch_id, _ = ended(target, "echo once")

    with pytest.raises(GpuAlertError, match="expected generation 4 of its log, found generation 0"):
        fetch_from(target, launch_id, str(tmp_path / "log"), generation=4)


def test_a_host_that_was_never_reached_is_not_waited_for(tmp_path: Path, ssh_host: SshHost, target: SshTarget) -> None:
    """A typing error should not cost five minutes."""
    ssh_host.stop()

    with pytest.raises(TransportError):
        fetch_from(target, "train-000000000000.1", str(tmp_path / "log"))


def test_a_file_that_is_there_stays_and_one_fetch_writes_at_a_time(target: SshTarget, tmp_path: Path) -> None:
    launch_id, _ = ended(target, WRITE.format(lines=20_000))
    to = tmp_path / "log"
    refused: list[BaseException] = []

    def again(done: int, size: int) -> None:
        with pytest.raises(FetchRefused, match="another fetch") as caught:
            fetch_from(target, launch_id, str(to))
        refused.append(caught.value)

    fetch_from(target, launch_id, str(to), progress=again)
    before = to.read_bytes()
    with pytest.raises(FetchRefused, match="found one"):
        fetch_from(target, launch_id, str(to))

    assert refused and to.read_bytes() == before


def test_a_full_disk_here_keeps_what_came(target: SshTarget, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's; the same call fails."""
    launch_id, log = ended(target, WRITE.format(lines=60_000))
    code = (
        "import resource, signal, sys; from tests.contract.test_fetch import *; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({2 * MB}, {2 * MB})); "
        "import pickle; target = pickle.load(sys.stdin.buffer)\n"
        f"try: fetch_from(target, {launch_id!r}, {str(tmp_path / 'log')!r})\n"
        "except OSError as error: sys.exit(error.errno)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = [sys.executable, "-c", code]

    done = subprocess.run(program, input=pickle.dumps(target), capture_output=True, timeout=120, env=env)

    assert done.returncode == errno.EFBIG, done.stderr.decode()
    assert not (tmp_path / "log").exists() and (tmp_path / "log.part").stat().st_size == 2 * MB
    assert fetch_from(target, launch_id, str(tmp_path / "log"))["resumed_at_bytes"] == 2 * MB
    assert sha256(tmp_path / "log") == sha256(log)


def test_memory_does_not_grow_with_the_log(target: SshTarget, tmp_path: Path) -> None:
    """300 MB, mostly a hole, through this process."""
    launch_id, log = ended(target, "echo begin")
    os.truncate(log, 300 * MB)
    with log.open("ab") as file:
        file.write(b"end\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    found = fetch_from(target, launch_id, str(tmp_path / "log"))

    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert found["size_bytes"] == 300 * MB + 4 and grown_kib < 60 * 1024

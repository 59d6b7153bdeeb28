"""The archive is placed once, found again, checked, and repaired, under every Python that may run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpualert import archive, protocol
from gpualert.key import Attempt, LaunchKey
from gpualert.spec import LaunchSpec
from tests.support import needs
from tests.support.sshd import Account, SshHost
from tests.support.talk import Talk

VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims stand in every root of the account; a test must not touch anybody's home."""
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "own"))


def shelf(root: Path) -> Path:
    return root / "archives" / archive.build().digest


def hello_at(root: Path, **how: object) -> tuple[dict, int]:
    """Hello, and how many bytes went to the host for it."""
    with Talk.over_shell(root=str(root), **how) as talk:
        hello = dict(talk.hello())
        talk.hang_up()
        return hello, talk.sent_bytes


def test_it_is_placed_once_and_found_again(tmp_path: Path) -> None:
    """The second time only the bootstrap crosses the wire."""
    first, first_bytes = hello_at(tmp_path / "root")
    second, second_bytes = hello_at(tmp_path / "root")
    assert (first["placed"], second["placed"]) == (True, False)
    assert first["digest"] == second["digest"] == archive.build().digest
    assert second_bytes < 20_000 < first_bytes
    assert [path.name for path in (tmp_path / "root" / "archives").iterdir()] == [archive.build().digest]


def test_it_is_placed_in_private(tmp_path: Path) -> None:
    """Folders 0700, files 0600, whatever the umask."""
    hello_at(tmp_path / "root")
    modes = {
        path.stat().st_mode & 0o777
        for path in (tmp_path / "root").rglob("*")
        if path.is_dir() and "__py" not in str(path)
    }
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in shelf(tmp_path / "root").rglob("*.py")} == {0o600}


def test_the_first_request_arrives_although_the_archive_was_missing(tmp_path: Path) -> None:
    """A request that travelled with the bootstrap waits on the host until the archive is there."""
    with Talk.over_shell(root=str(tmp_path / "root"), first=protocol.doctor_request()) as talk:
        assert talk.hello()["placed"] is True
        assert talk.frame("findings").header["findings"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_python_runs_it(version: str, tmp_path: Path) -> None:
    """Placed, found again, and able to carry a training from its launch to its verdict."""
    python = needs.interpreter(version)
    for placed in (True, False):
        with Talk.over_shell(root=str(tmp_path / "root"), remote_python=python) as talk:
            hello = talk.hello()
            assert hello["placed"] is placed
            assert hello["python"]["version"].startswith(version + ".")
            assert hello["digest"] == archive.build().digest
            key = LaunchKey([os.urandom(8).hex()], "task")
            spec = LaunchSpec("echo before; python3 -c 'import nothing_of_that_name'")
            record = talk.ask(protocol.launch_request(key, Attempt(1, "1"), spec), "launched").header["record"]
            logs, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
            assert logs[0].payload.startswith(b"before\n")
            assert ended.header["outcome"]["failure_class"] == "missing_module", ended.header
            assert ended.header["outcome"]["versions"]["python"].startswith(version + ".")
            assert talk.ask(protocol.doctor_request(), "findings").header["more"] is False
            assert talk.hang_up() == 0


def test_the_packed_archive_runs_by_itself(tmp_path: Path) -> None:
    """As one file, on a host where nothing is unpacked."""
    packed = tmp_path / "gpualert.pyz"
    packed.write_bytes(archive.build().data)
    conversation = protocol.Conversation(local=True, root=str(tmp_path / "root"))
    command = [sys.executable, "-I", str(packed), *conversation.local_arguments[2:]]
    with Talk(command, conversation) as talk:
        talk.hello()
        assert talk.ask(protocol.list_request(), "launches").header["launches"] == []


def test_every_supported_python_builds_the_same_archive(tmp_path: Path) -> None:
    """A worker and a triggerer of different Pythons share what is on the host."""
    shutil.copytree(Path(archive.__file__).parent, tmp_path / "gpualert", ignore=shutil.ignore_patterns("__pycache__"))
    program = "from gpualert import archive; print(archive.build().digest)"

    def digest(python: str) -> str:
        done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    found = {version: digest(needs.interpreter(version)) for version in VERSIONS}
    assert len(set(found.values())) == 1, found


def cut_a_file(folder: Path) -> None:
    path = folder / "gpualert" / "serve.py"
    path.write_bytes(path.read_bytes()[:100])


def change_a_byte(folder: Path) -> None:
    path = folder / "gpualert" / "errors.py"
    path.write_bytes(path.read_bytes().replace(b"internal", b"infernal", 1))


def remove_a_file(folder: Path) -> None:
    (folder / "gpualert" / "protocol.py").unlink()


def cut_the_manifest(folder: Path) -> None:
    path = folder / "MANIFEST"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))


def empty_the_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def a_file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("?")


@pytest.mark.parametrize(
    "damage", [cut_a_file, change_a_byte, remove_a_file, cut_the_manifest, empty_the_folder, a_file_instead]
)
def test_a_damaged_copy_is_replaced(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """It is noticed before anything of it runs, and nothing of the damage stays."""
    hello_at(tmp_path / "root")
    damage(shelf(tmp_path / "root"))
    assert hello_at(tmp_path / "root")[0]["placed"] is True
    assert hello_at(tmp_path / "root")[0]["placed"] is False
    assert [path.name for path in (tmp_path / "root" / "archives").iterdir()] == [archive.build().digest]


def test_a_cut_bytecode_cache_does_no_harm(tmp_path: Path) -> None:
    """A disk that was full while Python wrote its cache leaves such files; the source is intact."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    hello_at(tmp_path / "root", env=env)
    cached = list(shelf(tmp_path / "root").rglob("protocol.*.pyc"))
    assert cached, "no bytecode was cached, so nothing is tried here"
    for path in cached:
        path.write_bytes(path.read_bytes()[:200])
    assert hello_at(tmp_path / "root", env=env)[0]["placed"] is False


def test_two_clients_place_at_the_same_time(tmp_path: Path) -> None:
    """Both have been asked for it before either has sent it; both work, and one copy is there."""
    with Talk.over_shell(root=str(tmp_path / "root")) as one, Talk.over_shell(root=str(tmp_path / "root")) as other:
        held = [talk.hold_archive() for talk in (one, other)]
        one.send_raw(held[0])
        other.send_raw(held[1])
        assert one.hello()["placed"] is True
        assert other.hello()["placed"] is True
    assert [path.name for path in (tmp_path / "root" / "archives").iterdir()] == [archive.build().digest]


def test_a_wrong_archive_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """What comes must have the digest that was announced."""
    with Talk.over_shell(root=str(tmp_path / "root")) as talk:
        held = talk.hold_archive()
        talk.send_raw(held[:-200] + bytes(200))
        refusal = talk.refusal()
    assert refusal.kind == "archive"
    assert not (tmp_path / "root" / "archives").exists()


def test_what_a_killed_receiver_left_is_swept(tmp_path: Path) -> None:
    """An hour later, by whoever places an archive there."""
    hello_at(tmp_path / "root")
    left = tmp_path / "root" / "archives" / "0123.77-abcd"
    fresh = tmp_path / "root" / "archives" / "0123.78-abcd"
    for folder in (left, fresh):
        folder.mkdir()
    os.utime(left, (1, 1))
    shutil.rmtree(shelf(tmp_path / "root"))
    hello_at(tmp_path / "root")
    assert (left.exists(), fresh.exists()) == (False, True)


def test_a_client_that_dies_while_sending_leaves_nothing(tmp_path: Path) -> None:
    """Half an archive is no archive."""
    with Talk.over_shell(root=str(tmp_path / "root")) as talk:
        talk.send_raw(talk.hold_archive()[:5000])
        talk.hang_up()
    assert not (tmp_path / "root" / "archives").exists()


def open_to_others(root: Path) -> None:
    root.chmod(0o755)


def another_owner(root: Path) -> None:
    needs.root()
    os.chown(root, 12345, 12345)


def a_symlink(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.symlink_to(root.with_name("elsewhere"))


@pytest.mark.parametrize("spoil", [open_to_others, another_owner, a_symlink])
def test_code_is_never_run_from_a_root_that_others_could_write_to(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    """Another root is used instead."""
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home)}
    hello_at(tmp_path / "root", env=env)
    spoil(tmp_path / "root")
    hello, _ = hello_at(tmp_path / "root", env=env)
    assert hello["archive"].startswith(str(home / ".local/state/gpualert"))


def test_over_ssh_nothing_is_sent_twice(
    ssh_host_with: Callable[..., SshHost], account_with: Callable[..., Account]
) -> None:
    """The real thing: a new account, two connections."""
    account = account_with()
    host = ssh_host_with(username=account.name)
    with Talk.over_ssh(host) as first:
        first_hello = first.hello()
        first.hang_up()
    with Talk.over_ssh(host) as second:
        second_hello = second.hello()
        second.hang_up()
    assert (first_hello["placed"], second_hello["placed"]) == (True, False)
    assert second.sent_bytes < 20_000 < first.sent_bytes

"""Whatever stands between sshd and us (shells, noise, homes, Pythons): it works, or one error says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpualert import archive, protocol
from tests.support import mounts, needs
from tests.support.sshd import NOISE, Account, SshHost
from tests.support.talk import Talk

HostMaker = Callable[..., SshHost]
AccountMaker = Callable[..., Account]


def busybox_sh(folder: Path) -> str:
    """busybox's shell as something that can be a login shell."""
    busybox = needs.program("busybox")
    folder.mkdir()
    folder.chmod(0o755)
    link = folder / "sh"
    link.symlink_to(busybox)
    return str(link)


@pytest.fixture
def open_folder(request: pytest.FixtureRequest) -> Path:
    """A folder that other accounts can pass through (pytest's own temporary folders are closed to them)."""
    folder = Path(f"/tmp/gpualert-shells-{os.getpid()}-{os.urandom(4).hex()}")
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def test_every_login_shell_brings_us_to_hello(shell_account: Account, ssh_host_with: HostMaker) -> None:
    """Whatever a login shell's start-up file prints comes before the marker, and does no harm."""
    host = ssh_host_with(username=shell_account.name)
    with Talk.over_ssh(host) as first:
        assert first.hello()["user"] == shell_account.name
        assert first.hello is not None and first.conversation.hello is not None
        assert first.conversation.hello["placed"] is True
        printed = first.conversation.printed
        assert printed == ("" if shell_account.shell.endswith("dash") else NOISE)
        assert first.hang_up() == 0
        assert first.stderr == b""
    with Talk.over_ssh(host) as second:
        assert second.hello()["placed"] is False


def test_an_account_for_file_transfer_only(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """sshd's own SFTP server does not understand us, and ends."""
    account = account_with()
    with Talk.over_ssh(ssh_host_with(username=account.name, options=["ForceCommand internal-sftp"])) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "shell"


@pytest.mark.parametrize("shell", ["csh", "busybox"])
def test_further_login_shells(
    shell: str, account_with: AccountMaker, ssh_host_with: HostMaker, open_folder: Path
) -> None:
    """csh where it is not tcsh by another name, and the shell of small systems."""
    account = account_with(busybox_sh(open_folder) if shell == "busybox" else shell)
    with Talk.over_ssh(ssh_host_with(username=account.name)) as talk:
        assert talk.hello()["user"] == account.name


@pytest.mark.parametrize("sh", ["dash", "bash --posix", "busybox sh", "zsh --emulate sh"])
def test_whatever_sh_is(sh: str, tmp_path: Path) -> None:
    """``/bin/sh`` is another program on each distribution; each reads exactly what is meant for it."""
    program, *options = sh.split()
    conversation = protocol.Conversation(root=str(tmp_path / "root"))
    inside = conversation.command.split("'")[1]
    request = protocol.list_request()
    env = {**os.environ, "HOME": str(tmp_path)}
    with Talk([needs.program(program), *options, "-c", inside], conversation, first=request, env=env) as talk:
        assert talk.hello()["placed"] is True
        assert talk.frame("launches").header["launches"] == []


def test_a_home_that_is_read_only(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """The next root is used."""
    account = account_with()
    with Talk.over_ssh(ssh_host_with(username=account.name, mounts=mounts.read_only(account.home))) as talk:
        hello = talk.hello()
    assert hello["archive"].startswith(f"/var/tmp/gpualert-{account.uid}/archives/")
    assert hello["roots"][0]["usable"] is False and hello["roots"][0]["why"]


@pytest.mark.parametrize("trouble", ["full", "out_of_inodes", "missing"])
def test_a_home_that_cannot_hold_files(trouble: str, account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """Bytes, inodes or the folder itself are missing: the next root is used, and nothing is left in the first."""
    account = account_with()
    lines = {
        "full": lambda: mounts.full(account.home, account.uid),
        "out_of_inodes": lambda: mounts.out_of_inodes(account.home, account.uid),
        "missing": lambda: mounts.missing(account.home),
    }[trouble]()
    with Talk.over_ssh(ssh_host_with(username=account.name, mounts=lines)) as talk:
        assert talk.hello()["archive"].startswith(f"/var/tmp/gpualert-{account.uid}/archives/")


def test_no_root_at_all(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """One error that names every root and what is wrong with it."""
    account = account_with()
    lines = [*mounts.read_only(account.home), *mounts.read_only(Path("/var/tmp"))]
    with Talk.over_ssh(ssh_host_with(username=account.name, mounts=lines)) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "no_root"
    assert f"{account.home}/.local/state/gpualert" in refusal.message
    assert f"/var/tmp/gpualert-{account.uid}" in refusal.message
    assert "Read-only file system" in refusal.message


def test_tmp_without_exec(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """Nothing of ours is executed as a file; even the root in /var/tmp works there."""
    account = account_with()
    lines = [*mounts.noexec_tmp(), *mounts.read_only(account.home)]
    with Talk.over_ssh(ssh_host_with(username=account.name, mounts=lines)) as talk:
        assert talk.hello()["archive"].startswith("/var/tmp/")


def test_nologin(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """An account without a shell is named as such, in the host's own words."""
    account = account_with(needs.program("nologin"))
    with Talk.over_ssh(ssh_host_with(username=account.name)) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "shell"
    assert "not available" in refusal.message


def test_a_forced_command(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """sshd runs something else than we asked for."""
    account = account_with()
    with Talk.over_ssh(ssh_host_with(username=account.name, options=["ForceCommand echo backups only"])) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "shell"
    assert "backups only" in refusal.message and "forced command" in refusal.message


def test_a_forced_command_that_echoes(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """What we send never looks like our marker, even when it comes back."""
    account = account_with()
    with Talk.over_ssh(ssh_host_with(username=account.name, options=["ForceCommand head -c 9000"])) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "shell"


def test_no_python(account_with: AccountMaker, ssh_host_with: HostMaker) -> None:
    """No Python anywhere: the error says which version is needed."""
    account = account_with()
    with Talk.over_ssh(ssh_host_with(username=account.name, mounts=mounts.without_python())) as talk:
        refusal = talk.refusal()
    assert refusal.kind in ("no_python", "python_too_old")
    assert "3.8 or newer" in refusal.message


def shell_path(folder: Path, **programs: str) -> dict[str, str]:
    """An environment whose PATH has what a POSIX system has, and the given programs."""
    folder.mkdir(exist_ok=True)
    for name in ("sh", "dd", "head", "tr", "cut"):
        (folder / name).symlink_to(needs.program(name))
    for name, target in programs.items():
        (folder / name).symlink_to(target)
    return {"PATH": str(folder), "HOME": str(folder / "home")}


def without_usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpualert.bootstrap._PYTHON_PLACES", ())


def test_only_old_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one that was found is named with its version."""
    without_usual_places(monkeypatch)
    old = {"python3": needs.interpreter("3.6"), "python3.8": needs.interpreter("3.7")}
    with Talk.over_shell(env=shell_path(tmp_path / "bin", **old)) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "python_too_old"
    assert "python3 (Python 3.6" in refusal.message and "python3.8 (Python 3.7" in refusal.message


def test_python_2_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not even know the options that we give."""
    without_usual_places(monkeypatch)
    found = sorted((Path.home() / ".pyenv" / "versions").glob("2.7*/bin/python2.7")) or shutil.which("python2.7")
    if not found:
        pytest.skip("Python 2.7 is not installed here, so it was not tried")
    python = str(found if isinstance(found, str) else found[0])
    with Talk.over_shell(env=shell_path(tmp_path / "bin", python=python)) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "python_too_old" and "(Python 2.7" in refusal.message


def test_no_python_on_path_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing found is another error than something old."""
    without_usual_places(monkeypatch)
    with Talk.over_shell(env=shell_path(tmp_path / "bin")) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "no_python" and "remote_python" in refusal.message


def test_the_first_suitable_python_is_taken(tmp_path: Path) -> None:
    """An old python3 on PATH is passed over, said in the warnings, and the next name is tried."""
    env = shell_path(tmp_path / "bin", **{"python3": needs.interpreter("3.6"), "python3.9": needs.interpreter("3.9")})
    with Talk.over_shell(env=env, root=str(tmp_path / "root")) as talk:
        hello = talk.hello()
    assert hello["python"]["version"].startswith("3.9.")
    assert any("python3 (Python 3.6" in warning for warning in hello["warnings"])


@pytest.mark.parametrize("form", ["path", "tilde", "awkward"])
def test_remote_python_comes_first(form: str, tmp_path: Path) -> None:
    """The caller's own choice, whatever characters are in its path."""
    home = tmp_path / "home"
    place = home / {"path": "py", "tilde": "py", "awkward": 'it\'s $(not) a "place"; \\ok!'}[form]
    place.mkdir(parents=True)
    (place / "python").symlink_to(needs.interpreter("3.8"))
    named = "~/py/python" if form == "tilde" else str(place / "python")
    env = {**shell_path(tmp_path / "bin"), "HOME": str(home)}
    with Talk.over_shell(env=env, root=str(tmp_path / "root"), remote_python=named) as talk:
        hello = talk.hello()
    assert hello["python"]["version"].startswith("3.8.")
    assert hello["digest"] == archive.build().digest


def test_a_python_that_is_no_python(tmp_path: Path) -> None:
    """A shim that refuses, as pyenv's do, is passed over."""
    shim = tmp_path / "shim"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    env = shell_path(tmp_path / "bin", **{"python3": str(shim), "python3.10": needs.interpreter("3.10")})
    with Talk.over_shell(env=env, root=str(tmp_path / "root")) as talk:
        assert talk.hello()["python"]["version"].startswith("3.10.")


@pytest.mark.parametrize("module", ["json", "dataclasses.py"])
def test_a_python_without_its_whole_standard_library(module: str, tmp_path: Path) -> None:
    """As Debian's python3-minimal: the module is named, and what to install."""
    whole = Path(needs.interpreter("3.9"))
    library = Path(
        subprocess.check_output([whole, "-c", "import os; print(os.path.dirname(os.__file__))"], text=True).strip()
    )
    (tmp_path / "bin").mkdir()
    python = shutil.copy(whole.resolve(), tmp_path / "bin" / "python3.9")
    (tmp_path / "lib" / library.name).mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name != module:
            (tmp_path / "lib" / library.name / entry.name).symlink_to(entry)
    with Talk.over_shell(root=str(tmp_path / "root"), remote_python=str(python)) as talk:
        refusal = talk.refusal()
    assert refusal.kind == "python_incomplete"
    assert module.partition(".")[0] in refusal.message and "python3-minimal" in refusal.message

"""The commit that ran is named, or the reason why not; and git can never hold anything up."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpualert.gitfacts import read_git

pytestmark = pytest.mark.usefixtures("_alone")


@pytest.fixture
def _alone(monkeypatch, tmp_path: Path) -> None:
    """No configuration of the user's takes part, and no repository above the temporary folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "Start")
    return folder


def test_a_clean_checkout(checkout: Path) -> None:
    """Also from a folder within it, and with untracked data lying around."""
    (checkout / "data").mkdir()
    (checkout / "data" / "x.bin").write_bytes(b"0")
    expected = {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": False}

    assert read_git(str(checkout)) == (expected, None)
    assert read_git(str(checkout / "data")) == (expected, None)


def test_a_changed_tracked_file_is_dirty(checkout: Path) -> None:
    (checkout / "train.py").write_text("print(2)\n")
    facts, warning = read_git(str(checkout))
    assert facts is not None and facts["dirty"] is True and warning is None


def test_a_folder_that_is_no_checkout_is_no_trouble(tmp_path: Path) -> None:
    assert read_git(str(tmp_path)) == (None, None)
    assert read_git(str(tmp_path / "absent")) == (None, None)


def test_a_repository_without_a_commit_says_so(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    facts, warning = read_git(str(tmp_path))
    assert facts is None and warning is not None and "no commit yet" in warning


def test_the_environment_cannot_point_elsewhere(checkout: Path, tmp_path: Path, monkeypatch) -> None:
    """A launch from within a git hook has GIT_DIR set."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    facts, _ = read_git(str(checkout))
    assert facts is not None


def test_a_foreign_repository_names_the_remedy(checkout: Path) -> None:
    """Git refuses what somebody else owns; that is a warning with what to do, not an error."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    for path in [checkout, *checkout.rglob("*")]:
        os.chown(path, 65534, 65534)
    facts, warning = read_git(str(checkout))
    assert facts is None and warning is not None and "safe.directory" in warning


def test_without_git_the_warning_says_so(checkout: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    facts, warning = read_git(str(checkout))
    assert facts is None and warning is not None and "not installed" in warning


def test_a_git_that_hangs_is_ended(checkout: Path, tmp_path: Path, monkeypatch) -> None:
    """With its children, for those hold the output open."""
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 600 &\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")

    began = time.monotonic()
    facts, warning = read_git(str(checkout), bound_s=0.5)

    assert facts is None and warning is not None and "did not answer" in warning
    assert time.monotonic() - began < 60
    group = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        _wait_for_group_to_end(group)


def _wait_for_group_to_end(group: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        os.killpg(group, 0)
        time.sleep(0.02)

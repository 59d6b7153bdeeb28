"""Which places are looked at, in which order, and what makes one unfit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpualert import roots
from gpualert.errors import RunDirectoryError


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured (by spec, else by the environment), home, /var/tmp; each once."""
    monkeypatch.chdir("/tmp")
    last = f"/var/tmp/gpualert-{os.getuid()}"
    assert roots.candidate_roots(None, {"HOME": "/h"}) == ["/h/.local/state/gpualert", last]
    assert roots.candidate_roots("/c/", {"HOME": "/h", "GPUALERT_ROOT": "/e"})[0] == "/c"
    assert roots.candidate_roots(None, {"HOME": "/h", "GPUALERT_ROOT": "~/e"})[0] == "/h/e"
    assert roots.candidate_roots("relative", {"HOME": "/h"})[0] == "/tmp/relative"
    assert roots.candidate_roots(last, {"HOME": "/h"}) == [last, "/h/.local/state/gpualert"]


def test_looking_changes_nothing(tmp_path: Path) -> None:
    root = roots.examine_root(str(tmp_path / "a/b/c"))
    assert (root.usable, root.readable, root.exists, root.why) == (True, True, False, None)
    assert list(tmp_path.iterdir()) == []


def test_creating_closes_it_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        root = roots.examine_root(str(tmp_path / "a/root"))
        roots.create_root(root)
    finally:
        os.umask(before)
    assert (tmp_path / "a/root").stat().st_mode & 0o7777 == 0o700
    assert roots.examine_root(root.path).exists


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o1777])
def test_open_to_others(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    root = roots.examine_root(str(tmp_path))
    assert (root.usable, root.readable, root.exists) == (False, True, True)
    assert root.why == f"expected mode 0700, found {mode:04o}"


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name, words in (("file", "no folder"), ("link", "a symbolic link")):
        root = roots.examine_root(str(tmp_path / name))
        assert (root.usable, root.readable, root.exists) == (False, True, False)
        assert root.why and words in root.why
    below = roots.examine_root(str(tmp_path / "file/below"))
    assert (below.usable, below.why and "cannot be created" in below.why) == (False, True)


def test_a_folder_that_cannot_be_looked_at_is_not_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale NFS handle, a permission lost above it: unknown is not empty."""

    def stale(path: object) -> os.stat_result:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "lstat", stale)
    root = roots.examine_root(str(tmp_path))
    assert (root.usable, root.readable) == (False, False)
    assert root.why == "cannot be looked at: Stale file handle"


def test_no_place_at_all_names_each(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = [roots.examine_root(str(tmp_path / "file" / name)) for name in "ab"]
    with pytest.raises(RunDirectoryError, match="file/a: .*; .*file/b: ") as caught:
        roots.choose_among(found)
    assert caught.value.kind == "no_root"


def test_no_home_is_said_when_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "home", lambda environ: None)
    with pytest.raises(RunDirectoryError, match="home"):
        roots.expand_home("~/x", {})
    assert roots.expand_home("/x/~", {}) == "/x/~"

"""The names and rules of the on-disk format, without any process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpualert.errors import RunDirectoryError
from gpualert.key import Attempt, LaunchKey
from gpualert.rundir import RESERVE_BYTES, KeyDirectory, RunDirectory, key_directories


@pytest.fixture
def folder(tmp_path: Path) -> KeyDirectory:
    (tmp_path / "launches").mkdir()
    key = LaunchKey(("a",), "word")
    made = KeyDirectory(f"{tmp_path}/launches/{key.directory_name}")
    made.create(key.to_json())
    return made


@pytest.fixture
def run(folder: KeyDirectory) -> RunDirectory:
    made = folder.run_directory(1)
    made.create()
    return made


def test_a_run_directory_knows_what_it_is_of(folder: KeyDirectory, run: RunDirectory) -> None:
    assert run.number == 1
    assert run.launch_id == f"{folder.name}.1"
    assert run.key_directory.path == folder.path
    assert folder.run_directory(12345).path.endswith("/12345"), "more launches than the four digits hold"
    assert (folder.read_key() or {})["parts"] == ["a"]
    assert [found.path for found in key_directories(folder.root)] == [folder.path]


def test_it_is_made_once_with_its_log_and_its_reserves(run: RunDirectory) -> None:
    assert os.stat(run.log_path).st_size == 0
    for reserve in (run.exit_reserve_path, run.stop_reserve_path, run.tree_reserve_path):
        assert os.stat(reserve).st_blocks * 512 >= RESERVE_BYTES, "the blocks are given, not only the size"
    with pytest.raises(RunDirectoryError, match="File exists"):
        run.create()


def test_the_first_exit_stands(run: RunDirectory) -> None:
    assert run.write_exit({"code": 1}) is True
    assert run.write_exit({"code": 2}) is False
    assert (run.read_exit() or {})["code"] == 1
    assert not os.path.exists(run.exit_reserve_path)
    assert run.has_ended()


def test_the_first_stop_stands(run: RunDirectory) -> None:
    assert run.write_stop({"who": "a"}) is True
    assert run.write_stop({"who": "b"}) is False
    assert (run.read_stop() or {})["who"] == "a"


def test_the_tree_is_told_again_when_it_has_changed(run: RunDirectory) -> None:
    """A survivor that sleeps in the kernel may die later."""
    run.write_tree({"survivors": [1]})
    run.write_tree({"survivors": []})
    assert (run.read_tree() or {})["survivors"] == []


def test_an_exit_larger_than_the_reserve_is_written_all_the_same(run: RunDirectory) -> None:
    assert run.write_exit({"code": 0, "x": "y" * RESERVE_BYTES})
    assert len((run.read_exit() or {})["x"]) == RESERVE_BYTES


def test_epochs_only_grow(run: RunDirectory) -> None:
    assert run.epoch() == 0
    assert run.take_epoch(1, "a") and not run.take_epoch(1, "b") and run.take_epoch(7, "c")
    assert run.epoch() == 7


def test_claims_attempts_and_tombstones_are_read_from_names(folder: KeyDirectory) -> None:
    assert (folder.claims(), folder.attempts(), folder.tombstone()) == ([], [], 0)
    for number in (2, 1, 10000):
        assert folder.claim(number, {"number": number}, durable=False)
    assert not folder.claim(2, {}, durable=False)
    folder.mark_attempt(Attempt(3, "../../e?tc-8f14"))
    folder.write_tombstone(2, {"who": "x"})
    folder.write_tombstone(5, {"who": "x"})
    (Path(folder.path) / "x.claim").touch()
    (Path(folder.path) / ".0009.claim.1.1.tmp").touch()

    assert (folder.claims(), folder.attempts(), folder.tombstone()) == ([1, 2, 10000], [3], 5)
    assert "attempt-00000003-etc8f14" in os.listdir(folder.path)


def test_what_came_to_nothing_is_discarded_whole(folder: KeyDirectory) -> None:
    folder.claim(1, {}, durable=False)
    folder.claim(2, {}, durable=False)
    folder.discard(2)
    assert folder.claims() == [1]
    folder.discard(1)
    assert not os.path.exists(folder.path)


def test_a_folder_that_cannot_be_listed_is_an_error_not_empty(
    folder: KeyDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claims seen and no claims there are two answers."""

    def stale(path: str) -> list[str]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "listdir", stale)
    with pytest.raises(RunDirectoryError, match="Stale"):
        folder.claims()

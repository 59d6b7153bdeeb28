"""Where files are put: whole or not there, under names that lead nowhere else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from gpualert.errors import InvalidSpec
from gpualert_provider.store import Destination, StoreError, check, safe_part
from tests.support.stores import attached


class FailsMidway(MemoryFileSystem):
    """A store whose upload breaks when half of it has come."""

    protocol = ("midway",)

    def put_file(self, lpath, rpath, **kwargs):
        self.pipe_file(rpath, Path(lpath).read_bytes()[: os.path.getsize(lpath) // 2])
        raise ConnectionError("the other end hung up")


class Shortens(MemoryFileSystem):
    """A store that says it has all, and has less."""

    protocol = ("shortens",)

    def put_file(self, lpath, rpath, **kwargs):
        self.pipe_file(rpath, Path(lpath).read_bytes()[:-1])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"epoch 1\n" * 1000)
    return path


def test_a_folder_gets_the_file_readable_by_its_owner_alone(source: Path, tmp_path: Path) -> None:
    where = Destination.of(str(tmp_path / "with space"))

    at = where.put(source, ("dag", "run 1/2", "a.log"))

    assert at == str(tmp_path / "with space" / "dag" / "run%201%2F2" / "a.log")
    assert Path(at).read_bytes() == source.read_bytes()
    assert stat.S_IMODE(os.stat(at).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(at)).st_mode) == 0o700
    assert os.listdir(os.path.dirname(at)) == ["a.log"]


def test_a_second_copy_takes_the_place_of_the_first(source: Path, tmp_path: Path) -> None:
    where = Destination.of(tmp_path / "kept")
    where.put(source, ("a",))
    source.write_bytes(b"other")

    assert Path(where.put(source, ("a",))).read_bytes() == b"other"


def test_a_folder_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(StoreError, match=r"file/a: NotADirectoryError"):
        Destination.of(tmp_path / "file").put(source, ("a",))


def test_another_store_gets_it_under_its_name_when_it_is_whole(source: Path) -> None:
    memory = MemoryFileSystem()
    attached("memory", memory)

    at = Destination.of("memory://lab@bucket/logs").put(source, ("dag", "a.log"))

    assert at == "memory://bucket/logs/dag/a.log"
    assert memory.cat_file("/bucket/logs/dag/a.log") == source.read_bytes()
    assert not memory.exists("/bucket/logs/dag/a.log.part")


def test_half_an_upload_leaves_nothing(source: Path) -> None:
    broken = FailsMidway()
    attached("midway", broken)

    with pytest.raises(StoreError, match=r"midway://bucket/half/a\.log: ConnectionError: the other end hung up"):
        Destination.of("midway://lab@bucket/half").put(source, ("a.log",))

    assert not broken.exists("/bucket/half/a.log") and not broken.exists("/bucket/half/a.log.part")


def test_a_store_that_lost_a_byte_is_not_believed(source: Path) -> None:
    attached("shortens", Shortens())

    with pytest.raises(StoreError, match="expected 8000 bytes after the copy, found 7999"):
        Destination.of("shortens://lab@bucket").put(source, ("a.log",))


def test_a_store_that_nothing_here_speaks_to(source: Path) -> None:
    with pytest.raises(StoreError, match="nosuch://bucket: cannot be used as a store: ValueError"):
        Destination.of("nosuch://bucket")


@pytest.mark.parametrize("where", ["relative/folder", "", "~/logs", 7, None])
def test_what_is_no_destination_is_said_by_name(where: object) -> None:
    with pytest.raises(InvalidSpec, match="keep_log: expected an absolute folder or a URL"):
        check("keep_log", where)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidSpec, match="names an Airflow connection") as caught:
        check("keep_log", "s3://key:hunter22@bucket/logs")
    assert "hunter22" not in str(caught.value)


@given(st.text(max_size=300))
def test_a_safe_part_is_one_short_part(text: str) -> None:
    part = safe_part(text)

    assert part not in ("", ".", "..") and len(part.encode()) <= 200
    assert "/" not in part and "\0" not in part and "\n" not in part


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_texts_are_different_parts(one: str, other: str) -> None:
    assert (safe_part(one) == safe_part(other)) == (one == other)

"""Files appear complete or not at all, once; and our encoder writes what json writes."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.durable import encode_json, make_durable, read_bytes, read_json, replace, write_once
from gpualert.errors import NewerFormat, RunDirectoryError

texts = st.text(st.characters(), max_size=40)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


@given(values)
def test_the_encoder_writes_what_json_writes(value: Any) -> None:
    """It exists to save the import, not to differ."""
    assert encode_json(value) == json.dumps(value, allow_nan=False).encode("ascii")


@pytest.mark.parametrize("text", ["\x7f", "\ud800", "\U0001f600", "\x00\x1f", '"\\/\b\f\n\r\t', "é", "\u2028"])
def test_the_encoder_on_strange_text(text: str) -> None:
    assert encode_json({text: text}) == json.dumps({text: text}).encode("ascii")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    """Airflow fails a task whose XCom holds one; better here."""
    with pytest.raises(ValueError, match="finite"):
        encode_json([value])


@pytest.mark.parametrize("value", [b"x", {1: 2}, {"a": object()}, {1, 2}])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode_json(value)


def test_the_first_writer_wins(tmp_path: Path) -> None:
    path = str(tmp_path / "once")
    assert write_once(path, b"first") is True
    assert write_once(path, b"second") is False
    assert read_bytes(path) == b"first"
    assert os.listdir(tmp_path) == ["once"]


def test_of_many_writers_one_wins_and_all_agree(tmp_path: Path) -> None:
    path = str(tmp_path / "once")
    wins: list[int] = []

    def write(number: int) -> None:
        if write_once(path, b"%d" % number, durable=False):
            wins.append(number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(wins) == 1
    assert read_bytes(path) == b"%d" % wins[0]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some FUSE and container mounts: still once."""

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = str(tmp_path / "once")
    assert write_once(path, b"first") is True
    assert write_once(path, b"second") is False
    assert read_bytes(path) == b"first"


def test_a_lost_reply_of_nfs_is_not_a_lost_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server made the link, its reply was lost, and the client's second try says EEXIST: the link count tells."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", twice)
    assert write_once(str(tmp_path / "once"), b"ours") is True


def test_the_reserve_becomes_the_file(tmp_path: Path) -> None:
    reserve = tmp_path / "reserve"
    reserve.write_bytes(b"\0" * 4096)
    inode = reserve.stat().st_ino
    assert write_once(str(tmp_path / "exit.json"), b"{}", reserve=str(reserve))
    assert (tmp_path / "exit.json").stat().st_ino == inode
    assert (tmp_path / "exit.json").read_bytes() == b"{}"
    assert not reserve.exists()


def test_replace_replaces_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "ack")
    for data in (b"a" * 100, b"b"):
        replace(path, data, durable=True)
    assert read_bytes(path) == b"b"
    assert os.listdir(tmp_path) == ["ack"]


def test_reading(tmp_path: Path) -> None:
    """None is nothing there; damage names the file; a newer format is an answer of its own."""
    path = tmp_path / "x.json"
    assert read_json(str(path)) is None
    path.write_text("")
    assert read_json(str(path)) is None
    path.write_text('{"format_version": 1, "a": 2}')
    assert read_json(str(path)) == {"format_version": 1, "a": 2}
    path.write_text('{"format_version": 2}')
    with pytest.raises(NewerFormat, match="x.json: expected format_version 1, found 2"):
        read_json(str(path))
    for garbage in ("[1]", "{", "\0\0"):
        path.write_text(garbage)
        with pytest.raises(RunDirectoryError, match="x.json"):
            read_json(str(path))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="/missing/x") as caught:
        write_once(str(tmp_path / "missing/x"), b"")
    assert caught.value.kind == "disk"
    make_durable([str(tmp_path / "missing"), str(tmp_path)])  # what is not there needs no fsync

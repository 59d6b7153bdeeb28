"""A log can be read while it is written, from any position, and its cuts are seen."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpualert import logfile
from gpualert.logfile import LineDecoder, LogChunk, LogReader, TimeIndex


def test_a_reader_waits_for_nobody(tmp_path: Path) -> None:
    """No log, and a log without news, are both an empty answer; a log that appears later is read from its start."""
    path = tmp_path / "log"
    reader = LogReader(str(path))

    assert reader.read() == []
    assert reader.size() is None
    path.write_bytes(b"epoch 1\n")
    assert reader.read() == [LogChunk(0, 0, b"epoch 1\n")]
    assert reader.read() == []
    assert reader.position == (0, 8)


def test_a_reader_goes_on_where_another_one_stopped(tmp_path: Path) -> None:
    """A position is all that a new reader needs."""
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    first = LogReader(str(path))
    assert first.read(4) == [LogChunk(0, 0, b"0123")]

    assert LogReader(str(path), *first.position).read() == [LogChunk(0, 4, b"456789")]


def test_a_log_that_became_shorter_is_a_new_generation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a long line\n")
    reader = LogReader(str(path))
    reader.read()

    path.write_bytes(b"x\n")

    assert reader.read() == [LogChunk(1, 0, b"x\n")]


def test_a_log_that_was_cut_and_grew_again_is_a_new_generation(tmp_path: Path) -> None:
    """The size alone does not show it; the bytes before the position do."""
    path = tmp_path / "log"
    path.write_bytes(b"first words\n")
    reader = LogReader(str(path))
    reader.read()

    path.write_bytes(b"quite other words, and more of them\n")

    assert reader.read() == [LogChunk(1, 0, b"quite other words, and more of them\n")]
    assert reader.read() == []


def test_a_restarted_reader_sees_a_cut_that_happened_while_it_was_away(tmp_path: Path) -> None:
    """That is what the fingerprint is saved for."""
    path = tmp_path / "log"
    path.write_bytes(b"first words\n")
    first = LogReader(str(path))
    first.read()
    path.write_bytes(b"quite other words, and more of them\n")

    second = LogReader(str(path), *first.position, fingerprint=first.fingerprint)

    assert second.read() == [LogChunk(1, 0, b"quite other words, and more of them\n")]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(1, 150)), max_size=12))
def test_no_byte_is_lost_or_read_twice(tmp_path_factory, steps: list[tuple[bytes, int]]) -> None:
    """Whatever the sizes of writes and reads, the chunks laid end to end are the log."""
    path = tmp_path_factory.mktemp("log") / "log"
    reader = LogReader(str(path))
    read = b""
    with open(path, "ab", buffering=0) as writer:
        for data, size in steps:
            writer.write(data)
            for chunk in reader.read(size):
                assert (chunk.generation, chunk.offset) == (0, len(read))
                read += chunk.data
    while chunks := reader.read():
        read += chunks[0].data

    assert read == path.read_bytes()


def test_the_index_tells_by_when_a_byte_was_there(tmp_path: Path) -> None:
    """The first line beyond the byte answers; a byte that no line covers yet has no time."""
    writer = TimeIndex(str(tmp_path / "index"))
    reader = TimeIndex(str(tmp_path / "index"))
    assert reader.lookup(0, 0) is None

    writer.append(0, 100, 1000.0)
    writer.append(0, 150, 1000.5)  # within the step
    writer.append(0, 200, 1002.0)
    writer.append(1, 10, 1003.0)

    assert reader.lookup(0, 0) == 1000.0
    assert reader.lookup(0, 99) == 1000.0
    assert reader.lookup(0, 100) == 1002.0
    assert reader.lookup(0, 200) is None
    assert reader.lookup(1, 9) == 1003.0
    assert reader.lookup(2, 0) is None


def test_a_burst_gets_lines_by_size(tmp_path: Path) -> None:
    """Within one second a MiB makes another line; the last line of a log can be forced."""
    index = TimeIndex(str(tmp_path / "index"))
    assert index.append(0, 10, 5.0)
    assert not index.append(0, 20, 5.1)
    assert index.append(0, 10 + 1024 * 1024, 5.2)
    assert not index.append(0, 11 + 1024 * 1024, 5.3)
    assert index.append(0, 11 + 1024 * 1024, 5.3, force=True)
    assert not index.append(0, 11 + 1024 * 1024, 9.0, force=True)  # nothing new


def test_the_index_stays_small_however_long_the_training(tmp_path: Path, monkeypatch) -> None:
    """Thinning halves the file and doubles the step; first and last line of a generation stay."""
    monkeypatch.setattr(TimeIndex, "MAX_LINES", 64)
    path = tmp_path / "index"
    index = TimeIndex(str(path))
    reader = TimeIndex(str(path))
    for second in range(5000):
        index.append(second // 2500, (second % 2500 + 1) * 10, 1000.0 + second)
        reader.lookup(second // 2500, second % 2500 * 10)
    index.append(1, 25000, 6000.0, force=True)

    assert len(path.read_text().splitlines()) <= 64
    assert reader.lookup(0, 0) == 1000.0
    middle = reader.lookup(1, 12000)
    assert middle is not None and 3500 + 1200 <= middle <= 3500 + 1200 + 400
    assert reader.lookup(0, 24999) == 1000.0 + 2499


def test_an_index_torn_by_its_writers_death_goes_on(tmp_path: Path) -> None:
    """Half a line costs that line only."""
    path = tmp_path / "index"
    path.write_bytes(b"0 100 1000.000\n0 200 10\n0 20")
    index = TimeIndex(str(path))
    assert index.lookup(0, 50) == 1000.0

    index.append(0, 300, 1005.0)

    assert TimeIndex(str(path)).lookup(0, 200) == 1005.0


@given(st.text(), st.integers(1, 7))
def test_lines_are_the_same_whatever_the_pieces(text: str, size: int) -> None:
    """A multi-byte character may lie across any boundary."""
    data = text.encode("utf-8", "replace")
    decoder = LineDecoder()
    lines = [line for i in range(0, len(data), size) for line in decoder.feed(data[i : i + size])] + decoder.finish()

    expected = [line[:-1] if line.endswith("\r") else line for line in data.decode().split("\n")[:-1]]
    last = data.decode().split("\n")[-1]
    assert lines == expected + ([last] if last else [])


def test_bytes_that_are_not_text_do_not_stop_the_lines() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b"ok\n\xff\xfe\n") == ["ok", "\ufffd\ufffd"]
    assert decoder.feed(b"\xe2\x82") == []
    assert decoder.finish() == ["\ufffd"]


def test_a_line_without_end_comes_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr(logfile, "MAX_LINE_CHARS", 10)
    decoder = LineDecoder()
    assert decoder.feed(b"x" * 25) == ["x" * 10, "x" * 10]
    assert decoder.feed(b"\n") == ["x" * 5]

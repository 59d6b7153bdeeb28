"""A scan can be carried over to another process at any byte, and comes to the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpualert.observer import ScanProgress, load_scan
from gpualert.rundir import RunDirectory, encode_json, write_file

LOG = (
    b"".join(b"epoch %d loss 0.%d\n" % (i, i) for i in range(500))
    + b'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nMemoryError\n'
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "0001"
    (path / "observer").mkdir(parents=True)
    return RunDirectory(str(path))


def scan_to_the_end(progress: ScanProgress, size: int = 1 << 20) -> None:
    while progress.advance(size):
        pass


def hand_over(directory: RunDirectory, progress: ScanProgress) -> ScanProgress:
    """Through the disk, as an observer that is killed hands over to the next."""
    write_file(directory.scan_path, encode_json({"format_version": 1, **progress.to_json()}))
    return ScanProgress(directory, load_scan(directory))


@pytest.mark.parametrize("size", [7, 1000, 4096])
def test_a_scan_goes_on_in_another_process(directory: RunDirectory, size: int) -> None:
    Path(directory.log_path).write_bytes(LOG)
    straight = ScanProgress(directory)
    scan_to_the_end(straight)
    expected = straight.scanner.finish()

    relayed = ScanProgress(directory)
    for _ in range(10):
        relayed.advance(size)
        relayed = hand_over(directory, relayed)
    scan_to_the_end(relayed)
    found = relayed.scanner.finish()

    assert found.events == expected.events and found.counts == expected.counts
    assert (found.size_bytes, found.lines) == (expected.size_bytes, expected.lines) == (len(LOG), LOG.count(b"\n"))


def test_a_log_rewritten_while_nobody_looked_is_scanned_from_its_start(directory: RunDirectory) -> None:
    """The fingerprint of what lies before the saved offset shows it, though the log is longer now."""
    Path(directory.log_path).write_bytes(LOG)
    first = ScanProgress(directory)
    first.advance(3000)
    write_file(directory.scan_path, encode_json({"format_version": 1, **first.to_json()}))
    Path(directory.log_path).write_bytes(b"something else altogether\n" + LOG[::-1])

    second = ScanProgress(directory, load_scan(directory))
    scan_to_the_end(second)

    assert second.reader.position == (1, os.path.getsize(directory.log_path))
    assert second.scanner.finish().size_bytes == os.path.getsize(directory.log_path)


@pytest.mark.parametrize("saved", [{}, {"scanner": None}, {"scanner": {"version": 999}, "generation": 0, "offset": 5}])
def test_a_state_of_another_version_is_left_aside(directory: RunDirectory, saved: dict[str, object]) -> None:
    Path(directory.log_path).write_bytes(LOG)
    progress = ScanProgress(directory, json.loads(json.dumps(saved)))
    assert progress.reader.position == (0, 0)
    scan_to_the_end(progress)
    assert progress.scanner.finish().size_bytes == len(LOG)

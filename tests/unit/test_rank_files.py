"""What ranks leave in files of their own: found by name, read within bounds, and never from where it should not be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpualert.classify import ExitFacts, classify
from gpualert.rank_files import MAX_FILES, RankFile, log_dir_of, named_in, read_rank_files, traceback_of
from gpualert.scan import Scanner, ScanResult
from gpualert.several import with_rank_files
from gpualert.taxonomy import FailureClass

STACK = (
    'Traceback (most recent call last):\n  File "t.py", line 3, in main\n    x()\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/a'\n"
)


def error_json(stack: str = STACK, stamp: str = "1796096449") -> bytes:
    inner = {"message": stack.splitlines()[-1], "extraInfo": {"py_callstack": stack, "timestamp": stamp}}
    return json.dumps({"message": inner}).encode()


def scan(text: str) -> ScanResult:
    scanner = Scanner()
    scanner.feed(text.encode())
    return scanner.finish()


def table(*paths: Path | str) -> ScanResult:
    return scan("".join(f"  exitcode  : 1 (pid: 7)\n  error_file: {path}\n" for path in paths))


def test_the_summary_table_names_error_files() -> None:
    """Each once, in the table's order; ``<N/A>`` names none."""
    found = named_in(
        table(
            "/tmp/x/attempt_0/1/error.json", "<N/A>", "/tmp/x/attempt_0/0/error.json", "/tmp/x/attempt_0/1/error.json"
        )
    )

    assert found == ["/tmp/x/attempt_0/1/error.json", "/tmp/x/attempt_0/0/error.json"]


def test_the_agent_names_a_file_that_it_cannot_copy() -> None:
    """Without a parent's error file the path stands in the agent's complaint."""
    line = "E1201 error_handler.py:145] no error file defined for parent, to copy child error file ({})\n".format(
        "/l/attempt_0/1/error.json"
    )

    assert named_in(scan(line)) == ["/l/attempt_0/1/error.json"]


def test_an_error_file_is_read_as_its_traceback() -> None:
    """The call stack, as the rank would have printed it."""
    assert traceback_of(error_json()) == STACK.encode() + b"\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b'{"a": 1}',
        b'{"message": 3}',
        b'{"message": {}}',
        b'{"message": ""}',
        b"plain text",
        b'{"message": {"extraInfo": 4}}',
        b"\xff{",
    ],
)
def test_what_is_no_error_file_is_none(data: bytes) -> None:
    """No guess is made from other JSON, or from half of one."""
    assert traceback_of(data) is None


def test_an_error_file_of_only_a_message_is_its_message() -> None:
    """Programs other than torch write the short form."""
    assert traceback_of(b'{"message": "CUDA out of memory"}') == b"CUDA out of memory\n"


def test_ranks_come_in_the_order_of_their_own_time(tmp_path: Path) -> None:
    """The file's timestamp counts, not the table's order."""
    paths = []
    for rank, stamp in ((0, "1796096450"), (1, "1796096449")):
        path = tmp_path / "attempt_0" / str(rank) / "error.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(error_json(stamp=stamp))
        paths.append(path)

    found = read_rank_files(table(*paths), not_before=0)

    assert [(item.rank, item.path) for item in found] == [(1, str(paths[1])), (0, str(paths[0]))]


def test_the_rank_s_own_log_beside_the_error_file_is_read(tmp_path: Path) -> None:
    """With ``--redirects`` it is where the cause stands."""
    (tmp_path / "attempt_0" / "3").mkdir(parents=True)
    log = tmp_path / "attempt_0" / "3" / "stderr.log"
    log.write_text("boom\n")

    found = read_rank_files(table(log.parent / "error.json"), not_before=0)

    assert [(item.rank, item.text) for item in found] == [(3, b"boom\n")]


def test_ranks_below_the_log_dir_are_found_without_being_named(tmp_path: Path) -> None:
    """A program without ``@record`` names no file."""
    folder = tmp_path / "none_x" / "attempt_0" / "1"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("boom\n")

    found = read_rank_files(scan("nothing\n"), not_before=0, log_dir=str(tmp_path))

    assert [(item.rank, item.text) for item in found] == [(1, b"boom\n")]


def test_older_files_are_an_earlier_run_s(tmp_path: Path) -> None:
    """A log folder is often used again."""
    path = tmp_path / "error.json"
    path.write_bytes(error_json())
    os.utime(path, (1000, 1000))

    assert read_rank_files(table(path), not_before=2000) == []


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A FIFO would hold us, a link could lead anywhere."""
    fifo, link, folder = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"
    os.mkfifo(fifo)
    real = tmp_path / "real"
    real.write_bytes(error_json())
    link.symlink_to(real)
    folder.mkdir()

    assert read_rank_files(table(fifo, link, folder, tmp_path / "missing.json"), not_before=0) == []


def test_a_table_of_thousands_is_read_in_part(tmp_path: Path) -> None:
    """Bounded, whatever a log names."""
    for rank in range(MAX_FILES + 5):
        folder = tmp_path / "r" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("boom\n")

    assert len(read_rank_files(scan(""), not_before=0, log_dir=str(tmp_path))) == MAX_FILES


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("torchrun --nproc-per-node 2 --redirects 3 --log-dir /l/a t.py", "/l/a"),
        ("torchrun --log_dir=logs t.py", "/w/logs"),
        ("PET_LOG_DIR=x torchrun t.py", "/w/x"),
        ("torchrun --log-dir '/l/with blank' t.py", "/l/with blank"),
        ("torchrun --log-dir $SCRATCH/x t.py", None),
        ("python t.py", None),
    ],
)
def test_the_log_dir_is_read_from_the_command(command: str, folder: str | None) -> None:
    """Relative to the working directory; what only a shell can expand is not guessed."""
    assert log_dir_of(command, "/w", {}) == folder


PEER = (
    "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:36543\n"
)
SUMMARY = (
    "E1201 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 7709) of binary: /usr/bin/python\n"
    "  error_file: <N/A>\n"
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
)


def test_the_cause_is_taken_from_the_rank_that_has_one() -> None:
    """The job's log only says that rank 1 failed; rank 0's file only that its peer is gone."""
    exit = ExitFacts(code=1)
    verdict = classify(exit, scan(SUMMARY))
    files = [
        RankFile("/l/attempt_0/0/stderr.log", 0, PEER.encode(), 10.0),
        RankFile("/l/attempt_0/1/stderr.log", 1, STACK.encode(), 11.0),
    ]

    found = with_rank_files(verdict, files, exit)

    assert verdict.failure_class is FailureClass.UNKNOWN
    assert found.failure_class is FailureClass.FILE_NOT_FOUND
    root = found.root
    assert root is not None
    assert (root.source, root.rank, root.line) == ("/l/attempt_0/1/stderr.log", 1, 4)
    assert any(item.source == "log" for item in found.cascade)


def test_the_earliest_rank_with_a_cause_is_the_root() -> None:
    """Two ranks failed by themselves: the first did it."""
    exit = ExitFacts(code=1)
    memory = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    files = [RankFile("/l/2/error.json", 2, memory, 5.0), RankFile("/l/1/error.json", 1, STACK.encode(), 6.0)]

    found = with_rank_files(classify(exit, scan(SUMMARY)), files, exit)

    assert found.failure_class is FailureClass.CUDA_OOM
    assert found.root is not None
    assert (found.root.source, found.root.line, found.root.offset) == ("/l/2/error.json", None, None)


def test_files_without_a_cause_change_nothing() -> None:
    """Echoes in files are no more than echoes in the log."""
    exit = ExitFacts(code=1)
    verdict = classify(exit, scan(SUMMARY))

    assert with_rank_files(verdict, [RankFile("/l/0/stderr.log", 0, PEER.encode(), 1.0)], exit) == verdict
    assert with_rank_files(verdict, [], exit) == verdict

"""Verdicts about logs from anywhere, by function and by command."""

from __future__ import annotations

import argparse
import gzip
import io
import json
from pathlib import Path

import pytest

from gpualert.classify_cli import add_arguments, run
from gpualert.classify_file import LogUnreadable, classify_file, classify_together
from gpualert.taxonomy import FailureClass

OOM = b"step 1 loss 2.0\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n"
NCCL = b"[rank0]: torch.distributed.DistBackendError: NCCL error in: x.hpp:268, remote process exited\n"


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def test_plain_gzip_and_streams_are_the_same(tmp_path: Path) -> None:
    """gzip is known by its content; a cut gzip file gives what can be unpacked."""
    packed = gzip.compress(OOM * 50)
    (tmp_path / "a.log").write_bytes(packed)
    (tmp_path / "cut.log").write_bytes(packed[:-9])
    for source in (str(tmp_path / "a.log"), str(tmp_path / "cut.log"), io.BytesIO(OOM), io.BytesIO(packed)):
        assert classify_file(source, code=1).failure_class is FailureClass.CUDA_OOM  # type: ignore[arg-type]


def test_a_missing_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Not an unknown verdict: nobody looked."""
    with pytest.raises(LogUnreadable, match=r"no\.log: expected a readable log"):
        classify_file(str(tmp_path / "no.log"))


def test_ranks_together_give_one_root(tmp_path: Path) -> None:
    """A file that only echoes is never the root, whatever its place in the list."""
    (tmp_path / "r0.log").write_bytes(NCCL)
    (tmp_path / "r1.log").write_bytes(OOM)
    verdict = classify_together([str(tmp_path / "r0.log"), str(tmp_path / "r1.log")], code=1)
    assert verdict.failure_class is FailureClass.CUDA_OOM
    assert verdict.root is not None and verdict.root.source.endswith("r1.log")
    assert verdict.cascade[0].source.endswith("r0.log")


def test_json_is_one_object_a_line_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit codes from a labels file, by id or by path."""
    (tmp_path / "1.log").write_bytes(b"Killed\n")
    (tmp_path / "2.log.gz").write_bytes(gzip.compress(b"nothing\n"))
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"id": "1", "exit_code": 137}\n{"path": "2.log.gz", "exit_code": null, "signal": "SIGSEGV"}\n')
    files = [str(tmp_path / "2.log.gz"), str(tmp_path / "1.log")]

    assert command("--json", "--labels", str(labels), *files) == 0

    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(item["file"], item["failure_class"]) for item in said] == [(files[0], "segfault"), (files[1], "unknown")]


def test_people_get_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line that proves it, then with --explain what followed and what lost."""
    (tmp_path / "a.log").write_bytes(OOM + NCCL)
    assert command("--explain", "--exit-code", "1", str(tmp_path / "a.log")) == 0
    out = capsys.readouterr().out
    assert out.startswith("cuda_oom") and "log line 2" in out and "then" in out and "unseen" in out


@pytest.mark.parametrize(
    "arguments", [["--exit-code", "300"], ["--signal", "SIGNOPE"], ["--rules", "/nonexistent.json"]]
)
def test_bad_arguments_are_named(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, one line."""
    (tmp_path / "a.log").write_bytes(OOM)
    assert command(*arguments, str(tmp_path / "a.log")) == 2
    assert "expected" in capsys.readouterr().err


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is judged; the exit status tells."""
    (tmp_path / "a.log").write_bytes(OOM)
    assert command(str(tmp_path / "no.log"), str(tmp_path / "a.log")) == 2
    assert "cuda_oom" in capsys.readouterr().out

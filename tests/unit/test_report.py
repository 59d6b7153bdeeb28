"""An outcome holds the facts whatever the opinion ran into, and no result but one that this launch wrote."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpualert import procfs, report
from gpualert.key import LaunchKey
from gpualert.records import RunState
from gpualert.rundir import KeyDirectory, RunDirectory, encode_json, write_file
from gpualert.taxonomy import FailureClass


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A claimed and started launch, as its keepers would have left it; a log and an end come from the test."""
    key = LaunchKey(("test", "1"), "train")
    folder = KeyDirectory(str(tmp_path / "launches" / key.directory_name))
    os.makedirs(os.path.dirname(folder.path))
    folder.create(key.to_json())
    me = procfs.identify(os.getpid())
    assert me is not None
    now = time.time()
    claim = {
        "launch_id": key.launch_id(1),
        "attempt": {"number": 1, "id": "a"},
        "created_at": now,
        "launcher": me.to_json(),
        "guard": me.to_json(),
        "warnings": ["a root was passed over"],
    }
    folder.claim(1, claim, durable=False)
    run = folder.run_directory(1)
    run.create()
    write_file(run.spec_path, encode_json({"command": ["true"], "cwd": str(tmp_path), "result_file": "result.json"}))
    identity = me.to_json()
    started = {"launch_id": key.launch_id(1), "started_at": now, "child": identity, "supervisor": identity}
    run.write_started({**started, "guard": identity})
    return run


def end(directory: RunDirectory, code: int | None, log: bytes = b"", **changes: Any) -> None:
    Path(directory.log_path).write_bytes(log)
    value = {"code": code, "signal": None, "ended_at": time.time(), "elapsed_s": 0.1, "log_size_bytes": len(log)}
    directory.write_exit({**value, **changes})
    directory.write_tree({"killed": [], "survivors": []})


def test_a_launch_that_runs_has_no_class(directory: RunDirectory) -> None:
    """Nothing is said of a failure that did not happen."""
    outcome = report.build(directory.path)
    assert outcome.state is RunState.RUNNING
    assert outcome.failure_class is None and outcome.exit_code is None and outcome.ended_at is None
    assert outcome.result_error is None


def test_facts_and_opinion_stand_side_by_side(directory: RunDirectory) -> None:
    end(directory, 1, b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nAssertionError: no\n')
    outcome = report.build(directory.path, host_name="box")
    assert (outcome.state, outcome.exit_code, outcome.failure_class) == (RunState.FAILED, 1, "assertion")
    assert outcome.host["name"] == "box" and outcome.host["boot_id"] == procfs.boot_id()
    assert "a root was passed over" in outcome.warnings
    assert outcome.started_at is not None and outcome.started_at.endswith("+00:00")
    assert json.dumps(outcome.to_json(), allow_nan=False)


def test_a_success_is_success_and_a_failure_behind_a_pipe_is_a_warning(directory: RunDirectory) -> None:
    """``train.py | tee out.txt`` exits with tee's 0: the state is the command's; class and warning are our opinion."""
    trace = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: no\n'
    end(directory, 0, trace)
    outcome = report.build(directory.path)
    assert outcome.state is RunState.SUCCEEDED
    assert outcome.failure_class == "traceback"
    assert any("exit code 0" in warning for warning in outcome.warnings), outcome.warnings


@pytest.mark.parametrize("trouble", [RuntimeError("bug"), MemoryError(), RecursionError("deep")])
def test_a_classifier_that_crashes_leaves_unknown_and_a_warning(
    directory: RunDirectory, monkeypatch, trouble: Exception
) -> None:
    """Never an exception, and never another state."""

    def broken(*_: object) -> object:
        raise trouble

    end(directory, 3, b"MemoryError\n")
    monkeypatch.setattr("gpualert.observer.judge", broken)
    outcome = report.build(directory.path)
    assert (outcome.state, outcome.exit_code, outcome.failure_class) == (RunState.FAILED, 3, "unknown")
    assert any("classifier failed" in warning for warning in outcome.warnings)


def test_a_scan_that_takes_too_long_is_given_up_with_a_warning(directory: RunDirectory) -> None:
    end(directory, 1, b"epoch 1\n" * 400_000)
    outcome = report.build(directory.path, scan_bound_s=0.0)
    assert outcome.failure_class == "unknown"
    assert any("could be scanned" in warning for warning in outcome.warnings)


def test_damaged_opinion_files_are_made_again(directory: RunDirectory) -> None:
    """A verdict in a newer version's words, a scan state that is garbage: scan again."""
    end(directory, 1, b"MemoryError\n")
    write_file(directory.verdict_path, b'{"failure_class": "from_the_future", "format_version": 1}')
    write_file(directory.scan_path, b'{"scanner": 7, "format_version": 1}')
    assert report.build(directory.path).failure_class == "ram_oom"
    write_file(directory.scan_path, b"\x00\x01 no json")
    assert report.build(directory.path).failure_class == "ram_oom"


def test_a_verdict_that_is_there_is_taken(directory: RunDirectory, monkeypatch) -> None:
    end(directory, 1, b"MemoryError\n")
    value = report._unknown().to_json()
    write_file(directory.verdict_path, encode_json({**value, "failure_class": "nccl", "domain": "network"}))
    monkeypatch.setattr("gpualert.observer.judge", lambda *_: pytest.fail("nothing is to be scanned"))
    assert report.build(directory.path).failure_class == "nccl"


def test_nobody_saw_the_end(directory: RunDirectory) -> None:
    """LOST has neither code nor signal, and is judged by its log without waiting for an observer."""
    Path(directory.log_path).write_bytes(b"epoch 1\n")
    started = json.loads(Path(directory.started_path).read_text())
    for name in ("child", "supervisor", "guard"):
        started[name]["boot_id"] = "00000000-0000-0000-0000-000000000000"
    os.unlink(directory.started_path)
    # As after a reboot: the heartbeat is older than this boot.
    os.utime(directory.heartbeat_path, (1e9, 1e9))
    directory.write_started(started)

    outcome = report.build(directory.path)

    assert (outcome.state, outcome.lost_reason) == (RunState.LOST, "rebooted")
    assert outcome.exit_code is None and outcome.signal is None
    assert outcome.failure_class == FailureClass.NODE_FAILURE.value


def test_a_failed_setup_is_a_matter_of_configuration(directory: RunDirectory) -> None:
    end(directory, 1, b"bash: env.sh: No such file or directory\n")
    write_file(directory.setup_failed_path, b"1\n")
    assert report.build(directory.path).domain == "configuration"


# -- the result


def result_of(path: Path, text: str, age_s: float = 0.0) -> tuple[Any, str | None, str | None]:
    path.write_text(text)
    now = time.time()
    os.utime(path, (now - age_s, now - age_s))
    return report.read_result(str(path), not_before=now)


def test_the_result_of_a_success_is_in_the_outcome(directory: RunDirectory, tmp_path: Path) -> None:
    end(directory, 0)
    (tmp_path / "result.json").write_text('{"accuracy": 0.93, "best": [1, 2]}')
    outcome = report.build(directory.path)
    assert outcome.result == {"accuracy": 0.93, "best": [1, 2]} and outcome.result_error is None


def test_a_failure_has_no_result(directory: RunDirectory, tmp_path: Path) -> None:
    end(directory, 1)
    (tmp_path / "result.json").write_text("1")
    outcome = report.build(directory.path)
    assert outcome.result is None and outcome.result_error == "not read, since the command did not succeed"


def test_not_a_number_becomes_null_and_is_said(tmp_path: Path) -> None:
    """Airflow would fail a task whose XCom holds one."""
    value, error, warning = result_of(tmp_path / "r", '{"loss": NaN, "best": [1e999, -Infinity, 2.5], "n": 3}')
    assert value == {"loss": None, "best": [None, None, 2.5], "n": 3}
    assert error is None and warning is not None and "3 value(s)" in warning


@pytest.mark.parametrize(
    ("text", "says"), [("", "expected JSON"), ("{'a': 1}", "expected JSON"), ("[" * 100_000, "expected JSON")]
)
def test_what_is_not_json_is_an_error_in_words(tmp_path: Path, text: str, says: str) -> None:
    value, error, _ = result_of(tmp_path / "r", text)
    assert value is None and error is not None and says in error


def test_an_earlier_runs_result_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    value, error, _ = result_of(tmp_path / "r", "1", age_s=3600)
    assert value is None and error is not None and "earlier run" in error
    assert result_of(tmp_path / "r", "1", age_s=1)[0] == 1


def test_a_result_has_a_size_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(report, "MAX_RESULT_BYTES", 10)
    value, error, _ = result_of(tmp_path / "r", '"0123456789"')
    assert value is None and error is not None and "at most 10 bytes" in error


def test_a_result_that_is_no_file_holds_nothing_up(tmp_path: Path) -> None:
    """A FIFO without a writer would block for ever; a missing file is named."""
    os.mkfifo(tmp_path / "fifo")
    assert "expected a file" in str(report.read_result(str(tmp_path / "fifo"), 0.0)[1])
    assert "expected a file" in str(report.read_result(str(tmp_path), 0.0)[1])
    assert "No such file" in str(report.read_result(str(tmp_path / "absent"), 0.0)[1])

"""The observer has an opinion and nothing else: killed or frozen, it changes neither the child nor the report."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gpualert import observer, procfs, report
from gpualert.logfile import TimeIndex
from gpualert.records import RunRecord, RunState
from gpualert.rundir import RunDirectory
from tests.support.launching import Host, host
from tests.support.waiting import wait_until

__all__ = ["host"]

DEADLINE_S = 60.0

FAILING = """\
import sys, time
print("epoch 1 loss 0.5", flush=True)
while not __import__("os").path.exists(sys.argv[1]):
    time.sleep(0.02)
raise ZeroDivisionError("float division by zero")
"""


def start_failing(host: Host, tmp_path: Path) -> RunRecord:
    """A training that runs until ``tmp_path/go`` exists, and then fails with a traceback."""
    program = tmp_path / "train.py"
    program.write_text(FAILING)
    return host.launch([sys.executable, "-S", str(program), str(tmp_path / "go")], cwd=str(tmp_path))


def saved(record: RunRecord) -> dict[str, Any] | None:
    return observer.load_scan(RunDirectory(record.run_directory))


def observer_identity(record: RunRecord) -> procfs.ProcessIdentity:
    """Of the observer that watches now, once it has saved its state."""
    state = wait_until(lambda: saved(record), DEADLINE_S, "the observer saves its state")
    return procfs.ProcessIdentity.from_json(state["observer"])


def verdict(record: RunRecord) -> dict[str, Any]:
    path = Path(RunDirectory(record.run_directory).verdict_path)
    return json.loads(wait_until(lambda: path.exists() and path.read_text(), DEADLINE_S, "the verdict is written"))


def test_the_verdict_is_written_by_itself(host: Host, tmp_path: Path) -> None:
    """Nobody has to ask: the observer saw the log grow and knows the cause when the child has ended."""
    record = start_failing(host, tmp_path)
    observer_identity(record)
    (tmp_path / "go").touch()
    host.end(record)

    found = verdict(record)

    assert found["failure_class"] == "div_zero"
    assert "ZeroDivisionError" in found["evidence"][0]["text"]
    assert found["offset"] == os.path.getsize(record.log_path)
    outcome = report.build(record.run_directory)
    assert (outcome.state, outcome.failure_class, outcome.exit_code) == (RunState.FAILED, "div_zero", 1)


def test_the_time_index_covers_the_log(host: Host, tmp_path: Path) -> None:
    record = start_failing(host, tmp_path)
    observer_identity(record)
    (tmp_path / "go").touch()
    ended = host.end(record)
    verdict(record)

    index = TimeIndex(RunDirectory(record.run_directory).index_path)
    last = os.path.getsize(record.log_path) - 1
    wait_until(lambda: index.lookup(0, last) is not None, DEADLINE_S, "the index reaches the end")
    first_time, last_time = index.lookup(0, 0), index.lookup(0, last)
    assert first_time is not None and last_time is not None and ended.started_at is not None
    assert ended.started_at - 1 <= first_time <= last_time


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_observer_harms_nobody(host: Host, tmp_path: Path, how: int) -> None:
    """The child's end, its status and the outcome are the same; at worst the report does the observer's work."""
    record = start_failing(host, tmp_path)
    watching = observer_identity(record)
    os.kill(watching.pid, how)
    (tmp_path / "go").touch()
    ended = host.end(record)
    assert (ended.state, ended.exit and ended.exit.code) == (RunState.FAILED, 1)

    outcome = report.build(record.run_directory, verdict_wait_s=1.0)

    assert (outcome.state, outcome.failure_class, outcome.exit_code) == (RunState.FAILED, "div_zero", 1)
    if how == signal.SIGSTOP:
        os.kill(watching.pid, signal.SIGKILL)


def test_a_killed_observer_is_started_again_and_goes_on(host: Host, tmp_path: Path) -> None:
    """The guard starts another one, which reads on from the saved state."""
    record = start_failing(host, tmp_path)
    first = observer_identity(record)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: procfs.alive(first) is False, DEADLINE_S, "the observer is gone")
    (tmp_path / "go").touch()
    host.end(record)
    assert verdict(record)["failure_class"] == "div_zero"


def test_without_any_observer_the_report_classifies(host: Host, tmp_path: Path) -> None:
    """A run shorter than an observer's start, and one whose guard was killed."""
    record = host.run([sys.executable, "-S", "-c", "import no_such_module_here"], cwd=str(tmp_path))
    assert report.build(record.run_directory).failure_class == "missing_module"

    record = start_failing(host, tmp_path)
    watching = observer_identity(record)
    host.kill(record, "guard")
    os.kill(watching.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    host.end(record)
    assert report.build(record.run_directory).failure_class == "div_zero"


def test_the_observer_is_nice(host: Host, tmp_path: Path) -> None:
    record = start_failing(host, tmp_path)
    watching = observer_identity(record)
    assert os.getpriority(os.PRIO_PROCESS, watching.pid) >= 10
    (tmp_path / "go").touch()
    host.end(record)


def test_the_observer_holds_nothing_of_the_launchers(host: Host, tmp_path: Path) -> None:
    """No descriptor of a channel or terminal: its end would never be seen otherwise."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        record = start_failing(host, tmp_path)
        watching = observer_identity(record)
        held = {os.readlink(f"/proc/{watching.pid}/fd/{name}") for name in os.listdir(f"/proc/{watching.pid}/fd")}
        assert os.readlink(f"/proc/self/fd/{write}") not in held
    finally:
        os.close(read)
        os.close(write)
    (tmp_path / "go").touch()
    host.end(record)


def test_a_log_that_the_child_cuts_is_judged_by_what_is_left(host: Host, tmp_path: Path) -> None:
    """``echo x > /dev/stderr`` truncates: the scan starts again, and offsets belong to the new generation."""
    script = "echo a long line about nothing; sleep 0.7; echo 'Segmentation fault (core dumped)' > /dev/stderr; "
    script += f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; kill -SEGV $$"
    record = host.launch(["bash", "-c", "ulimit -c 0; " + script])
    wait_until(lambda: (state := saved(record)) and state["generation"] == 1, DEADLINE_S, "the cut is seen")
    (tmp_path / "go").touch()
    host.end(record)

    found = verdict(record)
    outcome = report.build(record.run_directory)

    assert found["generation"] == 1
    assert outcome.failure_class == "segfault"
    assert outcome.log_truncated is True
    assert all((item.get("offset") or 0) < os.path.getsize(record.log_path) for item in found["evidence"])


def test_a_cause_seen_before_the_cut_is_not_forgotten(host: Host, tmp_path: Path) -> None:
    """A script's ``echo failed > /dev/stderr`` wipes the traceback out; the observer has read it and says where."""
    script = f"echo 'MemoryError'; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo failed > /dev/stderr; exit 1"
    record = host.launch(["bash", "-c", script])
    wait_until(lambda: (state := saved(record)) and state["offset"] > 0, DEADLINE_S, "the observer has read it")
    (tmp_path / "go").touch()
    host.end(record)

    outcome = report.build(record.run_directory)

    assert Path(record.log_path).read_bytes() == b"failed\n"
    assert outcome.failure_class == "ram_oom"
    assert outcome.evidence[0]["source"] == "log before it was cut" and outcome.evidence[0]["offset"] is None
    assert any("cut its own log" in warning for warning in outcome.warnings)


def test_a_child_that_left_a_writer_behind_is_judged_all_the_same(host: Host, tmp_path: Path) -> None:
    """``leftovers="keep"``: the log grows for ever, and the verdict does not wait for that."""
    script = "(while :; do echo noise; sleep 0.001; done) & sleep 0.6; echo 'RuntimeError: boom'; exit 1"
    record = host.run(["bash", "-c", script], leftovers="keep")
    assert verdict(record)["failure_class"] == "runtime_error"


def test_commit_and_dirty_flag_are_taken_near_the_start(host: Host, tmp_path: Path, monkeypatch) -> None:
    """What the checkout becomes while the training runs is not what ran."""
    import subprocess

    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-C", str(tmp_path)]
    (tmp_path / "code.py").write_text("1\n")
    for words in (["init", "-q"], ["add", "code.py"], ["commit", "-q", "-m", "Start"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    record = start_failing(host, tmp_path)
    path = Path(RunDirectory(record.run_directory).git_path)
    wait_until(path.exists, DEADLINE_S, "git was asked")
    (tmp_path / "code.py").write_text("2\n")
    (tmp_path / "go").touch()
    host.end(record)

    assert report.build(record.run_directory).git == {"commit": head, "dirty": False}


def test_a_launch_by_hand_can_be_observed_by_hand(host: Host, tmp_path: Path) -> None:
    """``gpualert observe``: on a launch that has ended it writes the verdict and returns."""
    record = host.run(["sh", "-c", "echo 'MemoryError'; exit 1"])
    observer.main(record.run_directory)
    assert verdict(record)["failure_class"] == "ram_oom"


#: What torchrun 2.13 leaves and prints for ``--redirects 3 --log-dir logs`` when rank 1 fails: its log names no cause.
REDIRECTED = """\
mkdir -p logs/none_x/attempt_0/0 logs/none_x/attempt_0/1
: torchrun --redirects 3 --log-dir logs train.py
echo "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer \\
[127.0.0.1]:36543" > logs/none_x/attempt_0/0/stderr.log
printf '%s\\n' '[rank1]: Traceback (most recent call last):' '[rank1]:   File "/srv/t.py", line 9, in <module>' \\
    "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/data/shard.bin'" \\
    > logs/none_x/attempt_0/1/stderr.log
echo "E1201 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 7709) of binary: /usr/bin/python"
echo "  error_file: <N/A>"
exit 1
"""


def test_a_cause_that_only_a_rank_s_own_log_holds_is_found(host: Host, tmp_path: Path) -> None:
    """torchrun with redirected ranks prints only that rank 1 failed."""
    record = host.launch(REDIRECTED, cwd=str(tmp_path))
    host.end(record)

    found = report.build(record.run_directory)

    assert found.failure_class == "file_not_found"
    root = found.evidence[0]
    assert root["source"] == str(tmp_path / "logs/none_x/attempt_0/1/stderr.log")
    assert (root["rank"], root["line"]) == (1, 3)
    assert any("local_rank: 1" in item["text"] for item in found.cascade)

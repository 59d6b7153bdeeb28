"""`keep_log` over a real sshd: the log outlives the host, and no trouble with it touches the task."""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gpualert_provider.exceptions import GpuTrainingFailed
from gpualert_provider.operators import deployment, secrets, training
from gpualert_provider.operators.training import GPUTrainingOperator
from tests.support.sessions import target_of
from tests.support.sshd import SshHost
from tests.support.stores import attached
from tests.unit.provider.test_ledger import Store

SECRET = "correct-horse-battery"


class Hangs(MemoryFileSystem):
    """A store that takes the first byte, and never says anything again."""

    protocol = ("hangs",)

    def put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        time.sleep(60)


class Exits(MemoryFileSystem):
    """A store whose library ends the process."""

    protocol = ("exits",)

    def put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        raise SystemExit(3)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, ssh_host: SshHost) -> Any:
    """Run a command by the operator, to its end: (return value or exception, XComs, lines of the task log)."""
    target = target_of(ssh_host)
    monkeypatch.setattr(training, "resolve_target", lambda conn_id: target)
    monkeypatch.setattr(deployment, "deployment_id", lambda: "contract-test")
    monkeypatch.setattr(secrets, "_value", lambda name, reference: SECRET)

    def go(command: str, on_end: Any = None, **options: Any) -> tuple[Any, dict[str, Any], list[str]]:
        pushed: dict[str, Any] = {}
        lines: list[str] = []

        def push(key: str, value: Any) -> None:
            pushed[key] = value
            if key == "outcome" and on_end is not None:
                on_end(value)

        def say(text: str, *arguments: Any, **_: Any) -> None:
            lines.append(text % arguments if arguments else text)

        ti = SimpleNamespace(
            dag_id="dag",
            task_id="train",
            run_id=f"manual/{target.port}",
            map_index=3,
            try_number=1,
            max_tries=0,
            id="ti",
            xcom_push=push,
        )
        logger = SimpleNamespace(**dict.fromkeys(("info", "warning", "error", "debug"), say))
        task = type("Operator", (GPUTrainingOperator,), {"log": logger})(
            task_id="train", ssh_conn_id="gpu_box", command=command, deferrable=False, **options
        )
        try:
            return task.execute({"ti": ti, "task_state_store": Store()}), pushed, lines
        except GpuTrainingFailed as failure:
            return failure, pushed, lines

    return go


@pytest.mark.parametrize("code", [0, 9])
def test_the_log_is_kept_whatever_the_end(run: Any, ssh_host: SshHost, tmp_path: Path, code: int) -> None:
    """Byte for byte, under a name that says whose it is; the XCom has the host's hash."""
    end, pushed, lines = run(f"seq 100000; exit {code}", keep_log=str(tmp_path))

    launch_id = pushed["launch_id"]
    at = tmp_path / "dag" / f"manual%2F{ssh_host.port}" / "train" / "3" / f"{launch_id}.log"
    kept = pushed["kept_log"]
    assert kept["url"] == str(at)
    assert at.read_bytes() == Path(pushed["log_path"]).read_bytes() != b""
    assert kept["sha256"] == hashlib.sha256(at.read_bytes()).hexdigest() and kept["masked_bytes"] == 0
    assert any(str(at) in line for line in lines)
    assert (end is None) if code == 0 else (end.outcome.exit_code == code)


def test_secrets_are_masked_in_the_copy_and_stay_in_the_log(run: Any, tmp_path: Path) -> None:
    command = 'for i in $(seq 30000); do echo "step $i token=$TOKEN end"; done'
    _, pushed, _ = run(command, keep_log=str(tmp_path), secret_env={"TOKEN": "hf"})

    copy, log = Path(pushed["kept_log"]["url"]).read_bytes(), Path(pushed["log_path"]).read_bytes()
    assert log.count(SECRET.encode()) == 30000 and SECRET.encode() not in copy
    assert len(copy) == len(log) and b"step 30000 token=" in copy
    assert pushed["kept_log"]["masked_bytes"] == 30000 * len(SECRET)


def test_a_host_that_went_away_costs_the_copy_alone(run: Any, ssh_host: SshHost, tmp_path: Path) -> None:
    end, pushed, lines = run("echo on; exit 9", on_end=lambda _: ssh_host.stop(), keep_log=str(tmp_path))

    assert end.outcome.exit_code == 9 and pushed["run_state"] == "FAILED"
    assert pushed["kept_log"]["url"] is None and "refused" in pushed["kept_log"]["why_not"].lower()
    said = next(line for line in lines if line.startswith("keep_log: the log was not kept"))
    assert pushed["kept_log"]["fetch_command"] in said and "gpualert fetch" in said
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_hangs_is_left_when_the_time_is_over(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the log does not stay behind on the worker."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    attached("hangs", Hangs())
    began = time.monotonic()

    end, pushed, _ = run("echo on; exit 9", keep_log="hangs://lab@bucket", keep_log_timeout=5)

    assert end.outcome.exit_code == 9
    assert pushed["kept_log"]["why_not"] == "not done after 5 s"
    assert list(tmp_path.glob("gpualert-log-*")) == []
    assert time.monotonic() - began < 40


def test_a_store_that_exits_does_not_take_the_task_along(run: Any) -> None:
    attached("exits", Exits())

    end, pushed, _ = run("true", keep_log="exits://lab@bucket")

    assert end is None and pushed["run_state"] == "SUCCEEDED"
    assert "SystemExit" in pushed["kept_log"]["why_not"]


def test_a_log_too_large_for_the_time_is_not_kept_in_part(run: Any, tmp_path: Path) -> None:
    end, pushed, _ = run("head -c 300000000 /dev/zero", keep_log=str(tmp_path), keep_log_timeout=0.3)

    assert end is None
    assert pushed["kept_log"]["url"] is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

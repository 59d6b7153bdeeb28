"""The operator over a real sshd: whatever way the command ends, the task's outcome says exactly that."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from gpualert_provider.exceptions import GpuTrainingFailed
from gpualert_provider.operators import deployment, training
from gpualert_provider.operators.training import GPUTrainingOperator
from tests.support.sessions import target_of
from tests.support.sshd import SshHost
from tests.unit.provider.test_ledger import Store

# What a process can be ended by. The numbers between SIGSYS and SIGRTMIN belong to the C library.
FATAL = sorted(
    {s.value for s in signal.Signals}
    - {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT}
    - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, ssh_host: SshHost) -> Any:
    """Run a command by the operator, to its end: (exception or None, XComs). Only Airflow's side is a stand-in."""
    target = target_of(ssh_host)
    monkeypatch.setattr(training, "resolve_target", lambda conn_id: target)
    monkeypatch.setattr(deployment, "deployment_id", lambda: "contract-test")

    def run(name: str, command: Any, **options: Any) -> tuple[GpuTrainingFailed | None, dict[str, Any]]:
        pushed: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id="contract",
            task_id=name,
            run_id=str(target.port),
            map_index=-1,
            try_number=1,
            max_tries=0,
            id=f"ti-{name}",
            xcom_push=lambda key, value: pushed.__setitem__(key, value),
        )
        task = GPUTrainingOperator(task_id=name, ssh_conn_id="gpu_box", command=command, deferrable=False, **options)
        try:
            task.execute({"ti": ti, "task_state_store": Store()})  # type: ignore[typeddict-item]
        except GpuTrainingFailed as failure:
            return failure, pushed
        except AirflowException as other:
            raise AssertionError(f"{name}: {other}") from other
        return None, pushed

    def run_all(commands: dict[int, Any], **options: Any) -> dict[int, tuple[GpuTrainingFailed | None, dict[str, Any]]]:
        with ThreadPoolExecutor(4) as pool:
            done = pool.map(lambda item: run(f"end-{item[0]}", item[1], **options), commands.items())
            return dict(zip(commands, done, strict=True))

    return run_all


@pytest.mark.slow
def test_every_exit_code_is_the_tasks_own(ended):
    """0 to 255: 0 alone is a success, and each other one stands in the exception and in the XComs."""
    found = ended({code: ["sh", "-c", f"exit {code}"] for code in range(256)})

    failure, pushed = found.pop(0)
    assert failure is None and (pushed["run_state"], pushed["exit_code"]) == ("SUCCEEDED", 0)
    told = {code: (f.outcome.exit_code, p["exit_code"], p["run_state"]) for code, (f, p) in found.items() if f}
    assert told == {code: (code, code, "FAILED") for code in range(1, 256)}


@pytest.mark.slow
def test_every_fatal_signal_is_told_by_name(ended):
    """The kernel's own word, not 128 + N."""
    found = ended({n: ["sh", "-c", f"ulimit -c 0; kill -{n} $$; sleep 5"] for n in FATAL})

    told = {n: (f.outcome.signal, f.outcome.exit_code) for n, (f, _) in found.items() if f}
    assert told == {n: (signal.Signals(n).name, None) for n in FATAL}


def test_the_author_s_rules_judge_on_the_host(ended, tmp_path):
    """From a file beside the DAG to the class in the XComs, and the advice in the exception."""
    rules = tmp_path / "lab.rules.json"
    rule = {"name": "lab.gate", "pattern": "labfs gone", "class": "storage_io", "domain": "network", "advice": "Wait."}
    rules.write_text(json.dumps({"format_version": 1, "rules": [rule]}))

    ((failure, pushed),) = ended({1: "echo labfs gone; exit 1"}, rules=rules).values()

    assert failure is not None
    assert (failure.outcome.failure_class, failure.outcome.advice) == ("storage_io", "Wait.")
    assert (pushed["failure_class"], pushed["domain"]) == ("storage_io", "network")

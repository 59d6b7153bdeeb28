"""One real Airflow with GPU hosts on loopback, for a whole test module; and a training whose life can be watched from
outside.

The training's every start and end is a line in a file on its host, so "exactly one ran" is a fact about processes and
not about what Airflow believes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import accounts
from tests.support.accounts import Account
from tests.support.waiting import wait_until
from tools.rig.airflow import AirflowRig
from tools.rig.airflow_api import AirflowApi
from tools.rig.sshd import SshdMissing, SshHost, find_sshd

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import os, signal, sys, time
name, steps, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def note(kind, text):
    with open(f"{name}.{kind}", "a") as file:
        file.write(f"{text}\\n")
note("started", os.getpid())
def on_term(signum, frame):
    note("stopped", os.getpid())
    sys.exit(0)
signal.signal(signal.SIGTERM, on_term)
for step in range(1, steps + 1):
    print(f"{name} step {step:04d}", flush=True)
    time.sleep(0.5)
note("finished", os.getpid())
sys.exit(code)
"""


@dataclass
class Training:
    """What a training named ``name`` left on its host; see :data:`TRAIN`."""

    home: Path
    name: str

    def _pids(self, kind: str) -> list[int]:
        path = self.home / f"{self.name}.{kind}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def started(self) -> list[int]:
        """Pids, one for each time that the command began."""
        return self._pids("started")

    @property
    def finished(self) -> list[int]:
        return self._pids("finished")

    @property
    def stopped(self) -> list[int]:
        """Pids that were asked to end."""
        return self._pids("stopped")

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.started if _alive(pid)]

    def wait_started(self, count: int = 1, deadline_s: float = 60) -> int:
        """Wait for the ``count``-th start and return its pid."""
        return wait_until(
            lambda: self.started[count - 1] if len(self.started) >= count else 0,
            deadline_s,
            f"training {self.name} has started {count} time(s)",
        )


@dataclass
class GpuRig:
    """The module's Airflow, its hosts, and what to do with them."""

    airflow: AirflowRig
    hosts: Sequence[SshHost]
    account: Account
    counter: list[int] = field(default_factory=lambda: [0])

    @property
    def api(self) -> AirflowApi:
        return self.airflow.api

    def trigger(self, dag_id: str) -> str:
        self.api.wait_for_dag(dag_id, 120)
        return self.api.trigger(dag_id)

    def training(self, name: str) -> Training:
        return Training(self.account.home, name)

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        return self.api.log(dag_id, run_id, task_id, try_number, map_index)

    def everything(self, dag_id: str, run_id: str, task_id: str) -> str:
        """What the tests say when an expectation is not met."""
        tries = self.api.tries(dag_id, run_id, task_id)
        logs = "\n".join(
            f"--- try {t['try_number']}: {t['state']}\n{self.log(dag_id, run_id, task_id, t['try_number'])[-3000:]}"
            for t in tries
        )
        return f"{self.api.state_store(dag_id, run_id, task_id)}\n{logs}"


@contextmanager
def gpu_rig(
    dags: Mapping[str, str],
    *,
    more_dags: Sequence[Path] = (),
    config: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    **how: Any,
) -> Iterator[GpuRig]:
    """
    Start hosts and Airflow; connections ``gpu_box`` and ``gpu_box_2``.

    :param dags: name to source, written before Airflow starts.
    """
    try:
        find_sshd()
    except SshdMissing as missing:
        pytest.skip(str(missing))
    with ExitStack() as stack:
        account = accounts.create("bash")
        stack.callback(accounts.remove, account)
        account.write("train.py", TRAIN)
        hosts = [stack.enter_context(SshHost(username=account.name)) for _ in range(2)]
        rig = AirflowRig(config=config, env=env, dags=more_dags, **how)
        for name, source in dags.items():
            rig.write_dag(name, source)
        stack.enter_context(rig)
        for name, host in zip(("gpu_box", "gpu_box_2"), hosts, strict=True):
            # In the database, as most people have them; those in the environment would never be asked for over the API.
            fields = json.loads(host.airflow_connection_json())
            rig.api.put_connection(name, {**fields, "extra": json.dumps(fields["extra"])})
        yield GpuRig(rig, hosts, account)


def dag_source(dag_id: str, tasks: str) -> str:
    """A DAG file: ``tasks`` is the body of its ``with DAG``."""
    body = "\n".join("    " + line for line in tasks.strip().splitlines())
    return f"""
from datetime import timedelta
from airflow.sdk import DAG, task
from gpualert_provider.operators.training import GPUTrainingOperator
from gpualert_provider.retry import FailureClassRetryPolicy, Retry

with DAG("{dag_id}", schedule=None):
{body}
"""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def processes_showing(text: str) -> list[str]:
    """Command lines and environments, of all processes of the machine but our own, that hold ``text``."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in line:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def stays(predicate, for_s: float) -> bool:
    """Whether it holds for so long: for promises that something does *not* happen."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        if not predicate():
            return False
        time.sleep(0.25)
    return True

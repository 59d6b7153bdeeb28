"""How soon Airflow knows that a remote command has ended, and what that takes of SSH: our operator, and Airflow's own.

A real Airflow with a user's default settings, real sshds, the same command with the same duration for both. The command
itself writes down when it ends. Jobs begin a fixed time apart, ours and theirs in turns, so that few end at once: a
slow end is then the operator's doing, not the queue's. Each operator has an sshd of its own, whose log is counted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.measure import Effort, Row, Statistic, Target
from tools.rig.airflow import AirflowRig
from tools.rig.airflow_api import AirflowApi
from tools.rig.sshd import SshdMissing, SshHost, find_sshd
from tools.rig.waiting import DidNotHappen, wait_until

OURS, THEIRS = "ours", "theirs"
PEER = "SSHRemoteJobOperator"
#: Longer than the 20 s for which we stay on the worker and then hold the event (see tries-and-launches.md).
_JOB_S = 30
#: Long enough to be deferred, so that the triggerer, too, has imported what it needs.
_WARM_UP_S = 12
_APART_S = 8.0

# One compound command: the peer appends its redirection to the last simple one.
_COMMAND = (
    "{ for i in $(seq {{ dag_run.conf['seconds'] }}); do echo epoch $i loss 0.$i; sleep 1; done; "
    "sleep {{ dag_run.conf['fraction'] }}; date +%s.%N > {{ dag_run.conf['stamp'] }}; }"
)
_DAGS = """
from airflow.providers.ssh.operators.ssh_remote_job import SSHRemoteJobOperator
from airflow.sdk import DAG
from gpualert_provider.operators.training import GPUTrainingOperator

command = {command!r}
with DAG("ours", schedule=None):
    GPUTrainingOperator(task_id="job", ssh_conn_id="ours", command=command, remote_root="{folder}/ours")
with DAG("theirs", schedule=None):
    SSHRemoteJobOperator(task_id="job", ssh_conn_id="theirs", command=command, remote_base_dir="{folder}/theirs")
"""


@dataclass(frozen=True)
class Job:
    """One job that has ended; unix times."""

    dag_id: str
    state: str
    exit_at: float
    event_at: float | None  # by the task's log; None when it does not have the trigger's last word
    stored_at: float
    end_at: float


def measure(effort: Effort) -> Sequence[Row]:
    names = ("remote exit → trigger event → task end", "SSH connections and channels per job")
    try:
        find_sshd()
    except SshdMissing as missing:
        return [Row(name, "", why_not=str(missing)) for name in names]
    with _hosts() as (folder, hosts):
        dags = _DAGS.format(command=_COMMAND, folder=folder)
        with AirflowRig(
            connections={name: host.airflow_connection_json() for name, host in hosts.items()},
            parallelism=8,
            users_defaults=True,
            dags=[_written(folder, dags)],
        ) as rig:
            for name in hosts:
                rig.api.wait_for_dag(name, 120)
            _run(rig.api, folder, 1, _WARM_UP_S)  # imports, first connection, the archive placed on the host
            before = {name: _ssh_use(host) for name, host in hosts.items()}
            jobs = _run(rig.api, folder, effort.rounds(10, 2), _JOB_S)
            after = {name: _ssh_use(host) for name, host in hosts.items()}
    return [*_latencies(jobs), *_ssh_rows(jobs, before, after)]


def _latencies(jobs: Sequence[Job]) -> Iterator[Row]:
    def samples(dag_id: str, name: str) -> tuple[float, ...]:
        moments = [(job, getattr(job, name)) for job in jobs if job.dag_id == dag_id]
        return tuple(moment - job.exit_at for job, moment in moments if moment is not None)

    promised = Target(1.0)
    for what, name, target in (
        ("remote exit → trigger's end, past the hold", "event_at", promised),
        ("remote exit → trigger event stored in Airflow", "stored_at", None),
        ("remote exit → task end in Airflow", "end_at", None),
    ):
        ours, theirs = samples(OURS, name), samples(THEIRS, name)
        for statistic in (Statistic.MEDIAN, Statistic.P95):
            limit = target if statistic is Statistic.P95 else None
            why = "the task's log does not have the trigger's last word"
            yield Row(what, "s", ours, PEER, theirs, statistic, limit, why_not=why, why_no_peer=why)


def _ssh_rows(jobs: Sequence[Job], before: _Uses, after: _Uses) -> Iterator[Row]:
    count = {name: sum(job.dag_id == name for job in jobs) for name in (OURS, THEIRS)}
    for index, what in enumerate(("SSH connections", "SSH channels (commands run)")):
        each = {name: (after[name][index] - before[name][index]) / count[name] for name in count}
        yield Row(f"{what} per job of {_JOB_S} s", "", (each[OURS],), PEER, (each[THEIRS],))


# ---- the jobs


def _run(api: AirflowApi, folder: Path, rounds: int, seconds: int) -> list[Job]:
    """So many jobs of each, in turns; who comes first changes every round."""
    begun: list[tuple[str, str, Path]] = []
    next_at = time.monotonic()
    for number in range(rounds):
        order = (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS)
        for dag_id in order:
            time.sleep(max(0.0, next_at - time.monotonic()))
            next_at += _APART_S
            stamp = folder / f"{dag_id}-{time.time_ns()}"
            # Spread over the peer's poll interval of 5 s, evenly and alike for both.
            extra = 5.0 * number / rounds
            conf = {"seconds": seconds + int(extra), "fraction": round(extra % 1, 2), "stamp": str(stamp)}
            begun.append((dag_id, api.trigger(dag_id, conf), stamp))
    return [_ended(api, *job) for job in begun]


def _ended(api: AirflowApi, dag_id: str, run_id: str, stamp: Path) -> Job:
    task = api.wait_for_task(dag_id, run_id, "job", ("success", "failed"), 180)
    if task["state"] != "success" or not stamp.exists():
        raise DidNotHappen(f"{dag_id}: {task['state']}\n{api.log(dag_id, run_id, 'job', 1)[-3000:]}")
    return Job(
        dag_id,
        task["state"],
        float(stamp.read_text()),
        _event_at(api, dag_id, run_id),
        _unix(task["scheduled_when"]),
        _unix(task["end_date"]),
    )


def _event_at(api: AirflowApi, dag_id: str, run_id: str) -> float | None:
    """When the trigger had given its event and ended, by the triggerer's own record in the task's log."""

    def found() -> float | None:
        for record in api.log_records(dag_id, run_id, "job", 1):
            if record["event"] == "trigger completed" and record.get("timestamp"):
                return _unix(record["timestamp"])
        return None

    try:
        return wait_until(found, 5, "the trigger's end is in the task's log", interval_s=0.5)
    except DidNotHappen:
        return None


def _unix(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


# ---- the hosts

_Uses = dict[str, tuple[int, int]]


def _ssh_use(host: SshHost) -> tuple[int, int]:
    """Logins and commands so far, counted in the sshd's own log."""
    return host.connections_accepted(), host.log.read_text(errors="replace").count("Starting session: command")


def _written(folder: Path, dags: str) -> Path:
    path = folder / "remote_jobs.py"
    path.write_text(dags)
    return path


@contextmanager
def _hosts() -> Iterator[tuple[Path, dict[str, SshHost]]]:
    """A folder that the account on the hosts can write, and an sshd for each operator; all gone afterwards."""
    account = None
    if os.geteuid() == 0:
        # An account without start-up files: root's may take long, which would count for or against either operator.
        from tests.support import accounts

        account = accounts.create("bash")
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-", dir=account.home if account else None))
    folder.chmod(0o755)
    try:
        if account is not None:
            account.home.chmod(0o755)
            shutil.chown(folder, account.name)
        username = account.name if account else None
        with SshHost(username=username) as ours, SshHost(username=username) as theirs:
            yield folder, {OURS: ours, THEIRS: theirs}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if account is not None:
            accounts.remove(account)

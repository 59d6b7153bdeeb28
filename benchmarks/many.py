"""One real triggerer with a thousand trainings on twenty hosts: connections, CPU, memory, heartbeats, and how soon it
notices that all have ended.

Airflow's triggerer, its database, its task logs, sshd and our command on the hosts are real. The trainings are run
directories that one process writes (see many_hosts), and the tasks are put into the database as the workers would have
left them (see many_rows), since a machine of two cores has no room for a thousand of either. Hosts and triggerer share
this machine: what the hosts take, the triggerer does not have.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.many_hosts import Hosts
from benchmarks.measure import Effort, Row, Statistic, Target
from tools.rig.airflow import ROOT, AirflowRig
from tools.rig.sshd import SshdMissing, SshHost, find_sshd
from tools.rig.waiting import wait_until

PEER = "SSHRemoteJobOperator"
#: On one host each, for the count of connections.
_COUNTED = (1, 10, 100)
_HOSTS = 20
_PATIENCE_S = 300
_BEATS = "SELECT latest_heartbeat FROM job WHERE job_type = 'TriggererJob'"
_TICKS = os.sysconf("SC_CLK_TCK")
_DAG = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("many", schedule=None):
    EmptyOperator(task_id="train")
"""


def measure(effort: Effort) -> Sequence[Row]:
    what = "one triggerer with many jobs"
    try:
        find_sshd()
    except SshdMissing as missing:
        return [Row(what, "", why_not=str(missing))]
    if os.geteuid() != 0:
        return [Row(what, "", why_not="needs root, for an account of the hosts' own")]
    per_host = effort.rounds(50, 5)
    seconds = effort.rounds(30, 5)
    many = {f"h{number:02}": per_host for number in range(_HOSTS)}
    counted = {f"ours{count}": count for count in _COUNTED}
    with ExitStack() as stack:
        account = stack.enter_context(_account())
        theirs = {f"theirs{count}": count for count in _COUNTED}
        hosts = {name: stack.enter_context(SshHost(username=account.name)) for name in [*many, *counted, *theirs]}
        world = stack.enter_context(Hosts(account, {**many, **counted}))
        rig = AirflowRig(connections={name: host.airflow_connection_json() for name, host in hosts.items()})
        stack.callback(rig.remove)
        stack.callback(rig.stop)
        rig.make_database()
        rig.write_dag("many", _DAG)
        rig.run_airflow("dags", "reserialize")
        triggerer = _Triggerer(rig, world, hosts)
        rows = list(_connections(triggerer, account, seconds))
        return [*rows, *_thousand(triggerer, list(many), seconds)]


# ---- how many connections


def _connections(triggerer: _Triggerer, account: Any, seconds: int) -> Iterator[Row]:
    """The same number of jobs for both, watched for as long, and ended at once."""
    folder = Path(account.home) / "theirs"
    jobs: list[Any] = []
    for count in _COUNTED:
        jobs += triggerer.ours(f"ours{count}")
        jobs += [_their_job(folder, account, f"theirs{count}", number) for number in range(count)]
    run_id = triggerer.put(jobs)
    ours = [f"ours{count}" for count in _COUNTED]
    triggerer.world.say(ours, 40)
    triggerer.start()
    wait_until(lambda: triggerer.world.attached() >= sum(_COUNTED), _PATIENCE_S, "all jobs are followed")
    time.sleep(seconds)
    triggerer.world.end(ours)
    for path in folder.glob("*/*"):
        (path / "exit_code").write_text("0\n")
    triggerer.wait_for_events(run_id, len(jobs))
    for index, name in enumerate(("SSH connections", "SSH channels (commands run)")):
        for count in _COUNTED:
            used = [_ssh_use(triggerer.hosts[f"{who}{count}"])[index] / count for who in ("ours", "theirs")]
            plural = "job" if count == 1 else "jobs at once"
            what = f"{name} of the triggerer per job, {count} {plural} on a host, {seconds} s"
            yield Row(what, "", (used[0],), PEER, (used[1],))


def _their_job(folder: Path, account: Any, host: str, number: int) -> list[Any]:
    job = folder / host / str(number)
    job.mkdir(parents=True)
    (job / "log").write_text("step 1\n")
    for path in (folder, job.parent, job, job / "log"):
        os.chown(path, account.uid, account.gid)
    arguments = {
        "ssh_conn_id": host,
        "remote_host": None,
        "job_id": f"job-{number}",
        "job_dir": str(job),
        "log_file": str(job / "log"),
        "exit_code_file": str(job / "exit_code"),
        "remote_os": "posix",
    }
    return ["airflow.providers.ssh.triggers.ssh_remote_job.SSHRemoteJobTrigger", arguments]


def _ssh_use(host: SshHost) -> tuple[int, int]:
    return host.connections_accepted(), host.log.read_text(errors="replace").count("Starting session: command")


# ---- a thousand jobs


def _thousand(triggerer: _Triggerer, hosts: list[str], seconds: int) -> Iterator[Row]:
    jobs = [job for host in hosts for job in triggerer.ours(host)]
    count, on = len(jobs), f"{len(jobs)} jobs on {len(hosts)} hosts"
    idle = triggerer.look(seconds)
    triggerer.world.say(hosts, 40)
    before = triggerer.world.attached()
    began = time.monotonic()
    run_id = triggerer.put(jobs)
    wait_until(lambda: triggerer.world.attached() - before >= count, _PATIENCE_S, "all jobs are followed")
    attached_s = time.monotonic() - began
    wait_until(lambda: triggerer.lines(run_id) > 0, 60, "lines are in the task logs")
    calm = triggerer.look(seconds)
    triggerer.world.say(hosts, 100_000)
    flood = triggerer.look(seconds)
    triggerer.world.say(hosts, 40)
    time.sleep(5)
    ended = triggerer.world.end(hosts)
    first = min(ended.values())
    seen = triggerer.wait_for_events(run_id, count)
    late = tuple(seen[index] - ended[arguments["launch_id"]] for index, (_, arguments) in enumerate(jobs))
    connections = sum(triggerer.hosts[host].connections_accepted() for host in hosts)

    yield Row(f"SSH connections, {on}", "", (float(connections),), target=Target(float(len(hosts))))
    over = tuple(100 * (share - idle.cpu) for share in calm.shares)
    yield Row(f"CPU of the triggerer above idle, {on}, 1 line/s each", "% of a core", over, target=Target(50))
    over = tuple(100 * (share - idle.cpu) for share in flood.shares)
    yield Row(f"the same, each job writes 100 KB/s ({count / 10:.0f} MB/s)", "% of a core", over)
    memory = 1024 * (calm.memory_mib - idle.memory_mib) / count
    yield Row("memory of the triggerer per followed job", "KiB", (memory,))
    what = "longest time between two heartbeats of the triggerer"
    yield Row(f"{what}, 1 line/s each", "s", calm.beats, statistic=Statistic.HIGHEST, target=Target(30), why_not=_NONE)
    yield Row(f"{what}, flood", "s", flood.beats, statistic=Statistic.HIGHEST, target=Target(30), why_not=_NONE)
    yield Row(f"from {count} tasks in the database to {count} followed jobs", "s", (attached_s,))
    for statistic in (Statistic.MEDIAN, Statistic.P95):
        yield Row(f"{count} ends at once: end → trigger event", "s", late, statistic=statistic)
    yield Row(f"{count} ends at once: first end → last trigger event", "s", (max(seen.values()) - first,))


_NONE = "no two heartbeats in that time"


@dataclass(frozen=True)
class _Look:
    """What a triggerer took for a while: CPU in seconds per second, by pieces; memory; seconds between heartbeats."""

    shares: tuple[float, ...]
    memory_mib: float
    beats: tuple[float, ...]

    @property
    def cpu(self) -> float:
        return sum(self.shares) / len(self.shares)


@dataclass
class _Triggerer:
    """A real one, without scheduler and workers."""

    rig: AirflowRig
    world: Hosts
    hosts: dict[str, SshHost]
    _runs: int = field(default=0)

    def ours(self, host: str) -> list[Any]:
        from gpualert_provider.triggers.training import GpuTrainingTrigger

        return [
            GpuTrainingTrigger(host, host, launch_id, hold_s=0.0, root=self.world.root_of(host)).serialize()
            for launch_id in self.world.launch_ids[host]
        ]

    def put(self, triggers: list[Any]) -> str:
        """Tasks that wait for these triggers; returns their run."""
        self._runs += 1
        run_id = f"run-{self._runs}"
        command = [sys.executable, "-m", "benchmarks.many_rows", "many", "train", run_id]
        subprocess.run(
            command, input=json.dumps(triggers).encode(), env=self.rig.environment(), cwd=ROOT, check=True, timeout=300
        )
        return run_id

    def start(self) -> None:
        self.rig.start_component("triggerer")
        wait_until(lambda: self._ask(_BEATS), 120, "the triggerer is there")

    def look(self, seconds: int, pieces: int = 3) -> _Look:
        shares, beats = [], set()
        for _ in range(pieces):
            began, used = time.monotonic(), self._cpu_s()
            until = began + seconds / pieces
            while time.monotonic() < until:
                beats.add(self._beat_at())
                time.sleep(0.5)
            shares.append((self._cpu_s() - used) / (time.monotonic() - began))
        moments = sorted(_unix(text) for text in beats)
        apart = tuple(later - earlier for earlier, later in zip(moments, moments[1:], strict=False))
        return _Look(tuple(shares), self._memory_mib(), apart)

    def lines(self, run_id: str) -> int:
        return sum(1 for path in self._logs(run_id) if b"step " in path.read_bytes())

    def wait_for_events(self, run_id: str, count: int) -> dict[int, float]:
        """Map index to the unix time at which its trigger's event was stored."""
        query = "SELECT map_index, scheduled_dttm FROM task_instance WHERE run_id = ? AND state = 'scheduled'"

        def all_seen() -> list[Any] | None:
            found = self._ask(query, run_id)
            return found if len(found) == count else None

        found = wait_until(all_seen, _PATIENCE_S, lambda: f"{count} events; {len(self._ask(query, run_id))} came")
        return {index: _unix(text) for index, text in found}

    def _logs(self, run_id: str) -> list[Path]:
        return list((self.rig.folder / "task-logs").glob(f"dag_id=many/run_id={run_id}/*/map_index=*/*.trigger.*.log"))

    def _cpu_s(self) -> float:
        total = 0
        for pid in self.rig.components["triggerer"].pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def _memory_mib(self) -> float:
        """Proportional: what processes share counts once."""
        total = 0
        for pid in self.rig.components["triggerer"].pids():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024

    def _beat_at(self) -> str:
        return str(self._ask(_BEATS)[0][0])

    def _ask(self, query: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self.rig.home}/airflow.db?mode=ro", uri=True, timeout=30)) as database:
            return database.execute(query, values).fetchall()


def _unix(text: str) -> float:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else datetime.fromisoformat(text + "+00:00")).timestamp()


@contextmanager
def _account() -> Iterator[Any]:
    from tests.support import accounts

    account = accounts.create("bash")
    try:
        account.home.chmod(0o755)
        yield account
    finally:
        accounts.remove(account)

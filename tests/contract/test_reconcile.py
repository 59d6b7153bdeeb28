"""`gpualert reconcile` between a real sshd with real launches and a real, migrated metadata database of Airflow's."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from gpualert import protocol
from gpualert.key import Attempt, LaunchKey
from gpualert.records import RunRecord
from gpualert.spec import LaunchSpec
from gpualert_provider.hooks.blocking import open_session
from gpualert_provider.ledger import STORE_KEY, EntryStatus, Ledger, LedgerEntry
from gpualert_provider.operators.deployment import VARIABLE
from tests.architecture.test_tree import ROOT
from tests.support.airflow_rig import AirflowRig
from tests.support.sessions import target_of
from tests.support.sshd import SshHost

pytestmark = pytest.mark.slow

NOW = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")


class World:
    """One Airflow that is a database only, and one host."""

    def __init__(self, rig: AirflowRig, host: SshHost) -> None:
        self.rig, self.host, self.target = rig, host, target_of(host)
        self.database = sqlite3.connect(rig.home / "airflow.db")
        self.launched: list[str] = []
        # Tests share the host's account, and the same key would find the launches of an earlier one.
        self.ours = uuid.uuid4().hex
        self.insert("variable", key=VARIABLE, val=self.ours, is_encrypted=False)

    def insert(self, table: str, **values: Any) -> int:
        names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        done = self.database.execute(f"insert into {table} ({names}) values ({marks})", tuple(values.values()))
        self.database.commit()
        return done.lastrowid or 0

    def launch(self, task: str, command: str = "sleep 600", *, deployment: str | None = None) -> RunRecord:
        key = LaunchKey([deployment or self.ours, "dag", "run", task, "-1"], task)
        with open_session(self.target) as session:
            reply = session.call(
                protocol.launch_request(key, Attempt(1, f"try-of-{task}"), LaunchSpec(command=command))
            )
            assert reply["type"] == "launched", f"expected a launch of this test's own, found {reply}"
            record = RunRecord.from_json(reply["record"])
            self.launched.append(record.launch_id)
            return record

    def state(self, launch_id: str) -> str:
        with open_session(self.target) as session:
            reply = session.call(protocol.inspect_request(launch_id=launch_id))
            return str(reply["record"]["state"])

    def others(self) -> int:
        """How many launches of other deployments lie there; earlier tests on the same account may have left some."""
        with open_session(self.target) as session:
            parts = [record["key_parts"] for record in session.call(protocol.list_request())["launches"]]
        return sum(len(p) == 5 and p[0] != self.ours for p in parts)

    def ended(self, launch_id: str) -> None:
        """Wait until the host knows its end."""
        with open_session(self.target) as session:
            assert [f.type for f in session.follow(launch_id, attach=False, for_s=30)][-1] == "ended"

    def entry(self, record: RunRecord, **changes: Any) -> LedgerEntry:
        facts = {
            "number": record.number,
            "attempts": (record.attempt,),
            "status": EntryStatus.LAUNCHED,
            "launch_id": record.launch_id,
            "conn_id": "gpu_box",
            "machine_id": record.machine_id,
        }
        return LedgerEntry(**{**facts, **changes})

    def task(self, task: str, state: str | None, *entries: LedgerEntry, trigger: int | None = None) -> None:
        """A task instance of the one run, with its ledger."""
        run = self.database.execute("select id from dag_run").fetchone()
        facts = {"dag_id": "dag", "run_id": "run"}
        run_id = run[0] if run else None
        if run_id is None:
            run_id = self.insert("dag_run", run_type="manual", run_after=NOW, **facts)
        facts["task_id"] = task
        self.insert(
            "task_instance", id=uuid.uuid4().hex, try_number=1, max_tries=1, pool="default_pool", pool_slots=1,
            state=state, trigger_id=trigger, hostname="worker-1", pid=4711, **facts,
        )  # fmt: skip
        if entries:
            value = json.dumps(Ledger(self.ours, entries).to_json())
            self.insert("task_state_store", dag_run_id=run_id, key=STORE_KEY, value=value, updated_at=NOW, **facts)

    def reconcile(self, *words: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "gpualert", "reconcile", "--json", *words],
            env=self.rig.environment(), cwd=self.rig.home, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.startswith("{"), f"status {done.returncode}: {done.stdout}{done.stderr}"
        return done.returncode, json.loads(done.stdout)

    def end(self) -> None:
        with open_session(self.target) as session:
            for launch_id in self.launched:
                session.call(
                    protocol.stop_request(launch_id=launch_id, epoch=None, reason="end of test", who="test", wait_s=10)
                )


@pytest.fixture
def world(ssh_host: SshHost) -> Iterator[World]:
    rig = AirflowRig(
        connections={
            "gpu_box": ssh_host.airflow_connection_json(look_for_keys=False),
            "gpu_box_2": ssh_host.airflow_connection_json(look_for_keys=False),
            "nowhere": json.dumps({"conn_type": "ssh", "host": "127.0.0.1", "port": 9, "login": "x", "password": "x"}),
        }
    )
    try:
        rig.make_database()
        made = World(rig, ssh_host)
        try:
            yield made
        finally:
            made.end()
            made.database.close()
    finally:
        rig.remove()


def findings(host: dict[str, Any]) -> dict[str, str]:
    return {row["task_id"]: row["finding"] for row in host["launches"]}


def test_every_kind_of_disagreement_is_found_and_only_orphans_are_stopped(world: World):
    """All kinds at once on one host; mending leaves what is not proven running, and the database as it was."""
    agreed, orphan, deleted, untraced, foreign = (
        world.launch("agreed"), world.launch("orphan"), world.launch("deleted"),
        world.launch("untraced"), world.launch("foreign", deployment=uuid.uuid4().hex),
    )  # fmt: skip
    unreported = world.launch("unreported", "exit 3")
    world.ended(unreported.launch_id)
    world.task("agreed", "deferred", world.entry(agreed))
    world.task("orphan", "failed", world.entry(orphan))
    world.insert("log", event="running", dag_id="dag", run_id="run", task_id="deleted", map_index=-1, dttm=NOW)
    world.task("foreign", "failed")
    trigger = world.insert("trigger", classpath="x", kwargs="{}", created_date=NOW)
    world.task("unreported", "deferred", world.entry(unreported), trigger=trigger)
    lost = {"launch_id": "lost-000000000000.1", "attempts": (Attempt(1, "never seen"),), "number": 1}
    world.task("lost", "deferred", world.entry(agreed, **lost))
    before = "\n".join(world.database.iterdump())

    status, answer = world.reconcile("gpu_box", "nowhere")
    host, nowhere = answer["hosts"]
    assert findings(host) == {
        "agreed": "agreed", "orphan": "orphan", "deleted": "orphan", "untraced": "unclear", "unreported": "unreported",
        "lost": "lost",
    }  # fmt: skip
    assert (host["foreign"], status) == (world.others(), 1) and host["foreign"] >= 1
    assert nowhere["error"] and not nowhere["launches"]
    why = next(row["why"] for row in host["launches"] if row["task_id"] == "unreported")
    assert f"trigger {trigger}, which no triggerer has taken" in why and "airflow triggerer" in why
    assert world.state(orphan.launch_id) == "RUNNING", "without --mend nothing is stopped"

    status, answer = world.reconcile("--mend", "gpu_box")
    done = {row["task_id"]: row["done"] for row in answer["hosts"][0]["launches"] if row["done"]}
    assert set(done) == {"orphan", "deleted"}
    world.ended(orphan.launch_id)
    world.ended(deleted.launch_id)
    assert [world.state(r.launch_id) for r in (orphan, deleted)] == ["STOPPED", "STOPPED"]
    assert [world.state(r.launch_id) for r in (agreed, untraced, foreign)] == ["RUNNING"] * 3
    assert "\n".join(world.database.iterdump()) == before, "nothing is written into Airflow's database"


def test_an_airflow_that_never_launched_anything_says_so(world: World):
    """Without its id nothing can be told from other deployments' launches, so nothing is compared."""
    world.database.execute("delete from variable")
    world.database.commit()
    done = subprocess.run(
        [sys.executable, "-m", "gpualert", "reconcile", "--mend", "gpu_box"],
        env=world.rig.environment(), cwd=world.rig.home, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == 2 and VARIABLE in done.stderr, done.stderr


def test_the_maintenance_dag_stops_an_orphan_by_what_a_task_may_ask(world: World):
    """The example itself, run as `airflow dags test` runs it: through the execution API, without the database."""
    world.rig.add_dags(ROOT / "dags" / "06_maintenance.py")
    orphan, agreed = world.launch("orphan"), world.launch("agreed")
    world.task("orphan", "failed", world.entry(orphan))
    world.task("agreed", "deferred", world.entry(agreed))

    assert (world.state(orphan.launch_id), world.state(agreed.launch_id)) == ("RUNNING", "RUNNING")

    said = world.rig.run_airflow("dags", "test", "gpualert_06_maintenance", timeout_s=240)

    world.ended(orphan.launch_id)
    assert (world.state(orphan.launch_id), world.state(agreed.launch_id)) == ("STOPPED", "RUNNING"), said

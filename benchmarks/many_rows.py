"""Deferred tasks for a triggerer, put into Airflow's database as they stand there after the workers' part.

Run in the environment of an Airflow: `python -m benchmarks.many_rows DAG_ID TASK_ID RUN_ID < triggers.json`, where the
JSON is a list of [class path, arguments]. A thousand tasks that go through workers would take half an hour first.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone


def main(dag_id: str, task_id: str, run_id: str) -> int:
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    now = datetime.now(timezone.utc)
    with create_session() as session:
        version = DagVersion.get_latest_version(dag_id, session=session)
        serialized = SerializedDagModel.get(dag_id, session=session)
        if version is None or serialized is None:
            raise SystemExit(f"{dag_id}: not in the database")
        task = serialized.dag.get_task(task_id)
        run = DagRun(
            dag_id=dag_id,
            run_id=run_id,
            run_type=DagRunType.MANUAL,
            run_after=now,
            start_date=now,
            state=DagRunState.RUNNING,
            triggered_by=DagRunTriggeredByType.TEST,
        )
        run.created_dag_version_id = version.id
        session.add(run)
        session.flush()
        for index, (path, kwargs) in enumerate(json.load(sys.stdin)):
            trigger = Trigger(classpath=path, kwargs=kwargs, created_date=now)
            session.add(trigger)
            session.flush()
            ti = TaskInstance(task=task, run_id=run_id, map_index=index, dag_version_id=version.id)
            ti.state = TaskInstanceState.DEFERRED
            ti.try_number = 1
            ti.start_date = now
            ti.next_method = "execute_complete"
            ti.next_kwargs = {}
            ti.trigger_id = trigger.id
            ti.trigger_timeout = now + timedelta(days=1)
            session.add(ti)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

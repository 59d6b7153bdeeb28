"""One training that succeeds, and six that fail for real reasons, on one host over SSH."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from gpualert_provider.operators.training import GPUTrainingOperator

# The demo starts the host and says here where things lie; with a host of your own these are plain strings.
PROJECT = os.environ["GPUALERT_DEMO_PROJECT"]
RUN_DIRECTORIES = os.environ["GPUALERT_DEMO_ROOT"]
PYTHON = os.environ["GPUALERT_DEMO_PYTHON"]

COMMANDS = {
    "learns": f"{PYTHON} train.py --epochs 30 --pause 0.5 --out metrics.json",
    "wrong_config": f"{PYTHON} train.py --config config.json",
    "out_of_memory": f"ulimit -v 1000000\n{PYTHON} train.py --cache-tokens 4000000",
    "broken_kernel": f"{PYTHON} train.py --kernel native",
    "diverges": f"{PYTHON} train.py --lr 1e9 --epochs 1000",
    "killed": f"(sleep 2; kill -KILL $$) &\nexec {PYTHON} train.py --epochs 100000",
    "missing_module": f"{PYTHON} train.py --attention flash",
}

with DAG("demo_trainings", schedule=None, doc_md=__doc__, tags=["gpualert"]):
    for name, command in COMMANDS.items():
        GPUTrainingOperator(
            task_id=name,
            ssh_conn_id="demo_host",
            command=command,
            cwd=PROJECT,
            remote_root=RUN_DIRECTORIES,
            deadline=timedelta(minutes=5),
            grace_period=timedelta(seconds=5),
            result_file="metrics.json" if name == "learns" else None,
        )

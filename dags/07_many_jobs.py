"""Many trainings on two hosts, and never more at once on a host than its GPUs: one pool for each host.

The pools have to count deferred tasks, since a training is deferred while it runs:
airflow pools set gpu_box 8 "GPUs of gpu_box" --include-deferred. See docs/how-to/many-jobs.md.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from gpualert_provider.operators.training import GPUTrainingOperator

#: Connection, and pool of the same name, to the seeds that are trained there.
HOSTS = {"gpu_box": range(60), "gpu_box_2": range(60, 100)}

with DAG("gpualert_07_many_jobs", schedule=None, tags=["gpualert"], doc_md=__doc__):
    for host, seeds in HOSTS.items():
        # A pool cannot be mapped: one mapped task for each host.
        GPUTrainingOperator.partial(
            task_id=f"train_on_{host}",
            ssh_conn_id=host,
            cwd="/data/project",
            pool=host,
            pool_slots=2,
            retries=2,
            retry_delay=timedelta(minutes=1),
            early_window=0,
        ).expand(command=[f"torchrun --nproc-per-node 2 train.py --seed {seed}" for seed in seeds])

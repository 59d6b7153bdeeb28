"""The smallest useful training task: a command, a host, a deadline.

Needs an Airflow connection ``gpu_box`` of type ``ssh``. The task is green only if the command ends with status 0; what
it printed is in the task log, and all of it in a log on the host that no crash can take away.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from gpualert_provider.operators.training import GPUTrainingOperator

with DAG("gpualert_01_smallest", schedule=None, tags=["gpualert"], doc_md=__doc__):
    GPUTrainingOperator(
        task_id="train",
        ssh_conn_id="gpu_box",
        command="""
for epoch in 1 2 3; do
    echo "epoch $epoch loss 0.$((9 - epoch))"
    sleep 1
done
echo '{"loss": 0.6, "epochs": 3}' > metrics.json
""",
        result_file="metrics.json",
        deadline=timedelta(hours=1),
    )

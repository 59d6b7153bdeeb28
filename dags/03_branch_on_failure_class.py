"""What happens next depends on why the training failed.

``failure_class``, ``domain``, ``exit_code``, ``log_path`` and more are XComs of their own, so a branch needs one line.
This training fails because a module is missing, which nobody should retry: somebody has to install it.
"""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task

from gpualert_provider.operators.training import GPUTrainingOperator

with DAG("gpualert_03_branch_on_failure_class", schedule=None, tags=["gpualert"], doc_md=__doc__):
    train = GPUTrainingOperator(
        task_id="train",
        ssh_conn_id="gpu_box",
        command="""python3 -c 'import a_module_that_nobody_has'""",
    )

    @task.branch(trigger_rule="all_done")
    def why(ti=None):
        """The task to go on with, by class and domain."""
        if ti.xcom_pull(task_ids="train", key="run_state") == "SUCCEEDED":
            return "publish"
        failure_class = ti.xcom_pull(task_ids="train", key="failure_class")
        if failure_class in ("cuda_oom", "ram_oom", "oom_killer"):
            return "train_smaller"
        domain = ti.xcom_pull(task_ids="train", key="domain")
        return "fix_setup" if domain == "configuration" else "look_at_it"

    train >> why() >> [EmptyOperator(task_id=name) for name in ("publish", "train_smaller", "fix_setup", "look_at_it")]

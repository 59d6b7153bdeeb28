"""A sweep: the same training with other arguments on other hosts, one mapped task instance each.

Each has its own log, state, outcome and retries. Here the hosts and learning rates are fixed; both may as well come
from an upstream task. To keep two of them from sharing one host, give each host a pool of one slot with "include
deferred".
"""

from __future__ import annotations

from airflow.sdk import DAG, task

from gpualert_provider.operators.training import GPUTrainingOperator

SWEEP = [("gpu_box", 0.1, 0.9), ("gpu_box", 0.01, 0.4), ("gpu_box_2", 0.001, 0.6)]
RUNS = [
    {
        "ssh_conn_id": host,
        # A real training would compute the loss; this one was told.
        "command": f'echo learning rate {rate}; echo \'{{"rate": {rate}, "loss": {loss}}}\' > sweep-{rate}.json',
        "result_file": f"sweep-{rate}.json",
    }
    for host, rate, loss in SWEEP
]

with DAG("gpualert_02_sweep_over_hosts", schedule=None, tags=["gpualert"], doc_md=__doc__):
    train = GPUTrainingOperator.partial(
        task_id="train", cwd="~", map_index_template="{{ task.ssh_conn_id }}"
    ).expand_kwargs(RUNS)

    @task(trigger_rule="all_done")
    def best(results):
        """The lowest loss of those that succeeded; a failed one pushed no result."""
        return min((r for r in results if r), key=lambda r: r["loss"])

    best(train.output)

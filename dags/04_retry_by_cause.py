"""Retries that follow the cause: a typo is not tried again, a flaky network is.

``hopeless`` fails with a Python error: the policy stops it after one try, though it has three retries. ``flaky`` fails
twice because a host cannot be reached, and succeeds at its third try.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from gpualert_provider.operators.training import GPUTrainingOperator
from gpualert_provider.retry import FailureClassRetryPolicy, Retry

POLICY = FailureClassRetryPolicy(
    {
        "hub_network": Retry(after=timedelta(seconds=2), times=3),  # a class
        "user_code": "stop",  # a domain: nobody's second try fixes a bug
        "gpu": timedelta(minutes=10),
    }
)

with DAG(
    "gpualert_04_retry_by_cause",
    schedule=None,
    tags=["gpualert"],
    doc_md=__doc__,
    default_args={"ssh_conn_id": "gpu_box", "retries": 3, "retry_delay": timedelta(minutes=5), "retry_policy": POLICY},
):
    GPUTrainingOperator(
        task_id="hopeless",
        command="""python3 -c 'losses = []; print("mean loss", sum(losses) / len(losses))'""",
    )
    GPUTrainingOperator(
        task_id="flaky",
        command="""
count=$HOME/gpualert-flaky-$(echo "{{ run_id }}" | md5sum | cut -c1-12)
echo x >> "$count"
if [ "$(wc -l < "$count")" -lt 3 ]; then
    python3 - <<'END'
class LocalEntryNotFoundError(OSError): pass  # as of huggingface_hub

raise LocalEntryNotFoundError("The requested files are not in the local cache, and the hub cannot be reached.")
END
    exit 1
fi
rm "$count"
echo "downloaded, trained"
""",
    )

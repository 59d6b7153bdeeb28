"""Rules of your own: name causes that only your site knows, and retry by them.

``05_own_rules.toml`` lies beside this file and is read when the file is parsed; a mistake in it is an import error that
names the rule. The rules travel with each launch. ``through_the_gateway`` fails once with a line that means nothing to
anybody else, is retried because a rule calls it ``storage_io``, and succeeds; ``without_a_seat`` is not tried again.
Without a connection both run on the worker itself.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from gpualert_provider.operators.training import GPUTrainingOperator
from gpualert_provider.retry import FailureClassRetryPolicy, Retry

with DAG(
    "gpualert_05_own_rules",
    schedule=None,
    tags=["gpualert"],
    doc_md=__doc__,
    default_args={
        "rules": "05_own_rules.toml",
        "retries": 3,
        "retry_policy": FailureClassRetryPolicy({"storage_io": Retry(after=timedelta(seconds=2), times=2)}),
    },
):
    GPUTrainingOperator(
        task_id="through_the_gateway",
        command="""
echo "RuntimeError: injected by self-test, survived"
seen=$HOME/gpualert-gateway-$(echo "{{ run_id }}" | md5sum | cut -c1-12)
if [ ! -e "$seen" ]; then
    touch "$seen"
    echo "labfs gateway lab-7.example went away" >&2
    exit 1
fi
rm "$seen"
echo "trained"
""",
    )
    GPUTrainingOperator(
        task_id="without_a_seat",
        command="""
echo "licence server: no seats left for solver" >&2
exit 1
""",
    )

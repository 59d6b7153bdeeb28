"""Keep house, once a day: stop orphans on every GPU host, and remove what trainings left there long ago.

One mapped task for each host, so a host that is down fails its own task and no other. A task may ask Airflow only for
states, so it stops a launch whose task is over; what takes Airflow's database (lost launches, deleted runs) is found by
`gpualert reconcile` on an Airflow machine. See docs/how-to/keep-house.md.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, get_current_context, task

HOSTS = ["gpu_box", "gpu_box_2"]
KEEP_FOR = timedelta(days=14)

with DAG("gpualert_06_maintenance", schedule="@daily", catchup=False, tags=["gpualert"], doc_md=__doc__):

    @task(map_index_template="{{ host }}")
    def keep_house(host: str):
        """What was found and done; the task fails where a host could not be asked."""
        from gpualert_provider.reconcile import clean_host, reconcile_from_task

        context = get_current_context()
        context["host"] = host
        (report,) = reconcile_from_task([host], context["ti"], mend=True)
        print("\n".join(report.lines()))
        cleaned = clean_host(host, older_than_s=KEEP_FOR.total_seconds())
        for item in cleaned["removed"]:
            print(f"removed {item['run_directory']}: {item['size_bytes']} bytes, {item['why']}")
        if report.error or cleaned["error"]:
            raise RuntimeError(report.error or cleaned["error"])
        freed = sum(item["size_bytes"] for item in cleaned["removed"])
        return {"stopped": sum(row.mended for row in report.rows), "freed_bytes": freed}

    keep_house.expand(host=HOSTS)

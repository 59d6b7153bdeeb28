"""The button on a task instance that opens its run page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from airflow.sdk.bases.operatorlink import BaseOperatorLink

#: Where the plugin mounts its pages, below the API server's base path.
URL_PREFIX = "/gpualert"


def run_page_path(dag_id: str, run_id: str, task_id: str, map_index: int | None = None) -> str:
    """
    The run page's path and query below the API server's base path; ids may be anything, so they travel in the query.
    """
    query = {
        "dag_id": dag_id,
        "run_id": run_id,
        "task_id": task_id,
        "map_index": -1 if map_index is None else map_index,
    }
    return f"{URL_PREFIX}/run?{urlencode(query)}"


class GpuTrainingRunLink(BaseOperatorLink):
    """
    **GPU training run**: state, class, evidence, whose fault, retry decision, launches and log location of one run.
    """

    name = "GPU training run"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        from airflow.sdk.configuration import conf

        base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
        return base + run_page_path(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)

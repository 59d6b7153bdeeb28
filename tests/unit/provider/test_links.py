"""The button on a task instance leads to its own run page, whatever its ids are made of."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

from gpualert_provider.links import GpuTrainingRunLink, run_page_path


def test_any_id_survives_the_address():
    """Run ids hold '+' and ':'; ids may hold '&', '#', '/' and anything else."""
    ids = {"dag_id": "a/b&c", "run_id": "manual__2026-11-30T10:00:00+00:00", "task_id": "t#1?", "map_index": 3}

    split = urlsplit(run_page_path(**ids))

    assert split.path == "/gpualert/run"
    assert {k: v[0] for k, v in parse_qs(split.query).items()} == {k: str(v) for k, v in ids.items()}


def test_the_link_starts_at_the_servers_base_url(monkeypatch):
    """An API server behind a path prefix keeps it."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    key = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)

    assert (
        GpuTrainingRunLink().get_link(None, ti_key=key)
        == "https://airflow.example/team/gpualert/run?dag_id=d&run_id=r&task_id=t&map_index=-1"
    )
    assert GpuTrainingRunLink().name == "GPU training run"

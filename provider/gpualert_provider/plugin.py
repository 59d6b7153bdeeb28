"""The Airflow plugin: the run page under ``/gpualert``, and a tab on every task instance that leads to it.

Workers import plugins too, so nothing here imports the web framework: the application is made when the API server first
calls it. Airflow adds no authentication to a plugin's application; the page asks Airflow's own dependencies for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from gpualert_provider.links import URL_PREFIX, GpuTrainingRunLink


class LateApp:
    """An ASGI application that is made at its first call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._app: Any = None

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if self._app is None:
            self._app = self._make()
        await self._app(scope, receive, send)


def make_app() -> Any:
    """The application behind ``/gpualert``."""
    from gpualert_provider.web import make_app as make

    return make()


class GpuAlertPlugin(AirflowPlugin):
    """What Airflow loads from the entry point ``airflow.plugins``."""

    name = "gpualert"
    fastapi_apps: list[Any] = [{"app": LateApp(make_app), "url_prefix": URL_PREFIX, "name": "GPUAlert"}]
    external_views: list[Any] = [
        {
            "name": "GPU training",
            "href": f"{URL_PREFIX}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": "gpu-training",
        }
    ]
    operator_extra_links: list[Any] = [GpuTrainingRunLink()]

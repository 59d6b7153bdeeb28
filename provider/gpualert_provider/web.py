"""The run page's web application, for the API server alone: who may see it, and where its facts come from.

Rights are Airflow's: whoever may read the DAG's task instances and XComs may read the page, nobody else. The facts are
read with three small queries over the XComs and the state store of that one task instance.
"""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.dagrun import DagRun  # noqa: F401 (mapped before the models that refer to it)
from airflow.models.task_state_store import TaskStateStoreModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from gpualert_provider import page
from gpualert_provider.ledger import STORE_KEY
from gpualert_provider.redaction import redact
from gpualert_provider.xcoms import OUTCOME_KEY, RETRY_DECISION_KEY

#: Airflow's longest id.
_MAX_ID = 250


def make_app() -> FastAPI:
    """An application with one page, ``/run``, and no schema or docs of its own."""
    app = FastAPI(title="GPUAlert", docs_url=None, redoc_url=None, openapi_url=None)
    app.get("/run", response_class=HTMLResponse, dependencies=[Depends(one_of_each), *RIGHTS])(run_page)
    app.add_exception_handler(HTTPException, _refusal)
    return app


def one_of_each(request: Request) -> None:
    """Each parameter once: the rights must be asked for the DAG that is shown, not for its namesake."""
    for name in ("dag_id", "run_id", "task_id"):
        if len(request.query_params.getlist(name)) != 1:
            raise HTTPException(400, f"expected {name} exactly once in the address")


#: Both are asked: the page shows states and XComs.
RIGHTS = [
    Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE)),
    Depends(requires_access_dag("GET", DagAccessEntity.XCOM)),
]


def run_page(
    dag_id: Annotated[str, Query(max_length=_MAX_ID)],
    run_id: Annotated[str, Query(max_length=_MAX_ID)],
    task_id: Annotated[str, Query(max_length=_MAX_ID)],
    session: SessionDep,
    map_index: Annotated[str, Query(max_length=12)] = "-1",
) -> HTMLResponse:
    """The page of one task instance."""
    # The tab's address has an empty or literal placeholder there for a task that is not mapped.
    index = int(map_index) if map_index.lstrip("-").isdigit() else -1
    facts = read_facts(session, dag_id, run_id, task_id, index)
    if facts is None:
        raise HTTPException(404, f"There is no task instance {task_id!r} in run {run_id!r} of DAG {dag_id!r}.")
    return HTMLResponse(page.render(facts), headers=_headers())


def read_facts(session: Any, dag_id: str, run_id: str, task_id: str, map_index: int) -> page.RunFacts | None:
    """What the database knows; None when it has no such task instance."""

    def of(model: Any) -> list[Any]:
        return [
            model.dag_id == dag_id,
            model.run_id == run_id,
            model.task_id == task_id,
            model.map_index == map_index,
        ]

    task = session.execute(
        select(TaskInstance.state, TaskInstance.try_number, TaskInstance.max_tries).where(*of(TaskInstance))
    ).first()
    if task is None:
        return None
    keys = XComModel.key.in_([OUTCOME_KEY, RETRY_DECISION_KEY])
    pushed = {
        k: _decoded(v) for k, v in session.execute(select(XComModel.key, XComModel.value).where(*of(XComModel), keys))
    }
    kept = session.execute(
        select(TaskStateStoreModel.value).where(*of(TaskStateStoreModel), TaskStateStoreModel.key == STORE_KEY)
    ).scalar()
    return page.RunFacts(
        dag_id=dag_id,
        run_id=run_id,
        task_id=task_id,
        map_index=map_index,
        outcome=_mapping(pushed.get(OUTCOME_KEY)),
        ledger=_mapping(_decoded(kept)),
        retry_decision=_mapping(pushed.get(RETRY_DECISION_KEY)),
        task={"state": None if task.state is None else str(task.state), "try_number": task.try_number},
    )


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def _mapping(value: Any) -> dict[str, Any] | None:
    return redact(value) if isinstance(value, dict) else None


def _headers() -> dict[str, str]:
    return {
        "Content-Security-Policy": page.content_security_policy(),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


async def _refusal(request: Request, error: Any) -> Response:
    if error.status_code == 401 and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(_login_url(request), 302)
    title = {401: "Not logged in", 403: "Not allowed", 404: "Not found"}.get(error.status_code, "Not possible")
    return HTMLResponse(page.render_message(title, str(error.detail)), error.status_code, headers=_headers())


def _login_url(request: Request) -> str:
    from airflow.configuration import conf

    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    back = f"{base}{request.scope['path']}?{request.url.query}"
    return f"{base}/api/v2/auth/login?next={quote(back, safe='')}"

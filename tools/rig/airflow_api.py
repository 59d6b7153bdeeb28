"""Airflow's public REST API, as far as demo, tests and benchmarks use it.

SQLite answers with HTTP 500 when several components write at once; that says nothing about the task, so we ask again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from tools.rig.waiting import DidNotHappen, wait_until

Json = dict[str, Any]

FINISHED_RUN = ("success", "failed")
FINISHED_TASK = ("success", "failed", "skipped", "upstream_failed", "removed")


class ApiRefused(RuntimeError):
    """The API answered, and said no."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(
            f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:1000]}"
        )
        self.status = answer.status_code


class AirflowApi:
    """
    A client that is logged in as one user.

    Tasks are named by dag id, run id and task id; ``map_index`` -1 means a task that is not mapped, as in Airflow.
    """

    def __init__(self, url: str, username: str, password: str) -> None:
        self.url = url
        self._login = {"username": username, "password": password}
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self._token: str | None = None

    def close(self) -> None:
        self._client.close()

    def request(self, method: str, path: str, *, retry_for_s: float = 60, **how: Any) -> httpx.Response:
        """
        One request below ``/api/v2``, asked again while the database is busy or the server cannot be reached.

        :raises ApiRefused: for an answer of 400 or above that another try would not change.
        """
        end = time.monotonic() + retry_for_s
        while True:
            try:
                if self._token is None:
                    self._token = self._fetch_token()
                answer = self._client.request(
                    method,
                    f"/api/v2{path}",
                    headers={"Authorization": f"Bearer {self._token}", "Accept": "application/json"},
                    **how,
                )
            except httpx.TransportError:
                if time.monotonic() > end:
                    raise
            else:
                if answer.status_code < 400:
                    return answer
                if answer.status_code == 401:
                    self._token = None
                elif answer.status_code < 500:
                    raise ApiRefused(answer)
                if time.monotonic() > end:
                    raise ApiRefused(answer)
            time.sleep(0.25)

    def get(self, path: str, **parameters: Any) -> Any:
        return self.request("GET", path, params=parameters).json()

    def _fetch_token(self) -> str:
        answer = self._client.post("/auth/token", json=self._login)
        if answer.status_code >= 400:
            raise ApiRefused(answer)
        return str(answer.json()["access_token"])

    # -- dags and runs

    def health(self) -> dict[str, str | None]:
        """Component to status ("healthy", "unhealthy", None when never seen); empty while nobody answers."""
        try:
            answer = self._client.get("/api/v2/monitor/health", timeout=10)
            return {name: part["status"] for name, part in answer.json().items()} if answer.status_code == 200 else {}
        except (httpx.TransportError, ValueError):
            return {}

    def wait_for_dag(self, dag_id: str, deadline_s: float = 60) -> Json:
        """Wait until the dag processor has stored the DAG, and switch it on."""

        def known() -> Json | None:
            try:
                return self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": False}).json()  # type: ignore[no-any-return]
            except ApiRefused as refused:
                if refused.status == 404:
                    return None
                raise

        def complaint() -> str:
            return f"the DAG {dag_id} is stored; import errors: {self.import_errors() or 'none'}"

        found = wait_until(known, deadline_s, complaint, interval_s=0.25)
        assert found is not None
        return found

    def import_errors(self) -> dict[str, str]:
        """File name to stack trace of each DAG file that could not be parsed."""
        return {e["filename"]: e["stack_trace"] for e in self.get("/importErrors")["import_errors"]}

    def trigger(self, dag_id: str, conf: Json | None = None, run_id: str | None = None) -> str:
        """Start a run and return its id. Asked again after a busy database, a run id keeps it from starting twice."""
        run_id = run_id or f"rig-{time.time_ns()}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf or {}}
        try:
            self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)
        except ApiRefused as refused:
            # 409: an earlier try that was answered with 500 did store the run.
            if refused.status != 409:
                raise
        return run_id

    def run(self, dag_id: str, run_id: str) -> Json:
        return dict(self.get(f"/dags/{dag_id}/dagRuns/{run_id}"))

    def wait_for_run(self, dag_id: str, run_id: str, deadline_s: float, states: Iterable[str] = FINISHED_RUN) -> str:
        """Wait until the run is in one of the states; the message of a missed deadline tells where its tasks stand."""
        wanted = tuple(states)

        def reached() -> str | None:
            state = str(self.run(dag_id, run_id)["state"])
            return state if state in wanted else None

        def where() -> str:
            tasks = {f"{t['task_id']}[{t['map_index']}]": t["state"] for t in self.tasks(dag_id, run_id)}
            return f"run {run_id} of {dag_id} is {' or '.join(wanted)}; its tasks: {tasks}"

        state = wait_until(reached, deadline_s, where, interval_s=0.5)
        assert state is not None
        return state

    # -- task instances

    def tasks(self, dag_id: str, run_id: str) -> list[Json]:
        return list(self.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=1000)["task_instances"])

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Json:
        """The live row: state, try_number, max_tries, pid (of the process that runs it), start_date, end_date, …"""
        return dict(self.get(_ti(dag_id, run_id, task_id, map_index)))

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Iterable[str],
        deadline_s: float,
        *,
        map_index: int = -1,
        try_number: int | None = None,
    ) -> Json:
        """
        Wait until the task is in one of the states, in this try or a later one.

        :return: the task instance as it was then.
        :raises DidNotHappen: also at once, when the task has finished in a state that was not asked for.
        """
        wanted = tuple(states)

        def reached() -> Json | None:
            seen = self.task(dag_id, run_id, task_id, map_index)
            if try_number is not None and (seen["try_number"] or 0) < try_number:
                return None
            if seen["state"] in wanted:
                return seen
            if seen["state"] in FINISHED_TASK and self.run(dag_id, run_id)["state"] in FINISHED_RUN:
                raise DidNotHappen(f"{task_id} should be {' or '.join(wanted)} and has ended as {seen['state']}")
            return None

        def where() -> str:
            seen = self.task(dag_id, run_id, task_id, map_index)
            return f"{task_id} is {' or '.join(wanted)} (it is {seen['state']}, try {seen['try_number']})"

        found = wait_until(reached, deadline_s, where, interval_s=0.25)
        assert found is not None
        return found

    def tries(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> list[Json]:
        """All tries, the current one included, oldest first."""
        return list(self.get(_ti(dag_id, run_id, task_id, map_index) + "/tries")["task_instances"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """The XCom's value, or None where there is none."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        try:
            return self.get(path, map_index=map_index, deserialize=True)["value"]
        except ApiRefused as refused:
            if refused.status == 404:
                return None
            if refused.status != 400:
                raise
        # Deserialising can be switched off in a deployment; the stored form is then what there is.
        return self.get(path, map_index=map_index, stringify=False)["value"]

    def xcoms(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Json:
        """All XComs of a task, key to value."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries"
        entries = self.get(path, map_index=map_index, limit=200)["xcom_entries"]
        return {entry["key"]: self.xcom(dag_id, run_id, task_id, entry["key"], map_index) for entry in entries}

    def state_store(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Json:
        """What the task keeps in its task_state_store, key to value."""
        answer = self.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/state-store", map_index=map_index)
        entries = next(value for value in answer.values() if isinstance(value, list))
        return {entry["key"]: entry["value"] for entry in entries}

    def links(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str | None]:
        """Name of each extra link to its address."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links"
        return dict(self.get(path, map_index=map_index)["extra_links"])

    def log_records(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> list[Json]:
        """The records of a try's task log, in the order in which the page shows them; each has at least "event"."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        records: list[Json] = []
        token = None
        while True:
            parameters = {"full_content": True, "map_index": map_index, **({"token": token} if token else {})}
            body = self.get(path, **parameters)
            fresh = [record if isinstance(record, dict) else {"event": record} for record in body["content"]]
            records += fresh
            token = body.get("continuation_token")
            if not token or not fresh:
                return records

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = -1) -> str:
        """The text of a try's task log, one event after the other."""
        return "\n".join(str(r["event"]) for r in self.log_records(dag_id, run_id, task_id, try_number, map_index))

    def clear(self, dag_id: str, run_id: str, task_ids: Iterable[str | tuple[str, int]], **how: Any) -> None:
        """What a user's "Clear" does: the tasks run again, even when they are running now."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [list(t) if isinstance(t, tuple) else t for t in task_ids],
            "only_failed": False,
            "reset_dag_runs": True,
            **how,
        }
        self.request("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """What a user's "Mark as success" or "failed" does."""
        self.request("PATCH", _ti(dag_id, run_id, task_id, map_index), json={"new_state": state})

    # -- connections

    def put_connection(self, conn_id: str, fields: Mapping[str, Any]) -> None:
        """Store a connection in the metadata database, replacing one of that name."""
        body = {"connection_id": conn_id, **fields}
        try:
            self.request("POST", "/connections", json=body)
        except ApiRefused as refused:
            if refused.status != 409:
                raise
            self.request("PATCH", f"/connections/{conn_id}", json=body)


def _ti(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
    return path if map_index < 0 else f"{path}/{map_index}"

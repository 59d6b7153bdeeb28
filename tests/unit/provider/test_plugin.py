"""The run page: what it shows, what hostile text can do there (nothing), and who may see it."""

# ruff: noqa: E501 (lists of values)
from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gpualert_provider import page
from gpualert_provider.page import RunFacts

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}{% raw %}\"'--></style></pre>"

OUTCOME = {
    "state": "FAILED", "failure_class": "cuda_oom", "domain": "configuration", "retry_outlook": {"same_host": "no", "other_host": "yes"},
    "exit_code": 1, "signal": None, "advice": "Lower the batch size.", "duration_s": 7384.0, "log_path": "/r/0001/log", "log_size_bytes": 1234567,
    "run_directory": "/r/0001", "launch_id": "train-0.1", "host": {"name": "gpu1"},
    "evidence": [{"source": "log", "line": 812, "offset": 40_000, "rank": 3, "text": "torch.OutOfMemoryError: CUDA out of memory.", "rule": "cuda_oom_torch"}],
    "cascade": [{"source": "log", "line": 900, "text": "ncclSystemError"}], "alternatives": [{"failure_class": "nccl", "reason": "came later"}],
    "not_seen": ["kernel log"], "warnings": ["linger is off"], "git": {"commit": "abc123", "dirty": True}, "survivors": [],
    "observations": {
        "memory": {"peak_bytes": 3_500_000_000, "limit_bytes": 8_000_000_000}, "scheduler": {"job": "77", "state": "TIMEOUT"},
        "gpus": [{"index": 1, "name": "NVIDIA H200", "memory_used_before_bytes": 0, "memory_used_after_bytes": 5000, "xids": [79], "error": "gpu_lost"}],
        "disks": [{"path": "/scratch", "free_bytes": 2_000_000, "total_bytes": 9_000_000}],
        "kernel": ["NVRM: Xid (PCI:0000:3b:00): 79"], "not_seen": ["the scheduler: sacct: not installed"],
    },
}  # fmt: skip
LEDGER = {
    "entries": [
        {
            "number": 1, "launch_id": "train-0.1", "attempts": [{"number": 1}, {"number": 2}], "status": "reported", "host_name": "gpu1", "conn_id": "gpu_box",
            "outcome": {"state": "FAILED", "failure_class": "cuda_oom", "duration_s": 7384.0}, "retry": {"action": "fail"},
        },
    ]
}  # fmt: skip
DECISION = {"action": "fail", "reason": "cuda_oom: stop", "delay_s": None}


def facts(**changes) -> RunFacts:
    values = {
        "dag_id": "dag", "run_id": "run", "task_id": "train", "outcome": OUTCOME, "ledger": LEDGER, "retry_decision": DECISION,
        "task": {"state": "failed", "try_number": 2},
    }  # fmt: skip
    return RunFacts(**{**values, **changes})


def test_it_answers_the_questions_of_three_in_the_morning():
    """
    State, class with its meaning, proof with its place, whose it is, what to do, whether trying again helps, where the
    log is.
    """
    html = page.render(facts())

    for text in (
        "FAILED", "cuda_oom", "GPU memory exhausted", "configuration", "How the program was set up", "CUDA out of memory.", "line 812", "rank 3",
        "Lower the batch size.", "The same failure is certain", "Another try has a good chance", "cuda_oom: stop", "train-0.1", "1, 2", "gpu1",
        "/r/0001/log", "1.2 MB", "2 h 03 min", "abc123", "uncommitted", "ncclSystemError", "came later", "kernel log", "linger is off",
        "peak 3.5 GB of 8.0 GB", "NVIDIA H200", "5.0 kB after", "Xid 79", "gpu_lost", "2.0 MB free of 9.0 MB", "job 77: TIMEOUT", "sacct: not installed",
    ):  # fmt: skip
        assert text in html, text


def _everywhere(value):
    if isinstance(value, dict):
        return {HOSTILE if k == "reason" else k: _everywhere(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_everywhere(v) for v in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("where", ["outcome", "ledger", "retry_decision", "ids"])
def test_hostile_text_stays_text(where):
    """A training may print anything, and a DAG may be called anything; nothing of it becomes markup."""
    changes = {
        "outcome": {"outcome": _everywhere(OUTCOME)},
        "ledger": {"ledger": _everywhere(LEDGER)},
        "retry_decision": {"retry_decision": {"action": HOSTILE, "reason": HOSTILE}},
    }
    ids = {"dag_id": HOSTILE, "run_id": HOSTILE, "task_id": HOSTILE, "task": {"state": HOSTILE, "try_number": HOSTILE}}

    html = page.render(facts(**changes.get(where, ids)))

    body = html.replace(page.STYLE, "")
    assert "&lt;script&gt;" in body
    assert not re.search(r"<\s*(script|img)", body, re.I)
    assert body.count("</style>") == 1
    assert "49" not in body.replace("49.", "")
    for tag in re.findall(r"<[a-z][^>]*>", body):
        assert "onerror" not in tag


@pytest.mark.parametrize(
    "outcome",
    [
        None, {}, {"state": "RUNNING"}, {"state": 7, "evidence": "text", "host": None, "retry_outlook": "yes", "git": 3},
        {"evidence": [None, "x", {"text": None}], "warnings": None, "duration_s": "long", "log_size_bytes": None, "survivors": None},
        {"observations": {"gpus": [{"xids": 79}, {"index": None}, 3], "memory": [1], "kernel": "x", "disks": None, "scheduler": "a"}},
        {"observations": "seen"}, {"observations": {}}, {"failure_class": "a_class_of_next_year", "domain": "moon", "retry_outlook": {"same_host": "perhaps"}},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "ledger", [None, {}, {"entries": 3}, {"entries": [None, {}, {"attempts": None, "outcome": None}]}]
)
def test_unexpected_shapes_are_shown_and_break_nothing(outcome, ledger):
    assert "</html>" in page.render(facts(outcome=outcome, ledger=ledger, retry_decision=None))


def test_a_running_task_is_shown_from_its_ledger_alone():
    entry = {"number": 1, "launch_id": "train-0.1", "attempts": [{"number": 1}], "status": "launched"}

    html = page.render(facts(outcome=None, retry_decision=None, ledger={"entries": [entry]}))

    assert "RUNNING" in html
    assert "train-0.1" in html


def test_nothing_may_run_or_be_fetched():
    policy = page.content_security_policy()

    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    assert "frame-ancestors 'self'" in policy


def test_workers_do_not_import_the_web_framework():
    """Every task imports its deployment's plugins; FastAPI and the ORM would cost it a second."""
    code = (
        "import sys, airflow.plugins_manager; before = set(sys.modules); import gpualert_provider.plugin as p;"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before};"
        "assert p.GpuAlertPlugin.name == 'gpualert';"
        "assert not new & {'fastapi', 'starlette', 'sqlalchemy', 'jinja2'}, new;"
        "assert 'gpualert_provider.web' not in sys.modules and 'gpualert_provider.page' not in sys.modules, 'web imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_path_env(), timeout=120)

    assert done.returncode == 0, done.stderr


def _path_env():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_the_tab_leads_to_the_page():
    from gpualert_provider.links import run_page_path
    from gpualert_provider.plugin import GpuAlertPlugin

    view = GpuAlertPlugin.external_views[0]
    assert view["destination"] == "task_instance"
    assert view["href"].format(DAG_ID="d", RUN_ID="r", TASK_ID="t", MAP_INDEX="-1") == run_page_path("d", "r", "t")


# ---- rights


@pytest.fixture
def client(monkeypatch):
    """The application as the API server runs it, with Airflow's user and rights replaced."""
    from airflow.api_fastapi.common.db.common import _get_session
    from airflow.api_fastapi.core_api import security
    from fastapi import FastAPI, HTTPException
    from fastapi.testclient import TestClient

    from gpualert_provider import web
    from gpualert_provider.plugin import GpuAlertPlugin, LateApp

    who = {"user": "somebody", "may": {"dag"}, "asked": []}
    inner = web.make_app()

    async def user():
        if who["user"] is None:
            raise HTTPException(401, "Not authenticated")
        return who["user"]

    class Manager:
        def is_authorized_dag(self, *, method, access_entity, details, user):
            who["asked"].append((method, access_entity.value, details.id))
            return details.id in who["may"]

    monkeypatch.setattr(security, "get_auth_manager", Manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)
    monkeypatch.setattr(
        web,
        "read_facts",
        lambda session, d, r, t, m: facts(dag_id=d, run_id=r, task_id=t, map_index=m) if r == "run" else None,
    )
    inner.dependency_overrides[security.get_user] = user
    inner.dependency_overrides[_get_session] = lambda: None
    outer = FastAPI()
    outer.mount(GpuAlertPlugin.fastapi_apps[0]["url_prefix"], LateApp(lambda: inner))
    made = TestClient(outer, follow_redirects=False)
    made.who = who
    return made


PAGE = "/gpualert/run?dag_id=dag&run_id=run&task_id=train"


def test_whoever_may_read_the_dag_sees_the_page(client):
    answer = client.get(PAGE)

    assert answer.status_code == 200
    assert "CUDA out of memory" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert {entity for _, entity, _ in client.who["asked"]} == {"TASK_INSTANCE", "XCOM"}


def test_without_access_to_the_dag_it_is_403(client):
    client.who["may"] = {"another"}

    answer = client.get(PAGE)

    assert answer.status_code == 403
    assert "CUDA" not in answer.text


def test_anonymous_is_401_and_a_browser_is_sent_to_the_login(client):
    client.who["user"] = None

    assert client.get(PAGE).status_code == 401
    answer = client.get(PAGE, headers={"accept": "text/html"})
    assert answer.status_code == 302
    assert answer.headers["location"].startswith("/api/v2/auth/login?next=%2Fgpualert%2Frun%3Fdag_id%3Ddag")


@pytest.mark.parametrize(
    "query",
    [
        "dag_id=dag&dag_id=secret&run_id=run&task_id=t",
        "run_id=run&task_id=t",
        "dag_id=dag&run_id=run&run_id=x&task_id=t",
        "",
    ],
)
def test_the_rights_are_asked_for_the_dag_that_is_shown(client, query):
    """An address that names two DAGs could have one checked and the other shown."""
    assert client.get(f"/gpualert/run?{query}").status_code in (400, 422)


def test_what_is_not_there_is_404(client):
    answer = client.get("/gpualert/run?dag_id=dag&run_id=<b>&task_id=t")

    assert answer.status_code == 404
    assert "<b>" not in answer.text


@pytest.mark.parametrize("path", ["/gpualert/docs", "/gpualert/openapi.json", "/gpualert/"])
def test_there_is_nothing_else(client, path):
    assert client.get(path).status_code == 404

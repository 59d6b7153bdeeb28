"""A training from the DAG file to the task's state, in a real Airflow over a real SSH server: what people see of each
kind of end.

One Airflow for the module. All runs are started at once, and each test waits for its own.
"""

# ruff: noqa: E501 (one task, one line)
from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.gpu_rig import ROOT, GpuRig, dag_source, gpu_rig, processes_showing
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SECRET = "hf_Zm9vYmFyc2VjcmV0MTIzNDU2"
BIG = 200 * 1024

ENDS = r"""
common = dict(ssh_conn_id="gpu_box", hold=10)
GPUTrainingOperator(task_id="success", command="python3 train.py success 30 0", early_window=2, **common)
GPUTrainingOperator(
    task_id="result", result_file="r.json", command="echo '{\"loss\": NaN, \"acc\": 0.5}' > r.json", **common)
GPUTrainingOperator(
    task_id="fails_early", command="python3 -c 'print(len([]) / len([]))'", **common)
GPUTrainingOperator(
    task_id="fails_late", command="sleep 6; python3 -c 'import a_module_that_nobody_has'", early_window=1, **common)
GPUTrainingOperator(task_id="exit_3", command="echo before\nexit 3", **common)
GPUTrainingOperator(task_id="segfault", command=["python3", "-c", "import os; os.kill(os.getpid(), 11)"], **common)
GPUTrainingOperator(task_id="skipped", command="exit 7", skip_on_exit_code=[7, 8], **common)
GPUTrainingOperator(task_id="deadline", command="echo begun; sleep 600", deadline=4, grace_period=2, early_window=1, **common)
GPUTrainingOperator(
    task_id="lines",
    command="# a comment first\necho one\nfor i in two three; do echo $i; done; echo four # a comment last", **common)
GPUTrainingOperator(task_id="burst", command="seq 1 100000; echo the very last line", early_window=0, **common)
GPUTrainingOperator(
    task_id="utf8", command="for i in $(seq 4000); do printf 'Größe 日本語 🚀 '; done; echo; printf 'no newline at the end ü'", **common)
GPUTrainingOperator(task_id="big", command="true " + "x" * 204800 + "\necho ran with $# arguments", **common)
GPUTrainingOperator(
    task_id="secret", secret_env={"HF_TOKEN": "hf_token"}, env={"PLAIN": "in-the-open"}, early_window=3,
    command="echo token $HF_TOKEN plain $PLAIN; until [ -e secret.go ]; do sleep 0.3; done; echo again $HF_TOKEN; exit 1", **common)
GPUTrainingOperator(task_id="local", command="echo here; pwd", cwd="/tmp", hold=10)
GPUTrainingOperator(task_id="blocking", command="python3 train.py blocking 6 0", deferrable=False, early_window=0, ssh_conn_id="gpu_box")
GPUTrainingOperator(task_id="no_such_folder", command="true", cwd="/no/such/folder", **common)
GPUTrainingOperator(task_id="no_connection", command="true", ssh_conn_id="nowhere")

@task.gpu_training(ssh_conn_id="gpu_box", env={"X": "1"})
def decorated(run_id=None):
    return f"echo body {run_id}; echo template {{{{ run_id }}}}"
decorated()

@task.gpu_training(ssh_conn_id="gpu_box")
def decorated_wrong():
    return 17
decorated_wrong()
"""


@pytest.fixture(scope="module")
def rig():
    with gpu_rig(
        {"ends": dag_source("ends", ENDS)},
        more_dags=[ROOT / "dags"],
        env={"AIRFLOW_VAR_HF_TOKEN": SECRET},
        parallelism=4,
    ) as started:
        yield started


@pytest.fixture(scope="module")
def ends(rig):
    """The run of the DAG ``ends``; its id."""
    return rig.trigger("ends")


@pytest.fixture(scope="module")
def examples(rig):
    """Runs of the example DAGs, by their number."""
    names = [path.stem for path in sorted((ROOT / "dags").glob("*.py"))]
    return {name[:2]: (f"gpualert_{name}", rig.trigger(f"gpualert_{name}")) for name in names}


def task(rig: GpuRig, run: str, task_id: str, *states: str, deadline_s: float = 240) -> dict:
    return rig.api.wait_for_task("ends", run, task_id, states or ("success", "failed", "skipped"), deadline_s)


def xcoms(rig: GpuRig, run: str, task_id: str) -> dict:
    return rig.api.xcoms("ends", run, task_id)


def test_dag_files_parse(rig, ends, examples):
    assert rig.api.import_errors() == {}


def test_success_goes_through_the_triggerer(rig, ends):
    """Fifteen seconds of training: deferred once, every line in the task log once, state from the child's own end."""
    task(rig, ends, "success", "success")

    log = rig.log("ends", ends, "success")
    assert [log.count(f"success step {n:04d}") for n in range(1, 31)] == [1] * 30
    values = xcoms(rig, ends, "success")
    assert values["run_state"] == "SUCCEEDED"
    assert values["exit_code"] == 0
    assert values["outcome"]["launch_number"] == 1
    assert rig.training("success").finished == rig.training("success").started
    assert "attempt=1.log.trigger" in json.dumps(rig.api.log_records("ends", ends, "success", 1))


def test_the_result_file_is_the_return_value(rig, ends):
    """A NaN in it would fail the task; it becomes None."""
    task(rig, ends, "result", "success")

    assert rig.api.xcom("ends", ends, "result") == {"loss": None, "acc": 0.5}


@pytest.mark.parametrize(
    ("task_id", "failure_class", "domain", "text"),
    [
        ("fails_early", "div_zero", "user_code", "ZeroDivisionError: division by zero"),
        ("fails_late", "missing_module", "configuration", "No module named 'a_module_that_nobody_has'"),
    ],
)
def test_a_failure_has_class_domain_and_the_line_that_proves_it(rig, ends, task_id, failure_class, domain, text):
    """The same whether it failed before or after the deferral: XComs, and one short exception."""
    task(rig, ends, task_id, "failed")

    values = xcoms(rig, ends, task_id)
    assert (values["failure_class"], values["domain"], values["run_state"]) == (failure_class, domain, "FAILED")
    assert values["exit_code"] == 1
    assert text in values["outcome"]["evidence"][0]["text"]
    assert values["retry_outlook"] == {"same_host": "no", "other_host": "no"}
    errors = [r for r in rig.api.log_records("ends", ends, task_id, 1) if r["event"] == "Task failed with exception"]
    assert errors[0]["error_detail"][0]["exc_type"] == "GpuTrainingFailed"
    assert failure_class in errors[0]["error_detail"][0]["exc_value"]


def test_exit_ends_the_task_with_that_status(rig, ends):
    """``exit 3`` in the middle of a script is the script's own end, and is seen as such."""
    task(rig, ends, "exit_3", "failed")

    assert xcoms(rig, ends, "exit_3")["exit_code"] == 3
    assert "before" in rig.log("ends", ends, "exit_3")


def test_a_signal_is_told_by_name(rig, ends):
    task(rig, ends, "segfault", "failed")

    values = xcoms(rig, ends, "segfault")
    assert (values["exit_code"], values["signal"], values["failure_class"]) == (None, "SIGSEGV", "segfault")


def test_an_exit_status_may_mean_skipped(rig, ends):
    task(rig, ends, "skipped", "skipped")

    assert xcoms(rig, ends, "skipped")["exit_code"] == 7


def test_the_deadline_is_kept_while_deferred(rig, ends):
    task(rig, ends, "deadline", "failed")

    values = xcoms(rig, ends, "deadline")
    assert values["run_state"] == "TIMED_OUT"
    assert values["outcome"]["stopped_by"] == "deadline"


def test_every_command_of_a_script_is_logged(rig, ends):
    task(rig, ends, "lines", "success")

    lines = rig.log("ends", ends, "lines").splitlines()
    assert {"one", "two", "three", "four"} <= set(lines)


def test_a_burst_before_the_end_arrives_whole(rig, ends):
    """588,895 bytes in one go, and the line behind them."""
    task(rig, ends, "burst", "success")

    lines = set(rig.log("ends", ends, "burst").splitlines())
    assert "the very last line" in lines
    assert {str(n) for n in range(1, 100_001)} <= lines


def test_characters_of_several_bytes_survive_any_cut(rig, ends):
    task(rig, ends, "utf8", "success")

    # A line of 140 KB is shown as several records.
    log = rig.log("ends", ends, "utf8").replace("\n", "")
    assert log.count("Größe 日本語 🚀") == 4000
    assert "no newline at the end ü" in log
    assert "\ufffd" not in log


def test_a_command_of_200_kb_runs(rig, ends):
    task(rig, ends, "big", "success")

    assert "ran with 0 arguments" in rig.log("ends", ends, "big")


def test_secrets_are_nowhere_to_be_read(rig, ends):
    """
    Not in a process list, the task log, an XCom, a trigger's row, rendered fields, the state store or the run
    directory.
    """
    deferred = task(rig, ends, "secret", "deferred")
    assert deferred["state"] == "deferred"
    assert processes_showing(SECRET) == []
    database = sqlite3.connect(f"file:{rig.airflow.home}/airflow.db?mode=ro", uri=True)
    wait_until(lambda: database.execute("select count(*) from trigger").fetchone()[0], 30, "the trigger's row is there")
    for table in (
        "trigger",
        "task_instance",
        "xcom",
        "task_state_store",
        "rendered_task_instance_fields",
        "serialized_dag",
    ):
        for row in database.execute(f"select * from {table}"):
            assert SECRET not in repr(row), table
    rig.account.write("secret.go", "")

    task(rig, ends, "secret", "failed")

    wait_until(lambda: "again" in rig.log("ends", ends, "secret"), 30, "the triggerer's part of the log is there")
    log = json.dumps(rig.api.log_records("ends", ends, "secret", 1), ensure_ascii=False)
    assert f"token {'*' * len(SECRET)} plain in-the-open" in log
    assert f"again {'*' * len(SECRET)}" in log
    assert SECRET not in log
    assert SECRET not in json.dumps(xcoms(rig, ends, "secret"), default=str)
    run_directory = Path(xcoms(rig, ends, "secret")["run_directory"])
    for file in run_directory.rglob("*"):
        if file.is_file() and file.name != "log":
            content = file.read_bytes()
            assert SECRET.encode() not in content or "observer" in file.parts, file


def test_without_a_connection_it_runs_on_the_worker(rig, ends):
    task(rig, ends, "local", "success")

    log = rig.log("ends", ends, "local")
    assert "here\n/tmp" in log
    assert "Pausing task as DEFERRED" not in log


def test_not_deferrable_stays_on_the_worker(rig, ends):
    task(rig, ends, "blocking", "success")

    log = rig.log("ends", ends, "blocking")
    assert [log.count(f"blocking step {n:04d}") for n in range(1, 7)] == [1] * 6
    assert "Pausing task as DEFERRED" not in log


@pytest.mark.parametrize(
    ("task_id", "text"),
    [
        ("no_such_folder", "/no/such/folder"),
        ("no_connection", "nowhere"),
        ("decorated_wrong", "expected decorated_wrong() to return the command"),
    ],
)
def test_what_cannot_be_launched_says_why(rig, ends, task_id, text):
    task(rig, ends, task_id, "failed")

    records = rig.api.log_records("ends", ends, task_id, 1)
    error = next(r for r in records if r["event"] == "Task failed with exception")
    assert text in error["error_detail"][0]["exc_value"]
    assert "outcome" not in xcoms(rig, ends, task_id)


def test_the_decorators_body_is_the_command(rig, ends):
    task(rig, ends, "decorated", "success")

    log = rig.log("ends", ends, "decorated")
    assert f"body {ends}" in log
    assert f"template {ends}" in log


def test_the_link_leads_to_the_page_of_the_run(rig, ends):
    """It is there from the first leg on, and only those who may read the DAG can open it."""
    import httpx

    task(rig, ends, "fails_late", "failed")
    link = rig.api.links("ends", ends, "fails_late")["GPU training run"]
    assert link.startswith(rig.airflow.url)
    token = httpx.post(
        f"{rig.airflow.url}/auth/token",
        json={"username": "viewer", "password": rig.airflow.passwords["viewer"]},
        trust_env=False,
    ).json()["access_token"]

    page = httpx.get(link, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    anonymous = httpx.get(link, trust_env=False)
    browser = httpx.get(link, headers={"Accept": "text/html"}, trust_env=False)

    assert page.status_code == 200
    assert "missing_module" in page.text and "a_module_that_nobody_has" in page.text
    assert anonymous.status_code == 401
    assert (browser.status_code, "/auth/login" in browser.headers.get("location", "")) == (302, True)


# ---- the example DAGs


def example(rig, examples, number: str, deadline_s: float = 300) -> tuple[str, str]:
    dag_id, run = examples[number]
    rig.api.wait_for_run(dag_id, run, deadline_s)
    return dag_id, run


def test_example_smallest(rig, examples):
    dag_id, run = example(rig, examples, "01")

    assert rig.api.run(dag_id, run)["state"] == "success"
    assert rig.api.xcom(dag_id, run, "train") == {"loss": 0.6, "epochs": 3}


def test_example_sweep_over_hosts(rig, examples):
    """Three mapped instances on two hosts; the downstream task chooses among their results."""
    dag_id, run = example(rig, examples, "02")

    states = {t["map_index"]: t["state"] for t in rig.api.tasks(dag_id, run) if t["task_id"] == "train"}
    assert states == {0: "success", 1: "success", 2: "success"}
    assert rig.api.xcom(dag_id, run, "best") == {"rate": 0.01, "loss": 0.4}
    launches = {rig.api.xcom(dag_id, run, "train", "launch_id", index) for index in range(3)}
    assert len(launches) == 3


def test_example_branch_on_failure_class(rig, examples):
    dag_id, run = example(rig, examples, "03")

    states = {t["task_id"]: t["state"] for t in rig.api.tasks(dag_id, run)}
    assert states["train"] == "failed"
    assert states["fix_setup"] == "success"
    assert {states[name] for name in ("publish", "train_smaller", "look_at_it")} == {"skipped"}


def test_example_retry_by_cause(rig, examples):
    """The same ``retries=3`` for both: a bug gets one try, a flaky network three, each with its reason on record."""
    dag_id, run = example(rig, examples, "04")

    assert (rig.api.task(dag_id, run, "hopeless")["state"], len(rig.api.tries(dag_id, run, "hopeless"))) == (
        "failed",
        1,
    )
    decision = rig.api.xcom(dag_id, run, "hopeless", "retry_decision")
    assert decision["action"] == "fail"
    assert "div_zero" in decision["reason"] and "user_code" in decision["reason"]
    assert "Retry decision: fail" in rig.log(dag_id, run, "hopeless")
    assert (rig.api.task(dag_id, run, "flaky")["state"], len(rig.api.tries(dag_id, run, "flaky"))) == ("success", 3)
    ledger = rig.api.state_store(dag_id, run, "flaky")["gpualert"]
    ledger = json.loads(ledger) if isinstance(ledger, str) else ledger
    assert [entry["outcome"]["state"] for entry in ledger["entries"]] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert [entry["retry"]["action"] for entry in ledger["entries"][:2]] == ["retry", "retry"]

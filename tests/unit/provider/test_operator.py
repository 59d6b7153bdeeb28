"""The operator: its arguments, its one way to a state, and what it shows, against a host in memory."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, AirflowTaskTimeout, TaskDeferred

from gpualert.errors import InvalidSpec
from gpualert.outcome import Outcome
from gpualert.records import ExitStatus, RunState
from gpualert_provider import keep
from gpualert_provider.exceptions import GpuTrainingFailed, InvalidRequest, LaunchRefused
from gpualert_provider.ledger import EntryStatus
from gpualert_provider.operators.training import GPUTrainingOperator

# ---- the way through


def test_success_within_the_early_window(world):
    """A short training succeeds without any deferral; its result is the return value, its log is in the task log."""
    world.host.result = {"loss": 0.5}

    assert world.run() == {"loss": 0.5}
    assert world.pushed["run_state"] == "SUCCEEDED"
    assert world.pushed["host"] == "gpu.example"
    assert "epoch 1\nepoch 2" in "\n".join(world.lines)
    assert world.ledger.last.status is EntryStatus.REPORTED
    assert world.host.acked == len(world.host.log)
    assert world.host.ended_acks == 1


def test_failure_is_one_short_exception_with_the_outcome(world):
    world.host.end, world.host.exit_code = RunState.FAILED, 3

    with pytest.raises(GpuTrainingFailed) as caught:
        world.run()

    failure = caught.value
    assert (failure.failure_class, failure.domain, failure.retry_outlook["same_host"]) == (
        "traceback",
        "user_code",
        "no",
    )
    assert failure.outcome.exit_code == 3
    assert len(str(failure)) <= 300 and "\n" not in str(failure)
    assert "epoch 2" in str(failure)
    assert world.pushed["exit_code"] == 3
    assert world.ledger.last.outcome["failure_class"] == "traceback"


def test_the_exception_survives_pickling_and_airflows_serializer():
    failure = GpuTrainingFailed(Outcome(state=RunState.FAILED, exit_code=9, failure_class="nccl", domain="network"))

    assert pickle.loads(pickle.dumps(failure)).outcome == failure.outcome
    path, args, kwargs = failure.serialize()
    assert path == "gpualert_provider.exceptions.GpuTrainingFailed"
    assert GpuTrainingFailed(*args, **kwargs).outcome == failure.outcome
    refusal = LaunchRefused("no", "disk")
    assert pickle.loads(pickle.dumps(refusal)).kind == "disk"


def test_it_defers_once_with_plain_facts(world):
    """The triggerer gets ids and numbers; nothing of the command, its environment or its secrets."""
    world.host.end = None
    world.secrets["hf"] = "hf_0123456789"

    with pytest.raises(TaskDeferred) as caught:
        world.run(secret_env={"HF_TOKEN": "hf"}, env={"A": "plain-value"}, hold=7, patience=timedelta(hours=1))

    kwargs = caught.value.trigger.serialize()[1]
    text = json.dumps(kwargs)
    assert kwargs["conn_id"] == "gpu"
    assert kwargs["launch_id"] == world.ledger.last.launch_id
    assert kwargs["hold_s"] == 7
    assert kwargs["patience_s"] == 3600
    assert "hf_0123456789" not in text and "plain-value" not in text and "train.py" not in text
    assert caught.value.timeout is None
    assert caught.value.method_name == "execute_complete"
    assert world.host.secrets[kwargs["launch_id"]] == {"HF_TOKEN": "hf_0123456789"}


def test_execute_complete_takes_the_same_path(world):
    world.host.end = None
    task = world.operator(skip_on_exit_code=[7])
    with pytest.raises(TaskDeferred):
        task.execute(world.context())
    launch_id = world.ledger.last.launch_id

    def event(state, code):
        world.host.change(launch_id, state=state, exit=ExitStatus(code=code))
        return {"outcome": world.host.outcome(launch_id).to_json()}

    assert task.execute_complete(world.context(), event(RunState.SUCCEEDED, 0)) is None
    with pytest.raises(AirflowSkipException):
        task.execute_complete(world.context(), event(RunState.FAILED, 7))
    with pytest.raises(GpuTrainingFailed):
        task.execute_complete(world.context(), event(RunState.FAILED, 8))
    assert world.pushed["exit_code"] == 8
    assert world.ledger.last.status is EntryStatus.REPORTED


def test_without_a_connection_it_blocks(world):
    """The local form never defers, even with deferrable=True and an early window that is over at once."""
    assert world.run(ssh_conn_id=None, early_window=0) is None
    assert world.pushed["run_state"] == "SUCCEEDED"


def test_not_deferrable_blocks(world):
    assert world.run(deferrable=False, early_window=0) is None


@pytest.mark.parametrize("trouble", [AirflowTaskTimeout("over"), RuntimeError("disk full"), OSError(28, "full")])
@pytest.mark.parametrize("code", [0, 3])
def test_keeping_the_log_never_changes_the_end(world, monkeypatch, trouble, code):
    """Not even when execution_timeout, which Airflow counts anew for each leg, is over while the log is kept."""

    def breaks(*_, **__):
        raise trouble

    monkeypatch.setattr(keep, "keep_log", breaks)
    if code:
        world.host.end, world.host.exit_code = RunState.FAILED, code
        with pytest.raises(GpuTrainingFailed):
            world.run(keep_log="/kept")
    else:
        world.run(keep_log="/kept")
    assert world.pushed["exit_code"] == code
    assert world.pushed["kept_log"]["url"] is None and world.pushed["kept_log"]["why_not"]
    assert world.ledger.last.status is EntryStatus.REPORTED


@pytest.mark.parametrize("wrong", ["logs", "", 3, "s3://key:secret@bucket"])
def test_a_destination_that_cannot_be_right_is_an_import_error(world, wrong):
    with pytest.raises(InvalidSpec, match="keep_log"):
        world.operator(keep_log=wrong)


@pytest.mark.parametrize("broken", ["xcom", "ledger"])
def test_telling_the_outcome_never_changes_it(world, broken):
    """A success stays one when Airflow's API takes neither XComs nor state."""
    context = world.context()
    task = world.operator()
    if broken == "xcom":
        context["ti"].xcom_push = lambda key, value: (_ for _ in ()).throw(RuntimeError("API_SERVER_ERROR"))
    else:
        saved = world.store.set

        def refuse_reported(key, value, *, retention=None):
            if "reported" in json.dumps(value):
                raise RuntimeError("API_SERVER_ERROR")
            saved(key, value, retention=retention)

        world.store.set = refuse_reported

    assert task.execute(context) is None
    world.host.end = RunState.FAILED


def test_no_xcoms_when_the_author_wants_none(world):
    world.run(do_xcom_push=False)

    assert world.pushed == {}


# ---- secrets


def test_secrets_are_masked_in_log_xcoms_and_message(world):
    world.secrets["hf"] = "hf_SECRETSECRET"
    world.host.log = b"token is hf_SECRETSECRET\nfailed with hf_SECRETSECRET\n"
    world.host.end, world.host.exit_code = RunState.FAILED, 1

    with pytest.raises(GpuTrainingFailed) as caught:
        world.run(secret_env={"HF_TOKEN": "hf"})

    everything = (
        json.dumps(world.pushed, default=str) + "\n".join(world.lines) + str(caught.value) + world.store["gpualert"]
    )
    assert "token is" in everything
    assert "SECRETSECRET" not in everything
    assert "SECRETSECRET" not in json.dumps(caught.value.outcome.to_json())


def test_secrets_are_masked_after_a_deferral_too(world):
    """The resuming worker is another process: it fetches the values again, to know what to mask."""
    world.secrets["hf"] = "hf_SECRETSECRET"
    world.host.end = None
    task = world.operator(secret_env={"HF_TOKEN": "hf"})
    with pytest.raises(TaskDeferred):
        task.execute(world.context())
    launch_id = world.ledger.last.launch_id
    world.host.log = b"x\nhf_SECRETSECRET\n"
    world.host.change(launch_id, state=RunState.FAILED, exit=ExitStatus(code=1))

    with pytest.raises(GpuTrainingFailed):
        task.execute_complete(world.context(), {"outcome": world.host.outcome(launch_id).to_json()})
    assert "SECRETSECRET" not in json.dumps(world.pushed, default=str)


def test_a_secret_that_is_gone_does_not_change_the_end(world):
    world.host.end = None
    world.secrets["hf"] = "x" * 8
    task = world.operator(secret_env={"HF_TOKEN": "hf"})
    with pytest.raises(TaskDeferred):
        task.execute(world.context())
    launch_id = world.ledger.last.launch_id
    world.host.change(launch_id, state=RunState.SUCCEEDED, exit=ExitStatus(code=0))
    del world.secrets["hf"]

    assert task.execute_complete(world.context(), {"outcome": world.host.outcome(launch_id).to_json()}) is None


# ---- arguments, when the DAG is parsed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": ""}, "command: expected something to run"),
        ({"command": []}, "command: expected a program"),
        ({"command": ["python", 3]}, r"command\[1\]"),
        ({"command": "echo \0"}, "NUL"),
        ({"cwd": "project"}, "cwd: expected an absolute path"),
        ({"env": {"A B": "x"}}, "env: expected names"),
        ({"env": {"A\n": "x"}}, "env: expected names"),
        ({"env": {"A": 3}}, r"env\['A'\]: expected text"),
        ({"env": ["A=1"]}, "env: expected a mapping"),
        ({"secret_env": {"TOKEN": ""}}, r"secret_env\['TOKEN'\]: expected the id"),
        ({"secret_env": {"TO KEN": "x"}}, "secret_env: expected names"),
        ({"secret_env": ["TOKEN"]}, "secret_env: expected a mapping"),
        ({"secret_env": {"A": "x"}, "env": {"A": "y"}}, "give it once"),
        ({"environment": "poetry:x"}, "environment: expected conda:NAME"),
        ({"deadline": 0}, "deadline: expected more than 0"),
        ({"deadline": timedelta(seconds=-5)}, "deadline: expected more than 0"),
        ({"deadline": "12h"}, "deadline: expected a timedelta"),
        ({"grace_period": -1}, "grace_period: expected 0 or more"),
        ({"hold": float("nan")}, "hold: expected a timedelta"),
        ({"patience": None}, "patience: expected a timedelta"),
        ({"stop_signal": "SIGKILL"}, "stop_signal: expected one of"),
        ({"leftovers": "maybe"}, "leftovers: expected"),
        ({"skip_on_exit_code": 0}, "skip_on_exit_code: expected exit statuses"),
        ({"skip_on_exit_code": "3"}, "skip_on_exit_code: expected a number"),
        ({"skip_on_exit_code": [3, 256]}, "skip_on_exit_code: expected exit statuses"),
        ({"ssh_conn_id": ""}, "ssh_conn_id: expected the id"),
        ({"remote_root": "runs"}, "root: expected an absolute path"),
    ],
)
def test_a_mistake_is_an_import_error_with_the_arguments_name(arguments, message):
    with pytest.raises(InvalidSpec, match=message):
        GPUTrainingOperator(**{"task_id": "t", "ssh_conn_id": "gpu", "command": "true", **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "python train.py --out {{ run_id }}"},
        {"command": ["python", "{{ params.script }}"]},
        {"cwd": "{{ params.folder }}"},
        {"env": {"RUN": "{{ run_id }}"}},
        {"environment": "{{ params.environment }}"},
        {"ssh_conn_id": "{{ params.host }}"},
        {"secret_env": {"TOKEN": "{{ params.conn }}"}},
        {"result_file": "{{ run_id }}.json"},
        {
            "cwd": "~/project",
            "environment": "venv:~/v",
            "setup": "source env.sh\nexport A=1",
            "skip_on_exit_code": {3, 4},
        },
    ],
)
def test_templates_wait_until_the_task_runs(arguments):
    GPUTrainingOperator(**{"task_id": "t", "ssh_conn_id": "gpu", "command": "true", **arguments})


def test_what_a_template_renders_to_is_checked_too(world):
    task = world.operator(cwd="{{ x }}")
    task.cwd = "not/absolute"

    with pytest.raises(InvalidRequest, match="cwd: expected an absolute path"):
        task.execute(world.context())
    assert world.launched == []


def test_the_shorter_of_deadline_and_execution_timeout_goes_to_the_host(world):
    world.run(deadline=timedelta(hours=2), execution_timeout=timedelta(hours=1))
    assert world.launched[0]["spec"]["deadline_s"] == 3600


def test_the_secret_itself_is_not_shown_when_its_id_is_wrong():
    with pytest.raises(InvalidSpec) as caught:
        GPUTrainingOperator(task_id="t", command="true", secret_env={"TOKEN": 12345678})
    assert "12345678" not in str(caught.value)


def test_mapped_over_hosts_and_commands():
    """partial/expand with the fields people sweep over."""
    with DAG("sweep", schedule=None):
        mapped = GPUTrainingOperator.partial(task_id="train", cwd="/data").expand_kwargs(
            [
                {"ssh_conn_id": "a", "command": "python train.py --lr 1"},
                {"ssh_conn_id": "b", "command": "python train.py --lr 2"},
            ]
        )
        other = GPUTrainingOperator.partial(task_id="other", command="nvidia-smi").expand(ssh_conn_id=["a", "b"])

    assert mapped.task_id == "train"
    assert other.operator_class is GPUTrainingOperator


def test_fields_are_templated_and_rendered_with_their_language():
    assert {"command", "cwd", "env", "setup", "environment", "ssh_conn_id", "result_file"} <= set(
        GPUTrainingOperator.template_fields
    )
    assert GPUTrainingOperator.template_fields_renderers["command"] == "bash"
    assert GPUTrainingOperator.template_fields_renderers["env"] == "json"
    assert list(GPUTrainingOperator.template_ext) == []

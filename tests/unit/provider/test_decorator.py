"""``@task.gpu_training``: the function's return value is the command, and everything else is the operator's."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from gpualert.errors import InvalidSpec
from gpualert_provider.decorators.training import GpuTrainingDecoratedOperator, gpu_training_task
from gpualert_provider.exceptions import InvalidRequest
from gpualert_provider.operators.training import GPUTrainingOperator


@pytest.fixture
def executed(monkeypatch):
    """Commands with which the operator's own execute was called."""
    seen = []
    monkeypatch.setattr(GPUTrainingOperator, "execute", lambda self, context: seen.append(self.command))
    monkeypatch.setattr(GpuTrainingDecoratedOperator, "render_template_fields", lambda self, context: None)
    return seen


def operator(function, **arguments):
    with DAG("d", schedule=None):
        return gpu_training_task(function, task_id="train", ssh_conn_id="gpu", **arguments)().operator


def test_the_body_returns_the_command(executed):
    operator(lambda run_id: f"python train.py {run_id}").execute({"run_id": "r1"})
    operator(lambda: ["python", "train.py"]).execute({})

    assert executed == ["python train.py r1", ["python", "train.py"]]


@pytest.mark.parametrize("value", [None, 17, {"command": "x"}, b"bytes"])
def test_what_is_no_command_is_refused_before_anything_is_launched(executed, value):
    with pytest.raises(InvalidRequest, match="to return the command as a string or a list of strings"):
        operator(lambda: value).execute({})
    assert executed == []


def test_arguments_are_checked_when_the_dag_is_parsed():
    with pytest.raises(InvalidSpec, match="deadline"):
        operator(lambda: "true", deadline=-1)


def test_it_keeps_the_operators_templates_and_link():
    made = operator(lambda: "true", env={"A": "{{ run_id }}"})

    assert isinstance(made, GPUTrainingOperator)
    assert {"command", "env", "op_args", "op_kwargs"} <= set(made.template_fields)
    assert [link.name for link in made.operator_extra_links] == ["GPU training run"]
    assert made.custom_operator_name == "@task.gpu_training"


def test_it_can_be_mapped():
    with DAG("d", schedule=None):
        mapped = (
            gpu_training_task(lambda lr: f"train --lr {lr}", task_id="train", ssh_conn_id="gpu")
            .expand(lr=[0.1, 0.01])
            .operator
        )

    assert mapped.operator_class is GpuTrainingDecoratedOperator

"""The operator's argument ``rules``: found as Airflow finds templates, checked when the DAG is parsed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk import DAG

from gpualert import userrules
from gpualert.errors import InvalidSpec
from gpualert_provider.decorators.training import gpu_training_task
from gpualert_provider.operators.training import GPUTrainingOperator

RULE = {"name": "lab.gate", "pattern": "labfs gone", "class": "storage_io"}
COMPILED = {"format_version": 1, "rules": [RULE], "silence": []}
TOML = """
[[rule]]
name = "lab.gate"
pattern = "labfs gone"
class = "storage_io"
"""


@pytest.fixture
def dag(tmp_path: Path) -> DAG:
    """A DAG whose file lies in ``tmp_path/team``."""
    found = DAG("d", schedule=None, template_searchpath=[str(tmp_path / "shared")])
    found.fileloc = str(tmp_path / "team" / "dag.py")
    for name in ("team", "shared", "dags"):
        (tmp_path / name).mkdir()
    return found


@pytest.fixture(autouse=True)
def dags_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))


def operator(**arguments):
    return GPUTrainingOperator(**{"task_id": "t", "ssh_conn_id": "gpu", "command": "true", **arguments})


def shipped(found) -> object:
    return found._spec("label").rules


@pytest.mark.parametrize("folder", ["team", "shared", "dags"])
def test_a_relative_path_is_found(dag: DAG, tmp_path: Path, folder: str) -> None:
    """Beside the DAG file, in its search path, in the DAGs folder: the nearest one."""
    for name in ("dags", "shared", "team"):
        (tmp_path / name / "lab.json").write_text(json.dumps({**COMPILED, "silence": ["habit.wandb"]}))
        if name == folder:
            (tmp_path / name / "lab.json").write_text(json.dumps(COMPILED))
            break
    assert shipped(operator(dag=dag, rules="lab.json")) == COMPILED


def test_every_way_to_give_them(dag: DAG, tmp_path: Path) -> None:
    """A path, a Path, TOML text, and the compiled form say the same."""
    (tmp_path / "lab.toml").write_text(TOML)
    (tmp_path / "team" / "lab.toml").write_text(TOML)
    for number, given in enumerate(["lab.toml", str(tmp_path / "lab.toml"), tmp_path / "lab.toml", TOML, COMPILED]):
        assert shipped(operator(dag=dag, task_id=f"t{number}", rules=given)) == COMPILED
    assert shipped(operator()) is None


def test_the_decorator_takes_them(dag: DAG, tmp_path: Path) -> None:
    (tmp_path / "team" / "lab.json").write_text(json.dumps(COMPILED))
    with dag:

        @gpu_training_task(ssh_conn_id="gpu", rules="lab.json")
        def train():
            return "true"

        train()
    assert dag.get_task("train")._compiled_rules == COMPILED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.toml", r"rules: expected the file nowhere\.toml in .*team or .*shared or .*dags, found none"),
        ("/nowhere/lab.toml", r"rules: /nowhere/lab\.toml: expected a readable rules file, found: No such file"),
        ("lab.yaml", "rules: expected the path of a .toml or .json file"),
        ("{{ params.rules }}.toml", "found a template"),
        (7, "found int"),
        ({**COMPILED, "rules": [{**RULE, "class": "gremlin"}]}, r"rule 1 \(lab\.gate\): class: .*found 'gremlin'"),
        ({**COMPILED, "rules": [{**RULE, "pattern": "(a+)+$"}]}, r"rule 1 \(lab\.gate\): pattern: .*repetition"),
        ({**COMPILED, "rules": {1}}, "rules: expected values that JSON knows"),
        ({**COMPILED, "format_version": 2}, "expected format_version 1, found 2"),
        ("[[rule]]\nname = 'x'\n", "rule 1 .x.: name: expected"),
        ("[[rule]\n", "rules: text: expected TOML"),
    ],
)
def test_a_mistake_is_an_import_error(dag: DAG, given: object, message: str) -> None:
    """With file, rule and fault."""
    with pytest.raises(InvalidSpec, match=message):
        operator(dag=dag, rules=given)


def test_a_file_is_read_once_until_it_changes(dag: DAG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty tasks of a DAG that is parsed every half minute."""
    file = tmp_path / "team" / "lab.json"
    file.write_text(json.dumps(COMPILED))
    read: list[str] = []
    real = userrules.compile_file
    monkeypatch.setattr(userrules, "compile_file", lambda path: read.append(path) or real(path))
    for number in range(20):
        operator(dag=dag, task_id=f"t{number}", rules="lab.json")
    assert read == [str(file)]

    file.write_text(json.dumps({**COMPILED, "silence": ["habit.wandb"]}))
    os.utime(file, ns=(1, 1))
    assert shipped(operator(dag=dag, task_id="later", rules="lab.json"))["silence"] == ["habit.wandb"]


def test_they_are_not_in_the_serialized_dag(dag: DAG, tmp_path: Path) -> None:
    """Airflow's database keeps every version of it."""
    from airflow.serialization.serialized_objects import DagSerialization

    (tmp_path / "team" / "lab.json").write_text(json.dumps(COMPILED))
    operator(dag=dag, rules="lab.json")
    assert "labfs gone" not in json.dumps(DagSerialization.to_dict(dag))


def test_they_go_to_the_host_with_the_launch(world) -> None:
    world.run(rules=COMPILED)
    assert world.launched[0]["spec"]["rules"] == COMPILED


def test_nothing_is_imported_for_tasks_without_rules() -> None:
    """Most DAGs have none, and each DAG file is parsed in a process of its own."""
    code = (
        "import sys\n"
        "from gpualert_provider.operators.training import GPUTrainingOperator\n"
        "GPUTrainingOperator(task_id='t', command='true')\n"
        "print('gpualert.userrules' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr

"""Every example in dags/ parses under the Airflow that is installed, and shows one feature."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.test_tree import ROOT

PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1], bundle_name="examples")
print("RESULT" + json.dumps({
    "errors": {str(f): str(e) for f, e in bag.import_errors.items()},
    "dags": {d: [dag.fileloc, dag.doc_md] for d, dag in bag.dags.items()},
}))
"""


def parse(folder: Path, home: Path) -> dict[str, dict[str, object]]:
    """Parse a folder as the dag processor does, in a process of its own: Airflow keeps what it has read."""
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "provider")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(folder)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("RESULT")[2])  # type: ignore[no-any-return]


def test_every_example_parses_and_explains_itself(tmp_path: Path) -> None:
    """No import error, at least one DAG per file, and words for whoever opens it in the UI."""
    folder = ROOT / "dags"
    files = {str(p) for p in folder.glob("*.py")}

    found = parse(folder, tmp_path)

    assert files, "dags/ holds no example"
    assert found["errors"] == {}
    assert {fileloc for fileloc, _ in found["dags"].values()} == files  # type: ignore[misc]
    assert not [dag for dag, (_, doc) in found["dags"].items() if not doc]  # type: ignore[misc]

"""`gpualert doctor CONN` on a machine that has Airflow's database finds what `airflow connections add` put there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.sshd import SshHost

ROOT = Path(__file__).resolve().parents[2]


def test_a_connection_in_airflows_database_is_found(ssh_host: SshHost, tmp_path: Path) -> None:
    """No task runs here, so Airflow's SDK alone would look into the environment only."""
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "provider")]),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=120)

    assert run("-m", "airflow", "db", "migrate").returncode == 0
    added = run("-m", "airflow", "connections", "add", "gpu_box", "--conn-json", ssh_host.airflow_connection_json())
    assert added.returncode == 0, added.stderr

    code = "import json; from gpualert_provider.doctor import examine_connection as e; "
    done = run("-c", code + "print(json.dumps(e('gpu_box')))")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0]["status"] == "ok"

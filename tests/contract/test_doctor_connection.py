"""`gpualert doctor CONN` on a machine that has Airflow's database finds what `airflow connections add` put there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.airflow_rig import AirflowRig
from tests.support.sshd import SshHost

pytestmark = pytest.mark.slow

EXAMINE = "import json; from gpualert_provider.doctor import examine_connection as e; print(json.dumps(e('gpu_box')))"


def test_a_connection_in_airflows_database_is_found(ssh_host: SshHost) -> None:
    """No task runs here, so Airflow's SDK alone would look into the environment only."""
    rig = AirflowRig()
    try:
        rig.make_database()
        rig.run_airflow("connections", "add", "gpu_box", "--conn-json", ssh_host.airflow_connection_json())
        done = subprocess.run(
            [sys.executable, "-c", EXAMINE], capture_output=True, text=True, env=rig.environment(), timeout=120
        )
    finally:
        rig.remove()

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0]["status"] == "ok"

"""`gpualert doctor CONN` tells how far one gets, and then what the host finds itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpualert.doctor import Finding, worst
from gpualert_provider.doctor import examine_connection
from tests.support.sshd import SshHost

ROOT = Path(__file__).resolve().parents[2]


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_good_host_is_seen_through(ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lets us in, and the host's own findings."""
    monkeypatch.setenv("AIRFLOW_CONN_GPU_BOX", ssh_host.airflow_connection_json())

    found = by_name(examine_connection("gpu_box"))

    assert found["connection"].status == "ok"
    assert ssh_host.username in found["connection"].found
    assert {"python", "system", "root", "logout", "shm", "clock", "disk"} <= found.keys()


def test_a_host_that_does_not_answer_is_a_finding(ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that failed is named; nothing is raised."""
    monkeypatch.setenv("AIRFLOW_CONN_GPU_BOX", ssh_host.airflow_connection_json())
    ssh_host.stop()

    findings = examine_connection("gpu_box")

    assert [f.name for f in findings] == ["connection"]
    assert worst(findings) == "problem"
    assert findings[0].found.startswith("refused: ")


def test_a_foreign_host_key_is_a_finding(
    ssh_host: SshHost, ssh_host_with: Callable[..., SshHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's machine answers at this address."""
    other: Any = ssh_host_with()
    monkeypatch.setenv("AIRFLOW_CONN_GPU_BOX", ssh_host.airflow_connection_json(host_key=other.host_key_line))

    assert examine_connection("gpu_box")[0].found.startswith("host_key: ")


def test_an_unknown_connection_is_a_mistake_of_the_caller(ssh_host: SshHost) -> None:
    """The command line then ends with 2 and says where connections are defined."""
    with pytest.raises(LookupError, match="nope.*not found"):
        examine_connection("nope")


def test_a_connection_in_airflows_database_is_found(ssh_host: SshHost, tmp_path: Path) -> None:
    """Where `airflow connections add` put it, outside any task."""
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
    done = run("-c", code + "print(json.dumps([f.to_json() for f in e('gpu_box')]))")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0]["status"] == "ok"

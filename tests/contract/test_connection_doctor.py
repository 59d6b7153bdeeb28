"""`gpualert doctor CONN` names the first step that fails, and lets the host speak when none does."""

from __future__ import annotations

from typing import Any

import pytest

from gpualert_provider.doctor import STEPS, examine_connection
from tests.support.sshd import SshHost
from tools.rig.processes import free_port


def statuses(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {finding["name"]: finding["status"] for finding in reversed(findings)}


@pytest.fixture
def connect(ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**changes: Any) -> None:
        value = ssh_host.airflow_connection_json(**{"look_for_keys": False, **changes})
        monkeypatch.setenv("AIRFLOW_CONN_GPU_BOX", value)

    return make


def test_a_good_connection_passes_every_step_and_the_host_speaks(connect: Any):
    """Both SSH libraries get in, to the same machine; then come the host's own findings."""
    connect()
    found = statuses(examine_connection("gpu_box"))

    assert all(found[step] == "ok" for step in STEPS) and found["streaming"] == "ok"
    assert "roots" in found or any(name.startswith("root") for name in found), found


def test_the_first_step_that_fails_is_named_and_later_ones_are_unknown(
    connect: Any, ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    """Nothing is guessed about what was not reached."""
    assert statuses(examine_connection("nowhere"))["connection"] == "problem"

    connect(key_file=None)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    found = statuses(examine_connection("gpu_box"))
    assert found["host_key"] == "ok" and found["authentication"] == "problem" and found["python"] == "unknown"

    monkeypatch.setenv("HOME", str(tmp_path))
    connect(host_key=None)
    found = statuses(examine_connection("gpu_box"))
    assert found["tcp"] == "ok" and found["host_key"] == "problem" and found["authentication"] == "unknown"

    ssh_host.port, port = free_port(), ssh_host.port
    connect()
    ssh_host.port = port
    found = statuses(examine_connection("gpu_box"))
    assert found["dns"] == "ok" and found["tcp"] == "problem" and found["host_key"] == "unknown"

"""End-to-end tests share one real Airflow and one SSH host; a test that kills or freezes parts asks for its own.

``shared_rig``   an Airflow for the whole run, with the connection ``gpu_box`` and every file of dags/; a test adds DAGs
                 with ``shared_rig.write_dag`` under a name of its own, and leaves the components alone
``gpu_box``      the SSH host behind that connection
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import Account
from tests.support.airflow_rig import AirflowRig
from tools.rig.sshd import SshdMissing, SshHost

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def gpu_box(plain_account: Account | None) -> Iterator[SshHost]:
    """An SSH host on loopback that lives as long as the run."""
    try:
        host = SshHost(username=plain_account.name if plain_account else None)
    except SshdMissing as missing:
        pytest.skip(str(missing))
    with host:
        yield host


@pytest.fixture(scope="session")
def shared_rig(gpu_box: SshHost) -> Iterator[AirflowRig]:
    """One real Airflow for all tests that only run tasks in it."""
    rig = AirflowRig(dags=[ROOT / "dags"], connections={"gpu_box": gpu_box.airflow_connection_json()})
    with rig:
        yield rig

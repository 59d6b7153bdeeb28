"""Fixtures for every test, and the rule that decides in which half of `make test` one runs."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

# Before anything imports Airflow, which makes its home where it is told to: never the user's own.
_airflow_home = tempfile.mkdtemp(prefix="gpualert-test-home-")
atexit.register(shutil.rmtree, _airflow_home, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = _airflow_home
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] = "False"

# Started under nohup or as a script's background job, all that the tests start would ignore these signals, and what is
# promised about them could not be seen.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)

pytest_plugins = ["tests.support.sshd", "tests.support.machine", "tests.support.airflow_rig"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that starts a real Airflow belongs to the slow half, wherever its author forgot to say so."""
    for item in items:
        if item.path.is_relative_to(_HERE / "e2e"):
            item.add_marker("slow")

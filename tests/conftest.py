"""Fixtures for every test, and the rule that decides in which half of `make test` one runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["tests.support.sshd", "tests.support.machine", "tests.support.airflow_rig"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that starts a real Airflow belongs to the slow half, wherever its author forgot to say so."""
    for item in items:
        if item.path.is_relative_to(_HERE / "e2e"):
            item.add_marker("slow")

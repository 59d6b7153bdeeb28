"""Fixtures for tests of the Airflow side."""

from __future__ import annotations

import pytest

from tests.unit.provider.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """One task, its store and its host, all in memory."""
    return World(monkeypatch)

"""A real Airflow for end-to-end tests.

``airflow_rig_with``    a function that starts rigs, for example
                        ``airflow_rig_with(connections={"gpu_box": ssh_host.airflow_connection_json()})``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tools.rig.airflow import AirflowRig, Component
from tools.rig.airflow_api import AirflowApi, ApiRefused

__all__ = ["AirflowApi", "AirflowRig", "ApiRefused", "Component"]


@pytest.fixture
def airflow_rig_with() -> Iterator[Callable[..., AirflowRig]]:
    """Start real Airflows that are stopped at the end; the arguments are those of :class:`AirflowRig`."""
    with ExitStack() as stack:

        def make(**how: Any) -> AirflowRig:
            return stack.enter_context(AirflowRig(**how))

        yield make

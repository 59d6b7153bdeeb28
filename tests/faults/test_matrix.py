"""Every fault in every phase: the state is the training's own, its log is what it wrote, and it ran once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_trigger import no_waiting_after_failures
from tests.faults.matrix import BEGINNING, GONE, MATRIX, REST, WHOLE, Expected
from tests.faults.world import EXIT_CODE, PHASES, World, run_through
from tests.support.machine import Machine

__all__ = ["no_waiting_after_failures"]
pytestmark = pytest.mark.slow
REPORT = Path(__file__).resolve().parents[2] / ".cache" / "reports" / "faults"


@pytest.fixture
def world(machine_with: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> World:
    def connect(machine: Any) -> None:
        value = machine.airflow_connection_json(look_for_keys=False, conn_timeout=3, keepalive_interval=1)
        monkeypatch.setenv("AIRFLOW_CONN_GPU_BOX", value)

    return World(machine_with(), connect)


@pytest.mark.parametrize("name", list(MATRIX))
def test_after(name: str, world: World) -> None:
    """What the table in the docs says, and that is made from what is found here."""
    row = MATRIX[name]
    run_through(world, row.fault)

    found = {phase: found_of(world, phase, row.expected[phase]) for phase in PHASES}
    REPORT.mkdir(parents=True, exist_ok=True)
    (REPORT / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json").write_text(
        json.dumps({"fault": name, "found": {phase: value.words() for phase, value in found.items()}})
    )
    assert found == dict(row.expected), told(world)
    for phase in PHASES:
        outcome = world.trainings[phase].outcome
        if outcome is not None and outcome.state == "FAILED":
            assert outcome.exit_code == EXIT_CODE, f"{phase}: {outcome.exit_text}"


def found_of(world: World, phase: str, expected: Expected) -> Expected:
    """What became of a training, in the words of the table."""
    training = world.trainings[phase]
    if training.record is None:
        assert training.refused is not None
        return Expected(None, launches=world.launches(phase), refused=training.refused.kind)
    outcome = training.outcome
    assert outcome is not None, f"{phase}: no event"
    return Expected(
        str(outcome.state),
        outcome.failure_class,
        log_of(world, phase, expected.log),
        world.launches(phase),
        world.left(phase),
    )


def log_of(world: World, phase: str, expected: str) -> str:
    log, witness = world.log(phase), world.witness(phase)
    assert witness, f"{phase}: the training wrote nothing, so nothing is shown"
    if log is None:
        return GONE
    if hashlib.sha256(log).digest() == hashlib.sha256(witness).digest():
        # Where the child may have been killed between its two writes, either is right.
        return BEGINNING if expected == BEGINNING else WHOLE
    if expected == BEGINNING and log.startswith(world.before[phase]) and log:
        return BEGINNING
    if witness.endswith(log):
        return REST
    return f"neither whole nor a part of it: {log[-300:]!r} of {witness[-300:]!r}"


def told(world: World) -> str:
    return "\n".join(f"{phase}: {log.told}" for phase in PHASES for log in world.trainings[phase].logs)

"""The outcome as XComs: complete, bounded, NaN-free; a failed push costs a key and never the training's state."""

from __future__ import annotations

import json
import math

import pendulum
import pytest

from gpualert.key import Attempt
from gpualert.outcome import MAX_JSON_BYTES, Outcome
from gpualert.records import RunState
from gpualert_provider import xcoms


def outcome(**changes) -> Outcome:
    values = {
        "state": RunState.FAILED,
        "launch_id": "train-000000000000.1",
        "launch_number": 1,
        "attempt": Attempt(1, "id"),
        "host": {"name": "gpu_box", "machine_id": "m", "boot_id": "b"},
        "exit_code": 1,
        "failure_class": "cuda_oom",
        "coarse_class": "cuda_oom",
        "domain": "configuration",
        "retry_outlook": {"same_host": "no", "other_host": "no"},
        "log_path": "/r/0001/log",
        "run_directory": "/r/0001",
        "started_at": "2026-11-30T10:00:00+00:00",
        "ended_at": "2026-11-30T12:30:00.5+01:00",
        "duration_s": 5400.5,
    }
    return Outcome(**{**values, **changes})


def pushed(value: Outcome) -> dict:
    kept: dict = {}
    assert xcoms.push(value, lambda key, value: kept.__setitem__(key, value)) == []
    return kept


def test_flat_keys_and_the_whole():
    kept = pushed(outcome())

    assert set(kept) == {*xcoms.FLAT_KEYS, "outcome"}
    assert kept["failure_class"] == "cuda_oom"
    assert kept["exit_code"] == 1
    assert kept["signal"] is None
    assert kept["run_state"] == "FAILED"
    assert kept["host"] == "gpu_box"
    assert kept["log_path"] == "/r/0001/log"
    assert Outcome.from_json(kept["outcome"]) == outcome()


def test_times_are_pendulum_in_utc():
    kept = pushed(outcome())

    assert kept["ended_at"] == pendulum.datetime(2026, 11, 30, 11, 30, 0, microsecond=500_000)
    for name in ("started_at", "ended_at"):
        assert isinstance(kept[name], pendulum.DateTime)
        assert kept[name].timezone_name == "UTC"


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-13-01T00:00:00"])
def test_a_time_that_is_none_stays_unknown(text):
    assert xcoms.utc(text) is None


def test_no_nan_reaches_airflow():
    """A NaN in an XCom fails the task, and training metrics are full of them."""
    kept = pushed(outcome(result={"loss": math.nan, "curve": [1.0, math.inf]}, duration_s=math.nan))

    json.dumps({k: v for k, v in kept.items() if not k.endswith("_at")}, allow_nan=False)
    assert kept["outcome"]["result"] == {"loss": None, "curve": [1.0, None]}
    assert kept["duration_s"] is None


def test_it_stays_below_48_kib():
    """Whatever the log's lines and the result are like, non-ASCII text too."""
    fat = outcome(
        result={"x": "ü" * 40_000},
        evidence=tuple({"source": "log", "text": "語" * 500} for _ in range(6)),
        cascade=tuple({"source": "log", "text": "語" * 500} for _ in range(60)),
    )

    assert len(json.dumps(pushed(fat)["outcome"], ensure_ascii=False).encode()) <= MAX_JSON_BYTES


def test_text_is_redacted_wherever_it_stands(monkeypatch):
    monkeypatch.setattr(xcoms, "redact", lambda text: text.replace("hunter2", "*******"))

    kept = pushed(outcome(evidence=({"text": "password hunter2"},), result={"hunter2": ["hunter2"]}))

    assert "hunter2" not in json.dumps(kept["outcome"])


def test_a_refused_key_costs_that_key_alone(caplog):
    """Telling an outcome never changes it."""
    kept = {}

    def push(key, value):
        if key == "exit_code":
            raise RuntimeError("API_SERVER_ERROR")
        kept[key] = value

    assert xcoms.push(outcome(), push) == ["exit_code"]
    assert "outcome" in kept
    assert "'exit_code' could not be pushed" in caplog.text

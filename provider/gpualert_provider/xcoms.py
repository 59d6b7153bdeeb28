"""The outcome as XComs: one versioned object, and the flat keys that people filter and branch on.

XComs live in Airflow's database, and a NaN in one fails the task: everything here is bounded, NaN-free and redacted.
Telling an outcome never changes it: when a push fails, the training's state stands, and the log says what could not be
pushed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pendulum

from gpualert.outcome import MAX_JSON_BYTES, Outcome, without_nan
from gpualert_provider.redaction import redact

OUTCOME_KEY = "outcome"
RETRY_DECISION_KEY = "retry_decision"
#: Flat keys, in the order in which they are pushed; the last one is the whole.
FLAT_KEYS = (
    "failure_class",
    "coarse_class",
    "domain",
    "retry_outlook",
    "run_state",
    "exit_code",
    "signal",
    "host",
    "launch_id",
    "run_directory",
    "log_path",
    "log_size_bytes",
    "started_at",
    "ended_at",
    "duration_s",
)

log = logging.getLogger(__name__)


def flat_values(outcome: Outcome) -> dict[str, Any]:
    """
    The values of :data:`FLAT_KEYS`, and ``outcome``.

    ``run_state`` is our state (SUCCEEDED, FAILED, STOPPED, TIMED_OUT, LOST, UNREACHABLE), which says more than the
    task's. Unknown values are None. ``started_at`` and ``ended_at`` are ``pendulum.DateTime`` in UTC (inside
    ``outcome`` they stay ISO text); ``host`` is the name alone.
    """
    values = {
        "failure_class": outcome.failure_class,
        "coarse_class": outcome.coarse_class,
        "domain": outcome.domain,
        "retry_outlook": None if outcome.retry_outlook is None else dict(outcome.retry_outlook),
        "run_state": outcome.state.value,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "host": outcome.host.get("name"),
        "launch_id": outcome.launch_id,
        "run_directory": outcome.run_directory,
        "log_path": outcome.log_path,
        "log_size_bytes": outcome.log_size_bytes,
        "started_at": utc(outcome.started_at),
        "ended_at": utc(outcome.ended_at),
        "duration_s": without_nan(outcome.duration_s),
        OUTCOME_KEY: redacted(outcome.to_json()),
    }
    size = len(json.dumps(values[OUTCOME_KEY], ensure_ascii=False).encode("utf-8", "replace"))
    if size > MAX_JSON_BYTES:  # a mask may be longer than what it hides
        values[OUTCOME_KEY].update(result=None, result_error=f"left out here to stay below {MAX_JSON_BYTES} bytes")
    return values


def push(outcome: Outcome, xcom_push: Callable[..., Any]) -> list[str]:
    """
    Push them all, each on its own, so that one refusal costs one key.

    :param xcom_push: ``ti.xcom_push``.
    :return: the keys that could not be pushed; the reason is in the log.
    """
    failed = []
    for key, value in flat_values(outcome).items():
        if not push_one(xcom_push, key, value):
            failed.append(key)
    return failed


def push_one(xcom_push: Callable[..., Any], key: str, value: Any) -> bool:
    """Push one value; False, and a warning in the log, when it did not work."""
    try:
        xcom_push(key=key, value=value)
    except Exception as error:
        log.warning(
            "XCom %r could not be pushed; the training's state stands. %s: %s", key, type(error).__name__, error
        )
        return False
    return True


def redacted(value: Any) -> Any:
    """A copy with every text redacted, keys too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(str(name)): redacted(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(v) for v in value]
    return value


def utc(text: str | None) -> datetime | None:
    """ISO 8601 text as ``pendulum.DateTime`` in UTC; None for None, and for what is no time."""
    if text is None:
        return None
    try:
        moment = pendulum.parse(text, tz="UTC")
    except ValueError:
        return None
    return moment.in_timezone("UTC") if isinstance(moment, pendulum.DateTime) else None

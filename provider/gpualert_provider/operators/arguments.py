"""From the operator's arguments to a checked :class:`~gpualert.spec.LaunchSpec`.

Twice: when the DAG is parsed, for everything that is no template, so that a mistake is an import error and not a failed
night; and when the task runs, with the rendered values.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from datetime import timedelta
from typing import Any

from gpualert.errors import InvalidSpec
from gpualert.spec import LaunchSpec

#: Stands for a template when the DAG is parsed.
_PLACEHOLDER = "/placeholder"
_TEMPLATE_MARKS = ("{{", "{%", "{#")


def seconds(name: str, value: Any, *, optional: bool = False, positive: bool = False) -> float | None:
    """
    A length of time, given as timedelta or as a number of seconds.

    :param positive: 0 is refused too.
    :raises InvalidSpec: it is neither, or too small.
    """
    if value is None and optional:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidSpec(f"{name}: expected a timedelta or a number of seconds, found {value!r}")
    if value < 0 or (positive and value == 0):
        raise InvalidSpec(f"{name}: expected {'more than 0' if positive else '0 or more'} seconds, found {value:g}")
    return float(value)


def exit_codes(value: int | Container[int] | None) -> frozenset[int]:
    """
    :raises InvalidSpec: not an exit status that a process can end with and that is a failure.
    """
    if value is None:
        return frozenset()
    codes = [value] if isinstance(value, int) else value
    if isinstance(codes, (str, bytes)) or not isinstance(codes, (Sequence, set, frozenset, range)):
        raise InvalidSpec(f"skip_on_exit_code: expected a number or a list of numbers, found {value!r}")
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255:
            raise InvalidSpec(f"skip_on_exit_code: expected exit statuses of 1 to 255, found {code!r}")
    return frozenset(codes)


def check_secret_env(secret_env: Any) -> None:
    """
    :raises InvalidSpec: not a mapping from names to ids. The names themselves are checked with the spec.
    """
    if not isinstance(secret_env, Mapping):
        raise InvalidSpec(
            "secret_env: expected a mapping from variable names to ids of Airflow connections or variables, "
            f"found {type(secret_env).__name__}"
        )
    for name, reference in secret_env.items():
        # The value is not shown: someone may have put the secret itself there.
        if not isinstance(reference, str) or not reference.strip():
            raise InvalidSpec(
                f"secret_env[{name!r}]: expected the id of an Airflow connection or variable, "
                f"found {type(reference).__name__}"
            )


def is_template(value: Any) -> bool:
    """Whether the value is only known when the task runs: a template, or the output of another task."""
    if isinstance(value, str):
        return any(mark in value for mark in _TEMPLATE_MARKS)
    if isinstance(value, Mapping):
        return any(is_template(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(is_template(v) for v in value)
    return value is not None and not isinstance(value, (bool, int, float))


def checked_when_parsed(arguments: Mapping[str, Any]) -> None:
    """
    Check what can be checked before templates are rendered.

    :param arguments: those of :class:`LaunchSpec`.
    :raises InvalidSpec: the first thing that cannot be right, by name.
    """
    known = dict(arguments)
    if is_template(known.get("command")):
        known["command"] = _PLACEHOLDER
    for name in ("cwd", "setup", "result_file", "root", "stop_command"):
        if is_template(known.get(name)):
            known[name] = _PLACEHOLDER
    if is_template(known.get("environment")):
        known["environment"] = f"venv:{_PLACEHOLDER}"
    if isinstance(known.get("env"), Mapping):
        known["env"] = {n: _PLACEHOLDER if is_template(v) else v for n, v in known["env"].items()}
    elif is_template(known.get("env")):
        known["env"] = {}
    known["secret_env"] = tuple(known.get("secret_env") or ())
    known["rules"] = None  # checked when they were compiled, once for all tasks that share them
    spec(known)


def spec(arguments: Mapping[str, Any]) -> LaunchSpec:
    """
    :raises InvalidSpec: by name.
    """
    env = arguments.get("env")
    if env is not None and not isinstance(env, Mapping):
        raise InvalidSpec(f"env: expected a mapping from names to text, found {type(env).__name__}")
    return LaunchSpec(**{name: value for name, value in arguments.items() if value is not None})

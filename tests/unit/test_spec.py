"""A spec that exists can be attempted; what cannot be right is refused by name."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gpualert.errors import InvalidSpec
from gpualert.spec import LaunchSpec


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ""}, "command: expected something to run"),
        ({"command": " \n"}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": ["a", 1]}, r"command\[1\]: expected a string, found int"),
        ({"command": 3}, "command: expected a string or a list"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "x" * (4 * 1024 * 1024 + 1)}, "at most"),
        ({"cwd": "relative/path"}, "cwd: expected an absolute path"),
        ({"cwd": "~other/x"}, "cwd"),
        ({"cwd": "/a\nb"}, "line break"),
        ({"root": "x"}, "root: expected an absolute path"),
        ({"env": {"A B": "x"}}, "env: expected names"),
        ({"env": {"A\n": "x"}}, "env: expected names"),
        ({"env": {"": "x"}}, "env: expected names"),
        ({"env": {"A": "x\0"}}, "NUL"),
        ({"env": {"A": 1}}, "expected text, found int"),
        ({"env": {"GPUALERT_LAUNCH_ID": "x"}}, "reserved"),
        ({"secret_env": ("1A",)}, "secret_env"),
        ({"secret_env": ("A",), "env": {"A": "x"}}, "also given in env"),
        ({"environment": "train"}, "expected conda:NAME"),
        ({"environment": "conda:"}, "expected conda:NAME"),
        ({"environment": "docker:x"}, "expected conda:NAME"),
        ({"setup": " "}, "setup"),
        ({"deadline_s": 0}, "deadline_s: expected more than 0"),
        ({"deadline_s": -1}, "deadline_s"),
        ({"deadline_s": math.nan}, "deadline_s"),
        ({"deadline_s": True}, "deadline_s"),
        ({"grace_period_s": -0.1}, "grace_period_s: expected 0 or more"),
        ({"stop_signal": "SIGKILL"}, "stop_signal: expected one of"),
        ({"stop_signal": "TERM"}, "stop_signal"),
        ({"leftovers": "adopt"}, "leftovers"),
        ({"env": ["A"]}, "env: expected names with their values, found list"),
        ({"secret_env": "TOKEN"}, "secret_env: expected a list of names, found str"),
        ({"secret_env": 5}, "secret_env: expected a list of names, found int"),
        ({"environment": 5}, "environment: expected text"),
        ({"unbuffered": "yes"}, "unbuffered: expected true, false or null"),
        ({"label": 5}, "label: expected text, found int"),
        ({"deadline_s": 10**400}, "deadline_s: expected a number of seconds"),
        ({"deadline_s": "x"}, "deadline_s: expected a number of seconds, found 'x'"),
        ({"rules": "lab.toml"}, "rules: expected the compiled form"),
        ({"rules": {"rules": []}}, "rules: expected the compiled form"),
        ({"rules": {"format_version": 1, "rules": [{1}]}}, "rules: expected values that JSON knows"),
        ({"rules": {"format_version": 1, "rules": ["x" * 262144]}}, "rules: expected at most 262144 bytes"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words) as caught:
        LaunchSpec(**{"command": "true", **options})
    assert caught.value.kind == "invalid_spec"


def test_a_spec_survives_json() -> None:
    spec = LaunchSpec(
        ["python", "train.py"],
        cwd="~/x",
        env={"A": "b"},
        secret_env=("T",),
        deadline_s=5,
        stop_signal="SIGUSR1",
        rules={"format_version": 1, "rules": [], "silence": ["habit.wandb"]},
    )
    assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_an_unknown_field_is_refused_not_ignored() -> None:
    """Who asks for something that this version cannot do must hear it."""
    with pytest.raises(InvalidSpec, match="gpus"):
        LaunchSpec.from_json({"command": "x", "gpus": 4})
    with pytest.raises(InvalidSpec, match="'command' is missing"):
        LaunchSpec.from_json({})

"""A launch is judged by the rules that came with it; where they cannot be used, by the built-in ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpualert.launch_rules import rules_of_launch
from gpualert.observer import ScanProgress
from gpualert.rundir import RunDirectory

RULE = {"name": "lab.gateway", "pattern": "labfs gateway went away", "class": "storage_io"}
RULES: dict[str, Any] = {"format_version": 1, "rules": [RULE], "silence": ["habit.wandb"]}


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(str(tmp_path / "0001"))
    found.create()
    return found


def test_without_rules_there_are_the_built_in_ones(directory: RunDirectory) -> None:
    assert rules_of_launch(directory) == (None, None)


def test_rules_are_read(directory: RunDirectory) -> None:
    Path(directory.rules_path).write_text(json.dumps(RULES))
    rules, warning = rules_of_launch(directory)
    assert warning is None and rules is not None
    assert "lab.gateway" in rules and "habit.wandb" not in rules


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps({**RULES, "format_version": 2}), "found 2"),
        (json.dumps({**RULES, "rules": [{**RULE, "class": "gremlin"}]}), "rule 1 (lab.gateway): class"),
        (json.dumps({**RULES, "rules": [{**RULE, "pattern": "(a+)+"}]}), "repetition"),
        (json.dumps({**RULES, "silence": [["x"]]}), "silence"),
        ("", "empty"),
        ("{", "expected a JSON object"),
        ("[" * 100_000, ""),
    ],
)
def test_rules_that_cannot_be_used_are_a_warning(directory: RunDirectory, content: str, words: str) -> None:
    """A newer format, damage, a class that this version does not know."""
    Path(directory.rules_path).write_text(content)
    rules, warning = rules_of_launch(directory)
    assert rules is None
    assert warning is not None and "built-in rules alone" in warning and words in warning
    assert "\n" not in warning


def test_rules_that_are_no_file_are_a_warning(directory: RunDirectory) -> None:
    os.mkdir(directory.rules_path)
    rules, warning = rules_of_launch(directory)
    assert rules is None and warning is not None and "cannot read" in warning


def test_a_scan_by_other_rules_is_not_continued(directory: RunDirectory) -> None:
    """What was scanned without the rules would be judged without them."""
    Path(directory.log_path).write_text("labfs gateway went away\nnothing\n")
    before = ScanProgress(directory)
    before.advance()
    saved = before.to_json()
    assert saved["offset"] > 0 and ScanProgress(directory, saved).reader.position[1] > 0

    Path(directory.rules_path).write_text(json.dumps(RULES))
    after = ScanProgress(directory, saved)

    assert after.reader.position == (0, 0)
    after.advance()
    assert [event.rule for event in after.scanner.finish().events] == ["lab.gateway"]

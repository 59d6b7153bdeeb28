"""``gpualert rules``: says what a file does, names its faults, tries it on a log, compiles it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpualert import cli
from gpualert.userrules import load_rules

toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python has no TOML reader (3.11 has)")

RULES: dict[str, Any] = {
    "format_version": 1,
    "rules": [
        {"name": "lab.gateway", "pattern": "labfs gateway went away", "class": "storage_io", "advice": "Wait."},
        {"name": "cuda_oom.torch", "pattern": "GPU is full", "class": "cuda_oom", "no_retry": True},
    ],
    "silence": ["habit.wandb"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "lab.rules.json"
    found.write_text(json.dumps(RULES))
    return found


def test_check_says_what_the_file_does(file: Path, capsys) -> None:
    assert cli.main(["rules", "check", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "adds      lab.gateway: storage_io (root)",
        "          advice: Wait.",
        "replaces  cuda_oom.torch: cuda_oom (root), no retry",
        "silences  habit.wandb",
    ]


def test_check_shows_the_lines_of_a_log(file: Path, tmp_path: Path, capsys) -> None:
    """All that were counted, the first and the last of them shown; in tracebacks too."""
    log = tmp_path / "a.log"
    log.write_text(
        "ok\n"
        + "labfs gateway went away\n" * 20
        + 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nOSError: labfs gateway went away\n'
    )
    assert cli.main(["rules", "check", "--json", str(file), "--log", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)["log"]
    assert found["counts"] == {"cuda_oom.torch": 0, "lab.gateway": 21}
    assert (found["matches"][0]["line"], found["matches"][-1]["line"]) == (2, 24)
    assert cli.main(["rules", "check", str(file), "--log", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "lab.gateway: 21 line(s)" in shown and "line 24: OSError" in shown and "and 12 more" in shown
    assert "cuda_oom.torch: no line" in shown


def test_check_tells_why_a_pattern_speaks_in_vain(tmp_path: Path, capsys) -> None:
    """Its pattern matches, but a benign rule takes the line."""
    file, log = tmp_path / "r.json", tmp_path / "a.log"
    rows = [
        {"name": "lab.drill", "pattern": "this is a drill", "role": "benign"},
        {"name": "lab.gateway", "pattern": "labfs gateway went away", "class": "storage_io"},
    ]
    file.write_text(json.dumps({"format_version": 1, "rules": rows}))
    log.write_text("ok\nlabfs gateway went away (this is a drill)\n")
    assert cli.main(["rules", "check", "--json", str(file), "--log", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)["log"]
    assert found["counts"] == {"lab.drill": 1, "lab.gateway": 0}
    assert [(item["rule"], item["line"]) for item in found["not_found_by_words"]] == [("lab.gateway", 2)]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_check_names_every_fault(tmp_path: Path, words: list[str], capsys) -> None:
    """On stdout, for they are the answer; the status is 1."""
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({"format_version": 1, "rules": [{"name": "a.b", "pattern": "(a+)+"}, 7]}))
    assert cli.main(["rules", "check", *words, str(file)]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    faults = json.loads(shown.out)["faults"] if words else shown.out.splitlines()
    assert any("rule 1 (a.b): pattern" in fault for fault in faults)
    assert any("rule 2: expected a table" in fault for fault in faults)


@pytest.mark.parametrize("action", ["check", "compile"])
def test_a_file_that_cannot_be_read_is_not_an_answer(tmp_path: Path, action: str, capsys) -> None:
    assert cli.main(["rules", action, str(tmp_path / "none.toml")]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "none.toml: expected a readable rules file" in shown.err


@toml
def test_compile_prints_what_other_verbs_take(tmp_path: Path, capsys) -> None:
    source, compiled = tmp_path / "a.toml", tmp_path / "a.json"
    source.write_text('[[rule]]\nname = "lab.x"\npattern = "labfs gone"\nclass = "storage_io"\n')
    assert cli.main(["rules", "compile", str(source)]) == 0
    compiled.write_text(capsys.readouterr().out)
    assert load_rules(str(compiled)).rows == load_rules(str(source)).rows

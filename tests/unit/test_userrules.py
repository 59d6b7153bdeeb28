"""Rules of the user's own: they add, replace and silence, and their faults are all named."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from gpualert.classify_file import classify_file
from gpualert.taxonomy import FailureClass
from gpualert.userrules import InvalidRules, check_rules, compile_rules, load_rules, rules_from_json

GOOD = """
silence = ["missing_module.python"]

[[rule]]
name = "lab.licence"
words = ["no seats"]
pattern = 'licence checkout failed: no seats'
class = "usage_error"
domain = "configuration"
advice = "Ask for a seat."

[[rule]]
name = "cuda_oom.torch"
words = ["out of memory"]
pattern = 'GPU is out of memory'
class = "cuda_oom"
"""

toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python has no TOML reader (3.11 has)")


@toml
def test_rules_add_replace_and_silence(tmp_path: Path) -> None:
    """In front of the built-in rows, compiled to JSON with the same effect."""
    source = tmp_path / "my.rules.toml"
    source.write_text(GOOD)
    compiled = tmp_path / "my.rules.json"
    compiled.write_text(json.dumps(compile_rules(GOOD)))
    log = tmp_path / "a.log"
    log.write_text("2025 licence checkout failed: no seats\n")
    for path in (source, compiled):
        rules = load_rules(str(path))
        verdict = classify_file(str(log), code=1, rules=rules)
        assert verdict.failure_class is FailureClass.USAGE_ERROR
        assert (verdict.root is not None and verdict.root.rule, verdict.advice) == ("lab.licence", "Ask for a seat.")
        assert rules["cuda_oom.torch"].pattern == "GPU is out of memory"
        assert "missing_module.python" not in rules


@toml
@pytest.mark.parametrize(
    "text, words",
    [
        ("x = 1", "found x"),
        ("[[rule]", "expected TOML"),
        ('silence = ["nobody.home"]', "no built-in rule 'nobody.home'"),
        ('[[rule]]\nname = "Bad"\nwords=["abc"]\npattern="x"\nclass="nccl"', "name: expected"),
        ('[[rule]]\nname = "a.b"\nwords=["abc"]\npattern="(x+)+"\nclass="nccl"', "inside one another"),
        ('[[rule]]\nname = "a.b"\nwords=["abc"]\npattern="x.*y"\nclass="nccl"', "give it a bound"),
        ('[[rule]]\nname = "a.b"\nwords=["abc"]\npattern="(x"\nclass="nccl"', "expected a regular expression"),
        (
            '[[rule]]\nname = "a.b"\nwords=["abc"]\npattern="(?:(?:(?:a?){30}){30}){30}b"\nclass="nccl"',
            "steps from one place",
        ),
        ('[[rule]]\nname = "a.b"\nwords=["12"]\npattern="x"\nclass="nccl"', "fewer than three"),
        ('[[rule]]\nname = "a.b"\nwords=["abc"]\npattern="x"\nclass="gremlin"', "found 'gremlin'"),
        ('[[rule]]\nname = "a.b"\nwords=["abc"]\npattern="x"\nclass="nccl"\ncolour="red"', "unknown key 'colour'"),
        (
            '[[rule]]\nname = "a.b"\nwords=["abc"]\npattern="(x)y\\\\1"\nclass="nccl"',
            "rule 1 (a.b): pattern: a back-ref",
        ),
        ('[[rule]]\nname = "a.b"\npattern="abc"\nclass="success"', "class of a cause, found 'success'"),
        ('[[rule]]\nname = "a.b"\npattern="abc"\nclass="nccl"\nadvice=3', "advice: expected text"),
        ('[[rule]]\nname = "a.b"\npattern="abc"\nclass="nccl"\nno_retry="yes"', "no_retry: expected true or false"),
        ('silence = ["habit.wand"]', "did you mean 'habit.wandb'?"),
        ("silence = [3]", "no built-in rule 3"),
        ('[[rule]]\nname = "a.b"\npattern="a.b|c"\nclass="nccl"', "three letters in a row"),
    ],
)
def test_faults_are_named(text: str, words: str) -> None:
    """With the file, the rule's number and what was expected."""
    with pytest.raises(InvalidRules, match=r"my\.toml") as caught:
        compile_rules(text, "my.toml")
    assert words in str(caught.value)


def test_a_rule_s_word_on_advice_domain_and_retry_counts(tmp_path: Path) -> None:
    """In a traceback's own exception too; the class stays in the closed vocabulary."""
    rule = {
        "name": "lab.mesh",
        "pattern": "MeshError: no such mesh",
        "class": "hub_network",
        "domain": "data",
        "advice": "Build the mesh first.",
        "no_retry": True,
    }
    log = tmp_path / "a.log"
    log.write_text('Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nMeshError: no such mesh\n')
    verdict = classify_file(str(log), code=1, rules=rules_from_json({"format_version": 1, "rules": [rule]}))
    assert (verdict.failure_class.value, verdict.domain.value) == ("hub_network", "data")
    assert verdict.advice is not None and verdict.advice.startswith("Build the mesh first.")
    assert (verdict.retry_outlook.same_host.value, verdict.retry_outlook.other_host.value) == ("no", "no")


def test_a_file_that_grew_too_large_is_refused() -> None:
    """It travels with every launch."""
    rules = [{"name": f"lab.x{n}", "pattern": f"abc{n}", "words": ["abc" * 300], "class": "nccl"} for n in range(300)]
    with pytest.raises(InvalidRules, match="at most 262144 bytes"):
        check_rules({"format_version": 1, "rules": rules})


@toml
def test_before_python_311_the_package_tomli_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with the provider where Python has no reader of its own; without it the way out is told."""
    reader = importlib.import_module("tomllib")
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", reader)
    assert [row.name for row in check_rules(compile_rules(GOOD)).added] == ["lab.licence"]
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(InvalidRules, match="no TOML reader .*gpualert rules compile"):
        compile_rules(GOOD)


def test_all_faults_are_named_at_once() -> None:
    """Nobody wants to find them one by one."""
    value = {"format_version": 1, "rules": [{"name": "x"}, 7], "silence": ["a.b"]}
    with pytest.raises(InvalidRules) as caught:
        rules_from_json(value)
    assert len(str(caught.value).splitlines()) >= 5


def test_a_newer_format_is_refused() -> None:
    """And says which was expected."""
    with pytest.raises(InvalidRules, match="expected format_version 1, found 2"):
        rules_from_json({"format_version": 2})

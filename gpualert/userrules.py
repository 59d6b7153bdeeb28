"""Rules of the user's own: add a row, replace one by its name, silence others.

Written in TOML, which only Python 3.11 and later can read, so they are compiled to JSON where they are written and
travel in that form. All of a file's faults are found when it is loaded, each with its place.

    silence = ["habit.wandb"]

    [[rule]]
    name = "lab.licence"
    words = ["license checkout failed"]
    pattern = 'license checkout failed: no seats'
    class = "usage_error"
    role = "root"
    domain = "configuration"
    advice = "Ask for a seat."
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from gpualert.errors import GpuAlertError
from gpualert.signature import Role, RuleSet, Signature, default_rules, fold_word
from gpualert.signature_lint import faults_of_pattern
from gpualert.taxonomy import FailureClass, FailureDomain

FORMAT_VERSION = 1
_MAX_RULES = 500
_KEYS = {"name", "words", "pattern", "class", "role", "domain", "advice", "proves_not", "no_retry"}
_NAME = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")


class InvalidRules(GpuAlertError, ValueError):
    """A rules file cannot be used; the message names the place and every fault in it."""

    kind = "invalid_rules"


def compile_rules(text: str, name: str = "rules") -> dict[str, Any]:
    """
    TOML to the JSON-able form that travels.

    :raises InvalidRules: it is no TOML, a rule is wrong, or this Python (before 3.11) has no TOML reader.
    """
    try:
        tomllib = importlib.import_module("tomllib")
    except ImportError:
        raise InvalidRules(
            f"{name}: this Python has no TOML reader (3.11 has); compile the rules to JSON where there is one"
        ) from None
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRules(f"{name}: expected TOML: {error}") from None
    compiled = {
        "format_version": FORMAT_VERSION,
        "rules": value.pop("rule", []),
        "silence": value.pop("silence", []),
    }
    if value:
        raise InvalidRules(f"{name}: expected [[rule]] and silence, found {', '.join(sorted(value))}")
    rules_from_json(compiled, name)
    return compiled


def rules_from_json(value: Mapping[str, Any], name: str = "rules") -> RuleSet:
    """
    The built-in rules with the user's in front.

    :raises InvalidRules: with all faults, one a line.
    """
    if value.get("format_version") != FORMAT_VERSION:
        raise InvalidRules(f"{name}: expected format_version {FORMAT_VERSION}, found {value.get('format_version')!r}")
    rules, silence = value.get("rules", []), value.get("silence", [])
    if not isinstance(rules, list) or not isinstance(silence, list):
        raise InvalidRules(f"{name}: expected lists under rule and silence")
    if len(rules) > _MAX_RULES:
        raise InvalidRules(f"{name}: expected at most {_MAX_RULES} rules, found {len(rules)}")
    faults: list[str] = []
    rows: list[Signature] = []
    for number, entry in enumerate(rules, 1):
        row = _row(entry, f"{name}: rule {number}", faults)
        if row is not None:
            if any(row.name == other.name for other in rows):
                faults.append(f"{name}: rule {number}: the name {row.name!r} is used twice")
            rows.append(row)
    built_in = default_rules()
    for item in silence:
        if item not in built_in:
            faults.append(f"{name}: silence: there is no rule {item!r}")
    if faults:
        raise InvalidRules("\n".join(faults))
    replaced = {row.name for row in rows}
    kept = [row for row in built_in.rows if row.name not in replaced and row.name not in silence]
    return RuleSet(tuple(rows) + tuple(kept))


def _row(entry: Any, place: str, faults: list[str]) -> Signature | None:
    before = len(faults)
    if not isinstance(entry, Mapping):
        faults.append(f"{place}: expected a table, found {type(entry).__name__}")
        return None
    for key in sorted(set(entry) - _KEYS):
        faults.append(f"{place}: unknown key {key!r}; known are {', '.join(sorted(_KEYS))}")
    name = entry.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        faults.append(f"{place}: name: expected lower-case words with a point, such as 'lab.licence', found {name!r}")
    pattern = entry.get("pattern")
    if not isinstance(pattern, str) or not pattern:
        faults.append(f"{place}: pattern: expected a regular expression, found {pattern!r}")
    else:
        faults.extend(f"{place}: pattern: {fault}" for fault in faults_of_pattern(pattern))
    words = entry.get("words", [pattern] if isinstance(pattern, str) and re.fullmatch(r"[\w ,/-]+", pattern) else None)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        faults.append(f"{place}: words: expected a list of plain strings of which one is in every line to be matched")
        words = []
    for word in words:
        if len(fold_word(word)) < 3:
            faults.append(f"{place}: words: {word!r} has fewer than three characters that are no digits")
    role = _member(Role, entry.get("role", "root"), f"{place}: role", faults)
    failure_class = None
    if role in (Role.BENIGN, Role.NOTE) and "class" not in entry:
        pass
    else:
        failure_class = _member(FailureClass, entry.get("class"), f"{place}: class", faults)
    domain = None if "domain" not in entry else _member(FailureDomain, entry["domain"], f"{place}: domain", faults)
    if len(faults) > before:
        return None
    return Signature(
        name=str(name),
        words=tuple(words),
        pattern=str(pattern),
        role=role,
        failure_class=failure_class,
        domain=domain,
        proves_not=str(entry.get("proves_not", "")),
        advice=None if entry.get("advice") is None else str(entry["advice"])[:500],
        no_retry=bool(entry.get("no_retry", False)),
    )


def _member(vocabulary: Any, value: Any, place: str, faults: list[str]) -> Any:
    try:
        return vocabulary(value)
    except ValueError:
        known = ", ".join(item.value for item in vocabulary)
        faults.append(f"{place}: expected one of {known}; found {value!r}")
        return None


def load_rules(path: str) -> RuleSet:
    """
    Rules from a ``.toml`` file or a compiled ``.json`` file.

    :raises InvalidRules: the file cannot be read, or something in it is wrong.
    """
    name = os.path.basename(path)
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRules(f"{path}: expected a readable rules file, found: {error}") from None
    if path.endswith(".json"):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidRules(f"{name}: expected JSON: {error}") from None
        if not isinstance(value, dict):
            raise InvalidRules(f"{name}: expected a JSON object")
        return rules_from_json(value, name)
    return rules_from_json(compile_rules(text, name), name)

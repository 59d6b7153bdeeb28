"""Rules of the user's own: add a row, replace one by its name, silence others.

Written in TOML, which only Python 3.11 and later can read by itself, so they are compiled to JSON where they are
written, and travel in that form. All of a file's faults are found when it is loaded, each with its place.

    silence = ["habit.wandb"]

    [[rule]]
    name = "lab.licence"
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
from typing import Any, NamedTuple

from gpualert.durable import encode_json
from gpualert.errors import GpuAlertError
from gpualert.pattern_time import faults_of_user_pattern
from gpualert.signature import Role, RuleSet, Signature, fold_word, needs_words
from gpualert.signature_lint import faults_of_pattern
from gpualert.signatures import TABLE
from gpualert.spec import MAX_RULES_BYTES
from gpualert.taxonomy import FailureClass, FailureDomain

FORMAT_VERSION = 1
_MAX_RULES = 500
_KEYS = {"name", "words", "pattern", "class", "role", "domain", "advice", "proves_not", "no_retry"}
#: Readers of TOML: Python's own since 3.11, and the package it came from, which Airflow brings along before that.
_TOML_READERS = ("tomllib", "tomli")
_NO_CAUSE = (FailureClass.SUCCESS, FailureClass.UNKNOWN)
_MAX_ADVICE = 500
#: A pattern that is plain text: it is its own word.
_NAME = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+")


class InvalidRules(GpuAlertError, ValueError):
    """A rules file cannot be used; the message names the place and every fault in it."""

    kind = "invalid_rules"


class RulesUnreadable(InvalidRules):
    """A rules file is not there, or cannot be read."""


def compile_rules(text: str, name: str = "rules") -> dict[str, Any]:
    """
    TOML to the JSON-able form that travels.

    :raises InvalidRules: it is no TOML, a rule is wrong, or this Python (before 3.11) has no TOML reader.
    """
    tomllib = _toml_reader(name)
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
    check_rules(compiled, name)
    return compiled


def _toml_reader(name: str) -> Any:
    for module in _TOML_READERS:
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    raise InvalidRules(
        f"{name}: this Python has no TOML reader (3.11 has, and the package tomli is one); compile the rules to JSON "
        "where there is one: gpualert rules compile"
    )


def check_rules(value: Mapping[str, Any], name: str = "rules") -> UserRules:
    """
    :param value: the compiled form.
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
    for key in sorted(set(value) - {"format_version", "rules", "silence"}, key=str):
        faults.append(f"{name}: unknown key {key!r}; known are format_version, rules, silence")
    for number, entry in enumerate(rules, 1):
        title = entry.get("name") if isinstance(entry, Mapping) else None
        place = f"{name}: rule {number}" + (f" ({title})" if isinstance(title, str) else "")
        row = _row(entry, place, faults)
        if row is not None:
            if any(row.name == other.name for other in rows):
                faults.append(f"{place}: the name {row.name!r} is used twice")
            rows.append(row)
    built_in = {row.name for row in TABLE}
    for item in silence:
        if not isinstance(item, str) or item not in built_in:
            faults.append(f"{name}: silence: there is no built-in rule {item!r}{_nearest(item, built_in)}")
    if not faults and len(encode_json(dict(value))) > MAX_RULES_BYTES:
        faults.append(f"{name}: expected at most {MAX_RULES_BYTES} bytes in compiled form; it is larger")
    if faults:
        raise InvalidRules("\n".join(faults))
    return UserRules(tuple(rows), tuple(silence))


def _nearest(item: object, names: set[str]) -> str:
    import difflib

    near = difflib.get_close_matches(item, sorted(names), 1) if isinstance(item, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


class UserRules(NamedTuple):
    """What one file of rules holds, checked."""

    rows: tuple[Signature, ...]
    silenced: tuple[str, ...]

    @property
    def added(self) -> tuple[Signature, ...]:
        return tuple(row for row in self.rows if row.name not in {other.name for other in TABLE})

    @property
    def replaced(self) -> tuple[Signature, ...]:
        """Rows that stand in the place of a built-in one of the same name."""
        return tuple(row for row in self.rows if row.name in {other.name for other in TABLE})

    def rule_set(self) -> RuleSet:
        """The built-in rules with these in front."""
        gone = {*self.silenced, *(row.name for row in self.rows)}
        return RuleSet((*self.rows, *(row for row in TABLE if row.name not in gone)))


def rules_from_json(value: Mapping[str, Any], name: str = "rules") -> RuleSet:
    """
    The built-in rules with the user's in front.

    :raises InvalidRules: with all faults, one a line.
    """
    return check_rules(value, name).rule_set()


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
        faults.extend(f"{place}: pattern: {fault}" for fault in _faults_of_pattern(pattern))
    words = entry.get("words", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        faults.append(f"{place}: words: expected a list of plain strings, found {_short(words)}")
        words = []
    for word in words:
        if len(fold_word(word)) < 3:
            faults.append(f"{place}: words: {word!r} has fewer than three characters that are no digits")
    if len(faults) == before and not words and needs_words(str(pattern)):
        faults.append(
            f"{place}: pattern: expected three letters in a row in each of its branches, since lines are found by "
            "them; give words, of which one is in every line that is meant"
        )
    role = _member(Role, entry.get("role", "root"), f"{place}: role", faults)
    failure_class = None
    if role in (Role.BENIGN, Role.NOTE) and "class" not in entry:
        pass
    else:
        failure_class = _member(FailureClass, entry.get("class"), f"{place}: class", faults)
        if failure_class in _NO_CAUSE:
            faults.append(f"{place}: class: expected the class of a cause, found {entry.get('class')!r}")
    for key in ("advice", "proves_not"):
        text = entry.get(key, "")
        if not isinstance(text, str) or len(text) > _MAX_ADVICE:
            faults.append(f"{place}: {key}: expected text of at most {_MAX_ADVICE} characters, found {_short(text)}")
    if not isinstance(entry.get("no_retry", False), bool):
        faults.append(f"{place}: no_retry: expected true or false, found {entry['no_retry']!r}")
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
        proves_not=entry.get("proves_not", ""),
        advice=entry.get("advice"),
        no_retry=entry.get("no_retry", False),
    )


def _faults_of_pattern(pattern: str) -> list[str]:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return [f"expected a regular expression: {error}"]
    # First what is read off the structure alone: the linter also tries the pattern, which may then take for ever.
    return faults_of_user_pattern(pattern) or list(dict.fromkeys(faults_of_pattern(pattern)))


def _short(value: object) -> str:
    return f"{len(value)} characters" if isinstance(value, str) else repr(value)[:60]


def _member(vocabulary: Any, value: Any, place: str, faults: list[str]) -> Any:
    try:
        return vocabulary(value)
    except ValueError:
        known = ", ".join(item.value for item in vocabulary)
        faults.append(f"{place}: expected one of {known}; found {value!r}")
        return None


def load_rules(path: str) -> RuleSet:
    """
    The built-in rules with those of a ``.toml`` file or a compiled ``.json`` file in front.

    :raises InvalidRules: the file cannot be read, or something in it is wrong.
    """
    return rules_from_json(compile_file(path), os.path.basename(path))


def compile_file(path: str) -> dict[str, Any]:
    """
    The compiled form of a ``.toml`` file, or of one that is compiled already (``.json``), checked.

    :raises InvalidRules: the file cannot be read, or something in it is wrong.
    """
    name = os.path.basename(path)
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise RulesUnreadable(f"{path}: expected a readable rules file, found: {what}") from None
    if path.endswith(".json"):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidRules(f"{name}: expected JSON: {error}") from None
        if not isinstance(value, dict):
            raise InvalidRules(f"{name}: expected a JSON object")
        check_rules(value, name)
        return value
    return compile_rules(text, name)

"""
What to run, checked. A spec that exists is one that can be attempted; what only the host can know (does the folder
exist?) is checked there.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, fields
from typing import Any, Iterable, Mapping, Sequence

from gpualert.errors import InvalidSpec

#: Signals that may be named as ``stop_signal``: catchable, and meant to end a process.
STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: Longest command accepted, in bytes of UTF-8.
MAX_COMMAND_BYTES = 4 * 1024 * 1024
#: Most that compiled rules may take, in bytes of JSON.
MAX_RULES_BYTES = 256 * 1024
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ENVIRONMENT_KINDS = ("conda", "venv", "module")


@dataclass(frozen=True)
class LaunchSpec:
    """
    One training, as its author asks for it.

    :param command: a string is a script for ``bash`` (else ``sh``), of any number of lines; a sequence of strings is an
        argv, run without a shell.
    :param cwd: absolute path on the host, or None for the home directory. ``~`` and ``~/…`` mean the home there.
    :param env: variables for the child, beside the host's own. Values are not secret: they stand in ``spec.json``.
    :param secret_env: names only. The values travel beside the spec and are never written to disk.
    :param environment: ``conda:NAME``, ``venv:PATH`` or ``module:NAME``, made active before the command.
    :param setup: shell text sourced before the command (after ``environment``). If it fails, the command does not run,
        and the failure is one of configuration.
    :param deadline_s: seconds from the child's start until it is stopped; None for no limit.
    :param grace_period_s: seconds between ``stop_signal`` and SIGKILL; 0 means at once.
    :param stop_signal: one of :data:`STOP_SIGNALS`.
    :param leftovers: ``kill`` or ``keep`` what the command leaves running behind it when it ends by itself.
    :param result_file: path (relative to ``cwd``, or absolute) of a JSON file whose content becomes the result.
    :param unbuffered: set ``PYTHONUNBUFFERED=1``; None lets the host decide (yes, but not for multi-rank launchers,
        whose lines it would tear).
    :param label: a word for people, shown in lists.
    :param root: configured root for run directories on the host, absolute; None for the usual ones.
    :param stop_command: shell text run on the host (at most 30 s) when the launch is stopped, for what lives outside
        our process tree.
    :param rules: the author's own rules for the verdict, in the compiled form that :mod:`gpualert.userrules` makes and
        checks; here only form and size are.
    :raises InvalidSpec: the first thing that cannot be right, by name.
    """

    command: str | tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: tuple[str, ...] = ()
    environment: str | None = None
    setup: str | None = None
    deadline_s: float | None = None
    grace_period_s: float = 30.0
    stop_signal: str = "SIGTERM"
    leftovers: str = "kill"
    result_file: str | None = None
    unbuffered: bool | None = None
    label: str | None = None
    root: str | None = None
    stop_command: str | None = None
    rules: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.command, str):
            object.__setattr__(self, "command", _argv(self.command))
        if not isinstance(self.env, Mapping):
            raise InvalidSpec(f"env: expected names with their values, found {type(self.env).__name__}")
        if isinstance(self.secret_env, (str, bytes)) or not isinstance(self.secret_env, Iterable):
            raise InvalidSpec(f"secret_env: expected a list of names, found {type(self.secret_env).__name__}")
        object.__setattr__(self, "env", dict(self.env))
        object.__setattr__(self, "secret_env", tuple(self.secret_env))
        if isinstance(self.rules, Mapping):
            object.__setattr__(self, "rules", dict(self.rules))
        self._check()

    def _check(self) -> None:
        _check_command(self.command)
        for name, value in self.env.items():
            _check_env_name("env", name)
            if not isinstance(value, str):
                raise InvalidSpec(f"env[{name!r}]: expected text, found {type(value).__name__}")
            if "\0" in value:
                raise InvalidSpec(f"env[{name!r}]: the value holds a NUL byte, which no environment variable can")
        for name in self.secret_env:
            _check_env_name("secret_env", name)
            if name in self.env:
                raise InvalidSpec(f"secret_env[{name!r}]: also given in env; give it once")
        for name in ("cwd", "root"):
            _check_absolute(name, getattr(self, name), home_allowed=True)
        if self.environment is not None:
            _check_text("environment", self.environment, one_line=True)
            kind, colon, what = self.environment.partition(":")
            if kind not in _ENVIRONMENT_KINDS or not colon or not what.strip():
                raise InvalidSpec(
                    f"environment: expected conda:NAME, venv:PATH or module:NAME, found {self.environment!r}"
                )
        for name in ("setup", "stop_command"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        _check_seconds("deadline_s", self.deadline_s, minimum_exclusive=0.0, optional=True)
        _check_seconds("grace_period_s", self.grace_period_s)
        if self.stop_signal not in STOP_SIGNALS:
            raise InvalidSpec(f"stop_signal: expected one of {', '.join(STOP_SIGNALS)}, found {self.stop_signal!r}")
        if self.leftovers not in ("kill", "keep"):
            raise InvalidSpec(f"leftovers: expected 'kill' or 'keep', found {self.leftovers!r}")
        if self.result_file is not None:
            _check_text("result_file", self.result_file, one_line=True)
        if not (self.unbuffered is None or isinstance(self.unbuffered, bool)):
            raise InvalidSpec(f"unbuffered: expected true, false or null, found {self.unbuffered!r}")
        if not (self.label is None or isinstance(self.label, str)):  # an empty one is as good as none
            raise InvalidSpec(f"label: expected text, found {type(self.label).__name__}")
        if self.rules is not None:
            _check_rules(self.rules)

    def to_json(self) -> dict[str, Any]:
        value = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("command", "secret_env"):
            if isinstance(value[name], tuple):
                value[name] = list(value[name])
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LaunchSpec:
        """
        :raises InvalidSpec: a field that this version does not know (the other end is newer), or a bad one.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise InvalidSpec(f"spec: unknown field(s) {', '.join(unknown)}; expected only {', '.join(sorted(known))}")
        if "command" not in value:
            raise InvalidSpec("spec: 'command' is missing")
        return cls(**value)


def _argv(command: object) -> tuple[str, ...]:
    if not isinstance(command, Sequence) or isinstance(command, (bytes, bytearray)):
        raise InvalidSpec(f"command: expected a string or a list of strings, found {type(command).__name__}")
    for index, word in enumerate(command):
        if not isinstance(word, str):
            raise InvalidSpec(f"command[{index}]: expected a string, found {type(word).__name__}")
    return tuple(command)


def _check_command(command: str | Sequence[str]) -> None:
    if isinstance(command, str):
        if not command.strip():
            raise InvalidSpec("command: expected something to run, found an empty string")
        size = len(command.encode("utf-8", "surrogatepass"))
    else:
        if not command or not command[0]:
            raise InvalidSpec(
                "command: expected a program and its arguments, found an empty list or an empty program name"
            )
        size = sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in command)
    if size > MAX_COMMAND_BYTES:
        raise InvalidSpec(f"command: expected at most {MAX_COMMAND_BYTES} bytes, found {size}")
    for word in (command,) if isinstance(command, str) else command:
        if "\0" in word:
            raise InvalidSpec("command: holds a NUL byte, which no command line can")


def _check_rules(rules: object) -> None:
    """
    What anybody can check. Whether each rule is right is checked where they are written: a host with an older Python
    or another version of ours must still run the training, and says in the verdict which rules it could not use.
    """
    from gpualert.durable import encode_json

    if not isinstance(rules, Mapping) or not isinstance(rules.get("format_version"), int):
        raise InvalidSpec(
            "rules: expected the compiled form, an object with format_version, rules and silence (see `gpualert rules "
            f"compile`), found {type(rules).__name__}"
        )
    try:
        size = len(encode_json(dict(rules)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"rules: expected values that JSON knows: {error}") from None
    if size > MAX_RULES_BYTES:
        raise InvalidSpec(f"rules: expected at most {MAX_RULES_BYTES} bytes of JSON, found {size}")


def _check_env_name(where: str, name: object) -> None:
    if not isinstance(name, str) or not _ENV_NAME.match(name):
        raise InvalidSpec(
            f"{where}: expected names of letters, digits and underscore, not starting with a digit, found {name!r}"
        )
    if name.startswith("GPUALERT_"):
        raise InvalidSpec(
            f"{where}: {name!r} is reserved; names that start with GPUALERT_ are set by the launch itself"
        )


def _check_absolute(name: str, path: object, home_allowed: bool) -> None:
    if path is None:
        return
    _check_text(name, path, one_line=True)
    assert isinstance(path, str)
    if os.path.isabs(path) or (home_allowed and (path == "~" or path.startswith("~/"))):
        return
    raise InvalidSpec(f"{name}: expected an absolute path or one that starts with ~/, found {path!r}")


def _check_text(name: str, value: object, one_line: bool = False) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InvalidSpec(f"{name}: expected text, found {value!r}")
    if "\0" in value or (one_line and "\n" in value):
        raise InvalidSpec(f"{name}: holds a NUL byte{' or a line break' if one_line else ''}: {value!r}")


def _check_seconds(name: str, value: object, minimum_exclusive: float | None = None, optional: bool = False) -> None:
    if value is None and optional:
        return
    try:
        finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        finite = False
    if not finite:
        raise InvalidSpec(f"{name}: expected a number of seconds, found {repr(value)[:60]}")
    assert isinstance(value, (int, float))
    if minimum_exclusive is not None and value <= minimum_exclusive:
        raise InvalidSpec(f"{name}: expected more than {minimum_exclusive:g} seconds, found {value:g}")
    if value < 0:
        raise InvalidSpec(f"{name}: expected 0 or more seconds, found {value:g}")

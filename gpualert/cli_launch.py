"""The verbs that start something: ``run`` stays with it, ``launch`` does not."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Mapping

from gpualert.cli import add_root, add_verb, print_json, seconds
from gpualert.errors import InvalidSpec

if TYPE_CHECKING:
    from gpualert.launch import FastLaunch

RUN_EXAMPLES = """\
  gpualert run -- python train.py --epochs 50
  gpualert run -q -- make train              no word of ours, whatever happens
  gpualert run -c 'python prepare.py && python train.py | tee out.txt'
  gpualert run --deadline 2h -- python train.py

exit status: the command's own; 128+N when signal N ended it; 127 command not found, 126 not executable;
125 gpualert itself failed (no place for the log, bad option, nobody saw the end)."""

LAUNCH_EXAMPLES = """\
  gpualert launch -- python train.py --epochs 50
  gpualert launch --environment conda:train --cwd /data/project --deadline 12h -- python train.py
  HF_TOKEN=… gpualert launch --secret-env HF_TOKEN -- python train.py    its value is never written to disk
  gpualert launch --name nightly -- ./train.sh    at most one launch of this name at a time
  gpualert launch --spec spec.json                all fields of a launch; see docs/reference

It prints the launch id; then: gpualert status|logs -f|attach|stop ID."""


def add_verbs(verbs: Any) -> None:
    run = add_verb(
        verbs,
        "run",
        _run,
        summary="run a command here: log on disk and on the terminal, exit status its own",
        description="Run a command in the foreground. Its output goes to a log on disk first and from there to this "
        "terminal, byte for byte. Ctrl-C, Ctrl-\\ and Ctrl-Z act on the command. If this process is killed, or the "
        "terminal's connection drops, the command goes on unless it is ended by the hang-up signal itself. When the "
        "command fails, a few lines on stderr name the cause.",
        examples=RUN_EXAMPLES,
        json=False,
    )
    run.add_argument("-q", "--quiet", action="store_true", help="print no verdict and no warning on stderr")
    run.add_argument("--json", action="store_true", help="print the outcome as one line of JSON on stderr at the end")
    _add_common(run)
    run.add_argument("-c", dest="script", metavar="SCRIPT", help="run this text by bash (else sh) instead of a command")
    run.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments, after --"
    )

    launch = add_verb(
        verbs,
        "launch",
        _launch,
        summary="run a command detached: it survives this terminal",
        description="Start a command that does not depend on this terminal any more, and print its launch id. Its log "
        "exists before its first instruction; how it ends is written down by a keeper of its own.",
        examples=LAUNCH_EXAMPLES,
    )
    _add_common(launch)
    launch.add_argument("-c", dest="script", metavar="SCRIPT", help="run this text by bash (else sh)")
    launch.add_argument("--spec", metavar="FILE", help="read all of the launch from a JSON file (- is stdin)")
    launch.add_argument("--name", help="key of the launch: while one of this name runs, it is reported, not repeated")
    launch.add_argument(
        "--secret-env",
        action="append",
        default=[],
        metavar="NAME",
        help="take this variable's value from here; it is never written to disk (may be repeated)",
    )
    launch.add_argument("--environment", metavar="KIND:NAME", help="conda:NAME, venv:PATH or module:NAME, made active")
    launch.add_argument("--setup", metavar="SCRIPT", help="shell text sourced before the command")
    launch.add_argument("--stop-signal", metavar="NAME", help="what a stop sends first (default: SIGTERM)")
    launch.add_argument(
        "--stop-command", metavar="SCRIPT", help="run at a stop, for what lives outside the process tree"
    )
    launch.add_argument("--result-file", metavar="FILE", help="JSON file that becomes the outcome's result")
    launch.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments, after --"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="DIR", help="where the command starts (default: here)")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable for the command, not secret (may be repeated)",
    )
    parser.add_argument("--label", help="a word for people, shown in lists")
    parser.add_argument(
        "--deadline", type=seconds, metavar="TIME", help="stop it after this long, such as 90, 15m or 12h"
    )
    parser.add_argument(
        "--grace-period",
        type=seconds,
        metavar="TIME",
        default=None,
        help="between asking it to end and killing it (default: 30s)",
    )
    parser.add_argument(
        "--leftovers",
        choices=("kill", "keep"),
        default="kill",
        help="what happens to processes that the command leaves running behind it (default: kill)",
    )
    parser.add_argument(
        "--rules", metavar="FILE", help="your own rules for the verdict, TOML or compiled JSON (see: gpualert rules)"
    )
    add_root(parser)


def _run(options: argparse.Namespace) -> int:
    from gpualert import foreground
    from gpualert.spec import LaunchSpec

    argv = _run_argv(options)
    env = _pairs(options.env)
    cwd = None if options.cwd is None else os.path.abspath(os.path.expanduser(options.cwd))
    grace_period_s = 30.0 if options.grace_period is None else options.grace_period
    rules = _rules(options.rules)
    # For its checks: what `launch` refuses, `run` refuses in the same words.
    LaunchSpec(tuple(argv), cwd=cwd, env=env, deadline_s=options.deadline, grace_period_s=grace_period_s, rules=rules)

    def start(stdin: int | None) -> FastLaunch:
        from gpualert import launch

        return launch.start_fast(
            argv,
            cwd=cwd,
            env=foreground.with_unbuffered(argv, env),
            label=options.label,
            deadline_s=options.deadline,
            grace_period_s=grace_period_s,
            leftovers=options.leftovers,
            root=options.root,
            stdin=stdin,
            rules=rules,
        )

    tell = foreground.tell_json if options.json else None
    return foreground.run(start, quiet=options.quiet, program=argv[0], tell=tell)


def _rules(path: str | None) -> Mapping[str, Any] | None:
    """Checked and compiled, before anything is started. Without any, nothing slow is imported for them."""
    if path is None:
        return None
    from gpualert.userrules import compile_file

    return compile_file(path)


def _run_argv(options: argparse.Namespace) -> list[str]:
    command = _words(options)
    if options.script is not None:
        import shutil

        # What follows the script are its $0, $1, …, as for `sh -c`.
        return [shutil.which("bash") or "/bin/sh", "-c", options.script, *command]
    if not command or not command[0]:
        raise InvalidSpec("command: expected something to run after --, found nothing")
    return command


def _words(options: argparse.Namespace) -> list[str]:
    """The command's words; argparse leaves the ``--`` in front of them."""
    words: list[str] = list(options.command)
    return words[1:] if words[:1] == ["--"] else words


def _launch(options: argparse.Namespace) -> int:
    from gpualert import launch as use_case

    spec = _spec(options)
    key, attempt, after = _identity(options)
    missing = [name for name in spec.secret_env if name not in os.environ]
    if missing:
        raise InvalidSpec(f"secret_env: {', '.join(missing)} not set here, where the values are taken from")
    secrets = {name: os.environ[name] for name in spec.secret_env}
    result, record = use_case.launch(key, attempt, spec, secrets, after)
    if options.json:
        print_json({"result": result, "record": record.to_json()})
    else:
        from gpualert.cli_text import printable

        for warning in record.warnings:
            print("gpualert: warning:", printable(warning), file=sys.stderr)
        if result == "existing":  # stdout is the id alone: scripts keep it in a variable
            print(f"gpualert: {record.launch_id} is {record.state} already; nothing was launched", file=sys.stderr)
        print(record.launch_id)
    return 0


def _identity(options: argparse.Namespace) -> tuple[Any, Any, int]:
    """Launch key, attempt and number of the last launch known, for ``launch()``."""
    from gpualert import control
    from gpualert.errors import UnknownLaunch
    from gpualert.key import Attempt, LaunchKey

    random = os.urandom(8).hex()
    if options.name is None:
        words = _words(options) or ["launch"]
        return LaunchKey(("command line", random), os.path.basename(words[0]) or "launch"), Attempt(1, random), 0
    key = LaunchKey(("command line", "name", options.name), options.name)
    try:
        last = control.inspect(key=key, root=options.root)
    except UnknownLaunch:
        return key, Attempt(1, random), 0
    return key, Attempt(last.attempt.number + 1, random), last.number


def _spec(options: argparse.Namespace) -> Any:
    from gpualert.spec import LaunchSpec

    fields: dict[str, Any] = {}
    if options.spec is not None:
        fields.update(_read_spec(options.spec))
    command = _words(options)
    if options.script is not None:
        if command:
            raise InvalidSpec("command: expected either -c SCRIPT or a command after --, found both")
        fields["command"] = options.script
    elif command:
        fields["command"] = command
    given = {
        "deadline_s": options.deadline,
        "grace_period_s": options.grace_period,
        "environment": options.environment,
        "setup": options.setup,
        "stop_signal": options.stop_signal,
        "stop_command": options.stop_command,
        "result_file": options.result_file,
        "label": options.label,
        "rules": _rules(options.rules),
        "root": None if options.root is None else os.path.abspath(os.path.expanduser(options.root)),
    }
    fields.update((name, value) for name, value in given.items() if value is not None)
    if options.leftovers != "kill" or "leftovers" not in fields:
        fields["leftovers"] = options.leftovers
    if options.env:
        fields["env"] = {**fields.get("env", {}), **_pairs(options.env)}
    if options.secret_env:
        fields["secret_env"] = [*fields.get("secret_env", ()), *options.secret_env]
    if options.cwd is not None or "cwd" not in fields:
        try:
            fields["cwd"] = os.path.abspath(os.path.expanduser(options.cwd or "."))
        except FileNotFoundError:
            raise InvalidSpec("cwd: expected a folder, found that the current one was deleted") from None
    if "command" not in fields:
        raise InvalidSpec("command: expected something to run after --, found nothing")
    return LaunchSpec.from_json(fields)


def _read_spec(path: str) -> Mapping[str, Any]:
    import json

    try:
        if path == "-":
            if sys.stdin is None:
                raise InvalidSpec("-: expected a launch as JSON on standard input, found it closed")
            value = json.load(sys.stdin)
        else:
            with open(path, encoding="utf-8") as file:
                value = json.load(file)
    except OSError as error:
        raise InvalidSpec(f"{path}: expected a launch as JSON, found: {error.strerror}") from error
    except ValueError as error:
        raise InvalidSpec(f"{path}: expected a launch as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidSpec(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _pairs(items: list[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InvalidSpec(f"env: expected NAME=VALUE, found {item!r}")
        pairs[name] = value
    return pairs

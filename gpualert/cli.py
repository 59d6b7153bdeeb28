"""The command line: which verbs there are, what they take, what the statuses mean. Each verb imports its use case late.

Statuses: 0 done; 1 done, and the answer is bad (a stop that did not finish, a host with a problem, rules with faults,
a log that could not be fetched whole, hosts that do not agree with Airflow);
2 not done, with one line on stderr that says why. ``run`` and ``attach`` end with the command's own status, or 125 when
we fail.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Callable, NoReturn, Sequence

from gpualert import __version__
from gpualert.errors import GpuAlertError

#: Of every JSON object that a verb prints with ``--json``; see docs/reference/json.md.
SCHEMA_VERSION = 1
CANNOT = 2

Handler = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: the words after the program's name; None takes them from the process.
    :return: the exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a log line must not fail to show in a terminal that speaks Latin-1
            stream.reconfigure(errors="backslashreplace")
    try:
        options = build_parser().parse_args(words)
    except SystemExit as end:  # argparse has said its word; in `run` and `attach` 2 could be the command's own status
        status = end.code if isinstance(end.code, int) else CANNOT
        return _own_failure(words[:1]) if status == CANNOT else status
    handler: Handler = options.handler
    try:
        return handler(options)
    except (GpuAlertError, LookupError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return _broken_pipe()
        message = error.args[0] if isinstance(error, LookupError) and error.args else error
        return fail(str(message), words[:1])
    except KeyboardInterrupt:
        return 130


def fail(message: str, verb: Sequence[str] = ()) -> int:
    """Say on stderr, in one line, why something was not done. :return: the exit status for that."""
    print("gpualert:", " ".join(message.splitlines()), file=sys.stderr, flush=True)
    return _own_failure(verb)


def _own_failure(verb: Sequence[str]) -> int:
    return 125 if list(verb) in (["run"], ["attach"]) else CANNOT


def _broken_pipe() -> int:
    """Whoever read our output has seen enough. Python must not complain of it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on one line of stdout, with its ``schema_version`` first."""
    import json

    print(json.dumps({"schema_version": SCHEMA_VERSION, **value}, allow_nan=False), flush=True)


class _Parser(argparse.ArgumentParser):
    """Errors in one line, with a pointer to the help instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        print(f"gpualert: {message} (see: {self.prog} --help)", file=sys.stderr, flush=True)
        raise SystemExit(CANNOT)


EPILOG = """\
examples:
  gpualert run -- python train.py --epochs 50         stay with it: log on disk and here, Ctrl-C works
  gpualert launch --deadline 12h -- python train.py   detach: it survives this terminal
  gpualert list                                       what runs and what has ended
  gpualert logs -f train                              any unique beginning of a launch id will do
  gpualert attach train                               its output from now on, and its exit status
  gpualert stop train                                 ask it to end, insist after its grace period
  gpualert classify slurm-1234.out --exit-code 1      name the cause of any failed log
  gpualert doctor                                     will trainings live on this host?

Logs and exit statuses are kept in run directories below ~/.local/state/gpualert (or GPUALERT_ROOT, or --root).
"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. Its help texts are the source of docs/reference/cli.md."""
    parser = _Parser(
        prog="gpualert",
        description="Run trainings with a durable log, an exact exit status, and a named cause for every failure.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpualert {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True, parser_class=_Parser)
    from gpualert import cli_fetch, cli_host, cli_launch, cli_reconcile, cli_rules, cli_watch

    for module in (cli_launch, cli_watch, cli_fetch, cli_reconcile, cli_rules, cli_host):
        module.add_verbs(verbs)
    return parser


def add_verb(
    verbs: Any, name: str, handler: Handler, *, summary: str | None, description: str, examples: str, json: bool = True
) -> argparse.ArgumentParser:
    """
    A verb's parser, with what all verbs have in common.

    :param summary: for the list of verbs; None hides the verb there.
    :param json: the verb has ``--json``.
    """
    shown = {} if summary is None else {"help": summary}
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        description=description,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **shown,
    )
    parser.set_defaults(handler=handler)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON with a schema_version instead of text")
    return parser


def add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="where run directories live (default: $GPUALERT_ROOT, else ~/.local/state/gpualert, else "
        "/var/tmp/gpualert-UID)",
    )


def add_launch_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("launch", metavar="LAUNCH", help="launch id, or any beginning of it that is unique")


def seconds(text: str) -> float:
    """
    A duration: ``90``, ``90s``, ``15m``, ``12h``, ``2d`` or a sum such as ``1h30m``.

    :raises argparse.ArgumentTypeError: it is none.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    total, number = 0.0, ""
    try:
        for character in text.strip().lower():
            if character in units:
                total += float(number) * units[character]
                number = ""
            else:
                number += character
        if number or not text.strip():
            total += float(number)
        if not 0 <= total < float("inf"):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a duration such as 90, 15m, 12h or 1h30m, found {text!r}") from None
    return total


if __name__ == "__main__":
    sys.exit(main())

"""Write docs/reference/cli.md from the parser itself: ``python -m tools.generate_cli_reference [--check]``.

Rendered from the parser's own data, for the layout of argparse's help differs between versions of Python.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from gpualert.cli import build_parser

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"

HEAD = """\
# Command line

<!-- Written by tools/generate_cli_reference.py from gpualert/cli*.py; change it there. -->

`gpualert` runs on any Linux machine with Python 3.8 or newer, with or without Airflow. How to use it without Airflow is
told in [a guide](../how-to/without-airflow.md); what `--json` prints, in [JSON output](json.md).

## Exit statuses

| status | of | meaning |
|---|---|---|
| 0 | all verbs but `run` and `attach` | done |
| 1 | `stop` | the launch had not ended when the wait was over; the request stands |
| 1 | `doctor` | a problem was found |
| 1 | `fetch` | the log did not come whole; what came is kept, and the same command goes on from there |
| 1 | `rules check` | the file has faults, listed on stdout |
| 2 | all verbs but `run` and `attach` | not done; one line on stderr says why |
| the command's own | `run`, `attach` | 0 to 255 as it ended; 128 + N for signal N; 127 not found; 126 not executable |
| 125 | `run`, `attach` | gpualert itself failed, or nobody saw the end; one line on stderr says which |
| 130 | `attach` | Ctrl-C: detached; the launch goes on |

The statuses of `run` are a pure function of how the command ended; what the classifier makes of it has no part in them.

"""


def render() -> str:
    """The whole page."""
    parser = build_parser()
    pieces = [HEAD]
    for name, verb, hidden in _verbs(parser):
        pieces.append(f"## gpualert {name}{' (called by launches themselves)' if hidden else ''}\n\n")
        pieces.append(f"{verb.description}\n\n```\n{_usage(name, verb)}\n```\n\n")
        rows = [f"| {_names(action)} | {_cell(action)} |" for action in verb._actions if action.dest != "help"]
        if rows:
            pieces.append("\n".join(["| argument | meaning |", "|---|---|", *rows]) + "\n\n")
        if verb.epilog:
            pieces.append(f"```\n{verb.epilog.rstrip()}\n```\n\n")
    return "".join(pieces).rstrip() + "\n"


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, bool]]:
    (choices,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    shown = {action.dest for action in choices._choices_actions}
    for name, verb in choices.choices.items():
        yield name, verb, name not in shown


def _usage(name: str, verb: argparse.ArgumentParser) -> str:
    words = [f"gpualert {name}"]
    if any(action.option_strings and action.dest != "help" for action in verb._actions):
        words.append("[options]")
    for action in verb._actions:
        if action.option_strings:
            continue
        shown = str(action.metavar or action.dest)
        if action.nargs == argparse.REMAINDER:
            shown = f"[--] {shown} [ARGUMENT …]"
        elif action.nargs == "?":
            shown = f"[{shown}]"
        elif action.nargs in ("*", "+"):
            shown = f"{shown} …"
        words.append(shown)
    return " ".join(words)


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    if action.choices is not None:
        value = " " + "\\|".join(map(str, action.choices))
    elif action.nargs == 0:
        value = ""
    else:
        value = f" {action.metavar or action.dest.upper().replace('_', '-')}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _cell(action: argparse.Action) -> str:
    return (action.help or "").replace("|", "\\|").replace("%%", "%")


def main() -> int:
    text = render()
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != text:
            print("docs/reference/cli.md is not what the parser says: run python -m tools.generate_cli_reference")
            return 1
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

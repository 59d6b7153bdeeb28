"""The command line says what it takes, takes what it says, and shows nothing that could drive a terminal."""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpualert import cli, cli_launch, cli_text, cli_watch, foreground
from gpualert.doctor import Finding
from gpualert.errors import InvalidSpec
from gpualert.key import Attempt
from gpualert.outcome import Outcome
from gpualert.records import ExitStatus, RunRecord, RunState
from gpualert.verdict import Alternative, Classification, Evidence
from tools import generate_cli_reference


def test_the_reference_page_is_what_the_parser_says() -> None:
    """``python -m tools.generate_cli_reference`` writes it."""
    assert generate_cli_reference.TARGET.read_text() == generate_cli_reference.render()


def test_the_json_reference_names_every_field() -> None:
    """Of records, outcomes, verdicts and findings."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md").read_text()
    shown = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", page))))
    for value in (RunRecord, Outcome, Classification, Evidence, Alternative, Finding):
        missing = {field.name for field in dataclasses.fields(value)} - shown
        assert not missing, f"{value.__name__}: {missing}"


def test_every_verb_teaches_by_example() -> None:
    """Whoever is shown in the list of verbs has examples in its help."""
    for name, verb, hidden in generate_cli_reference._verbs(cli.build_parser()):
        assert hidden or (verb.epilog and f"gpualert {name}" in verb.epilog), name
        assert verb.description, name


def test_every_shown_verb_has_json() -> None:
    for name, verb, hidden in generate_cli_reference._verbs(cli.build_parser()):
        assert hidden or any("--json" in action.option_strings for action in verb._actions), name


def test_machines_verbs_are_not_shown_to_people(capsys) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "launch" in shown and "observe" not in shown and "serve" not in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90s", 90), ("15m", 900), ("12h", 43200), ("2d", 172800), ("1h30m", 5400), ("0.5", 0.5), ("0", 0)],
)
def test_durations(text: str, expected: float) -> None:
    assert cli.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1", "1x", "h", "inf", "nan", "1e999"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a duration"):
        cli.seconds(text)


@pytest.mark.parametrize(
    "words",
    [
        ["true"],
        ["--", "true", "-x"],
        ["-q", "--", "true"],
        ["--quiet", "python", "train.py", "--epochs", "50"],
        ["-q", "sh", "-c", "exit 3"],
        ["--", "--looks-like-an-option"],
        ["--", "-q"],
    ],
)
def test_the_fast_way_and_argparse_understand_the_same(words: list[str]) -> None:
    """``run`` skips argparse for its plain forms; nobody may be able to tell."""
    fast = foreground.parse_fast(words)
    slow = cli.build_parser().parse_args(["run", *words])
    assert fast == (slow.quiet, cli_launch._words(slow))


@pytest.mark.parametrize("words", [[], ["--"], ["-q"], ["--", ""], ["--json", "--", "true"], ["-c", "true"], ["-x"]])
def test_all_else_is_left_to_argparse(words: list[str]) -> None:
    assert foreground.parse_fast(words) is None


def test_the_way_to_a_commands_start_imports_nothing_slow() -> None:
    """Each of these costs as much as the whole launch."""
    code = "import sys; from gpualert import foreground, launch; print(*sorted(sys.modules))"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    slow = {"argparse", "dataclasses", "enum", "json", "pathlib", "re", "shutil", "signal", "subprocess", "tempfile"}
    assert not slow & set(done.stdout.split()), slow & set(done.stdout.split())


def test_several_ranks_keep_their_lines_whole(monkeypatch) -> None:
    """Unbuffered writes of ranks that share a log tear each other's lines."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for command in (["torchrun", "t.py"], ["/opt/bin/mpirun", "-n", "2"], ["python", "-m", "torch.distributed.run"]):
        assert foreground.with_unbuffered(command) == {}
    assert foreground.with_unbuffered(["python", "t.py"], {"A": "1"}) == {"A": "1", "PYTHONUNBUFFERED": "1"}
    assert foreground.with_unbuffered(["python"], {"PYTHONUNBUFFERED": "0"}) == {"PYTHONUNBUFFERED": "0"}
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    assert foreground.with_unbuffered(["python"]) == {}


def test_a_launch_needs_exactly_one_command() -> None:
    parser = cli.build_parser()
    for words in (["launch"], ["launch", "-c", "a", "--", "b"]):
        with pytest.raises(InvalidSpec, match="command"):
            cli_launch._spec(parser.parse_args(words))


def test_options_make_a_spec(tmp_path: Path) -> None:
    """A spec file gives the fields, options win over it, and what nobody gave keeps its default."""
    (tmp_path / "spec.json").write_text('{"command": "old", "env": {"A": "1"}, "deadline_s": 5, "leftovers": "keep"}')
    words = ["launch", "--spec", str(tmp_path / "spec.json"), "--env", "B=2=3", "--deadline", "1h", "--", "new", "-x"]
    spec = cli_launch._spec(cli.build_parser().parse_args(words))
    assert spec.command == ("new", "-x")
    assert spec.env == {"A": "1", "B": "2=3"}
    assert (spec.deadline_s, spec.leftovers, spec.grace_period_s) == (3600.0, "keep", 30.0)
    assert spec.cwd == str(Path.cwd())


@pytest.mark.parametrize(
    ("content", "count", "rest"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
    ],
)
def test_the_last_lines_of_a_log(tmp_path: Path, content: bytes, count: int, rest: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert content[cli_watch.offset_of_last_lines(str(path), count) :] == rest


def test_the_last_lines_are_found_across_blocks(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cli_watch, "_BLOCK_BYTES", 5)
    path = tmp_path / "log"
    content = b"".join(b"line %d\n" % number for number in range(20))
    path.write_bytes(content)
    assert content[cli_watch.offset_of_last_lines(str(path), 3) :] == b"line 17\nline 18\nline 19\n"
    assert cli_watch.offset_of_last_lines(str(tmp_path / "absent"), 3) == 0


# -- what people read


def test_a_verdict_block_is_short_and_safe() -> None:
    """Class, domain, the proving line, advice, where it all lies; control characters of the log cannot act."""
    outcome = Outcome(
        state=RunState.FAILED,
        exit_code=1,
        failure_class="cuda_oom",
        domain="configuration",
        evidence=(
            {"source": "log", "line": 7, "offset": 90, "text": "\x1b[31mOutOfMemoryError\x1b[0m\r", "rule": "r"},
        ),
        advice="Lower the batch size.",
        run_directory="/r/0001",
    )
    assert cli_text.verdict_block(outcome).splitlines() == [
        "gpualert: FAILED: exit 1, class cuda_oom, domain configuration",
        "gpualert: log line 7: \ufffd[31mOutOfMemoryError\ufffd[0m\ufffd",
        "gpualert: advice: Lower the batch size.",
        "gpualert: run directory: /r/0001",
    ]


def test_a_plain_success_says_nothing_and_a_suspicious_one_says_why() -> None:
    assert cli_text.verdict_block(Outcome(state=RunState.SUCCEEDED, exit_code=0, failure_class="success")) == ""
    hidden = Outcome(
        state=RunState.SUCCEEDED,
        exit_code=0,
        failure_class="traceback",
        domain="user_code",
        warnings=("behind a pipe",),
    )
    said = cli_text.verdict_block(hidden)
    assert "SUCCEEDED: exit 0, class traceback" in said and "warning: behind a pipe" in said


def record(**changes: object) -> RunRecord:
    values: dict[str, object] = {
        "launch_id": "train-3f2a9c0d1e4b.1",
        "number": 1,
        "attempt": Attempt(1, "a"),
        "state": RunState.RUNNING,
        "run_directory": "/r/0001",
        "log_path": "/r/0001/log",
        "created_at": 1000.0,
        "started_at": 1000.0,
    }
    return RunRecord(**{**values, **changes})  # type: ignore[arg-type]


def test_lists_show_one_line_per_launch() -> None:
    line = cli_text.record_line(record(label="big\nrun"), now=1000.0 + 3723)
    assert line.split() == ["train-3f2a9c0d1e4b.1", "RUNNING", "1:02:03", "big\ufffdrun"]
    lost = record(state=RunState.LOST, lost_reason="rebooted")
    assert cli_text.record_line(lost).split() == ["train-3f2a9c0d1e4b.1", "LOST", "rebooted"]


def test_unknown_times_are_not_shown_as_zero() -> None:
    """Not knowing is a value; a launch that never started did not run for 0 seconds."""
    assert cli_text.duration(record(started_at=None), 5000.0) == ""
    assert cli_text.duration(record(state=RunState.LOST), 5000.0) == ""
    text = cli_text.record_lines(record(exit=ExitStatus(signal=9), state=RunState.FAILED, elapsed_s=61.0))
    assert "SIGKILL" in text and "0:01:01" in text and "None" not in text


def test_findings_have_their_advice_below() -> None:
    text = cli_text.finding_lines(
        [Finding("gpu", "problem", "no driver", "install it"), Finding("git", "ok", "/bin/git")]
    )
    assert text.splitlines()[1].strip() == "→ install it" and len(text.splitlines()) == 3

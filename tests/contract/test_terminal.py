"""``gpualert run`` on a real terminal: Ctrl-C, Ctrl-\\, Ctrl-Z and fg, a closed window, a shell's job control."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.terminal import DEADLINE_S, Gpualert, Terminal, gpualert, lives, process_state
from tools.rig.waiting import wait_until

__all__ = ["gpualert"]


def on_terminal(gpualert: Gpualert, *words: str) -> Terminal:
    return Terminal(gpualert.argv(*words), gpualert.environment)


def test_bytes_reach_the_terminal_exactly(gpualert: Gpualert, tmp_path: Path) -> None:
    """Carriage returns of progress bars, colours, and bytes that are no text; nothing added, nothing reordered."""
    payload = b"".join(b"\r\x1b[32m%3d%%\x1b[0m \xe2\x82\xac \xff" % i for i in range(100)) + b"\ndone\n"
    (tmp_path / "payload").write_bytes(payload)
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.02; done; cat {tmp_path}/payload"
    with on_terminal(gpualert, "run", "--", "sh", "-c", script) as terminal:
        terminal.without_output_processing()
        go.touch()
        assert terminal.wait() == 0
        assert terminal.seen == payload


def test_output_appears_while_the_command_runs(gpualert: Gpualert, tmp_path: Path) -> None:
    """A prompt without a line end, too; and what is typed reaches the command."""
    script = "printf 'name: '; read name; echo hello $name"
    with on_terminal(gpualert, "run", "-q", "--", "sh", "-c", script) as terminal:
        terminal.expect(b"name: ")
        terminal.type(b"ada\n")
        terminal.expect(b"hello ada")
        assert terminal.wait() == 0


def test_the_command_sees_a_terminal_to_read_from(gpualert: Gpualert) -> None:
    """stdin is the terminal itself; stdout is the log."""
    with on_terminal(
        gpualert, "run", "-q", "--", "sh", "-c", "test -t 0 && echo reads; test -t 1 || echo logs"
    ) as terminal:
        assert terminal.wait() == 0
        assert b"reads" in terminal.seen and b"logs" in terminal.seen


@pytest.mark.parametrize(("key", "number"), [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)])
def test_ctrl_c_and_ctrl_backslash_end_the_command(gpualert: Gpualert, key: bytes, number: int) -> None:
    """The status is that of the signal, and the verdict says who it was; the shell that started us gets it."""
    with on_terminal(gpualert, "run", "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 600") as terminal:
        terminal.expect(b"ready")
        terminal.type(key)
        assert terminal.wait() == 128 + number
        assert b"FAILED: " + signal.Signals(number).name.encode() in terminal.seen


def test_ctrl_c_is_the_commands_to_decide(gpualert: Gpualert) -> None:
    """A training that saves a checkpoint on SIGINT and goes on, goes on; every Ctrl-C arrives."""
    script = "trap 'echo saved' INT; echo ready; for i in 1 2; do sleep 600; done; echo finished; exit 4"
    with on_terminal(gpualert, "run", "-q", "--", "bash", "-c", script) as terminal:
        terminal.expect(b"ready")
        for count in (1, 2):
            terminal.type(b"\x03")
            wait_until(
                lambda count=count: terminal.read_some() is not None and terminal.seen.count(b"saved") >= count,  # type: ignore[misc]
                DEADLINE_S,
                lambda: f"Ctrl-C arrives; the terminal shows {terminal.seen!r}",
            )
        assert terminal.wait() == 4
        assert b"finished" in terminal.seen


def test_ctrl_z_stops_both_and_fg_continues_both(gpualert: Gpualert, tmp_path: Path) -> None:
    """Under a shell with job control: the prompt comes back, and fg brings the command back, with its status."""
    argv = " ".join(
        gpualert.argv(
            "run", "-q", "--", "sh", "-c", f"'echo $$ > {tmp_path}/pid; echo ready; read x; echo got $x; exit 8'"
        )
    )
    with Terminal(["bash", "--norc", "--noprofile", "-i"], {**gpualert.environment, "PS1": "PROMPT> "}) as terminal:
        terminal.expect(b"PROMPT> ")
        terminal.type(argv.encode() + b"\n")
        terminal.expect(b"\nready")
        pid = int((tmp_path / "pid").read_text())

        terminal.type(b"\x1a")
        terminal.expect(b"Stopped")
        wait_until(lambda: process_state(pid) == "T", DEADLINE_S, "the command is stopped")
        terminal.type(b"echo shell is back\n")
        terminal.expect(b"\nshell is back")

        terminal.type(b"fg\n")
        wait_until(lambda: process_state(pid) != "T", DEADLINE_S, "the command goes on")
        terminal.type(b"again\n")
        terminal.expect(b"got again")
        terminal.type(b"echo status $?\n")
        terminal.expect(b"\nstatus 8")


def test_bg_continues_the_command_in_the_background(gpualert: Gpualert, tmp_path: Path) -> None:
    script = f"'echo $$ > {tmp_path}/pid; echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo finished'"
    argv = " ".join(gpualert.argv("run", "-q", "--", "sh", "-c", script))
    with Terminal(["bash", "--norc", "--noprofile", "-i"], {**gpualert.environment, "PS1": "PROMPT> "}) as terminal:
        terminal.expect(b"PROMPT> ")
        terminal.type(argv.encode() + b"\n")
        terminal.expect(b"\nready")
        pid = int((tmp_path / "pid").read_text())
        terminal.type(b"\x1a")
        terminal.expect(b"Stopped")

        terminal.type(b"bg\n")
        wait_until(lambda: process_state(pid) not in ("T", ""), DEADLINE_S, "the command goes on")
        (tmp_path / "go").touch()
        terminal.expect(b"finished\r\n")


def test_in_the_background_the_terminals_input_is_left_to_the_shell(gpualert: Gpualert) -> None:
    """The command is in another session, where job control could not stop it: so it reads nothing at all."""
    argv = " ".join(gpualert.argv("run", "-q", "--", "sh", "-c", "'read x; echo [read $?]'"))
    with Terminal(["bash", "--norc", "--noprofile", "-i"], {**gpualert.environment, "PS1": "PROMPT> "}) as terminal:
        terminal.expect(b"PROMPT> ")
        terminal.type(argv.encode() + b" &\n")
        terminal.expect(b"[read 1]")
        terminal.type(b"echo $((20+22))\n")
        terminal.expect(b"42\r\n")


def test_a_closed_window_hangs_up_on_the_command(gpualert: Gpualert, tmp_path: Path) -> None:
    """As it would without us: what does not handle SIGHUP ends by it; the end is on disk."""
    script = f"echo $$ > {tmp_path}/pid; echo ready; exec sleep 600"
    with on_terminal(gpualert, "run", "--", "sh", "-c", script) as terminal:
        terminal.expect(b"ready")
        terminal.hang_up()
        directory = gpualert.run_directory()
        wait_until((directory / "exit.json").exists, DEADLINE_S, "the end is written down")
        assert json.loads((directory / "exit.json").read_text())["signal"] == signal.SIGHUP


def test_a_command_that_ignores_the_hang_up_goes_on_without_a_window(gpualert: Gpualert, tmp_path: Path) -> None:
    """And its output goes on into the log."""
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    script = f"trap '' HUP; echo $$ > {tmp_path}/pid; echo ready; {wait}; echo end"
    with on_terminal(gpualert, "run", "--", "sh", "-c", script) as terminal:
        terminal.expect(b"ready")
        terminal.hang_up()
        pid = int((tmp_path / "pid").read_text())
        (tmp_path / "go").touch()
        directory = gpualert.run_directory()
        wait_until((directory / "exit.json").exists, DEADLINE_S, "the end is written down")
        assert json.loads((directory / "exit.json").read_text())["code"] == 0
        assert not lives(pid)
        assert (directory / "log").read_bytes() == b"ready\nend\n"


def test_the_verdict_stands_below_the_output_on_a_line_of_its_own(gpualert: Gpualert) -> None:
    """Also when the command ends within a line; and control characters of a log line do not drive the terminal."""
    program = (
        "import sys; sys.stdout.write('half a line'); sys.stdout.flush(); raise RuntimeError('\\x1b]0;title\\x07boom')"
    )
    with on_terminal(gpualert, "run", "--", sys.executable, "-S", "-c", program) as terminal:
        assert terminal.wait() == 1
        block = terminal.seen[terminal.seen.index(b"gpualert:") :]
        assert terminal.seen[: -len(block)].endswith(b"\n")
        assert b"FAILED: exit 1" in block
        assert b"\x1b" not in block and b"\x07" not in block


def test_nothing_is_left_on_the_terminal(gpualert: Gpualert) -> None:
    """The keepers have no descriptor of it: a terminal closes when its last command has ended."""
    with on_terminal(gpualert, "run", "-q", "--", "sh", "-c", "echo ready; exit 0") as terminal:
        assert terminal.wait() == 0
        # At the end of all readers and writers the other side gets EIO, which read_some reports as nothing.
        wait_until(lambda: not terminal.read_some(), DEADLINE_S, "nobody holds the terminal any more")

"""``gpualert run`` without a terminal: the command's own status, its bytes in order, a life apart from ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.terminal import DEADLINE_S, Gpualert, gpualert, lives, process_state
from tools.rig.waiting import wait_until

__all__ = ["gpualert"]


def popen(gpualert: Gpualert, *words: str, **changes: object) -> subprocess.Popen[bytes]:
    arguments: dict[str, object] = {"stdin": subprocess.DEVNULL, "env": gpualert.environment, **changes}
    return subprocess.Popen(gpualert.argv(*words), **arguments)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 77, 124, 125, 126, 127, 128, 130, 137, 200, 254, 255])
def test_the_exit_status_is_the_commands_own(gpualert: Gpualert, code: int) -> None:
    """Also where the code is one that means something to shells."""
    assert gpualert.run("run", "-q", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 24])
def test_a_signals_death_is_told_as_a_shell_tells_it(gpualert: Gpualert, number: int) -> None:
    done = gpualert.run("run", "-q", "--", "sh", "-c", f"ulimit -c 0; kill -{number} $$")
    assert done.returncode == 128 + number
    assert done.stderr == b""


def in_one_process(gpualert: Gpualert, code: str, *words: str) -> object:
    """Hundreds of runs by one interpreter; what it prints last is the answer, as JSON."""
    prologue = "import json, os, signal, sys\nfrom gpualert import cli, foreground\n"
    done = subprocess.run(
        [sys.executable, "-S", "-c", prologue + code, *words],
        env=gpualert.environment,
        cwd=gpualert.home,  # no checkout, so that git is not asked each time
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=4 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_exit_code_there_is(gpualert: Gpualert) -> None:
    code = "print(json.dumps([foreground.main(['-q', '--', 'sh', '-c', f'exit {n}']) for n in range(256)]))"
    assert in_one_process(gpualert, code) == list(range(256))


#: Everything that ends a process by default (signal(7)); SIGRTMIN and SIGRTMAX stand for the real-time ones.
FATAL = sorted({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 25, 26, 27, 29, 30, 31, 34, 64})


def test_every_signal_that_ends_a_process(gpualert: Gpualert, tmp_path: Path) -> None:
    """Sent by the command to itself, with the default disposition that a shell would give it."""
    program = tmp_path / "die.py"
    program.write_text(
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "os.kill(os.getpid(), int(sys.argv[1]))\n"
    )
    code = (
        "run = lambda n: foreground.main(['-q', '--', sys.executable, '-S', sys.argv[1], str(n)])\n"
        "print(json.dumps([run(int(n)) for n in sys.argv[2].split()]))\n"
    )
    # Python itself handles SIGINT and ignores SIGPIPE and SIGXFSZ; the next test has a shell send them.
    numbers = [n for n in FATAL if n not in (2, 13, 25)]
    assert in_one_process(gpualert, code, str(program), " ".join(map(str, numbers))) == [128 + n for n in numbers]


@pytest.mark.parametrize("number", [2, 13, 25])
def test_the_command_starts_with_default_dispositions(gpualert: Gpualert, number: int) -> None:
    """Python ignores SIGPIPE and SIGXFSZ in itself; that must not go on to the command."""
    done = gpualert.run("run", "-q", "--", "sh", "-c", f"ulimit -c 0; kill -{number} $$; echo survived")
    assert (done.returncode, done.stdout) == (128 + number, b"")


def test_every_exit_code_by_launch_and_attach(gpualert: Gpualert) -> None:
    code = (
        "import contextlib, io\n"
        "def one(n):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        assert cli.main(['launch', '--', 'sh', '-c', f'exit {n}']) == 0\n"
        "    return cli.main(['attach', '-q', out.getvalue().strip()])\n"
        "print(json.dumps([one(n) for n in range(256)]))\n"
    )
    assert in_one_process(gpualert, code) == list(range(256))


def test_output_comes_byte_exact_and_in_the_order_written(gpualert: Gpualert, tmp_path: Path) -> None:
    """stdout and stderr are one stream in the log and here: bytes that are no text, and far more than a pipe holds."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "for i in range(3000):\n"
        "    os.write(1 + i % 2, bytes([i % 256]) * (i % 977) + b'\\xff\\x00\\r\\n')\n"
    )
    expected = b"".join(bytes([i % 256]) * (i % 977) + b"\xff\x00\r\n" for i in range(3000))

    done = gpualert.run("run", "--", sys.executable, str(program))

    assert done.returncode == 0
    assert done.stdout == expected
    assert done.stderr == b""
    assert (gpualert.run_directory() / "log").read_bytes() == expected


def test_the_log_is_there_before_the_first_instruction(gpualert: Gpualert) -> None:
    """The command itself looks: its stdout is the log, and the run directory is complete."""
    done = gpualert.run(
        "run", "-q", "--", "sh", "-c", 'readlink /proc/$$/fd/1; ls "$(dirname $(readlink /proc/$$/fd/1))"'
    )
    lines = done.stdout.decode().splitlines()
    assert lines[0] == str(gpualert.run_directory() / "log")
    assert {"log", "spec.json", "started.json"} <= set(lines)


def test_standard_input_is_passed_on(gpualert: Gpualert) -> None:
    assert gpualert.run("run", "-q", "--", "cat", input=b"\x00some\xffbytes\n").stdout == b"\x00some\xffbytes\n"


def test_a_producer_learns_that_nobody_reads(gpualert: Gpualert) -> None:
    """Only the command holds the pipe: when it ends, its producer gets SIGPIPE, whatever we still do."""
    done = subprocess.run(
        ["sh", "-c", f"yes | {' '.join(gpualert.argv('run', '-q', '--', 'head', '-c', '4'))}"],
        env=gpualert.environment,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout == b"y\ny\n" and done.returncode == 0


def test_a_producer_learns_it_while_the_command_goes_on(gpualert: Gpualert, tmp_path: Path) -> None:
    """The command has closed its input; nobody else may hold the pipe open."""
    script = f"exec < /dev/null; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 6"
    process = popen(gpualert, "run", "-q", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    assert process.stdin is not None

    def refused() -> bool:
        try:
            os.write(process.stdin.fileno(), b"x")  # type: ignore[union-attr]
        except BrokenPipeError:
            return True
        return False

    wait_until(refused, DEADLINE_S, "the writer is told that nobody reads")
    (tmp_path / "go").touch()
    assert process.wait(DEADLINE_S) == 6
    process.stdin.close()


def test_a_reader_that_leaves_does_not_end_the_command(gpualert: Gpualert, tmp_path: Path) -> None:
    """`| head` and a dead `tee` are no reason to lose a training; one line on stderr says where the log goes on."""
    script = f"for i in 1 2 3; do echo $i; sleep 0.2; done; touch {tmp_path}/finished; exit 5"
    process = popen(gpualert, "run", "--", "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()

    assert process.wait(DEADLINE_S) == 5
    said = process.stderr.read()
    process.stderr.close()
    assert (tmp_path / "finished").exists()
    assert b"can no longer be shown" in said
    assert (gpualert.run_directory() / "log").read_bytes() == b"1\n2\n3\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_signals_to_the_wrapper_reach_the_whole_process_group(gpualert: Gpualert, tmp_path: Path, name: str) -> None:
    """The command decides what they mean, and its children get them too."""
    # A shell's background job would ignore SIGINT and SIGQUIT, so the child is not one of a shell's.
    script = (
        "import os, signal, sys\n"
        "pid = os.fork()\n"
        "who = 'parent' if pid else 'child'\n"
        "def say(what): os.write(1, f'{who} {what}\\n'.encode())\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}])\n"
        "say('is ready')\n"
        f"signal.sigwait([signal.{name}])\n"
        f"say('got {name}')\n"
        "if pid: os.waitpid(pid, 0)\n"
        "sys.exit(9)\n"
    )
    process = popen(gpualert, "run", "-q", "--", sys.executable, "-S", "-c", script, stdout=subprocess.PIPE)
    log = gpualert.run_directory() / "log"
    wait_until(lambda: log.read_bytes().count(b"is ready") == 2, DEADLINE_S, "the command is ready")

    process.send_signal(getattr(signal, name))

    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 9
    assert f"parent got {name}".encode() in out and f"child got {name}".encode() in out


def test_killing_the_wrapper_does_not_kill_the_command(gpualert: Gpualert, tmp_path: Path) -> None:
    """It runs to its own end, and how it ended is on disk."""
    script = f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo finished; exit 7"
    process = popen(gpualert, "run", "-q", "--", "sh", "-c", script, stdout=subprocess.DEVNULL)
    wait_until((tmp_path / "pid").exists, DEADLINE_S, "the command runs")

    process.kill()
    process.wait(DEADLINE_S)
    pid = int((tmp_path / "pid").read_text())
    assert lives(pid)
    (tmp_path / "go").touch()

    directory = gpualert.run_directory()
    wait_until((directory / "exit.json").exists, DEADLINE_S, "the end is written down")
    assert json.loads((directory / "exit.json").read_text())["code"] == 7
    assert (directory / "log").read_bytes() == b"finished\n"


def keepers(directory: Path) -> tuple[int, int]:
    started = json.loads((directory / "started.json").read_text())
    return started["supervisor"]["pid"], started["guard"]["pid"]


@pytest.mark.parametrize("victims", ["supervisor", "guard", "both"])
def test_killed_keepers_do_not_change_the_status(gpualert: Gpualert, tmp_path: Path, victims: str) -> None:
    """One keeper is enough for the exact status; without both, nobody saw the end, and 125 says so."""
    script = f"touch {tmp_path}/runs; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo finished; exit 7"
    process = popen(gpualert, "run", "--", "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((tmp_path / "runs").exists, DEADLINE_S, "the command runs")
    supervisor, guard = keepers(gpualert.run_directory())
    # It takes its name when it has become a sub-reaper; until then a child whose supervisor dies would go to init.
    name = Path(f"/proc/{guard}/comm")
    wait_until(lambda: name.read_text() == "gpualert-guard\n", DEADLINE_S, "the guard is a sub-reaper")
    if victims in ("guard", "both"):
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not lives(guard), DEADLINE_S, "the guard is gone")
    if victims in ("supervisor", "both"):
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not lives(supervisor), DEADLINE_S, "the supervisor is gone")
    (tmp_path / "go").touch()

    out, err = process.communicate(timeout=DEADLINE_S)

    assert out == b"finished\n"
    if victims == "both":
        assert process.returncode == 125
        assert b"nobody saw" in err and str(gpualert.run_directory()).encode() in err
    else:
        assert process.returncode == 7


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("/nonexistent/program",), 127, b"/nonexistent/program: No such file or directory"),
        (("no-such-program-here",), 127, b"no-such-program-here: command not found"),
        (("/etc/passwd",), 126, b"/etc/passwd: Permission denied"),
        (("/",), 126, b"/: Permission denied"),
    ],
)
def test_what_cannot_be_executed_is_told_as_a_shell_tells_it(
    gpualert: Gpualert, words: tuple[str, ...], status: int, says: bytes
) -> None:
    """Also when quiet: a shell is not silent about it either."""
    done = gpualert.run("run", "-q", "--", *words)
    assert done.returncode == status
    assert done.stderr == b"gpualert: " + says + b"\n"
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run",), b"command"),
        (("run", "--"), b"command"),
        (("run", "--", ""), b"command"),
        (("run", "--no-such-option", "--", "true"), b"--no-such-option"),
        (("run", "--deadline", "soon", "--", "true"), b"duration"),
        (("run", "--env", "A", "--", "true"), b"NAME=VALUE"),
        (("run", "--env", "A\nB=1", "--", "true"), b"env"),
        (("run", "--env", "GPUALERT_LAUNCH_ID=x", "--", "true"), b"reserved"),
        (("run", "--deadline", "0", "--", "true"), b"deadline_s"),
        (("run", "--cwd", "/nonexistent", "--", "true"), b"/nonexistent"),
    ],
)
def test_our_own_failure_is_125_and_one_line(gpualert: Gpualert, words: tuple[str, ...], says: bytes) -> None:
    """2 could be the command's own status; nothing is left behind."""
    done = gpualert.run(*words)
    assert done.returncode == 125
    assert says in done.stderr and done.stderr.count(b"\n") == 1, done.stderr
    assert gpualert.run_directories() == []


def test_without_a_place_for_the_log_nothing_runs(gpualert: Gpualert, tmp_path: Path) -> None:
    """No log, no launch. /var/tmp is tried last, so all three places have to be refused."""
    (tmp_path / "occupied").write_text("")
    environment = {**gpualert.environment, "GPUALERT_ROOT": str(tmp_path / "occupied")}
    code = (
        "import sys\n"
        "from gpualert import foreground, roots\n"
        "roots.candidate_roots = lambda configured=None, environ=None: [sys.argv[1]]\n"
        "sys.exit(foreground.main(['--', 'touch', sys.argv[2]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path / "occupied"), str(tmp_path / "ran")],
        env=environment,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 125
    assert b"no place for run directories" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_failure_is_explained_after_the_output_and_only_once(gpualert: Gpualert) -> None:
    """Class, domain, the line that proves it, and where the log is; on stderr, so that stdout stays the command's."""
    done = gpualert.run("run", "--", sys.executable, "-S", "-c", "import no_such_module_here")
    said = done.stderr.decode()

    assert done.returncode == 1
    assert "no_such_module_here" in done.stdout.decode()
    assert "FAILED: exit 1, class missing_module" in said
    assert "log line" in said and "No module named" in said
    assert str(gpualert.run_directory()) in said


def test_quiet_says_nothing_and_success_says_nothing(gpualert: Gpualert) -> None:
    assert gpualert.run("run", "-q", "--", "false").stderr == b""
    assert gpualert.run("run", "--", "true").stderr == b""


def test_json_is_one_line_on_stderr(gpualert: Gpualert) -> None:
    """For success and failure alike."""
    for command, code in (("true", 0), ("false", 1)):
        done = gpualert.run("run", "--json", "--", command)
        outcome = json.loads(done.stderr)
        assert done.returncode == code
        assert outcome["schema_version"] == 1 and outcome["exit_code"] == code


def test_a_classifier_that_fails_cannot_change_the_status(gpualert: Gpualert) -> None:
    """Neither by an exception, nor by hanging up on us, nor by ending the process."""
    for trouble in ("raise RuntimeError('no')", "import sys; sys.exit(0)", "raise KeyboardInterrupt"):
        code = (
            "import sys\n"
            "from gpualert import foreground, report\n"
            f"def build(*_, **__):\n    {trouble}\n"
            "report.build = build\n"
            "sys.exit(foreground.main(['--', 'sh', '-c', 'exit 3']))\n"
        )
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], env=gpualert.environment, capture_output=True, timeout=DEADLINE_S
        )
        assert done.returncode == 3, trouble


def test_a_signal_during_the_verdict_does_not_change_the_status(gpualert: Gpualert, tmp_path: Path) -> None:
    """Somebody who does not want to wait for our opinion gets the status at once."""
    code = (
        "import sys, time\n"
        "from gpualert import foreground, report\n"
        f"def build(*_, **__):\n    open({str(tmp_path / 'slow')!r}, 'w').close()\n    time.sleep(600)\n"
        "report.build = build\n"
        "sys.exit(foreground.main(['--', 'sh', '-c', 'exit 3']))\n"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", code], env=gpualert.environment)
    wait_until((tmp_path / "slow").exists, DEADLINE_S, "the verdict is being made")

    process.send_signal(signal.SIGTERM)

    assert process.wait(DEADLINE_S) == 3


def test_options_reach_the_launch(gpualert: Gpualert, tmp_path: Path) -> None:
    """Folder, variables, a label and a script of several lines."""
    words = [
        "run",
        "--cwd",
        str(tmp_path),
        "--env",
        "COLOUR=blue=green",
        "--label",
        "first",
        "-c",
        "pwd\necho $COLOUR $1",
    ]
    done = gpualert.run(*words, "zero", "one")
    assert done.stdout.decode().splitlines() == [str(tmp_path), "blue=green one"]
    listed = json.loads(gpualert.run("list", "--json").stdout)["launches"]
    assert [launch["label"] for launch in listed] == ["first"]


def test_a_deadline_stops_the_command(gpualert: Gpualert) -> None:
    done = gpualert.run("run", "--deadline", "0.3", "--grace-period", "5", "--", "sleep", "600")
    assert done.returncode == 128 + signal.SIGTERM
    assert b"TIMED_OUT" in done.stderr


def test_python_does_not_keep_lines_back(gpualert: Gpualert, tmp_path: Path) -> None:
    """The log is a file, and Python would buffer 8 KiB of it; not so for launchers of several ranks."""
    done = gpualert.run("run", "-q", "--", "sh", "-c", "echo $PYTHONUNBUFFERED")
    assert done.stdout == b"1\n"
    launcher = tmp_path / "torchrun"
    launcher.write_text("#!/bin/sh\necho [$PYTHONUNBUFFERED]\n")
    launcher.chmod(0o755)
    assert gpualert.run("run", "-q", "--", str(launcher)).stdout == b"[]\n"


def test_ignored_hang_ups_stay_ignored(gpualert: Gpualert, tmp_path: Path) -> None:
    """nohup means it."""
    script = f"touch {tmp_path}/runs; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 4"
    argv = gpualert.argv("run", "-q", "--", "sh", "-c", script)
    process = subprocess.Popen(
        ["nohup", *argv],
        env=gpualert.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until((tmp_path / "runs").exists, DEADLINE_S, "the command runs")
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert process.wait(DEADLINE_S) == 4


def test_a_stopped_wrapper_and_its_command_are_continued_together(gpualert: Gpualert, tmp_path: Path) -> None:
    """SIGTSTP without a terminal, as a batch system sends it to a process group of its own."""
    script = f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 6"
    # With its parent in the same session and another group; the kernel discards SIGTSTP for an orphaned group.
    process = popen(gpualert, "run", "-q", "--", "sh", "-c", script, preexec_fn=os.setpgrp)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), DEADLINE_S, "the command runs")
    pid = int((tmp_path / "pid").read_text())

    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: process_state(pid) == "T", DEADLINE_S, "the command is stopped")
    wait_until(lambda: process_state(process.pid) == "T", DEADLINE_S, "the wrapper is stopped")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: process_state(pid) != "T", DEADLINE_S, "the command goes on")
    (tmp_path / "go").touch()

    assert process.wait(DEADLINE_S) == 6

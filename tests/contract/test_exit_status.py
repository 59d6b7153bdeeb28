"""The exit status is a pure function of the child's end: every code, every signal, whoever witnesses it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from gpualert import records
from gpualert.launch import start_fast
from gpualert.records import ExitStatus, RunState
from tests.support.launching import Host, host, wait_until_reaper

__all__ = ["host"]

#: Signals whose default action ends a process; what is left over stops it, continues it or does nothing.
FATAL = sorted(
    set(signal.valid_signals())
    - {
        *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
        *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    }
)
CORE = {
    *(signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV),
    *(signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS),
}


def fast(host: Host, argv: list[str]) -> tuple[list[bytes], records.RunRecord]:
    """A foreground launch: what its pipe says at the end, and the record."""
    started = start_fast(argv, root=str(host.root))
    words = b""
    while piece := os.read(started.announce, 4096):
        words += piece
        if words.endswith(b"\n"):
            break
    os.close(started.announce)
    record = records.read(started.run_directory)
    host.records.append(record)
    return words.split(), record


def test_every_exit_code_is_exact(host: Host) -> None:
    """0 to 255, as wait(2) tells them; 0 alone is a success."""
    launched = {code: host.launch(["sh", "-c", f"exit {code}"]) for code in range(256)}
    ended = {code: host.end(record) for code, record in launched.items()}

    assert {c: r.exit for c, r in ended.items()} == {c: ExitStatus(c, None, False) for c in range(256)}
    assert [c for c, r in ended.items() if r.state is RunState.SUCCEEDED] == [0]
    assert {r.state for c, r in ended.items() if c} == {RunState.FAILED}


def test_every_exit_code_is_announced_to_the_foreground(host: Host) -> None:
    """The pipe says what exit.json says, and it says it when the file is there."""
    for code in (0, 1, 2, 3, 126, 127, 128, 137, 254, 255):
        words, record = fast(host, ["sh", "-c", f"exit {code}"])

        assert words == [b"ended", b"%d" % code, b"-"]
        assert record.exit == ExitStatus(code, None, False)


@pytest.mark.parametrize("core_limit", [0, resource.RLIM_INFINITY], ids=["no-core", "core"])
def test_every_fatal_signal_is_exact(host: Host, tmp_path: Path, core_limit: int) -> None:
    """A list command that dies by signal N is reported as that signal; whether it dumped core is the kernel's word."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if core_limit and before[1] != resource.RLIM_INFINITY:
        pytest.skip("needs a hard limit that allows core files")
    resource.setrlimit(resource.RLIMIT_CORE, (core_limit, before[1]))
    try:
        # Not Python's own handlers: the process is plain by then, and its disposition is the default.
        code = "import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"
        launched = {
            number: host.launch(
                [sys.executable, "-I", "-S", "-c", _DEFAULT + code, str(int(number))], cwd=str(tmp_path)
            )
            for number in FATAL
        }
        ended = {number: host.end(record) for number, record in launched.items()}
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)

    assert {n: (r.exit.code, r.exit.signal) for n, r in ended.items() if r.exit} == {n: (None, int(n)) for n in FATAL}
    dumped = {n for n, r in ended.items() if r.exit and r.exit.core_dumped}
    assert dumped <= CORE, "only these can dump core"
    if core_limit == 0 and not _core_goes_to_a_pipe():
        assert not dumped
    elif not _core_goes_to_a_pipe():
        assert signal.SIGSEGV in dumped


_DEFAULT = (
    "import signal, sys\n"
    "n = int(sys.argv[1])\n"
    "n in (9, 19) or signal.signal(n, signal.SIG_DFL)\n"
    "import gc; gc.disable()\n"
)


def _core_goes_to_a_pipe() -> bool:
    return Path("/proc/sys/kernel/core_pattern").read_text().startswith("|")


def test_a_shell_command_reports_128_plus_n(host: Host) -> None:
    """As every shell does: the script lives on after its command was killed, and could have gone on."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGUSR1)
    for number in numbers:
        record = host.run(f"sh -c 'kill -{int(number)} $$'")

        assert record.exit == ExitStatus(128 + number, None, False), record.exit
        assert record.state is RunState.FAILED


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("true\nfalse", 1),
        ("echo done  # exit 0, or so it says", 0),
        ("false\n# a comment ends it", 1),
        ("if true; then\n  (exit 9)\nfi", 9),
        ("set -e\nfalse\necho not reached\n", 1),
        ("return 5", 5),
        ("exec sh -c 'exit 6'", 6),
        ("cat <<'HERE' > /dev/null\n$(exit 3) ` \" '\nHERE\nexit 4", 4),
        ("trap 'exit 21' EXIT; exit 20", 21),
    ],
)
def test_a_script_ends_as_its_author_wrote_it(host: Host, command: str, code: int) -> None:
    """Many lines, comments at the end, here-documents, exit, return, exec, traps: as in a file run by bash."""
    assert host.run(command).exit == ExitStatus(code, None, False)


def test_a_command_of_200_kb_runs(host: Host) -> None:
    """It is a file, not an argument, so the kernel's limit of 128 KiB an argument does not apply."""
    lines = "".join(f"x={number}; : {'y' * 80}\n" for number in range(2500))
    record = host.run(lines + "echo $x; exit 11")

    assert len(lines) > 200_000
    assert record.exit == ExitStatus(11, None, False)
    assert host.log(record) == b"2499\n"


def test_sh_is_enough(host: Host, tmp_path: Path) -> None:
    """Where there is no bash the script runs under sh."""
    found = host.run("echo $0 $BASH_VERSION; exit 3", environ={"PATH": str(tmp_path), "HOME": str(host.home)})
    # bash is looked for in its usual places as well; only the status is the same everywhere
    assert found.exit == ExitStatus(3, None, False)


@pytest.mark.parametrize(
    ("argv", "code", "number"),
    [
        (["no-such-program-anywhere"], 127, errno.ENOENT),
        (["/no/such/program"], 127, errno.ENOENT),
        (["/etc/passwd"], 126, errno.EACCES),
        (["/etc"], 126, errno.EACCES),
        (["/etc/passwd/x"], 127, errno.ENOTDIR),
    ],
)
def test_a_program_that_cannot_be_executed(host: Host, argv: list[str], code: int, number: int) -> None:
    """127 and 126 as a shell would, with the errno; and not one byte in the log that the child did not write."""
    record = host.run(argv)

    assert record.exit == ExitStatus(code, None, False)
    assert record.exec_errno == number
    assert record.state is RunState.FAILED
    assert host.log(record) == b""


def test_a_binary_for_another_machine(host: Host, tmp_path: Path) -> None:
    """ENOEXEC with a NUL in its first bytes is no script: 126."""
    program = tmp_path / "other"
    program.write_bytes(b"\x7fELG\0\0\0")
    program.chmod(0o755)
    record = host.run([str(program)])

    assert record.exit == ExitStatus(126, None, False)
    assert record.exec_errno == errno.ENOEXEC


def test_a_script_without_a_shebang_runs_under_sh(host: Host, tmp_path: Path) -> None:
    """As execvp(3) and every shell do it."""
    script = tmp_path / "script"
    script.write_text("echo from sh $1; exit 5\n")
    script.chmod(0o755)
    record = host.run([str(script), "one"])

    assert record.exit == ExitStatus(5, None, False)
    assert host.log(record) == b"from sh one\n"


def test_the_program_is_looked_up_in_its_own_path(host: Host, tmp_path: Path) -> None:
    """env={"PATH": …} decides, not the PATH of whoever launched."""
    (tmp_path / "mine").write_text("#!/bin/sh\nexit 8\n")
    (tmp_path / "mine").chmod(0o755)

    assert host.run(["mine"], env={"PATH": str(tmp_path)}).exit == ExitStatus(8, None, False)


@pytest.mark.parametrize("who", ["supervisor", "guard"])
@pytest.mark.parametrize(
    ("end", "expected"),
    [("exit 37", ExitStatus(37, None, False)), ("kill -KILL $$", ExitStatus(None, 9, False))],
    ids=["code", "signal"],
)
def test_exact_although_a_keeper_was_killed(
    host: Host, tmp_path: Path, who: str, end: str, expected: ExitStatus
) -> None:
    """Either alone is enough: the one that is left reads the status from the kernel."""
    gate = tmp_path / "gate"
    record = host.launch(["sh", "-c", f"echo before; while [ ! -e {gate} ]; do sleep 0.05; done; echo after; {end}"])
    host.wait_for_log(record, b"before")
    wait_until_reaper(host, record)
    host.kill(record, who)
    gate.touch()
    ended = host.end(record)

    assert ended.exit == expected
    assert ended.witness == ("guard" if who == "supervisor" else "supervisor")
    assert host.log(record) == b"before\nafter\n"


def test_lost_only_when_nobody_saw_the_end(host: Host, tmp_path: Path) -> None:
    """With both keepers dead the child goes on and loses no byte; that it then ended is known, how is not."""
    gate = tmp_path / "gate"
    record = host.launch(["sh", "-c", f"echo before; while [ ! -e {gate} ]; do sleep 0.05; done; echo after; exit 3"])
    host.wait_for_log(record, b"before")
    host.kill(record, "supervisor")
    host.kill(record, "guard")

    now = records.read(record.run_directory)
    assert (now.state, now.supervised, now.exit) == (RunState.RUNNING, False, None)
    gate.touch()
    ended = host.end(record)
    assert (ended.state, ended.lost_reason, ended.exit) == (RunState.LOST, "vanished", None)
    assert host.log(record) == b"before\nafter\n"


def test_the_childs_signals_are_not_pythons(host: Host) -> None:
    """Python ignores SIGPIPE and SIGXFSZ, and nohup SIGHUP; a child that inherits that behaves strangely in pipes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        record = host.run(["cat", "/proc/self/status"])
    finally:
        signal.signal(signal.SIGHUP, before)
    lines = dict(line.split(":\t", 1) for line in host.log(record).decode().splitlines())

    # 32 and 33 belong to the C library, which lets nobody change them; GNU make hands them on ignored.
    of_libc = 1 << 31 | 1 << 32
    masks = {name: int(lines[name], 16) & ~of_libc for name in ("SigBlk", "SigIgn", "SigCgt")}
    assert masks == {"SigBlk": 0, "SigIgn": 0, "SigCgt": 0}

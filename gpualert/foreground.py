"""``gpualert run``: a launch with a terminal's manners. The log is on disk and on the terminal, signals reach the
command, and the exit status is the command's own, whatever happens to our opinion about it.

The command lives in a session of its own, so that it outlives this process. What a terminal would have sent to it
(Ctrl-C, Ctrl-\\, Ctrl-Z, hang-up) comes to us and is passed on to its process group.

On the way to the command's start: no import beyond os, select and _signal; the rest comes when it has ended.
"""

from __future__ import annotations

import _signal
import errno
import os
import select

from gpualert.logfile import LogReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

    from gpualert.launch import FastLaunch
    from gpualert.outcome import Outcome

#: Exit status when gpualert itself could not do what was asked (as of env(1), nohup(1) and docker-run(1)).
OWN_FAILURE = 125
#: The signals that go on to the command's process group as they are.
FORWARDED = (
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)
#: Between looks at the log: short after output, longer while it is quiet. The command's end is noticed at once.
SHORTEST_DELAY_S = 0.005
LONGEST_DELAY_S = 0.1
#: Longest that the verdict after a failure may take, and how long to wait for an observer in it.
VERDICT_BOUND_S = 20.0
VERDICT_WAIT_S = 3.0
#: A command that ran at least this long is worth waiting for warnings behind its exit status of 0.
WORTH_A_LOOK_S = 2.0
_KEEPERS_GONE_GRACE_S = 5.0


class Ended:
    """How the command ended, as its keeper announced it. Both None: nobody saw the end."""

    __slots__ = ("code", "signal")

    def __init__(self, code: int | None, signal: int | None) -> None:
        self.code = code
        self.signal = signal

    @property
    def status(self) -> int:
        """Our exit status: the code, 128 + the signal, or :data:`OWN_FAILURE` when nobody saw the end."""
        if self.signal is not None:
            return 128 + self.signal
        return OWN_FAILURE if self.code is None else self.code


def parse_fast(arguments: Sequence[str]) -> tuple[bool, list[str]] | None:
    """
    The plain forms ``[-q] [--] COMMAND…`` without argparse (11 ms).

    :return: (quiet, command); None when there is any other option, or no command: argparse answers then.
    """
    quiet = False
    rest = list(arguments)
    while rest and rest[0] in ("-q", "--quiet"):
        quiet = True
        rest.pop(0)
    if rest and rest[0] == "--":
        rest.pop(0)
    elif rest and rest[0].startswith("-"):
        return None
    return (quiet, rest) if rest and rest[0] else None


def main(arguments: Sequence[str]) -> int:
    """
    The fast way in, for ``gpualert run`` as the first word.

    :param arguments: what follows ``run``.
    :return: the exit status.
    """
    plain = parse_fast(arguments)
    if plain is None:
        from gpualert import cli

        return cli.main(["run", *arguments])
    quiet, command = plain
    from gpualert import launch

    return run(
        lambda stdin: launch.start_fast(command, env=with_unbuffered(command), stdin=stdin),
        quiet=quiet,
        program=command[0],
    )


#: They start several ranks that share one log, where unbuffered writes tear lines of different ranks into each other.
MULTI_RANK_LAUNCHERS = frozenset(
    ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "orterun", "srun", "horovodrun")
)
_MULTI_RANK_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def with_unbuffered(command: Sequence[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    What to add to the command's environment: ``env``, and ``PYTHONUNBUFFERED=1``, for Python would keep lines back.

    Not where the variable is set already, and not for a command that starts several ranks.
    """
    added = dict(env or {})
    several = any(
        word.rpartition("/")[2] in MULTI_RANK_LAUNCHERS or word in _MULTI_RANK_MODULES for word in command[:3]
    )
    if not several and "PYTHONUNBUFFERED" not in os.environ:
        added.setdefault("PYTHONUNBUFFERED", "1")
    return added


def run(
    start: Callable[[int | None], FastLaunch],
    *,
    quiet: bool = False,
    program: str = "command",
    tell: Callable[[Outcome], None] | None = None,
) -> int:
    """
    Start a launch and stay with it to its end.

    :param start: called with the descriptor of the command's standard input (None: /dev/null).
    :param quiet: no verdict and no warnings on stderr.
    :param program: the command's name, for a message when it could not be executed.
    :param tell: what to do with the outcome instead of printing a verdict block.
    :return: the exit status: the command's code, 128 + signal, or 125 when gpualert itself failed.
    """
    stay = _Stay(quiet)
    stay.take_signals()
    from gpualert.errors import GpuAlertError

    try:
        launched = start(_stdin_for_command())
    except (GpuAlertError, OSError) as error:
        _say(str(error))
        return OWN_FAILURE
    except Exception as error:  # a fault of ours must not pass for the command's status 1
        _say(f"{type(error).__name__}: {error} (a fault of gpualert's; nothing was run)")
        return OWN_FAILURE
    _let_go_of_stdin()
    if not quiet:
        stay.told = launched.warnings
        for warning in launched.warnings:
            _say(f"warning: {warning}")
    ended = stay.to_the_end(launched)
    try:
        _after(stay, ended, quiet, program, tell)
    except BaseException:  # whatever the opinion ran into, and whoever interrupted it: the status is decided
        pass
    return ended.status


class _Stay:
    """Mirrors the log and passes signals on, from the start to the end."""

    def __init__(self, quiet: bool) -> None:
        self.directory = ""
        self.quiet = quiet
        self.told: Sequence[str] = ()  # warnings that need not be repeated at the end
        self.group: int | None = None  # the command's process group, as long as it may be signalled
        self.pending: list[int] = []
        self.ended: Ended | None = None
        self.last_byte = b"\n"
        self.mirroring = True
        self._heard = b""

    # -- signals

    def take_signals(self) -> None:
        """What is ignored already (nohup, a background job of a script) stays ignored."""
        for number in FORWARDED:
            if _signal.getsignal(number) is not _signal.SIG_IGN:
                _signal.signal(number, self._forward)
        if _signal.getsignal(_signal.SIGTSTP) is not _signal.SIG_IGN:
            _signal.signal(_signal.SIGTSTP, self._suspend)
        _signal.signal(_signal.SIGCONT, self._forward)

    def _forward(self, number: int, frame: Any) -> None:
        if self.group is None:
            if self.ended is None:
                self.pending.append(number)
            return
        try:
            os.killpg(self.group, number)
        except OSError:  # the group is gone: its end is being announced
            pass

    def _suspend(self, number: int, frame: Any) -> None:
        """Ctrl-Z: the command stops, then we do; the shell's fg or bg continues us, and we continue the command."""
        if self.group is None:
            if self.ended is None:
                self.pending.append(number)
            return
        # SIGSTOP: the kernel discards SIGTSTP for a group like the command's, which has no parent in its own session.
        self._forward(_signal.SIGSTOP, None)
        _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGTSTP)
        _signal.signal(_signal.SIGTSTP, self._suspend)
        self._forward(_signal.SIGCONT, None)

    def _deliver_pending(self) -> None:
        while self.pending:
            number = self.pending.pop(0)
            (self._suspend if number == _signal.SIGTSTP else self._forward)(number, None)

    # -- the loop

    def to_the_end(self, launched: FastLaunch) -> Ended:
        self.directory = launched.run_directory
        self.group = launched.child_pid
        self._deliver_pending()
        reader = LogReader(launched.log_path)
        poll = select.poll()
        poll.register(launched.announce, select.POLLIN)
        delay_s = SHORTEST_DELAY_S
        while self.ended is None:
            if self._mirror(reader):
                delay_s = SHORTEST_DELAY_S
                if not poll.poll(0):
                    continue
            elif not poll.poll(delay_s * 1000):
                delay_s = min(delay_s * 1.5, LONGEST_DELAY_S)
                continue
            if not self._hear(launched.announce) and self.ended is None:
                self.ended = self._watch_alone(reader)
        self.group = None
        size = reader.size() or 0  # what the command leaves running may write for ever
        while self.mirroring and reader.position[1] < size and self._mirror(reader):
            pass
        reader.close()
        return self.ended

    def _hear(self, announcements: int) -> bool:
        """Read what the keepers announce. :return: False when there will be no more."""
        piece = os.read(announcements, 4096)
        self._heard += piece
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            words = line.split(b" ")
            if words[0] == b"ended":
                code, number = (None if word == b"-" else int(word) for word in words[1:3])
                self.ended = Ended(code, number)
        return bool(piece)

    def _watch_alone(self, reader: LogReader) -> Ended:
        """Both keepers were killed; the command may live on, and somebody else may still have seen its end."""
        import time

        from gpualert import procfs
        from gpualert.rundir import RunDirectory

        files = RunDirectory(self.directory)
        started = files.read_started()
        child = None if started is None else procfs.ProcessIdentity.from_json(started["child"])
        gone_since: float | None = None
        while True:
            end = files.read_exit()
            if end is not None:
                return Ended(end.get("code"), end.get("signal"))
            if child is None or procfs.alive(child) is False:
                gone_since = gone_since or time.monotonic()
                self.group = None
                if time.monotonic() - gone_since > _KEEPERS_GONE_GRACE_S:
                    return Ended(None, None)
            if not self._mirror(reader):
                time.sleep(LONGEST_DELAY_S)

    def _mirror(self, reader: LogReader) -> bool:
        """Bring what is new in the log to the terminal. :return: whether there was anything."""
        if not self.mirroring:
            return False
        try:
            chunks = reader.read()
        except OSError as error:  # the disk under the log is gone; the command's end is still announced
            self.mirroring = False
            _say(f"the log can no longer be read ({error.strerror or error}): {self.directory}/log")
            return False
        for chunk in chunks:
            try:
                write_all(1, chunk.data)
            except OSError as error:
                self.mirroring = False
                # A closed window or a pipe that nobody reads any more. The command goes on, and so does its log.
                if not self.quiet:
                    reason = error.strerror or error
                    _say(f"output can no longer be shown ({reason}); the log goes on: {self.directory}/log")
            self.last_byte = chunk.data[-1:]
        return bool(chunks)


def tell_json(outcome: Outcome) -> None:
    """The outcome as one line of JSON on stderr (stdout is the command's)."""
    from gpualert.rundir import encode_json

    write_all(2, encode_json(outcome.to_json()) + b"\n")


def write_all(descriptor: int, data: bytes) -> None:
    """
    Write all of it, in order, however slowly the other end reads.

    :raises OSError: the other end is gone.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # a terminal that another program has made non-blocking
            select.select([], [descriptor], [])


def _stdin_for_command() -> int | None:
    """
    Our standard input, for the command; None when there is none, or when it is a terminal that is not ours to read.

    The command is in another session, where the terminal's job control cannot stop it from reading: started in the
    background it would take away what is typed for the shell.
    """
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None
        os.fstat(0)
    except OSError as error:
        return 0 if error.errno == errno.ENOTTY else None
    return 0


def _let_go_of_stdin() -> None:
    """Only the command reads: when it closes its input, whoever writes into the pipe must notice."""
    try:
        if not os.isatty(0):
            null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(null, 0)
            os.close(null)
    except OSError:
        pass


def _say(text: str) -> None:
    try:
        write_all(2, (f"gpualert: {text}\n").encode("utf-8", "replace"))
    except OSError:
        pass


# -- after the end


class _Enough(BaseException):
    """The bound of the verdict is over, or somebody does not want to wait for it."""


def _after(stay: _Stay, ended: Ended, quiet: bool, program: str, tell: Callable[[Outcome], None] | None) -> None:
    """Say what is to be said about the end. May raise anything at all."""

    def enough(number: int, frame: Any) -> None:
        raise _Enough

    if ended.code in (126, 127) or ended.status == OWN_FAILURE:
        _explain(stay.directory, ended, program)
    if tell is None and (quiet or (ended.status == 0 and not _worth_a_look(stay.directory))):
        return
    for number in (*FORWARDED, _signal.SIGALRM):
        if _signal.getsignal(number) is not _signal.SIG_IGN:
            _signal.signal(number, enough)
    _signal.signal(_signal.SIGTSTP, _signal.SIG_DFL)
    _signal.signal(_signal.SIGCONT, _signal.SIG_DFL)
    _signal.setitimer(_signal.ITIMER_REAL, VERDICT_BOUND_S)
    from gpualert import report
    from gpualert.cli_text import verdict_block

    outcome = report.build(stay.directory, verdict_wait_s=VERDICT_WAIT_S, ask_git=tell is not None)
    if tell is not None:
        tell(outcome)
        return
    if stay.told:
        import dataclasses

        rest = tuple(warning for warning in outcome.warnings if warning not in stay.told)
        outcome = dataclasses.replace(outcome, warnings=rest)
    block = verdict_block(outcome)
    if block:
        # Not into the middle of a line that the command left open.
        write_all(2, ((b"" if stay.last_byte == b"\n" else b"\n") + block.encode("utf-8", "replace")))


def _worth_a_look(directory: str) -> bool:
    """The command ran long enough for an observer, so its verdict costs little and may hold a warning."""
    try:
        began = os.stat(directory + "/started.json").st_mtime
        return os.stat(directory + "/exit.json").st_mtime - began >= WORTH_A_LOOK_S
    except OSError:
        return False


def _explain(directory: str, ended: Ended, program: str) -> None:
    """What a shell would have said when it could not execute a command, and what to know when nobody saw the end."""
    from gpualert.rundir import RunDirectory

    if ended.code is None and ended.signal is None:
        _say(f"nobody saw how the command ended, for its keepers were killed; its log is {directory}/log")
        return
    end = RunDirectory(directory).read_exit() or {}
    number = end.get("exec_errno")
    if number is None:
        return
    found = "command not found" if number == errno.ENOENT and "/" not in program else os.strerror(number)
    _say(f"{program}: {found}")

"""Start one process with its output in the log, and end a tree of processes.

The child is forked early, while the launcher is still busy with the disk, and waits at a gate (a pipe). What comes
through is the path of its run directory; if the pipe closes instead, it ends without having run anything. So a
command whose ``started.json`` does not exist has not run.
"""

from __future__ import annotations

import _signal
import errno
import os
import time

from gpualert import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, NoReturn

    from gpualert.procfs import ProcessIdentity, ProcessStat

    #: What to execute: argv, environment, working directory; all bytes.
    Execution = tuple[list[bytes], dict[bytes, bytes], bytes]
    #: From the run directory's path to the log's path and what to execute.
    Resolve = Callable[[str], tuple[str, Execution]]

#: Seconds that SIGKILL is repeated for what is left of a tree.
KILL_PATIENCE_S = 5.0


def fork(
    prepare: Callable[[], Resolve],
    stdin: int | None,
    umask: int,
    error_write: int,
    *kept: int,
) -> tuple[int, int]:
    """
    Fork the child and leave it waiting at its gate.

    :param prepare: called in the child while it waits; gives what tells, once the gate opens, from the run directory's
        path (log path, what to execute).
    :param stdin: descriptor that becomes its standard input; None for /dev/null.
    :param error_write: pipe on which it reports the errno of a failed start; closed by a successful exec.
    :param kept: further descriptors for ``prepare``; no other stays open in the child.
    :return: (pid, write end of the gate). Write the run directory's path and a NUL to let it run; close it to call it
        off.
    """
    gate_read, gate_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(gate_write)
            _run(gate_read, prepare, stdin, umask, error_write, kept)
        finally:
            os._exit(126)
    os.close(gate_read)
    try:
        os.setpgid(pid, pid)  # both sides do it, so that neither can be too late
    except OSError:
        pass
    return pid, gate_write


def _run(
    gate: int,
    prepare: Callable[[], Resolve],
    stdin: int | None,
    umask: int,
    error: int,
    kept: tuple[int, ...],
) -> NoReturn:
    code = 126
    try:
        # All that can be done while the disk is busy. Every signal is still blocked.
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null if stdin is None else stdin, 0)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.set_inheritable(0, True)  # dup2 of a descriptor onto itself leaves it to be closed by exec
        keep_only((gate, error, *kept))
        resolve = prepare()
        os.umask(umask)
        default_signals()
        word = b""
        while not word.endswith(b"\0"):
            piece = os.read(gate, 8192)
            if not piece:
                raise OSError(errno.ECANCELED, "called off")
            word += piece
        log_path, (argv, env, cwd) = resolve(os.fsdecode(word[:-1]))
        # One open file for both, so the log has the order in which things were written.
        log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(cwd)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        code = 127
        execute(argv, env)
    except OSError as trouble:
        if trouble.errno not in (errno.ENOENT, errno.ENOTDIR):
            code = 126
        os.write(error, b"%d\n" % (trouble.errno or 0))
        os._exit(code)


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> NoReturn:
    """
    Replace this process, looking the program up in the *new* environment's PATH, as a shell would.

    :raises OSError: the most telling of the errors met.

    Source: execve(2); execvp(3) for the script without a ``#!`` line.
    """
    program = argv[0]
    if b"/" in program:
        candidates = [program]
    else:
        path = env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin")
        candidates = [(folder or b".") + b"/" + program for folder in path.split(b":")]
    telling = None
    for candidate in candidates:
        try:
            os.execve(candidate, argv, env)
        except OSError as error:
            if error.errno == errno.ENOEXEC and _looks_like_text(candidate):
                os.execve(b"/bin/sh", [b"sh", candidate] + argv[1:], env)
            if telling is None or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                telling = error
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                    break
    assert telling is not None
    raise telling


def _looks_like_text(path: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = os.read(descriptor, 80)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return b"\0" not in start


def restore_signals() -> None:
    """Every disposition to its default, and an empty mask."""
    default_signals()
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def default_signals() -> None:
    """
    Every disposition to its default. Python ignores SIGPIPE and SIGXFSZ; nohup and others ignore more; exec would pass
    that on.
    """
    for number in range(1, _signal.NSIG):
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            try:
                _signal.signal(number, _signal.SIG_DFL)
            except (OSError, ValueError):
                pass  # the two that the C library keeps for itself


def block_signals() -> None:
    """A keeper takes its signals by sigtimedwait, one at a time. Faults stay deadly."""
    faults = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGABRT}
    numbers = [n for n in range(1, _signal.NSIG) if n not in faults and n not in (32, 33)]
    _signal.pthread_sigmask(_signal.SIG_SETMASK, numbers)
    # Inherited as ignored it would make the kernel throw the children's statuses away.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


def keep_only(kept: tuple[int, ...], above: int = 2) -> None:
    """Close every descriptor greater than ``above`` but these."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > above and number not in kept:
            try:
                os.close(number)
            except OSError:
                pass  # the one that listed the folder


def signal_tree(
    child: ProcessIdentity, guard: ProcessIdentity | None, launch_id: str, number: int, exclude: tuple[int, ...] = ()
) -> list[ProcessStat]:
    """
    Send one signal to every process of the tree.

    :return: those that were there and could be signalled.
    """
    reached = []
    for one in procfs.tree(child, guard, launch_id, exclude + (os.getpid(),)):
        try:
            if procfs.send_signal(one.pid, one.start_ticks, number):
                reached.append(one)
        except PermissionError:
            pass  # it is listed as a survivor in the end
    return reached


def kill_tree(
    child: ProcessIdentity,
    guard: ProcessIdentity | None,
    launch_id: str,
    exclude: tuple[int, ...] = (),
    between: Callable[[], None] = lambda: None,
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """
    SIGKILL the tree, again and again until nothing is left of it or :data:`KILL_PATIENCE_S` are over.

    :param between: called between the rounds; a parent collects its dead there.
    :return: (killed, survivors), each as {pid, command}.
    """
    seen: dict[tuple[int, int], dict[str, object]] = {}
    left: list[ProcessStat] = []
    until = time.monotonic() + KILL_PATIENCE_S
    pause = 0.002
    while True:
        left = procfs.tree(child, guard, launch_id, exclude + (os.getpid(),))
        for one in left:
            if (one.pid, one.start_ticks) not in seen:
                seen[one.pid, one.start_ticks] = describe(one)
            try:
                procfs.send_signal(one.pid, one.start_ticks, _signal.SIGKILL)
            except PermissionError:
                pass
        between()
        if not left or time.monotonic() > until:
            break
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    survivors = {(one.pid, one.start_ticks) for one in left}
    return (
        [value for name, value in seen.items() if name not in survivors],
        [value for name, value in seen.items() if name in survivors],
    )


def describe(one: ProcessStat) -> dict[str, object]:
    return {"pid": one.pid, "command": procfs.command_line(one.pid) or one.command}

"""The outermost keeper: leader of the launch's session, and the one to whom its orphans return.

It forks the supervisor and then waits. If the supervisor dies, the child becomes the guard's own (it is a sub-reaper),
so its status is still read, and the guard runs the same loop. It also starts the observer, which may crash, hang or be
killed without any effect on the rest.
"""

from __future__ import annotations

import _signal
import errno
import os
import time

from gpualert import child as children
from gpualert import procfs
from gpualert.errors import RunDirectoryError
from gpualert.rundir import RunDirectory
from gpualert.supervisor import Ending, Settings, Watch, now_boottime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

    from gpualert.child import Execution, Resolve

#: The observer is started so long after the child: a run that ends sooner is classified by whoever asks.
OBSERVER_DELAY_S = 0.25
OBSERVER_RESTARTS = 3
#: How long the observer may go on after everything else has ended, seconds.
OBSERVER_LINGER_S = 120.0
_OBSERVER_ABSENT = 77
_PR_SET_CHILD_SUBREAPER = 36


class Plan:
    """
    All that guard, supervisor and child need, handed over by fork, so that no secret touches a disk or a command line.

    :param prepare: called in the child while it waits; gives what tells from the run directory what to execute.
    :param stdin: the child's standard input; None for /dev/null.
    """

    __slots__ = ("observe", "prepare", "run", "settings", "started", "stdin")

    def __init__(
        self,
        prepare: Callable[[], Callable[[RunDirectory], Execution]],
        settings: Settings,
        stdin: int | None,
        observe: bool,
    ) -> None:
        self.prepare = prepare
        self.settings = settings
        self.stdin = stdin
        self.observe = observe
        #: set once the word is given
        self.run: RunDirectory | None = None
        #: the launcher has been told, in the process that told it or heard so
        self.started = False


def run(plan: Plan, go_read: int, ready_write: int) -> NoReturn:
    """
    The life of the guard, in the process just forked for it.

    :param go_read: the run directory's path and a NUL come when it exists and is claimed; its closing calls the launch
        off.
    :param ready_write: gets ``started <child> <supervisor> <guard>`` or ``error <kind> <message>``, and at the end
        ``ended <code|-> <signal|->``.
    """
    code = 1
    try:
        # First of all the forks, since the launcher has begun to work on the disk; the rest beside it.
        os.setsid()
        umask = os.umask(0o077)
        children.block_signals()
        pipes = _Pipes(go_read, ready_write)
        supervisor = os.fork()
        if supervisor == 0:
            try:
                _supervise(plan, pipes, umask)
                code = 0
            except BaseException as error:
                confess(plan, error, ready_write)
            finally:
                os._exit(code)
        _detach(pipes.messages_read, pipes.error_read, ready_write, pipes.detached_write)
        os.write(pipes.detached_write, b"g")
        os.close(pipes.detached_write)
        _Guard(plan, supervisor, pipes.messages_read, pipes.error_read, ready_write).keep()
        code = 0
    except BaseException as error:
        confess(plan, error, ready_write)
    finally:
        os._exit(code)


class _Pipes:
    """
    What connects launcher, guard (who makes it), supervisor and child.

    :ivar messages_read: from supervisor to guard, with ``messages_write``.
    :ivar error_read: from the child: the errno of a failed exec, with ``error_write``.
    :ivar detached_read: one byte each from guard and child, when they hold nothing of the launcher's any more.
    """

    __slots__ = (
        *("detached_read", "detached_write", "error_read", "error_write", "go_read", "guard"),
        *("messages_read", "messages_write", "ready_write"),
    )

    def __init__(self, go_read: int, ready_write: int) -> None:
        self.guard = os.getpid()
        self.go_read = go_read
        self.ready_write = ready_write
        self.messages_read, self.messages_write = os.pipe()
        self.error_read, self.error_write = os.pipe()
        self.detached_read, self.detached_write = os.pipe()


def _detach(*kept: int) -> None:
    """Hold nothing of what the launcher had open, and no folder."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2):
        os.dup2(null, number)
    children.keep_only(kept)
    os.chdir("/")


def _supervise(plan: Plan, pipes: _Pipes, umask: int) -> None:
    def prepare() -> Resolve:
        execution = plan.prepare()
        os.write(pipes.detached_write, b"c")
        os.close(pipes.detached_write)

        def resolve(path: str) -> tuple[str, Execution]:
            run = RunDirectory(path)
            return run.log_path, execution(run)

        return resolve

    ready_write, to_guard = pipes.ready_write, pipes.messages_write
    pid, gate = children.fork(prepare, plan.stdin, umask, pipes.error_write, pipes.detached_write)
    _detach(pipes.go_read, ready_write, to_guard, pipes.error_read, pipes.detached_read, gate)
    guard = procfs.identify(pipes.guard)  # not our parent's: that is init, if it has died
    child = procfs.identify(pid)
    supervisor = procfs.identify(os.getpid())
    word = _read_word(pipes.go_read)
    os.close(pipes.go_read)
    if not word or guard is None or child is None or supervisor is None:
        return  # called off; the closing gate ends the child
    run = plan.run = RunDirectory(os.fsdecode(word))
    _send(to_guard, b"R " + word + b"\n")
    started: dict[str, Any] = {
        "launch_id": run.launch_id,
        "number": run.number,
        "started_at": time.time(),
        "clock_monotonic_s": time.monotonic(),
        "clock_boottime_s": now_boottime(),
        "hostname": os.uname().nodename,
        "child": child.to_json(),
        "supervisor": supervisor.to_json(),
        "guard": guard.to_json(),
    }
    try:
        if os.getppid() != guard.pid:
            # Whoever reads the claim sees a dead guard, and may launch anew: so this one must not go on.
            raise RunDirectoryError("the guard died during the launch", "internal")
        run.write_started(started)
    except Exception as error:
        _send(to_guard, b"F\n")
        kind = getattr(error, "kind", "internal")
        _send(
            ready_write, b"error %s %s\n" % (kind.encode(), str(error).encode("utf-8", "replace").replace(b"\n", b" "))
        )
        return
    os.write(gate, word + b"\0")
    os.close(gate)
    while os.read(pipes.detached_read, 8):
        pass  # until guard and child have let go of it
    os.close(pipes.detached_read)
    # In this order: a guard that did not hear of the start tells it once more.
    _send(ready_write, started_line(started))
    plan.started = True
    _send(to_guard, b"S\n")
    protect()
    _rename(b"gpualert-super")
    Watch(
        run,
        started,
        plan.settings,
        "supervisor",
        pipes.error_read,
        tell=lambda line: _send(to_guard, line),
        announce=lambda ending: announce(ready_write, ending),
    ).watch()


class _Guard:
    def __init__(self, plan: Plan, supervisor: int, messages: int, error_read: int, ready_write: int) -> None:
        self.plan = plan
        self.supervisor: int | None = supervisor
        self.supervisor_code: int | None = None
        self.messages = messages
        self.error_read = error_read
        self.ready_write = ready_write
        self.failed = False
        self.started = False
        self.generation = 0
        self.ending: Ending | None = None
        self.observer: int | None = None
        self.observer_starts = 0
        self.watch: Watch | None = None
        self._buffer = b""
        self._own_oom_score: bytes | None = None

    def keep(self) -> None:
        # While the supervisor is busy with the disk, so that the child has a second parent from its first instruction.
        subreaper = become_subreaper()
        while not (self.started or self.failed) and self._receive():
            pass
        run = self.plan.run
        if self.failed or run is None:
            return
        if not self.started:
            # The supervisor died in the middle of the start: the gate was open by then, or the child has run nothing.
            if run.read_started() is None or self._child_was_called_off():
                run.write_abandoned({"why": "the supervisor died before the start", "at": time.time()})
                return
        if subreaper:
            _rename(b"gpualert-guard")
        self._own_oom_score = protect()
        os.set_blocking(self.messages, False)
        start_observer_at = time.monotonic() + OBSERVER_DELAY_S
        while self.supervisor is not None:
            self.collect()
            if self.supervisor is None:
                break
            waiting = 3600.0
            if self.plan.observe and self.observer_starts == 0:
                waiting = start_observer_at - time.monotonic()
                if waiting <= 0:
                    if run.has_ended():
                        self.observer_starts = OBSERVER_RESTARTS + 1
                    else:
                        self.start_observer()
                    continue
            _signal.sigtimedwait((_signal.SIGCHLD,), max(0.0, waiting))
        while self._receive():
            pass
        if self.supervisor_code != 0:
            self._take_over(run)
        self._wait_for_observer()

    def _child_was_called_off(self) -> bool:
        """Waits until the child has executed something (the pipe closes) or has said why not."""
        return os.read(self.error_read, 64).strip() == b"%d" % errno.ECANCELED

    def _receive(self) -> bool:
        """Read what the supervisor tells. :return: False when there is nothing (now, or ever again)."""
        try:
            piece = os.read(self.messages, 4096)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EINTR:
                return True
            return False
        if not piece:
            return False
        self._buffer += piece
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"R":
                self.plan.run = RunDirectory(os.fsdecode(rest))
            elif word == b"S":
                self.started = self.plan.started = True
            elif word == b"F":
                self.failed = True
            elif word == b"G":
                self.generation = int(rest)
            elif word == b"E":
                self.ending = Ending.from_line(line)
        return True

    def collect(self) -> None:
        """
        Reap: supervisor, observer, and whoever returned to us; but never the child, whose status belongs to the loop.
        """
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid == 0:
                return
            pid = found.si_pid
            if self.supervisor is not None and pid != self.observer and self._collect_supervisor():
                return  # what is dead besides may be the child, which has come to us: the loop collects it
            if self.watch is not None and pid == self.watch.child.pid and self.watch.ending is None:
                return  # the loop collects it next, and the others after that
            code = _collect(pid)
            if pid == self.observer:
                self.observer = None
                if code not in (0, _OBSERVER_ABSENT) and self.observer_starts <= OBSERVER_RESTARTS:
                    self.start_observer()

    def _collect_supervisor(self) -> bool:
        assert self.supervisor is not None
        if os.waitid(os.P_PID, self.supervisor, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.supervisor_code = _collect(self.supervisor)
        self.supervisor = None
        return True

    def _take_over(self, run: RunDirectory) -> None:
        """The supervisor was killed, or failed. The child is ours now."""
        started = run.read_started()
        if started is None:
            return
        if not self.started:
            _send(self.ready_write, started_line(started))
            self.plan.started = True
        self.watch = watch = Watch(
            run,
            started,
            self.plan.settings,
            "guard",
            self.error_read,
            announce=lambda ending: announce(self.ready_write, ending),
            housekeeping=self.collect,
        )
        watch.log.generation = self.generation
        watch.resume(self.ending)
        watch.watch()

    def start_observer(self) -> None:
        self.observer_starts += 1
        run = self.plan.run
        assert run is not None
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            code = 1
            try:
                children.keep_only(())
                os.nice(10)
                _rename(b"gpualert-watch")
                if self._own_oom_score is not None:
                    _write_proc("/proc/self/oom_score_adj", self._own_oom_score)
                children.restore_signals()
                try:
                    from gpualert.observer import main  # late: it is large, and may be absent
                except ImportError:
                    code = _OBSERVER_ABSENT
                else:
                    main(run.path)
                    code = 0
            finally:
                os._exit(code)
        self.observer = pid

    def _wait_for_observer(self) -> None:
        until = time.monotonic() + OBSERVER_LINGER_S
        while self.observer is not None:
            self.collect()
            if self.observer is None:
                return
            left = until - time.monotonic()
            if left <= 0:
                self.observer_starts = OBSERVER_RESTARTS + 1
                os.kill(self.observer, _signal.SIGKILL)
                left = 1.0
            _signal.sigtimedwait((_signal.SIGCHLD,), left)


def started_line(started: dict[str, Any]) -> bytes:
    """``started <child> <supervisor> <guard>`` for the launcher."""
    pids = [started[who]["pid"] for who in ("child", "supervisor", "guard")]
    return b"started %d %d %d\n" % (pids[0], pids[1], pids[2])


def _collect(pid: int) -> int:
    """Take a dead child's status: its code, or minus its signal."""
    _, status = os.waitpid(pid, os.WNOHANG)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def announce(descriptor: int, ending: Ending) -> None:
    """``ended <code|-> <signal|->`` for whoever started us and still listens."""
    words = ["-" if word is None else str(word) for word in (ending.code, ending.signal)]
    _send(descriptor, b"ended %s %s\n" % (words[0].encode(), words[1].encode()))


def confess(plan: Plan, error: BaseException, ready_write: int) -> None:
    """A defect of ours: leave its traceback in the run directory, for who wonders why the other took over."""
    if not plan.started:
        # No process could be forked, say; the launcher waits for a word.
        _send(ready_write, b"error internal %s\n" % repr(error).encode("ascii", "replace")[:1000])
    if plan.run is None:
        return
    try:
        import traceback

        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        descriptor = os.open(plan.run.keeper_log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(descriptor, text.encode("utf-8", "replace"))
    except Exception:
        pass


def become_subreaper() -> bool:
    """
    Let orphans below us come to us instead of to init.

    :return: False where that is impossible (no ctypes); the launch then loses its witness if the supervisor is killed.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except Exception:
        return False


def protect() -> bytes | None:
    """
    Ask the OOM killer to take others first, where that is allowed. :return: the score before; None when it was left.
    """
    path = "/proc/self/oom_score_adj"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        before = os.read(descriptor, 32).strip()
        os.write(descriptor, b"-900")
        return before
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _rename(name: bytes) -> None:
    """For whoever reads ps(1) or top(1)."""
    _write_proc("/proc/self/comm", name)


def _write_proc(path: str, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError:
        pass


def _send(descriptor: int, line: bytes) -> None:
    """Lines are shorter than PIPE_BUF, so they arrive whole; a reader that is gone does not matter."""
    try:
        os.write(descriptor, line)
    except OSError:
        pass


def _read_word(descriptor: int) -> bytes:
    """What comes before a NUL; empty when the other end is closed instead."""
    word = b""
    while not word.endswith(b"\0"):
        piece = os.read(descriptor, 8192)
        if not piece:
            return b""
        word += piece
    return word[:-1]

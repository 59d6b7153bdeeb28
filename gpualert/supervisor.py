"""The process that waits for the child, and the loop it runs.

It does nothing that can hurt the child: the child's output does not pass through it, and its death is survived (the
guard runs the same loop then). It keeps no opinion: it forwards signals, enforces the deadline, carries out a stop, and
writes once how the child ended.
"""

from __future__ import annotations

import _signal
import os
import time

from gpualert import child as children
from gpualert import procfs
from gpualert.rundir import HEARTBEAT_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from gpualert.rundir import RunDirectory

#: Signals passed on to the child's process group. A stop from the terminal becomes SIGSTOP: SIGTSTP does not stop an
#: orphaned process group.
FORWARDED = tuple(
    getattr(_signal, "SIG" + name) for name in ("TERM", "INT", "HUP", "USR1", "USR2", "QUIT", "TSTP", "CONT")
)
#: Looks into the run directory at least so often, seconds.
TICK_S = 1.0
#: How long what the command left behind may take to end after SIGTERM, seconds (less if the grace period is shorter).
LEFTOVER_GRACE_S = 10.0
#: How long ``stop_command`` may run, seconds.
STOP_COMMAND_S = 30.0
#: How long a disk that does not take exit.json is asked again, seconds.
EXIT_PATIENCE_S = 600.0
_FINGERPRINT = 64
_WAITED = (_signal.SIGCHLD, _signal.SIGURG, *FORWARDED)


def now_boottime() -> float:
    """Seconds since boot, those asleep included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Settings:
    """What the loop needs of the spec, as plain values."""

    __slots__ = ("deadline_s", "grace_period_s", "leftovers", "stop_command", "stop_signal")

    def __init__(
        self,
        deadline_s: float | None = None,
        grace_period_s: float = 30.0,
        stop_signal: int = _signal.SIGTERM,
        leftovers: str = "kill",
        stop_command: str | None = None,
    ) -> None:
        self.deadline_s = deadline_s
        self.grace_period_s = grace_period_s
        self.stop_signal = stop_signal
        self.leftovers = leftovers
        self.stop_command = stop_command

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Settings:
        """From the content of spec.json."""
        return cls(
            spec.get("deadline_s"),
            spec.get("grace_period_s", 30.0),
            getattr(_signal, spec.get("stop_signal") or "SIGTERM"),
            spec.get("leftovers") or "kill",
            spec.get("stop_command"),
        )


class LogWatch:
    """
    Notices that the child has truncated its own log (``echo x > /dev/stderr`` does, in bash).

    The size alone would miss a log that has grown again since the last look, so the first bytes and those before the
    last size are compared too.
    """

    def __init__(self, path: str) -> None:
        self.generation = 0
        self.size = 0
        self._head = b""
        self._tail = b""
        try:
            self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            self._descriptor = None

    def look(self) -> bool:
        """:return: True when it was truncated since the last look."""
        if self._descriptor is None:
            return False
        try:
            size = os.fstat(self._descriptor).st_size
            head = os.pread(self._descriptor, _FINGERPRINT, 0)
            before = os.pread(self._descriptor, len(self._tail), max(0, self.size - len(self._tail)))
            truncated = size < self.size or not head.startswith(self._head) or before != self._tail
            self.generation += truncated
            self.size = size
            self._head = head
            self._tail = os.pread(self._descriptor, min(size, _FINGERPRINT), max(0, size - _FINGERPRINT))
        except OSError:
            return False
        return truncated


class Ending:
    """How the child ended, as wait(2) tells it; code and signal None when nobody could see it."""

    __slots__ = ("code", "core_dumped", "ended_at", "exec_errno", "rusage", "signal")

    def __init__(self, code: int | None, signal: int | None, core_dumped: bool | None) -> None:
        self.code = code
        self.signal = signal
        self.core_dumped = core_dumped
        self.exec_errno: int | None = None
        self.rusage: dict[str, float] | None = None
        self.ended_at = time.time()

    def to_line(self) -> bytes:
        """For the pipe from supervisor to guard."""
        fields = (self.code, self.signal, self.core_dumped, self.exec_errno)
        return b"E " + " ".join("-" if f is None else str(int(f)) for f in fields).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Ending:
        code, signal, core, exec_errno = (None if w == b"-" else int(w) for w in line.split()[1:5])
        ending = cls(code, signal, None if core is None else bool(core))
        ending.exec_errno = exec_errno
        return ending


def _collect(pid: int) -> dict[str, float] | None:
    """
    Take a dead child's status, which is known already. :return: what it used; None where Python cannot tell.
    """
    try:
        import resource  # noqa: F401  (wait4 needs it, and finds out only after it has taken the status)
    except ImportError:
        os.waitpid(pid, 0)
        return None
    _, _, usage = os.wait4(pid, 0)
    return {
        "max_rss_kib": usage.ru_maxrss,
        "user_s": round(usage.ru_utime, 6),
        "system_s": round(usage.ru_stime, 6),
    }


class Watch:
    """
    The loop over one child, for whoever keeps it: supervisor, guard, or a visitor who found both dead.

    :param started: the content of started.json.
    :param witness: ``supervisor``, ``guard`` or ``visitor``, for exit.json.
    :param tell: sends a line to the process that would take over; None when there is none.
    :param announce: called with ``(code, signal)`` once exit.json is written.
    :param housekeeping: called at every turn of the loop; collects other children of ours.
    """

    def __init__(
        self,
        run: RunDirectory,
        started: dict[str, Any],
        settings: Settings,
        witness: str,
        error_read: int | None = None,
        tell: Callable[[bytes], None] = lambda line: None,
        announce: Callable[[Ending], None] = lambda ending: None,
        housekeeping: Callable[[], None] = lambda: None,
    ) -> None:
        self.run = run
        self.child = procfs.ProcessIdentity.from_json(started["child"])
        self.guard = procfs.ProcessIdentity.from_json(started["guard"])
        self.keepers = (int(started["guard"]["pid"]), int(started["supervisor"]["pid"]))
        self.launch_id: str = started["launch_id"]
        self.started_monotonic: float = started["clock_monotonic_s"]
        self.started_boottime: float = started["clock_boottime_s"]
        self.settings = settings
        self.witness = witness
        self.log = LogWatch(run.log_path)
        self.ending: Ending | None = None
        self.stopped_by: str | None = None
        self._error_read = error_read
        self._tell = tell
        self._announce = announce
        self._housekeeping = housekeeping
        self._stopping: str | None = None
        self._kill_at: float | None = None
        self._leftovers_signalled = False
        self._killed: list[dict[str, object]] = []
        self._survivors: list[dict[str, object]] = []
        self._heartbeat_at = 0.0
        self._stop_command: tuple[int, float] | None = None
        self._is_parent = witness != "visitor"
        self._unwritten: dict[str, Any] | None = None

    # ---- the loop

    def watch(self) -> None:
        """Return when the child has ended and nothing is left of its tree, or nothing more can be done about it."""
        pause = 0.02
        while True:
            self._housekeeping()
            if self.ending is None:
                self._look_at_child()
            if self.ending is None:
                self._look_for_reasons_to_stop()
            if self.ending is None and self._kill_at is not None and now_boottime() >= self._kill_at:
                self._kill()
                if self.ending is None:
                    self._look_at_child()
                if self.ending is None:
                    self._give_up_on_survivors()
            if self.ending is not None and self._tree_is_done():
                self._wait_for_stop_command()
                self._insist_on_exit()
                self.run.release_reserves()
                return
            self._tend_stop_command()
            self._beat()
            if self.log.look():
                self._tell(b"G %d\n" % self.log.generation)
            self._wait(pause)
            # Short steps at first: a run of a second that truncates its log is noticed, too.
            pause = min(pause * 2, TICK_S)

    def resume(self, ending: Ending | None = None) -> None:
        """
        Take over from a predecessor who is dead.

        :param ending: an end that it saw, and perhaps could not write down any more.
        """
        try:
            before = self.run.read_stopping()
        except Exception:
            before = None  # damaged, or newer: the request or the deadline is found again
        if before is not None:
            self._stopping = self.stopped_by = str(before.get("why") or "request")
            at = before.get("clock_boottime_s")
            self._kill_at = (at if isinstance(at, (int, float)) else now_boottime()) + self.settings.grace_period_s
            self._sign_stopping(before)
        if ending is not None:
            self._ended(ending)

    def _wait(self, pause: float) -> None:
        now = now_boottime()
        times = [pause]
        if self.ending is not None:
            times.append(0.1)
        elif self._is_parent is False:
            times.append(0.2)
        if self._kill_at is not None:
            times.append(self._kill_at - now)
        elif self.settings.deadline_s is not None:
            times.append(self.started_boottime + self.settings.deadline_s - now)
        if self.witness == "visitor":
            time.sleep(max(0.0, min(times)))  # a guest takes no signals away from its process
            return
        information = _signal.sigtimedwait(_WAITED, max(0.0, min(times)))
        if information is not None and information.si_signo in FORWARDED:
            self._forward(information.si_signo)

    def _forward(self, number: int) -> None:
        if self.ending is None:
            self._signal_group(_signal.SIGSTOP if number == _signal.SIGTSTP else number)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._heartbeat_at >= HEARTBEAT_S or self._heartbeat_at == 0.0:
            self._heartbeat_at = now
            try:
                self.run.touch_heartbeat()
            except OSError:
                pass  # the folder may have been deleted under us; the child goes on

    # ---- the child

    def _look_at_child(self) -> None:
        if not self._is_parent:
            if procfs.alive(self.child) is False:
                self._ended(Ending(None, None, None))
            return
        try:
            # Looked at, but not yet collected: if we die now, the guard can still collect it.
            found = os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._is_parent = False
            return self._look_at_child()
        if found is None or found.si_pid == 0:
            return
        if found.si_code == os.CLD_EXITED:
            ending = Ending(found.si_status, None, False)
        else:
            ending = Ending(None, found.si_status, found.si_code == getattr(os, "CLD_DUMPED", 3))
        ending.exec_errno = self._read_exec_errno()
        self._tell(ending.to_line())
        ending.rusage = _collect(self.child.pid)
        self._ended(ending)

    def _read_exec_errno(self) -> int | None:
        if self._error_read is None:
            return None
        try:
            os.set_blocking(self._error_read, False)
            word = os.read(self._error_read, 64)
        except OSError:
            return None
        return int(word) if word.strip().isdigit() else None

    def _ended(self, ending: Ending) -> None:
        self.ending = ending
        self.log.look()
        if self._is_parent is False and ending.code is None and ending.signal is None and self.stopped_by is None:
            # Nobody saw the end: no exit.json, and the reader says LOST.
            self._announce(ending)
            return
        self._unwritten = {
            "launch_id": self.launch_id,
            "code": ending.code,
            "signal": ending.signal,
            "core_dumped": ending.core_dumped,
            "stopped_by": self.stopped_by,
            "ended_at": ending.ended_at,
            "elapsed_s": round(max(0.0, time.monotonic() - self.started_monotonic), 6),
            "witness": self.witness,
            "exec_errno": ending.exec_errno,
            "log_size_bytes": self.log.size,
            "log_generation": self.log.generation,
            "log_truncated": self.log.generation > 0,
            "rusage": ending.rusage,
        }
        self._write_exit()
        # Whoever waits reads the file, which is there; the disk may take its time.
        self._announce(ending)
        self.run.make_exit_durable()

    def _write_exit(self) -> bool:
        """
        Say once how the child ended; on a full disk the reserve is used.

        :return: False when the disk would not even so (read-only, say): worth another try.
        """
        if self._unwritten is None:
            return True
        try:
            self.run.write_exit(self._unwritten)
        except Exception:
            if os.path.isdir(self.run.path):
                return False
            # deleted under us: there is nowhere to say it
        self._unwritten = None
        return True

    def _insist_on_exit(self) -> None:
        until = time.monotonic() + EXIT_PATIENCE_S
        while not self._write_exit() and time.monotonic() < until:
            time.sleep(1.0)

    # ---- the stop

    def _look_for_reasons_to_stop(self) -> None:
        if self._stopping is not None:
            return
        if self.run.stop_requested():
            self._stop("request")
        elif self.settings.deadline_s is not None:
            if now_boottime() >= self.started_boottime + self.settings.deadline_s:
                self._stop("deadline")

    def _stop(self, why: str) -> None:
        self._stopping = self.stopped_by = why
        self._kill_at = now_boottime() + self.settings.grace_period_s
        if self.witness == "visitor":
            # Nobody else is left to speak for the launch: readers must know of us before the child can end.
            self._sign_stopping({"why": why, "at": time.time(), "clock_boottime_s": now_boottime()})
        # The signal before the file: the disk may be slow.
        if self.settings.grace_period_s > 0:
            self._signal_group(self.settings.stop_signal)
            self._signal_group(_signal.SIGCONT)  # a stopped process cannot react
        if self.witness != "visitor":
            self._sign_stopping({"why": why, "at": time.time(), "clock_boottime_s": now_boottime()})
        if self.settings.stop_command:
            self._start_stop_command(self.settings.stop_command)

    def _sign_stopping(self, value: dict[str, Any]) -> None:
        """Say, for readers and for whoever takes over, that the tree is being stopped, and that we do it."""
        by = procfs.identify(os.getpid())
        try:
            self.run.write_stopping(dict(value, by=None if by is None else by.to_json()))
        except Exception:
            pass  # the stop matters more

    def _signal_group(self, number: int) -> None:
        try:
            if self._is_parent or procfs.alive(self.child) is True:
                os.killpg(self.child.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _kill(self) -> None:
        exclude = self.keepers if self._stop_command is None else (*self.keepers, self._stop_command[0])
        killed, self._survivors = children.kill_tree(
            self.child, self.guard, self.launch_id, exclude, self._between_kills
        )
        self._killed.extend(killed)

    def _between_kills(self) -> None:
        self._housekeeping()
        if self.ending is None:
            self._look_at_child()

    def _give_up_on_survivors(self) -> None:
        """The child itself cannot be killed (sleeping in the kernel): say so, and go on waiting for it."""
        self._write_tree()
        self._kill_at = now_boottime() + 60.0

    def _tree_is_done(self) -> bool:
        """After the child's end: whether its tree has ended or been ended."""
        if self._stopping is None and self.settings.leftovers == "keep":
            return True
        now = now_boottime()
        if not self._leftovers_signalled:
            self._leftovers_signalled = True
            left = self._left()
            if self._kill_at is None:
                self._kill_at = now + min(self.settings.grace_period_s, LEFTOVER_GRACE_S)
            if left and self._kill_at > now:
                for one in left:
                    if self._stopping is not None and one.group == self.child.pid:
                        continue  # it has had the stop signal, and its grace period runs
                    try:
                        if procfs.send_signal(one.pid, one.start_ticks, _signal.SIGTERM):
                            self._killed.append(children.describe(one))
                        procfs.send_signal(one.pid, one.start_ticks, _signal.SIGCONT)
                    except PermissionError:
                        pass
        else:
            left = self._left()
        if left and self._kill_at is not None and now < self._kill_at:
            return False
        if left:
            self._kill()
        self._write_tree()
        return True

    def _left(self) -> list[procfs.ProcessStat]:
        exclude = [os.getpid(), *self.keepers]
        if self._stop_command is not None:
            exclude.append(self._stop_command[0])
        return procfs.tree(self.child, self.guard, self.launch_id, exclude)

    def _write_tree(self) -> None:
        by_pid = {entry["pid"]: entry for entry in self._killed}
        for entry in self._survivors:
            by_pid.pop(entry["pid"], None)
        value = {"at": time.time(), "killed": list(by_pid.values())[:200], "survivors": self._survivors[:200]}
        try:
            self.run.write_tree(value)
        except Exception:
            pass  # for readers only

    # ---- stop_command

    def _start_stop_command(self, text: str) -> None:
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            try:
                os.setsid()
                log = os.open(
                    self.run.stop_command_log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
                )
                os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                children.keep_only(())
                children.restore_signals()
                env = {name: value for name, value in os.environb.items() if not name.startswith(b"SSH_")}
                # Not the tag: the tree is killed by it, and this is not of the tree.
                env.pop(procfs.TAG.encode(), None)
                env[b"GPUALERT_STOPPING"] = self.launch_id.encode()
                os.execve(b"/bin/sh", [b"sh", b"-c", text.encode("utf-8", "surrogateescape")], env)
            finally:
                os._exit(126)
        self._stop_command = (pid, time.monotonic() + STOP_COMMAND_S)

    def _tend_stop_command(self) -> None:
        if self._stop_command is None:
            return
        pid, until = self._stop_command
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                self._stop_command = None
            elif time.monotonic() > until:
                os.killpg(pid, _signal.SIGKILL)
        except (ChildProcessError, ProcessLookupError, PermissionError):
            self._stop_command = None

    def _wait_for_stop_command(self) -> None:
        while self._stop_command is not None:
            self._tend_stop_command()
            if self._stop_command is not None:
                _signal.sigtimedwait((_signal.SIGCHLD,), 0.2)

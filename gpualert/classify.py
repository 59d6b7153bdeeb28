"""The judgement: from a scan, an exit and what else was seen to one verdict. Pure: no clock, no file, no environment.

In this order: who stopped it (us, a scheduler, the kernel), the first independent cause that the run did not survive,
what is only suspected, what echoes and exit status leave. Where nothing decides, the answer is ``unknown``.
"""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from typing import Any, Mapping, Sequence

from gpualert.answers import Answers
from gpualert.candidates import (
    DECISIVE,
    ECHO,
    GENERIC,
    STATED,
    TYPED,
    WEAK,
    Candidate,
)
from gpualert.exit_facts import SIGABRT, SIGFPE, SIGHUP, SIGINT, SIGKILL, SIGSEGV, ExitFacts
from gpualert.judge_observations import weigh
from gpualert.scan import Event, ScanResult
from gpualert.signature import default_rules
from gpualert.taxonomy import FailureClass, FailureDomain
from gpualert.verdict import Alternative, Classification, Evidence

__all__ = ["ExitFacts", "classify"]

_C = FailureClass
_D = FailureDomain

_BETWEEN_RANKS = re.compile(
    r"(?i)c10d|\brank\b|master|\bnode\b|gloo|tcp://|rendezvous|\bmpi|\bssh\b|store|socket\.cpp|worker"
)
_FAILS = re.compile(
    r"(?i)error|fail|fatal|abort|cannot|can't|can not|could not|couldn't|unable|exception|assert|kill|denied|not found"
    r"|no such|refus|invalid|out of|exhausted|exceed|terminat|stop|giving up|not enough|no space|timed? ?out"
)
_TOLD = re.compile(
    r"(?i)(?:received|caught|got|handling) (?:signal )?(?:SIGTERM|signal:? 15\b)|SIGTERM (?:was )?received"
)
_FIRST_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


def classify(exit: ExitFacts, scan: ScanResult, observations: Mapping[str, Any] | None = None) -> Classification:
    """
    Judge how a launch ended.

    :param observations: evidence beyond text, of :func:`gpualert.observations.reduce`, each key absent when nobody
        could look: ``oom_kills`` (int, the cgroup's counter grew by it), ``kernel_lines`` (list of str, about our
        processes and GPUs), ``scheduler_state`` (str, as sacct prints it), ``gpu_lost`` (list of str), ``gpu_errors``,
        ``driver_mismatch``, ``shm_full``, ``disks_full``, ``open_files``, ``host_memory_percent`` (float).
    """
    rules = scan.rules if scan.rules is not None else default_rules()
    return _Judge(exit, scan, rules, observations or {}).verdict()


class _Judge(Answers):
    # -- the order of questions --

    def verdict(self) -> Classification:
        for question in (self._stopped_by_us, self._never_ran, self._observed, self._success):
            answer = question()
            if answer is not None:
                return answer
        return self._by_log()

    def _by_log(self) -> Classification:
        """What log and exit status say alone."""
        decisive = self._decisive()
        if decisive is not None:
            return self._from(decisive)
        return self._by_text() or self._by_exit() or self._unknown()

    def _stopped_by_us(self) -> Classification | None:
        by = self.exit.stopped_by
        if by is None:
            return None
        seen = (Evidence("control", None, None, None, f"stopped by {by}", "control." + by), self.exit_evidence)
        if by == "deadline":
            return self._build(
                _C.TIME_LIMIT,
                seen,
                advice="The deadline of this launch was reached: raise it or resume from a checkpoint.",
            )
        if by == "hang":
            return self._build(_C.HANG, seen)
        return self._build(_C.INTERRUPTED, seen)

    def _never_ran(self) -> Classification | None:
        number = self.exit.exec_errno
        if number is not None:
            name = errno.errorcode.get(number, str(number))
            seen: tuple[Evidence, ...] = (Evidence("exit", None, None, None, f"execve failed: {name}", "exit.execve"),)
            failure_class = _C.COMMAND_NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else _C.NOT_EXECUTABLE
            if number == errno.ENOMEM:
                failure_class = _C.RAM_OOM
            return self._build(failure_class, seen)
        if self.exit.setup_failed:
            inner = self._by_text()
            if inner is not None:
                return replace(inner, domain=_D.CONFIGURATION)
            seen = (
                Evidence("exit", None, None, None, "the setup part failed: " + self.exit.words(), "exit.setup"),
            ) + self._tail(1)
            return self._build(
                _C.UNKNOWN, seen, domain=_D.CONFIGURATION, advice="Run the setup commands by hand on this host."
            )
        return None

    def _observed(self) -> Classification | None:
        """What kernel, scheduler, GPUs and disks say, where somebody could ask them, weighed against the log."""
        if self.exit.succeeded or not self.observations:
            return None
        return (None if self.exit.known else self._success()) or weigh(self, self._by_log())

    # -- exit 0, or nobody saw the exit --

    def _success(self) -> Classification | None:
        if self.exit.known and not self.exit.succeeded:
            return None
        finished = self._finished_after(None)
        if not self.exit.known:
            if finished is not None and self._hidden() is None:
                return self._build(_C.SUCCESS, (self._note_evidence(finished),))
            return None
        hidden = self._hidden()
        if hidden is not None:
            name = hidden.failure_class.value
            warning = (
                f"exit code 0, but the log ends in a failure ({name}): a pipe or a script hides the child's status"
            )
            return replace(hidden, warnings=hidden.warnings + (warning,))
        seen: tuple[Evidence, ...] = (self.exit_evidence,)
        if finished is not None:
            seen = (self.exit_evidence, self._note_evidence(finished))
        return self._build(_C.SUCCESS, seen, alternatives=self._losers(None))

    def _hidden(self) -> Classification | None:
        """A failure that exit 0 hides: after the last progress, and not after the work was finished."""
        nan = self._nan()
        if nan is not None:
            return self._from(nan)
        stopped = self._stopped_early()
        if stopped is not None:
            return self._from(stopped)
        told = self._told_to_stop()
        if told is not None:
            return told
        finished = self._finished_after(None)
        last_line = self.scan.tail[-1][0] if self.scan.tail else 0
        for item in self.all:
            if (
                item.survived
                or item.failure_class is None
                or item.failure_class is _C.NAN_LOSS
                and item.strength == WEAK
            ):
                continue
            if finished is not None and (finished.offset > item.offset or item.strength < DECISIVE):
                continue
            if self.scan.progress > item.progress:
                continue
            near_end = last_line - item.line <= 8
            if near_end and item.failure_class in (_C.TIME_LIMIT, _C.PREEMPTED) and item.strength >= WEAK:
                return self._from(item)
            if item.strength == DECISIVE and item.level != "quiet" and near_end:
                return self._from(item)
            if (
                item.trace is not None
                and item.strength >= GENERIC
                and last_line - item.line <= 60
                and not self._in_thread(item)
            ):
                return self._from(item)
            if near_end and item.strength == STATED and item.failure_class in _SHELL_CLASSES:
                return self._from(item)
        return None

    def _told_to_stop(self) -> Classification | None:
        """Somebody sent SIGTERM, and the program stopped in order, unfinished."""
        note = self.last_note.get("signal.term_received")
        if note is None or _TOLD.search(note.text) is None or self._finished_after(None) is not None:
            return None
        if note.progress < self.scan.progress - 3 or (self.scan.tail and self.scan.tail[-1][0] - note.line > 12):
            return None
        return self._build(
            _C.INTERRUPTED,
            (self._note_evidence(note), self.exit_evidence),
            alternatives=(
                Alternative(_C.PREEMPTED, "SIGTERM has many senders, and no word of the scheduler was seen"),
            ),
        )

    def _in_thread(self, item: Candidate) -> bool:
        note = self.last_note.get("habit.logging_error")
        return note is not None and item.trace is not None and 0 <= item.trace["line"] - note.line <= 2

    def _stopped_early(self) -> Candidate | None:
        """A guard ended the run and says why; validation that stops improving is no failure."""
        note = self.last_note.get("note.stopped_early")
        if (
            note is None
            or note.progress < self.scan.progress
            or self.last_note.get("note.early_stop_validation") is not None
        ):
            return None
        if self.scan.tail and self.scan.tail[-1][0] - note.line > 12:
            return None
        text = note.text.lower()
        said = [
            item
            for item in self.all
            if item.line == note.line and item.failure_class is not None and item.strength >= WEAK
        ]
        if said:
            return self._earliest_of_class(said[0])
        if "gpu" in text or "cuda" in text or "device" in text:
            for item in self.all:
                if item.failure_class in (_C.DRIVER_MISMATCH, _C.GPU_HARDWARE, _C.CUDA_ARCH):
                    return item
        if "slow" in text or "throughput" in text:
            for item in self.all:
                if item.failure_class is _C.SLOWDOWN:
                    return item
        return None

    def _finished_after(self, item: Candidate | None) -> Event | None:
        note = self.last_note.get("note.finished")
        if note is None or self.scan.progress - note.progress > 2:
            return None
        if item is not None and note.offset < item.offset:
            return None
        return note

    # -- a cause in the text --

    def _decisive(self) -> Candidate | None:
        """The word of kernel, scheduler or driver; hardware first: it makes schedulers cancel, not the reverse."""
        strong = [item for item in self.all if item.strength == DECISIVE and not self._long_survived(item)]
        if not strong:
            return None
        for item in strong:
            if item.failure_class is _C.GPU_HARDWARE:
                return item
        for item in strong:
            if item.failure_class in (_C.OOM_KILLER, _C.DISK_FULL) and strong[0].failure_class is _C.PREEMPTED:
                return item
        if strong[0].rule == "time_limit.command":
            # timeout(1) ends what stands still as well as what is late.
            still = [item for item in self.all if item.failure_class is _C.HANG and item.strength >= WEAK]
            if still and still[-1].progress >= self.scan.progress - 2:
                return still[0]
        return strong[0]

    def _long_survived(self, item: Candidate) -> bool:
        return self.scan.progress - item.progress >= 200 or (
            item.survived and item.failure_class is not _C.GPU_HARDWARE
        )

    def _by_text(self) -> Classification | None:
        nan = self._nan()
        live = [item for item in self.all if not item.survived and item.failure_class is not None]
        strong = [
            item for item in live if item.strength >= TYPED or (item.strength == GENERIC and item.trace is not None)
        ]
        strong = [item for item in strong if not (item.failure_class is _C.NAN_LOSS and item.strength == WEAK)]
        # Words about standing still or being slow are a cause where the run ended soon after, or was ended.
        ended = self.exit.likely_signal is not None or self.exit.code in (124, None)
        strong = [
            item
            for item in strong
            if item.failure_class not in (_C.HANG, _C.SLOWDOWN)
            or item.trace is not None
            or ended
            or self._near_end(item)
        ]
        strong = [item for item in strong if not self._only_remarks(item, strong)]
        by_exit = self._agrees_with_exit(live)
        if by_exit is not None:
            strong = [by_exit]
        if nan is not None and (not strong or nan.offset <= strong[0].offset):
            return self._from(nan)
        early = self._stopped_early()
        if strong:
            return self._from(self._first(strong))
        guessed = self._memory_reading()
        if guessed is not None:
            return guessed
        if early is not None:
            return self._from(early)
        weak = [item for item in live if item.strength == WEAK and self._weak_may_speak(item)]
        if weak:
            return self._from(weak[0])
        slow = self._ran_but_badly()
        if slow is not None:
            return self._from(slow)
        if self._flushed_late():
            return self._by_text()
        plain = [item for item in live if item.strength == GENERIC]
        if plain and self._near_end(plain[-1]):
            first = next(item for item in plain if self._near_end(item))
            return self._from(first)
        return self._by_echo()

    def _first(self, strong: Sequence[Candidate]) -> Candidate:
        """The first independent cause, unless it only sets the scene for a more specific one in the same breath."""
        first = strong[0]
        if first.failure_class is _C.INTERRUPTED:
            # A launcher interrupts everybody else before the failed rank's own words are flushed.
            for item in strong[1:]:
                if (
                    item.failure_class is not _C.INTERRUPTED
                    and item.line - first.line < 400
                    and item.strength >= STATED
                ):
                    return item
        if first.strength == GENERIC:
            for item in strong[1:]:
                same_stream = (
                    item.trace is not None and first.trace is not None and item.trace["stream"] == first.trace["stream"]
                ) or (item.trace is None and item.rank == first.rank and item.line - first.line <= 6)
                near = first.rank is None or item.line - first.line <= 40
                if item.strength >= STATED and same_stream and near and item.failure_class is not first.failure_class:
                    return item
        return first

    @staticmethod
    def _only_remarks(item: Candidate, strong: Sequence[Candidate]) -> bool:
        """A line in no words of failure, and an exception of another kind behind it that somebody died of."""
        if item.trace is not None or item.strength != STATED or item.level == "error" or _FAILS.search(item.text):
            return False
        return any(
            other.trace is not None
            and other.offset > item.offset
            and other.strength >= TYPED
            and other.failure_class is not item.failure_class
            for other in strong
        )

    def _flushed_late(self) -> bool:
        """
        Whether what came behind the exception that ended the program was only its buffered output: Python writes that
        at its end. Then nothing up to the exception was survived.
        """
        traces = [item for item in self.all if item.trace is not None and item.strength >= GENERIC]
        if self.exit.code != 1 or not traces or not traces[-1].survived:
            return False
        end = traces[-1]
        assert end.trace is not None
        if end.trace["headerless"] or any(item.offset > end.offset and item.strength >= WEAK for item in self.all):
            return False
        near = [item for item in self.all if end.progress - item.progress < 3]
        self.all = [replace(item, survived=False) if item in near else item for item in self.all]
        return True

    def _agrees_with_exit(self, live: Sequence[Candidate]) -> Candidate | None:
        wanted = {127: _C.COMMAND_NOT_FOUND, 126: _C.NOT_EXECUTABLE}.get(
            self.exit.code if self.exit.code is not None else -1
        )
        if wanted is None:
            return None
        return next((item for item in live if item.failure_class is wanted), None)

    def _weak_may_speak(self, item: Candidate) -> bool:
        if item.failure_class is _C.NAN_LOSS or item.failure_class in (_C.SLOWDOWN, _C.HANG):
            return False
        if item.failure_class in (_C.COMMAND_NOT_FOUND, _C.NOT_EXECUTABLE):
            return self._near_end(item)
        if item.level in ("quiet", "warning") and item.rule in ("file_not_found.text", "permission.text"):
            return False
        if item.rule == "rendezvous.network" and item.failure_class is _C.RENDEZVOUS:
            # Anything may fail to connect somewhere; between ranks the line says so.
            return _BETWEEN_RANKS.search(item.text) is not None and item.progress >= self.scan.progress - 2
        return item.progress >= self.scan.progress - 2

    def _ran_but_badly(self) -> Candidate | None:
        """A monitor's words about no progress or slow steps count when something ended the run and nothing failed."""
        ended = (
            self.exit.likely_signal is not None
            or self.exit.code in (124, None)
            or "note.stopped_early" in self.last_note
            or "echo.sigkill" in self.last_note
        )
        if not ended:
            return None
        for wanted in (_C.HANG, _C.SLOWDOWN):
            signs = [item for item in self.all if item.failure_class is wanted and item.strength >= WEAK]
            if signs and (wanted is _C.SLOWDOWN or signs[-1].progress >= self.scan.progress - 2):
                if (
                    wanted is _C.SLOWDOWN
                    and sum(self.scan.counts.get(name, 0) for name in ("slowdown.sign", "slowdown.stated")) < 3
                ):
                    continue
                return (
                    signs[0]
                    if wanted is _C.SLOWDOWN
                    else next(s for s in signs if s.progress >= self.scan.progress - 2)
                )
        return None

    def _nan(self) -> Candidate | None:
        """Values that were not finite and never became so again."""
        signs = [item for item in self.all if item.failure_class is _C.NAN_LOSS]
        if not signs:
            return None
        stated = [item for item in signs if item.strength >= TYPED and not item.survived]
        metric = [item for item in signs if item.strength == WEAK]
        if metric:
            last = metric[-1]
            count = self.scan.counts.get("nan_loss.metric", 0)
            if self.scan.progress - last.progress <= 1 and (count >= 3 or stated):
                stretch = [item for item in metric if item.progress >= last.progress - 1]
                return replace(stretch[0], strength=STATED, survived=False)
        return None

    def _memory_reading(self) -> Classification | None:
        """SIGKILL right after a reading of a full host: evidence of memory, if not the kernel's word."""
        note = self.last_note.get("note.host_memory_reading")
        killed = self.exit.likely_signal == SIGKILL or "echo.sigkill" in self.last_note
        percent = self.observations.get("host_memory_percent")
        if killed and percent is not None and float(percent) >= 95.0:
            text = f"host memory {float(percent):.0f} % used at the last sample"
            return self._build(
                _C.OOM_KILLER, (Evidence("host", None, None, None, text, "host.memory"), self.exit_evidence)
            )
        if killed and note is not None and note.progress >= self.scan.progress - 3:
            return self._build(_C.OOM_KILLER, (self._note_evidence(note), self.exit_evidence) + self._echo_lines(2))
        return None

    # -- echoes, exit status, nothing --

    def _by_echo(self) -> Classification | None:
        echoes = [item for item in self.all if item.strength == ECHO and not item.survived]
        classed = [item for item in echoes if item.failure_class is not None]
        for item in classed:
            if item.failure_class is _C.SEGFAULT:
                return self._from(item)
        first_death = next(
            (item for item in echoes if item.rule in ("echo.sigkill", "echo.elastic") and "exitcode: -9" in item.text),
            None,
        )
        for item in classed:
            if item.failure_class is _C.SHM_EXHAUSTED:
                return self._from(item)
        nccl = [item for item in classed if item.failure_class is _C.NCCL]
        if nccl and first_death is None and not self._another_rank_died(nccl):
            return self._from(self._best_nccl(nccl))
        cancelled = [item for item in classed if item.failure_class is _C.INTERRUPTED and not self._srun_gave_up(item)]
        if cancelled:
            waiting = self._waits_in_collective(cancelled[0])
            return waiting if waiting is not None else self._from(cancelled[0])
        return None

    def _srun_gave_up(self, cancel: Candidate) -> bool:
        """srun cancels a step itself when one of its tasks exits badly: nobody interrupted it."""
        for item in self.all:
            if "_step_signal: Terminating" in item.text and item.rule == "echo.srun":
                return True
            if "srun: error:" in item.text and ": Exited with" in item.text and item.offset < cancel.offset:
                return True
        return False

    def _another_rank_died(self, nccl: Sequence[Candidate]) -> bool:
        """A launcher names the first rank to fail, and it is none of those that lost a connection."""
        for item in self.all:
            named = _FIRST_FAILED.search(item.text) if item.rule == "echo.elastic" else None
            if named is None:
                continue
            code, rank = int(named.group(1)), int(named.group(2))
            return (
                code != -SIGABRT
                and all(other.rule in ("gloo.peer", "store.peer_gone", "nccl.error") for other in nccl)
                and all(other.rank is not None and other.rank != rank for other in nccl)
            )
        return False

    @staticmethod
    def _best_nccl(nccl: Sequence[Candidate]) -> Candidate:
        """The first line; but a transport's own error close behind it says more than 'a peer is gone'."""
        first = nccl[0]
        for item in nccl:
            if item.rule in ("nccl.socket", "nccl.ib", "nccl.config") and item.line - first.line < 200:
                return item
        return first

    def _waits_in_collective(self, cancel: Candidate) -> Classification | None:
        """Communicators were ready, the first step began, and nothing more came until somebody cancelled: it hung."""
        ready = self.notes.get("note.collectives_ready")
        began = self.notes.get("note.first_collective")
        if self.scan.progress > 0 or (ready is None and began is None):
            return None
        before = [item for item in self.scan.tail if item[0] < cancel.line]
        seen: list[Evidence] = []
        if began is not None:
            seen.append(self._note_evidence(began))
        elif before:
            seen.append(Evidence("log", before[-1][0], before[-1][1], None, before[-1][2], "hang.last_line"))
        seen.append(cancel.evidence())
        return self._build(_C.HANG, tuple(seen), domain=_D.UNKNOWN)

    def _by_exit(self) -> Classification | None:
        code, likely = self.exit.code, self.exit.likely_signal
        seen = (self.exit_evidence,) + self._tail(1)
        killed_text = any(item.rule in ("echo.sigkill",) for item in self.all)
        if likely == SIGSEGV:
            return self._build(_C.SEGFAULT, seen)
        if likely in (SIGINT, SIGHUP):
            return self._build(_C.INTERRUPTED, seen)
        if likely == SIGFPE:
            return self._build(_C.DIV_ZERO, seen)
        if code == 127 and not killed_text:
            return self._build(_C.COMMAND_NOT_FOUND, seen)
        if code == 126:
            return self._build(_C.NOT_EXECUTABLE, seen)
        if code == 124:
            return self._build(_C.TIME_LIMIT, seen, advice="124 is what timeout(1) returns when its limit is reached.")
        if self.exit.lost == "rebooted":
            return self._build(
                _C.NODE_FAILURE, (Evidence("exit", None, None, None, "the host was rebooted", "exit.rebooted"),)
            )
        return None

    def _unknown(self) -> Classification:
        seen: tuple[Evidence, ...] = (self.exit_evidence,) if self.exit.known or self.exit.lost else ()
        return self._build(_C.UNKNOWN, seen + self._echo_lines(3), alternatives=self._losers(None))


_SHELL_CLASSES = (
    _C.COMMAND_NOT_FOUND,
    _C.NOT_EXECUTABLE,
    _C.SYNTAX_ERROR,
    _C.USAGE_ERROR,
    _C.SEGFAULT,
    _C.FILE_NOT_FOUND,
    _C.CUDA_OOM,
    _C.NAN_LOSS,
)

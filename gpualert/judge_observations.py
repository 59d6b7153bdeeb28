"""What was seen beside the log, weighed against what the log says. Pure.

A counter, a kernel's line or a full disk is about a host that others use, too. So each proves a cause only together
with a death or an error that it explains; otherwise it is told as something that was considered.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Iterator, Mapping

from gpualert.answers import Answers
from gpualert.candidates import ECHO
from gpualert.exit_facts import SIGBUS, SIGKILL, SIGSEGV, ExitFacts
from gpualert.scan import ScanResult
from gpualert.signature import default_rules
from gpualert.taxonomy import FailureClass
from gpualert.verdict import MAX_EVIDENCE, Alternative, Classification, Evidence

_C = FailureClass

SCHEDULER_STATES = (
    ("TIMEOUT", _C.TIME_LIMIT),
    ("DEADLINE", _C.TIME_LIMIT),
    ("PREEMPT", _C.PREEMPTED),
    ("NODE_FAIL", _C.NODE_FAILURE),
    ("BOOT_FAIL", _C.NODE_FAILURE),
    ("OUT_OF_ME", _C.OOM_KILLER),
    ("CANCELLED BY", _C.INTERRUPTED),
)
#: What a text says of a failure that a broken or lost GPU also shows as.
_OF_A_GPU = frozenset(
    (_C.CUDA_RUNTIME, _C.CUDA_LIBRARY, _C.NCCL, _C.GPU_HARDWARE, _C.DRIVER_MISMATCH, _C.HANG, _C.UNKNOWN, _C.SEGFAULT)
)
#: What a training that somebody cancels may look like from its log.
_OF_A_CANCEL = frozenset((_C.UNKNOWN, _C.INTERRUPTED, _C.PREEMPTED, _C.NCCL, _C.HANG, _C.SLOWDOWN, _C.TIME_LIMIT))
_OF_A_DRIVER = frozenset(
    (_C.CUDA_RUNTIME, _C.CUDA_LIBRARY, _C.UNKNOWN, _C.DRIVER_MISMATCH, _C.MISSING_LIBRARY, _C.NCCL)
)
_GPU_WORDS = re.compile(r"(?i)\b(?:cuda|nvml|nvidia|cudnn|cublas|nccl|gpu|xid|device-side|hip)\b|cuda")
_BUS_ERROR = re.compile(r"(?i)\bbus error\b|\bSIGBUS\b|signal:? 7\b|exitcode: -7\b")
_KILLED_WORDS = re.compile(
    r"(?i)exitcode ?[:=] ?-9\b|killed by signal: Killed|\bsignal 9\b|\bSIGKILL\b|exit (?:code|status) 137\b"
    r"|(?:^|\s)Killed\s*$|\bKilled\s{2,}|died with .{0,40}SIGKILL|exitcode=-9"
)
_PATH = re.compile(r"(?<![\w<])/(?!/)[\w.+-]+(?:/|\b)|[A-Za-z0-9_.-]+\.(?:pt|pth|ckpt|bin|safetensors|json|log)\b")


def rank_killed(exit: ExitFacts, scan: ScanResult) -> bool:
    """The log says that a process of the launch died of SIGKILL, and the run did not go on after that."""
    rules = scan.rules if scan.rules is not None else default_rules()
    return _says_killed(Answers(exit, scan, rules, {}))


def _says_killed(seen: Answers) -> bool:
    told = [item for item in seen.all if not item.survived and (item.strength == ECHO or "killed" in item.text.lower())]
    lines = [item.text for item in told]
    lines += [text for _, _, text in seen.scan.tail[-12:]]
    return any(_KILLED_WORDS.search(text) is not None for text in lines)


def names_of_jobs(scan: ScanResult) -> tuple[str, ...]:
    """Lines of the log that name a Slurm job which the launch started."""
    lines = [event.text for event in scan.events] + [text for _, _, text in scan.tail]
    return tuple(line for line in lines if "srun: " in line or "salloc: " in line or "Submitted batch" in line)[:20]


def weigh(judge: Answers, text: Classification) -> Classification | None:
    """
    :param judge: with all that was seen.
    :param text: what log and exit status say alone.
    :return: the verdict where what was seen beside them decides or adds; None where it does neither.
    """
    weigher = _Weigher(judge, text)
    for question in (
        weigher.hardware,
        weigher.scheduler,
        weigher.killed_for_memory,
        weigher.lost_gpu,
        weigher.driver,
        weigher.full,
    ):
        answer = question()
        if answer is not None:
            return _confirmed(answer, weigher.confirmations(answer))
    added = weigher.confirmations(text)
    considered = weigher.considered()
    if not added and not considered:
        return None
    return replace(_confirmed(text, added), alternatives=(text.alternatives + considered)[:6])


class _Weigher:
    def __init__(self, judge: Answers, text: Classification) -> None:
        self.judge = judge
        self.text = text
        self.seen: Mapping[str, Any] = judge.observations
        self.exit = judge.exit
        self.killed = self.exit.likely_signal == SIGKILL or _says_killed(judge)

    # -- causes

    def scheduler(self) -> Classification | None:
        state = str(self.seen.get("scheduler_state") or "").upper()
        for mark, failure_class in SCHEDULER_STATES:
            if mark not in state:
                continue
            if failure_class is _C.INTERRUPTED and self.text.failure_class not in _OF_A_CANCEL:
                return None  # somebody ended what had failed already
            if failure_class is _C.INTERRUPTED and self.killed_for_memory() is not None:
                return None
            if failure_class is self.text.failure_class:
                return None  # then this only confirms it
            said = str(self.seen.get("scheduler_said") or "state " + state)
            reason = self.seen.get("scheduler_reason")
            words = f"{said} ({reason})" if reason else said
            return self._decided(failure_class, Evidence("slurm", None, None, None, words, "slurm.state"))
        return None

    def hardware(self) -> Classification | None:
        """A line about our GPUs that is about hardware wins over the CUDA or NCCL errors that it provokes."""
        for line, name, failure_class in self._kernel_causes():
            if failure_class is _C.OOM_KILLER or (failure_class is _C.GPU_HARDWARE and not self._of_a_gpu()):
                continue
            return self._decided(failure_class, Evidence("kernel", None, None, None, line, name))
        return None

    def killed_for_memory(self) -> Classification | None:
        for line, name, failure_class in self._kernel_causes():
            if failure_class is _C.OOM_KILLER and self._a_kill_explains():
                return self._decided(_C.OOM_KILLER, Evidence("kernel", None, None, None, line, name))
        if self.seen.get("oom_kills") and self.killed:
            text = self._counter("oom_kills")
            return self._decided(_C.OOM_KILLER, Evidence("cgroup", None, None, None, text, "cgroup.oom_kill"))
        percent = self.seen.get("host_memory_percent")
        if self.killed and self.seen.get("host_oom_kills") and percent is not None and float(percent) >= 90.0:
            text = (
                f"the kernel killed {int(self.seen['host_oom_kills'])} process(es) on this host for memory, of which "
                f"{float(percent):.0f} % was used at the last sample"
            )
            return self._decided(_C.OOM_KILLER, Evidence("host", None, None, None, text, "host.oom_kill"))
        return None

    def lost_gpu(self) -> Classification | None:
        if not self._of_a_gpu():
            return None
        for key in ("gpu_lost", "gpu_errors"):
            items = [str(item) for item in self.seen.get(key) or ()]
            if items:
                evidence = Evidence("gpu", None, None, None, "; ".join(items[:3]), key.replace("_", ".", 1))
                return self._decided(_C.GPU_HARDWARE, evidence)
        return None

    def driver(self) -> Classification | None:
        said = self.seen.get("driver_mismatch") or self.seen.get("driver_changed")
        if not said or not (self.text.failure_class in _OF_A_DRIVER or self._speaks_of_gpus()):
            return None
        return self._decided(_C.DRIVER_MISMATCH, Evidence("gpu", None, None, None, str(said), "gpu.driver_mismatch"))

    def full(self) -> Classification | None:
        """Shared memory that is full explains SIGBUS, and an ENOSPC that names no file if no disk is full."""
        full = self.seen.get("shm_full")
        if not full:
            return None
        evidence = Evidence("host", None, None, None, str(full), "host.shm_full")
        bus = self.exit.likely_signal == SIGBUS or self._bus_error() is not None
        if bus and self.text.failure_class in (_C.UNKNOWN, _C.RUNTIME_ERROR, _C.TRACEBACK, _C.SHM_EXHAUSTED, _C.NCCL):
            return self._decided(_C.SHM_EXHAUSTED, evidence)
        root = self.text.root
        if self.text.failure_class is not _C.DISK_FULL or self.seen.get("disks_full") or root is None:
            return None
        if _PATH.search(root.text) is not None:
            return None
        return replace(
            self.judge._build(_C.SHM_EXHAUSTED, (*self.text.evidence, evidence)[:MAX_EVIDENCE]),
            cascade=self.text.cascade,
            alternatives=(
                Alternative(
                    _C.DISK_FULL, "the error names no file, and of the filesystems only /dev/shm is full", root
                ),
            ),
        )

    # -- what they rest on

    def _kernel_causes(self) -> Iterator[tuple[str, str, FailureClass]]:
        rules = self.judge.rules
        for line in (str(line) for line in self.seen.get("kernel_lines") or ()):
            for name in rules.match(range(len(rules.rows)), line, False)[0][:1]:
                row = rules[name]
                if row.failure_class in (_C.OOM_KILLER, _C.GPU_HARDWARE, _C.NODE_FAILURE):
                    yield line, row.name, row.failure_class

    def _a_kill_explains(self) -> bool:
        """Somebody of ours died of it as far as the log and the status tell, or nothing else is known."""
        return self.killed or self.text.failure_class in (_C.UNKNOWN, _C.NCCL, _C.OOM_KILLER, _C.HANG)

    def _of_a_gpu(self) -> bool:
        """The log speaks of GPUs, or says nothing while one was in use as far as anybody saw."""
        if self.text.failure_class in (_C.UNKNOWN, _C.SEGFAULT, _C.HANG):
            return self.seen.get("touched_gpu") is not False
        return self.text.failure_class in _OF_A_GPU or self._speaks_of_gpus()

    def _speaks_of_gpus(self) -> bool:
        """An error without a class of its own, in whose text a GPU is named."""
        if self.text.failure_class not in (_C.RUNTIME_ERROR, _C.TRACEBACK, _C.ASSERTION):
            return False
        return any(_GPU_WORDS.search(item.text) for item in self.text.evidence)

    def _bus_error(self) -> Evidence | None:
        for item in self.judge.all:
            if _BUS_ERROR.search(item.text):
                return item.evidence()
        for number, offset, text in self.judge.scan.tail[-20:]:
            if _BUS_ERROR.search(text):
                return Evidence("log", number, offset, None, text, "tail")
        return None

    def _counter(self, key: str) -> str:
        group = self.seen.get("cgroup")
        place = f" of {group}" if group else ""
        limit = self.seen.get("memory_limit_bytes")
        words = f", limit {int(limit) // 1048576} MiB" if isinstance(limit, int) else ""
        file = "memory.oom_control" if self.seen.get("cgroup_version") == 1 else "memory.events"
        return f"{file}{place}: oom_kill grew by {int(self.seen[key])}{words}"

    # -- building

    def _decided(self, failure_class: FailureClass, evidence: Evidence) -> Classification:
        """With what the log says of the same behind it; what the log alone would say becomes an alternative."""
        judge, text = self.judge, self.text
        echoes = judge._echo_lines(2)
        if text.failure_class is failure_class:
            seen = [*text.evidence]
            # The kernel's line proves, the log's own line says where: the first place is the log's if it has one.
            at = 1 if text.root is not None and text.root.line is not None else 0
            seen.insert(at, evidence)
            return replace(text, evidence=tuple(seen[:MAX_EVIDENCE]))
        alternatives: list[Alternative] = []
        if text.failure_class not in (_C.UNKNOWN, _C.SUCCESS):
            alternatives.append(
                Alternative(text.failure_class, f"follows from what the {evidence.source} says", text.root)
            )
        cascade = tuple(item for item in (*text.evidence, *text.cascade, *echoes) if item.source == "log")
        return replace(
            judge._build(failure_class, (evidence, judge.exit_evidence)),
            cascade=tuple(dict.fromkeys(cascade))[:6],
            alternatives=(*alternatives, *(one for one in text.alternatives if one.failure_class is not failure_class))[
                :6
            ],
            warnings=text.warnings,
        )

    # -- what adds to a verdict

    def confirmations(self, verdict: Classification) -> tuple[Evidence, ...]:
        return tuple(self._confirmations(verdict.failure_class))

    def _confirmations(self, found: FailureClass) -> Iterator[Evidence]:
        seen = self.seen

        def of(source: str, text: Any, rule: str) -> Evidence:
            return Evidence(source, None, None, None, str(text), rule)

        if found is _C.SEGFAULT or self.exit.likely_signal == SIGSEGV:
            for line in list(seen.get("kernel_crashes") or ())[:2]:
                yield of("kernel", line, "kernel.segfault")
        if found is _C.OOM_KILLER:
            if seen.get("oom_kills"):
                yield of("cgroup", self._counter("oom_kills"), "cgroup.oom_kill")
            peak, limit = seen.get("memory_peak_bytes"), seen.get("memory_limit_bytes")
            if isinstance(peak, int) and isinstance(limit, int) and peak >= 0.98 * limit:
                words = f"memory peak {peak // 1048576} MiB of a limit of {limit // 1048576} MiB"
                yield of("cgroup", words, "cgroup.peak")
        if found is _C.DISK_FULL:
            for line in list(seen.get("disks_full") or ())[:2]:
                yield of("host", line, "host.disk_full")
        if found is _C.SHM_EXHAUSTED and seen.get("shm_full"):
            yield of("host", seen["shm_full"], "host.shm_full")
        if found is _C.FD_LIMIT and seen.get("open_files"):
            files = seen["open_files"]
            most = "" if files.get("most") is None else f", at most {files['most']} were seen open in one process"
            yield of("host", f"open-file limit {files['limit']}{most}", "host.open_files")
        if found in (_C.CUDA_RUNTIME, _C.CUDA_LIBRARY, _C.NCCL, _C.GPU_HARDWARE):
            for line in seen.get("kernel_lines") or ():
                if "Xid" in str(line):
                    yield of("kernel", line, "kernel.xid")
        if found is _C.SLOWDOWN:
            for line in list(seen.get("throttled") or ())[:2]:
                yield of("gpu", line, "gpu.throttled")
        for mark, failure_class in SCHEDULER_STATES:
            if failure_class is found and mark in str(seen.get("scheduler_state") or "").upper():
                yield of("slurm", seen.get("scheduler_said") or seen["scheduler_state"], "slurm.state")
                break

    def considered(self) -> tuple[Alternative, ...]:
        """What was seen and does not explain this end."""
        found: list[Alternative] = []

        def add(failure_class: FailureClass, reason: str, source: str, text: str, rule: str) -> None:
            if failure_class is not self.text.failure_class:
                found.append(Alternative(failure_class, reason, Evidence(source, None, None, None, text, rule)))

        for line, name, failure_class in self._kernel_causes():
            if failure_class is _C.OOM_KILLER:
                reason = "one of its processes was killed for memory, but the log names another cause"
                add(failure_class, reason, "kernel", line, name)
                break
            add(failure_class, "nothing in the log speaks of a GPU", "kernel", line, name)
            break
        if self.seen.get("oom_kills") and not self.killed:
            reason = "the counter is about all processes of the group, and nothing here died of SIGKILL"
            add(_C.OOM_KILLER, reason, "cgroup", self._counter("oom_kills"), "cgroup.oom_kill")
        elif self.seen.get("shared_oom_kills") and self.killed:
            reason = "the counter is of a group that others share"
            add(_C.OOM_KILLER, reason, "cgroup", self._counter("shared_oom_kills"), "cgroup.oom_kill")
        for item in list(self.seen.get("gpu_lost") or ())[:1]:
            add(_C.GPU_HARDWARE, "nothing in the log speaks of a GPU", "gpu", str(item), "gpu.lost")
        if self.seen.get("gpu_unresponsive") and self.text.failure_class in _OF_A_GPU:
            reason = "the driver answered before the run and not after it, which may have other reasons"
            add(_C.GPU_HARDWARE, reason, "gpu", str(self.seen["gpu_unresponsive"]), "gpu.unresponsive")
        return tuple(found)


def _confirmed(verdict: Classification, added: tuple[Evidence, ...]) -> Classification:
    told = {item.text for item in verdict.evidence} | {(item.source, item.rule) for item in verdict.evidence}
    fresh = tuple(item for item in added if item.text not in told and (item.source, item.rule) not in told)
    if not fresh:
        return verdict
    kept = verdict.evidence[: max(1, MAX_EVIDENCE - min(len(fresh), 3))]
    return replace(verdict, evidence=(*kept, *fresh)[:MAX_EVIDENCE])

"""Putting a verdict together: the root, what confirms it, what followed, what lost and why, and what was not seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpualert.candidates import DECISIVE, ECHO, STATED, WEAK, Candidate, candidates_of, settings_do_not_fit
from gpualert.exit_facts import SIGKILL, SIGTERM, ExitFacts
from gpualert.scan import Event, ScanResult
from gpualert.signature import RuleSet
from gpualert.taxonomy import CLASS_FACTS, FailureClass, FailureDomain, RetryOutlook
from gpualert.verdict import Alternative, Classification, Evidence, Outlook

_C = FailureClass
_D = FailureDomain

_OF_A_GPU = (_C.GPU_HARDWARE, _C.DRIVER_MISMATCH, _C.CUDA_RUNTIME, _C.CUDA_LIBRARY, _C.NCCL, _C.HANG)
#: What a launch's own host could have told: its name, and the classes that it could have confirmed or changed.
_BESIDE_THE_LOG: Mapping[str, tuple[str, tuple[FailureClass, ...]]] = {
    "kernel_lines": ("kernel log", (_C.UNKNOWN, _C.OOM_KILLER, _C.SEGFAULT, _C.STORAGE_IO, *_OF_A_GPU)),
    "oom_kills": ("cgroup memory.events", (_C.UNKNOWN, _C.OOM_KILLER, _C.NCCL, _C.HANG)),
    "scheduler_state": (
        "scheduler's accounting",
        (_C.UNKNOWN, _C.OOM_KILLER, _C.TIME_LIMIT, _C.PREEMPTED, _C.NODE_FAILURE, _C.INTERRUPTED, _C.NCCL),
    ),
    "gpu_lost": ("GPU state after the end", (_C.UNKNOWN, *_OF_A_GPU)),
}


class Answers:
    """All that was seen of one launch, and the ways to answer from it."""

    def __init__(self, exit: ExitFacts, scan: ScanResult, rules: RuleSet, observations: Mapping[str, Any]) -> None:
        self.exit = exit
        self.scan = scan
        self.rules = rules
        self.observations = observations
        self.all = candidates_of(scan, rules)
        self.notes = {event.rule: event for event in reversed(scan.events)}
        self.last_note = {event.rule: event for event in scan.events}
        self.exit_evidence = Evidence("exit", None, None, None, exit.words(), "exit")

    # -- building the answer --

    def _from(self, item: Candidate) -> Classification:
        failure_class = item.failure_class
        assert failure_class is not None
        item = self._earliest_of_class(item)
        seen: list[Evidence] = [item.evidence()]
        stated = next((o for o in self.all if o.failure_class is failure_class and o.trace is not None), None)
        if stated is not None and stated.line != item.line and not stated.survived and stated.strength > ECHO:
            seen.append(stated.evidence())
        seen.extend(also for also in item.also[:2] if also.line not in [other.line for other in seen])
        for other in self.all:
            if (
                other.failure_class is failure_class
                and other.line not in [one.line for one in seen]
                and other.strength >= min(WEAK, item.strength)
                and len(seen) < 4
            ):
                seen.append(other.evidence())
        domain = item.domain
        if (
            domain is None
            and failure_class in (_C.TRACEBACK, _C.ASSERTION, _C.RUNTIME_ERROR)
            and settings_do_not_fit(item.text)
        ):
            domain = _D.CONFIGURATION
        if failure_class is _C.DIV_ZERO and item.trace is not None and _speaks_of_data(item.trace):
            domain = _D.DATA
        outlook = Outlook(RetryOutlook.NO, RetryOutlook.NO) if item.no_retry else None
        advice = item.advice or ""
        if item.trace is not None and item.trace.get("user_frame"):
            advice = (advice or CLASS_FACTS[failure_class].advice) + " Raised from {}.".format(item.trace["user_frame"])
        warnings: tuple[str, ...] = ()
        finished = self.last_note.get("note.finished")
        if finished is not None and finished.offset < item.offset and self.scan.progress - finished.progress <= 2:
            warnings = ("work finished before this failure: see line %d" % finished.line,)
        return self._build(
            failure_class,
            tuple(seen),
            domain=domain,
            outlook=outlook,
            advice=advice,
            cascade=self._cascade(item),
            alternatives=self._losers(item),
            warnings=warnings,
        )

    def _earliest_of_class(self, item: Candidate) -> Candidate:
        """A warning of the same class before an error is where it began, if nothing but it stands between."""
        if item.strength >= DECISIVE:
            same = [
                o
                for o in self.all
                if o.failure_class is item.failure_class and o.strength >= DECISIVE and not o.survived
            ]
            return same[0] if same and same[0].offset < item.offset else item
        for other in self.all:
            if other.offset >= item.offset:
                break
            if (
                other.failure_class is item.failure_class
                and other.strength in (WEAK, STATED)
                and item.strength >= WEAK
                and item.progress - other.progress <= 1
                and item.line - other.line <= 400
                and item.failure_class
                not in (_C.FILE_NOT_FOUND, _C.PERMISSION, _C.NAN_LOSS, _C.MISSING_LIBRARY, _C.MISSING_MODULE)
            ):
                return replace(
                    other,
                    also=(item.evidence(),) + item.also,
                    domain=item.domain or other.domain,
                    advice=item.advice or other.advice,
                    no_retry=item.no_retry or other.no_retry,
                    trace=item.trace,
                )
        return item

    def _cascade(self, root: Candidate) -> tuple[Evidence, ...]:
        found: list[Evidence] = []
        used = set()
        for item in self.all:
            if (
                item.offset <= root.offset
                or item.rule in used
                or item.failure_class is root.failure_class
                and item.strength > ECHO
            ):
                continue
            if root.trace is not None and item.trace is root.trace:
                continue
            used.add(item.rule)
            found.append(item.evidence())
            if len(found) >= 6:
                break
        return tuple(found)

    def _losers(self, root: Candidate | None) -> tuple[Alternative, ...]:
        found: list[Alternative] = []
        used = set() if root is None else {root.failure_class}
        for item in self.all:
            if item.failure_class is None or item.failure_class in used or len(found) >= 4:
                continue
            used.add(item.failure_class)
            if item.survived:
                reason = "the run went on: %d lines of progress came after it" % (self.scan.progress - item.progress)
            elif root is None:
                reason = "not a cause by itself" if item.strength <= WEAK else "the run ended well after it"
            elif item.strength < root.strength:
                reason = f"weaker evidence than the cause ({item.rule})"
            elif item.offset > root.offset:
                reason = "came after the cause, on line %d" % item.line
            else:
                reason = "the cause overrules it"
            found.append(Alternative(item.failure_class, reason, item.evidence()))
        likely = self.exit.likely_signal
        if root is None and not found and not self.exit.succeeded:
            if likely == SIGKILL:
                found.append(Alternative(_C.OOM_KILLER, "SIGKILL has many senders, and no evidence of memory was seen"))
            elif likely == SIGTERM:
                found.append(
                    Alternative(_C.PREEMPTED, "SIGTERM has many senders, and no word of the scheduler was seen")
                )
                found.append(
                    Alternative(_C.INTERRUPTED, "SIGTERM has many senders, and nothing says that a person sent it")
                )
        return tuple(found)

    def _not_seen(self, failure_class: FailureClass) -> tuple[str, ...]:
        missing: list[str] = []
        if not self.exit.known:
            missing.append("exit status")
        reasons = self.observations.get("not_seen") or {}
        useless = self.observations.get("does_not_apply") or ()
        for key, (name, matters) in _BESIDE_THE_LOG.items():
            if self.observations.get(key) is not None or key in useless:
                continue
            if not self.observations:  # a log from anywhere: nobody could look
                missing.append(name)
            elif failure_class in matters:
                missing.append(str(reasons.get(key) or name))
        if self.scan.size_bytes == 0:
            missing.append("any output")
        return tuple(missing)

    def _near_end(self, item: Candidate) -> bool:
        last = self.scan.tail[-1][0] if self.scan.tail else item.line
        return last - item.line <= 40

    def _note_evidence(self, note: Event) -> Evidence:
        return Evidence("log", note.line, note.offset, note.rank, note.text, note.rule)

    def _echo_lines(self, count: int) -> tuple[Evidence, ...]:
        found: list[Evidence] = []
        used = set()
        for item in self.all:
            if item.strength == ECHO and not item.survived and item.rule not in used:
                used.add(item.rule)
                found.append(item.evidence())
        return tuple(found[:count])

    def _tail(self, count: int) -> tuple[Evidence, ...]:
        lines = self.scan.tail[-count:]
        return tuple(Evidence("log", number, offset, None, text, "tail") for number, offset, text in lines)

    def _build(
        self,
        failure_class: FailureClass,
        evidence: tuple[Evidence, ...],
        domain: FailureDomain | None = None,
        outlook: Outlook | None = None,
        advice: str = "",
        cascade: tuple[Evidence, ...] = (),
        alternatives: tuple[Alternative, ...] = (),
        warnings: tuple[str, ...] = (),
    ) -> Classification:
        facts = CLASS_FACTS[failure_class]
        return Classification(
            failure_class=failure_class,
            domain=domain if domain is not None else facts.domain,
            retry_outlook=outlook if outlook is not None else Outlook.default(failure_class),
            evidence=evidence,
            cascade=cascade,
            alternatives=alternatives,
            not_seen=() if failure_class is _C.SUCCESS else self._not_seen(failure_class),
            advice=advice or facts.advice,
            warnings=warnings,
        )


def _speaks_of_data(trace: Mapping[str, Any]) -> bool:
    text = (str(trace["user_frame"]) + " " + str(trace["last_frame"]) + " " + trace["text"]).lower()
    return any(mark in text for mark in ("data", "loader", "sampler", "len(", "dataset"))

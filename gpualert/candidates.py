"""From a scan to candidate causes: each with its class, how strongly it is stated, and whether the run survived it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

from gpualert.scan import Event, ScanResult
from gpualert.signature import Role, RuleSet
from gpualert.taxonomy import EXCEPTION_CLASSES, FailureClass, FailureDomain
from gpualert.verdict import Evidence

_C = FailureClass

#: Strengths. A cause that is stated beats a type, a type beats what is only suspected.
DECISIVE, STATED, TYPED, GENERIC, WEAK, ECHO = 6, 5, 4, 3, 2, 1
#: Steps after which an error was survived: by the whole run, or by other ranks, which go on while they can.
_SURVIVED_STEPS = 3
_SURVIVED_STEPS_OTHER_RANKS = 40
#: A data loader hands out what its dead worker had prepared before anybody notices.
_IN_LOADER_WORKER = "encountered in worker"

_ROLE_STRENGTH = {
    Role.DECISIVE: DECISIVE,
    Role.ROOT: STATED,
    Role.WEAK: WEAK,
    Role.GENERIC: GENERIC,
    Role.ECHO: ECHO,
}
_SUSPECTS = "echo.supposed"
_GROUPS = {"ExceptionGroup", "BaseExceptionGroup"}
_NETWORK_RULES = {"rendezvous.network", "peer.connection"}
_HUB_WORDS = re.compile(
    r"(?i)https?\b|httpx|httpcore|urllib|requests\.|huggingface|\bhub\b|:443\b|curl|wget|\bs3\b|mirror"
)
_HUB_PACKAGES = (
    "huggingface_hub",
    "requests",
    "urllib3",
    "httpx",
    "aiohttp",
    "botocore",
    "boto3",
    "datasets",
    "fsspec",
    "s3fs",
    "gcsfs",
    "transformers",
    "urllib",
    "wandb",
    "google",
    "hf_transfer",
    "httpcore",
    "modelscope",
)
_RANK_PACKAGES = ("torch/distributed", "torch/_C", "deepspeed/comm", "jax/_src/distributed", "mpi4py", "horovod")
_SPEAKS_OF_RANKS = re.compile(
    r"(?i)rank|master|node|tcp://|rendezvous|rdzv|store|worker|distributed|coordinator|peer|init_"
)
#: Words of a line that warns of what might come, or says that it will do.
_ADVISES = re.compile(
    r"(?i)\b(?:can|may|might|could) (?:also |then |in turn )?(?:cause|lead to|result in|hang|fail)\b|\brecommended\b"
    r"|\baccepting (?:this|the)\b|\bplease (?:consider|note|upgrade|update)\b"
)
_SHM_FRAMES = (
    "multiprocessing/synchronize",
    "multiprocessing/heap",
    "/dev/shm",
    "multiprocessing/shared_memory",
    "torch/multiprocessing",
    "multiprocessing/resource_sharer",
)
_CHECKPOINT_FRAMES = ("torch/serialization", "safetensors", "checkpoint")
_PLAIN_ERRORS = {"Empty", "Full", "StopIteration", "GeneratorExit", "TimeoutError", "Timeout"}
_RUNTIME_TYPES = {
    "RuntimeError",
    "XlaRuntimeError",
    "JaxRuntimeError",
    "BackendCompilerFailed",
    "InternalTorchDynamoError",
    "TorchRuntimeError",
    "Unsupported",
    "InductorError",
    "LoweringException",
    "FakeTensorError",
    "UserError",
    "UncapturedHigherOrderOpError",
    "NotImplementedError",
    "RecursionError",
    "OutOfResources",
    "DistError",
    "ProcessRaisedException",
}
_NOT_RUNTIME = {"NotImplementedError", "RecursionError"}


@dataclass(frozen=True)
class Candidate:
    """A possible cause."""

    failure_class: FailureClass | None
    strength: int
    rule: str
    line: int
    offset: int
    rank: int | None
    text: str
    progress: int
    domain: FailureDomain | None = None
    advice: str | None = None
    no_retry: bool = False
    #: an uncaught Python exception, rather than a line
    trace: Mapping[str, Any] | None = None
    level: str | None = None
    survived: bool = False
    #: other lines that say the same: the rest of an exception chain
    also: tuple[Evidence, ...] = ()

    def evidence(self) -> Evidence:
        """The line, as a verdict shows it."""
        return Evidence("log", self.line, self.offset, self.rank, self.text, self.rule)


def candidates_of(scan: ScanResult, rules: RuleSet) -> list[Candidate]:
    """All candidates in the order of the log, each judged by itself."""
    found = _from_traces(scan, rules) + _from_events(scan, rules)
    found = [replace(item, survived=_survived(item, scan)) for item in found]
    found.sort(key=lambda item: (item.offset, -item.strength))
    return found


def _survived(item: Candidate, scan: ScanResult) -> bool:
    after = scan.progress - item.progress
    goes_on = item.rank is not None or _IN_LOADER_WORKER in item.text
    return after >= (_SURVIVED_STEPS_OTHER_RANKS if goes_on else _SURVIVED_STEPS)


def _from_events(scan: ScanResult, rules: RuleSet) -> list[Candidate]:
    by_line: dict[tuple[int, int], list[Event]] = {}
    # A line that lists suspects names no culprit.
    suspects = {event.line for event in scan.events if event.rule == _SUSPECTS}
    for event in scan.events:
        row = rules[event.rule]
        if row.role in (Role.BENIGN, Role.NOTE):
            continue
        if event.line in suspects and event.rule != _SUSPECTS:
            continue
        if event.trace is not None and row.role is not Role.DECISIVE:
            continue
        by_line.setdefault((event.line, event.offset), []).append(event)
    found: list[Candidate] = []
    for events in by_line.values():
        if any(rules[event.rule].role is Role.ECHO and event.rule != "echo.terminate" for event in events):
            # "SignalException: … got signal: 15": what an exception says is more than that it is one.
            events = [event for event in events if not event.rule.startswith("generic.")]
        event = max(events, key=lambda e: (_line_strength(rules, e), -rules.order(e.rule)))
        row = rules[event.rule]
        strength = _ROLE_STRENGTH[row.role]
        if strength == STATED and (event.level in ("quiet", "warning") or _ADVISES.search(event.text) is not None):
            strength = WEAK
        if (
            strength == DECISIVE
            and event.level == "quiet"
            and row.failure_class is _C.PREEMPTED
            and "true" not in event.text.lower()
        ):
            strength = WEAK
        failure_class = row.failure_class
        if row.name == "rendezvous.network" and _HUB_WORDS.search(event.text) is not None:
            failure_class = _C.HUB_NETWORK
        found.append(
            Candidate(
                failure_class=failure_class,
                strength=strength,
                rule=row.name,
                line=event.line,
                offset=event.offset,
                rank=event.rank,
                text=event.text,
                progress=event.progress,
                domain=row.domain,
                advice=row.advice,
                no_retry=row.no_retry,
                level=event.level,
            )
        )
    return found


def _line_strength(rules: RuleSet, event: Event) -> float:
    row = rules[event.rule]
    strength: float = _ROLE_STRENGTH[row.role]
    if row.name in _NETWORK_RULES and row.failure_class is not None:
        # "ConnectError: … Connection refused": what it says is more than that it is an exception.
        strength = GENERIC + 0.2
    if row.role is Role.ECHO and row.failure_class is not None:
        # "NCCL … Connection refused": the collective's own word is more than a suspicion about the network.
        strength = GENERIC + 0.5
    return strength


def _from_traces(scan: ScanResult, rules: RuleSet) -> list[Candidate]:
    ignored = _ignored_headers(scan)
    chains: dict[int, list[Mapping[str, Any]]] = {}
    owner: dict[int, int] = {}
    for trace in scan.traces:
        previous = trace["previous"]
        first = owner.get(previous, trace["id"]) if previous is not None else trace["id"]
        owner[trace["id"]] = first
        chains.setdefault(first, []).append(trace)
    found: list[Candidate] = []
    for chain in chains.values():
        judged = [item for item in (_judge(trace, rules) for trace in chain) if item is not None]
        if not judged or any(trace["line"] in ignored for trace in chain[:1]):
            continue
        best = _root_of_chain(judged)
        if best.failure_class is _C.DISK_FULL and "/" not in best.text and _speaks_of_shm(scan, chain[0]["line"]):
            best = replace(best, failure_class=_C.SHM_EXHAUSTED, rule="shm.path_before")
        others = tuple(item.evidence() for item in judged if item is not best)
        # The run goes on, or not, after the last exception of a chain.
        last = max(item.progress for item in judged)
        found.append(replace(best, also=others, progress=last))
    return found


def _speaks_of_shm(scan: ScanResult, header: int) -> bool:
    """Whether a line right before a traceback names a file in /dev/shm: errno 28 does not tell which disk is full."""
    return any(event.rule == "note.shm_path" and 0 < header - event.line <= 3 for event in scan.events)


def _ignored_headers(scan: ScanResult) -> set[int]:
    """Lines of headers of tracebacks that Python prints without ending anything."""
    found: set[int] = set()
    for event in scan.events:
        if event.rule in ("habit.exception_ignored", "habit.logging_error") and not event.text.startswith(
            "Exception in thread"
        ):
            found.update(range(event.line, event.line + 3))
    return found


def _root_of_chain(judged: Sequence[Candidate]) -> Candidate:
    """
    The cause in a chain of exceptions: the first that is specific; where none is, the first that is no mere signal
    between functions (an empty queue, a timeout of a poll).
    """
    strongest = max(item.strength for item in judged)
    if strongest >= TYPED:
        stated = [item for item in judged if item.strength == strongest]
        # A file that a later, stated cause explains (a hub that is offline looks for a cached file first).
        return stated[0]
    for item in judged:
        if item.trace is not None and _last_name(str(item.trace["type"])) in _PLAIN_ERRORS and item is not judged[-1]:
            continue
        if item.strength == strongest:
            return item
    return judged[-1]


def _last_name(name: str) -> str:
    if "(" in name and name.endswith(")"):
        name = name[name.index("(") + 1 : -1]
    return name.rsplit(".", 1)[-1]


def _judge(trace: Mapping[str, Any], rules: RuleSet) -> Candidate | None:
    """One exception: by what it says, else by its type. None: it ends nothing (a generator's exit, exit 0)."""
    rows = [(rules[name], number, offset, text) for name, number, offset, text in trace["rules"] if name in rules]
    suspected = {item[1] for item in rows if item[0].name == _SUSPECTS}
    rows = [item for item in rows if item[1] not in suspected or item[0].name == _SUSPECTS]
    name = _last_name(str(trace["type"]))
    if any(row.role is Role.BENIGN for row, _, _, _ in rows):
        return None
    if name in ("SystemExit", "GeneratorExit") and trace["message"].strip() in ("", "0"):
        return None
    base = Candidate(
        failure_class=_C.TRACEBACK,
        strength=GENERIC,
        rule="exception." + name[:60],
        line=trace["exception_line"],
        offset=trace["exception_offset"],
        rank=trace["rank"],
        text=trace["text"],
        progress=trace["progress"],
        trace=trace,
    )
    if name in _GROUPS:
        # It wraps the exceptions that follow, and says nothing itself.
        return replace(base, failure_class=None, strength=ECHO, rule="echo.exception_group")
    if name == "EOFError" and any(package.startswith("multiprocessing/") for package in trace["packages"]):
        # A worker that was to be handed its work read nothing: what its parent failed at stands in the parent's words.
        return replace(base, failure_class=None, strength=ECHO, rule="peer.connection")
    stated = [item for item in rows if item[0].role in (Role.ROOT, Role.DECISIVE)]
    if stated:
        row, number, offset, text = stated[0]
        result = replace(
            base,
            failure_class=row.failure_class,
            strength=STATED,
            rule=row.name,
            domain=row.domain,
            advice=row.advice,
            no_retry=row.no_retry,
        )
        if number != base.line and number - base.line > 2:
            result = replace(result, line=number, offset=offset, text=text)
        return _by_frames(result, trace)
    echoes = [item[0] for item in rows if item[0].role is Role.ECHO]
    weak = [item for item in rows if item[0].role is Role.WEAK and item[0].failure_class is not None]
    if name == "KeyboardInterrupt":
        return replace(base, failure_class=_C.INTERRUPTED, strength=TYPED)
    if echoes and not (weak and weak[0][0].name not in _NETWORK_RULES):
        classed = [row for row in echoes if row.failure_class is not None]
        if any(row.name == "echo.supposed" for row in echoes):
            classed = []
        row = (classed or echoes)[0]
        if row.name == "peer.connection":
            return _connection(base, trace)
        return replace(base, failure_class=row.failure_class, strength=ECHO, rule=row.name, domain=row.domain)
    if weak:
        row = weak[0][0]
        if row.name in _NETWORK_RULES:
            return _connection(base, trace)
        result = replace(
            base, failure_class=row.failure_class, strength=TYPED, rule=row.name, domain=row.domain, advice=row.advice
        )
        return _by_frames(result, trace)
    if name == "EOFError":
        return _end_of_file(base, trace)
    by_type = EXCEPTION_CLASSES.get(name)
    if by_type is not None:
        strength = GENERIC if by_type in (_C.ASSERTION, _C.RUNTIME_ERROR) else ECHO if by_type is _C.NCCL else TYPED
        return _by_frames(replace(base, failure_class=by_type, strength=strength), trace)
    if name in _RUNTIME_TYPES and name not in _NOT_RUNTIME:
        return replace(base, failure_class=_C.RUNTIME_ERROR)
    return replace(base, domain=_domain_of_generic(trace))


def _end_of_file(base: Candidate, trace: Mapping[str, Any]) -> Candidate:
    """An input that ends too early: a checkpoint, or a pipe from a process that died."""
    packages = trace["packages"]
    if any(any(mark in package for mark in _CHECKPOINT_FRAMES) or package.startswith("pickle") for package in packages):
        return replace(base, failure_class=_C.CHECKPOINT_CORRUPT, strength=STATED, rule="checkpoint.end_of_file")
    if any("multiprocessing" in package for package in packages):
        return replace(base, failure_class=None, strength=ECHO, rule="peer.connection")
    return base


def _connection(base: Candidate, trace: Mapping[str, Any]) -> Candidate:
    """A refused or broken connection: to a hub, or between ranks? The frames tell."""
    packages = trace["packages"]
    text = trace["message"]
    said = str(trace["type"]) + " " + text
    if any(package.startswith(_HUB_PACKAGES) for package in packages) or "http" in said or ":443" in text:
        return replace(base, failure_class=_C.HUB_NETWORK, strength=STATED, rule="hub.connection")
    if any(package.startswith(_RANK_PACKAGES) for package in packages):
        gone = "reset" in text.lower() or "broken pipe" in text.lower() or "closed" in text.lower()
        if gone:
            return replace(base, failure_class=_C.NCCL, strength=ECHO, rule="peer.connection")
        return replace(base, failure_class=_C.RENDEZVOUS, strength=STATED, rule="rendezvous.connection")
    if "refused" in text or "resolution" in text or "not known" in text or "unreachable" in text or "No route" in text:
        if (
            trace["user_is_last"]
            or not packages
            or _SPEAKS_OF_RANKS.search(said + " " + str(trace["user_frame"])) is None
        ):
            # Some service that the program wanted: nothing says that it is another rank.
            return replace(base, domain=FailureDomain.NETWORK, rule="network.service")
        return replace(base, failure_class=_C.RENDEZVOUS, strength=TYPED, rule="rendezvous.network")
    if any("multiprocessing" in package for package in packages):
        return replace(base, failure_class=None, strength=ECHO, rule="peer.connection")
    return replace(base, failure_class=None, strength=ECHO, rule="peer.connection")


def _by_frames(item: Candidate, trace: Mapping[str, Any]) -> Candidate:
    """What the frames add to the words: a full disk under a semaphore is /dev/shm; a bad pickle may be data."""
    packages = trace["packages"]
    if (
        item.failure_class is _C.DISK_FULL
        and any(any(mark in package for mark in _SHM_FRAMES) for package in packages)
        and "/" not in trace["message"].replace("/dev/shm", "")
    ):
        return replace(item, failure_class=_C.SHM_EXHAUSTED, rule="shm.semaphore")
    if item.failure_class is _C.DATA_CORRUPT and item.rule in ("data.text", "exception.BadZipFile", "data.record"):
        frames = str(trace["last_frame"]) + " " + str(trace["user_frame"])
        if any(mark in frames for mark in _CHECKPOINT_FRAMES) or any("safetensors" in package for package in packages):
            return replace(item, failure_class=_C.CHECKPOINT_CORRUPT)
    return item


def _domain_of_generic(trace: Mapping[str, Any]) -> FailureDomain | None:
    """An exception without a class of its own can still say that settings do not fit, or that data is missing."""
    text = trace["message"].lower()
    if any(mark in text for mark in _SETTINGS_MARKS) or "config" in str(trace["type"]).lower():
        return FailureDomain.CONFIGURATION
    return None


_SETTINGS_MARKS = (
    "must be divisible",
    "not divisible",
    "divisible by",
    "invalid choice",
    "unsupported",
    "not supported",
    "world size",
    "world_size",
    "must be one of",
    "unrecognized",
    "unknown option",
    "invalid argument",
    "cannot import name",
    "config",
    "you must specify",
    "is incompatible with",
    "mutually exclusive",
    "requires `",
    "environment variable",
    "num_heads",
    "expected one of",
    "version",
)


def settings_do_not_fit(text: str) -> bool:
    """Whether a message speaks of settings that do not fit each other."""
    lower = text.lower()
    return any(mark in lower for mark in _SETTINGS_MARKS)

"""Values read from a run directory, and the one rule that derives a launch's state from them.

These are for readers; the processes on the way to the child's start never import this module.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, Mapping

from gpualert import procfs, rundir
from gpualert.errors import RunDirectoryError, UnknownLaunch
from gpualert.key import Attempt
from gpualert.rundir import RunDirectory


class RunState(str, Enum):
    """Where a launch stands. UNREACHABLE is about us, not about the launch."""

    LAUNCHING = "LAUNCHING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    TIMED_OUT = "TIMED_OUT"
    LOST = "LOST"
    UNREACHABLE = "UNREACHABLE"

    @property
    def ended(self) -> bool:
        """Nothing more will happen to the child. LOST counts: nobody saw the end, but it is over."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.TIMED_OUT, RunState.LOST)

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ExitStatus:
    """How the child ended, as wait(2) tells it. Code and signal both None: nobody saw the end."""

    code: int | None = None  # 0..255; None when a signal ended it
    signal: int | None = None
    core_dumped: bool | None = None

    @property
    def signal_name(self) -> str | None:
        """``SIGSEGV``; ``SIG64`` for a number without a name on this system; None when no signal ended it."""
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"SIG{self.signal}"

    @property
    def shell_code(self) -> int | None:
        """What a shell would report: the code, or 128 + the signal's number."""
        return 128 + self.signal if self.signal is not None else self.code

    @property
    def text(self) -> str:
        """``exit 3``, ``SIGSEGV (core dumped)`` or ``nobody saw the end``."""
        if self.signal is not None:
            return f"{self.signal_name}{' (core dumped)' if self.core_dumped else ''}"
        return "nobody saw the end" if self.code is None else f"exit {self.code}"


@dataclass(frozen=True)
class RunRecord:
    """
    The facts about one launch, read at one moment.

    Times are seconds since the epoch on the host's clock; ``elapsed_s`` is from its monotonic clock.

    :param exit: None while the child runs (or when nobody saw its end).
    :param lost_reason: ``vanished``, ``rebooted`` or ``never_started``; None unless the state is LOST.
    :param supervised: False when supervisor and guard are both gone while the child lives; None when it does not apply
        or cannot be seen.
    :param survivors: processes that outlived the stop, as {pid, command}; None when nobody has looked yet.
    :param note: what the reader could not see, in words.
    """

    launch_id: str
    number: int
    attempt: Attempt
    state: RunState
    run_directory: str
    log_path: str
    created_at: float
    key_parts: tuple[str, ...] = ()
    label: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    elapsed_s: float | None = None
    child_pid: int | None = None
    exit: ExitStatus | None = None
    stopped_by: str | None = None
    stop_requested: bool = False
    stop_reason: str | None = None
    exec_errno: int | None = None
    setup_failed: bool = False
    lost_reason: str | None = None
    supervised: bool | None = None
    witness: str | None = None
    log_size_bytes: int | None = None
    log_generation: int = 0
    log_truncated: bool = False
    survivors: tuple[Mapping[str, Any], ...] | None = None
    rusage: Mapping[str, float] | None = None
    epoch: int = 0
    archive_digest: str | None = None
    warnings: tuple[str, ...] = ()
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = dict(self.__dict__)
        value["attempt"] = self.attempt.to_json()
        value["state"] = self.state.value
        value["exit"] = None if self.exit is None else dict(self.exit.__dict__)
        value["key_parts"] = list(self.key_parts)
        value["warnings"] = list(self.warnings)
        value["survivors"] = None if self.survivors is None else [dict(s) for s in self.survivors]
        value["rusage"] = None if self.rusage is None else dict(self.rusage)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRecord:
        """Unknown keys (a newer host) are left aside; a missing required one is a KeyError."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        known["attempt"] = Attempt.from_json(value["attempt"])
        known["state"] = RunState(value["state"])
        exit_value = value.get("exit")
        known["exit"] = None if exit_value is None else ExitStatus(**exit_value)
        known["key_parts"] = tuple(value.get("key_parts") or ())
        known["warnings"] = tuple(value.get("warnings") or ())
        survivors = value.get("survivors")
        known["survivors"] = None if survivors is None else tuple(survivors)
        return cls(**known)


@dataclass(frozen=True)
class Facts:
    """
    What a run directory says, as far as the state depends on it.

    :param folder_is_gone: there is a claim, but no run directory: it was not made yet, or was deleted.
    :param heartbeat_age_s: by the reader's clock; None when there is no heartbeat.
    :param heartbeat_since_boot: it was touched after *this* machine booted; None when there is none.
    """

    has_exit: bool = False
    exit_code: int | None = None
    stopped_by: str | None = None
    has_started: bool = False
    folder_is_gone: bool = False
    abandoned: bool = False
    heartbeat_age_s: float | None = None
    heartbeat_since_boot: bool | None = None


@dataclass(frozen=True)
class Liveness:
    """
    What can be seen of the launch's processes.

    :param here: True: this is their machine, boot and pid namespace; False: an earlier boot of this machine; None: they
        cannot be seen from here.
    :param keeper: supervisor or guard lives (before the start: the guard).
    """

    here: bool | None = True
    child: bool = False
    keeper: bool = False


def derive_state(facts: Facts, liveness: Liveness) -> tuple[RunState, str | None, str | None]:
    """
    The state of a launch that has been claimed. Pure; the table stands in docs/explanation/architecture.md.

    :return: (state, lost reason, note for people).
    """
    if facts.has_exit:
        if facts.stopped_by == "deadline":
            return RunState.TIMED_OUT, None, None
        if facts.stopped_by == "request":
            return RunState.STOPPED, None, None
        return (RunState.SUCCEEDED if facts.exit_code == 0 else RunState.FAILED), None, None
    if facts.abandoned:
        return RunState.LOST, "never_started", None
    here = liveness.here
    note = "seen from another machine or pid namespace"
    if here is False and facts.heartbeat_since_boot:
        # A machine that came back does not beat for the old boot: a clone with the same machine id does.
        here = None
        note = "seen from another machine with the same machine id"
    if here is None:
        fresh = facts.heartbeat_age_s is not None and facts.heartbeat_age_s <= rundir.HEARTBEAT_STALE_S
        if not fresh:
            age = (
                "no heartbeat" if facts.heartbeat_age_s is None else f"last heartbeat {facts.heartbeat_age_s:.0f} s ago"
            )
            return RunState.UNREACHABLE, None, f"{note}; {age}"
        return (RunState.RUNNING if facts.has_started else RunState.LAUNCHING), None, note
    if not facts.has_started:
        if here and liveness.keeper:
            return RunState.LAUNCHING, None, "its run directory is gone" if facts.folder_is_gone else None
        if facts.folder_is_gone:
            # Deleted, perhaps while the command ran: that it never did is more than we know.
            return RunState.LOST, "vanished" if here else "rebooted", "its run directory is gone"
        return RunState.LOST, "never_started", None
    if not here:
        return RunState.LOST, "rebooted", None
    if liveness.child or liveness.keeper:
        return RunState.RUNNING, None, None
    return RunState.LOST, "vanished", None


def read(run_directory: str) -> RunRecord:
    """
    The facts about one launch, now.

    :raises UnknownLaunch: neither the folder nor a claim for it exists.
    :raises NewerFormat: written by a newer version.
    :raises RunDirectoryError: a file cannot be read, or is damaged.
    """
    run = RunDirectory(run_directory.rstrip("/"))
    record = _read(run)
    if record.state is RunState.LOST:
        # Nobody is alive who could still write: what is there now is all there will be. Before we looked at the
        # processes it may have been less.
        record = _read(run)
    return record


def _read(run: RunDirectory) -> RunRecord:
    try:
        return _assemble(run)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # JSON, but of another shape
        raise RunDirectoryError(f"{run.path}: its files are damaged ({type(error).__name__}: {error})") from error


def _assemble(run: RunDirectory) -> RunRecord:
    claim = run.read_claim()
    started = run.read_started()
    end = run.read_exit()
    if claim is None and started is None:
        raise UnknownLaunch(f"{run.path}: expected the run directory of a claimed launch, found none")
    claim = claim or {}
    started_facts = started or {}
    abandoned = run.read_abandoned() is not None
    heartbeat_at = run.heartbeat_at()
    facts = Facts(
        has_exit=end is not None,
        exit_code=None if end is None else end.get("code"),
        stopped_by=None if end is None else end.get("stopped_by"),
        has_started=started is not None,
        folder_is_gone=not os.path.isdir(run.path),
        abandoned=abandoned,
        heartbeat_age_s=None if heartbeat_at is None else max(0.0, time.time() - heartbeat_at),
        heartbeat_since_boot=None if heartbeat_at is None else heartbeat_at > procfs.boot_time() + 5.0,
    )
    stopping = run.read_stopping()
    liveness = _liveness(claim, started, stopping) if end is None and not abandoned else Liveness()
    state, lost_reason, note = derive_state(facts, liveness)
    supervised = None
    if end is None and started is not None and liveness.here and (liveness.child or liveness.keeper):
        supervised = liveness.keeper
    stop, tree, spec = run.read_stop(), run.read_tree(), run.read_spec()
    attempt = claim.get("attempt")
    child = started_facts.get("child") or {}
    place = child or claim.get("guard") or {}
    key = run.key_directory.read_key() or {}
    exit_status = None
    if end is not None:
        code, number = (None if end.get(name) is None else int(end[name]) for name in ("code", "signal"))
        exit_status = ExitStatus(code, number, end.get("core_dumped"))
    survivors = None if tree is None else tuple(tree.get("survivors") or ())
    return RunRecord(
        launch_id=str(claim.get("launch_id") or started_facts.get("launch_id") or run.launch_id),
        number=run.number,
        attempt=Attempt.from_json(attempt) if attempt else Attempt(1, "unknown"),
        state=state,
        run_directory=run.path,
        log_path=run.log_path,
        created_at=float(claim.get("created_at") or started_facts.get("started_at") or 0.0),
        key_parts=tuple(key.get("parts") or ()),
        label=None if claim.get("label") is None else str(claim["label"]),
        machine_id=place.get("machine_id"),
        boot_id=place.get("boot_id"),
        started_at=started_facts.get("started_at"),
        ended_at=None if end is None else end.get("ended_at"),
        elapsed_s=None if end is None else end.get("elapsed_s"),
        child_pid=child.get("pid"),
        exit=exit_status,
        stopped_by=facts.stopped_by,
        stop_requested=stop is not None or stopping is not None,
        stop_reason=_why_stopped(stop, stopping),
        exec_errno=None if end is None else end.get("exec_errno"),
        setup_failed=run.setup_failed(),
        lost_reason=lost_reason,
        supervised=supervised,
        witness=None if end is None else end.get("witness"),
        log_size_bytes=_log_size(run) if end is None else end.get("log_size_bytes"),
        log_generation=0 if end is None else int(end.get("log_generation") or 0),
        log_truncated=False if end is None else bool(end.get("log_truncated")),
        survivors=survivors,
        rusage=None if end is None else end.get("rusage"),
        epoch=run.epoch(),
        archive_digest=claim.get("archive_digest"),
        warnings=tuple(claim.get("warnings") or ()),
        note=note if spec is not None or note else "spec.json is missing",
    )


def _why_stopped(stop: Mapping[str, Any] | None, stopping: Mapping[str, Any] | None) -> str | None:
    if stop is not None:
        return stop.get("reason")
    return "its deadline was reached" if stopping is not None and stopping.get("why") == "deadline" else None


def _liveness(
    claim: Mapping[str, Any], started: Mapping[str, Any] | None, stopping: Mapping[str, Any] | None
) -> Liveness:
    if started is not None:
        child = procfs.ProcessIdentity.from_json(started["child"])
        keepers = [procfs.ProcessIdentity.from_json(started[name]) for name in ("supervisor", "guard")]
        if stopping is not None and stopping.get("by"):
            # Perhaps a visitor, who stops what the dead keepers cannot.
            keepers.append(procfs.ProcessIdentity.from_json(stopping["by"]))
        return Liveness(procfs.same_place(child), procfs.alive(child) is True, _any_alive(keepers))
    if not claim.get("guard"):
        return Liveness(None)
    # The guard alone: it was there before the claim, so without it the launcher, too, can only give up.
    guard = procfs.ProcessIdentity.from_json(claim["guard"])
    return Liveness(procfs.same_place(guard), False, procfs.alive(guard) is True)


def _any_alive(identities: list[procfs.ProcessIdentity]) -> bool:
    return any(procfs.alive(identity) is True for identity in identities)


def _log_size(run: RunDirectory) -> int | None:
    try:
        return os.stat(run.log_path).st_size
    except OSError:
        return None

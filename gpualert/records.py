"""Values read from a run directory, and the one rule that derives a launch's state from them.

These are for readers; the processes on the way to the child's start never import this module.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from typing import Any, Mapping

from gpualert.key import Attempt


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
    :param supervised: False when supervisor and guard are both gone while the child lives; None when it does not apply or cannot be seen.
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

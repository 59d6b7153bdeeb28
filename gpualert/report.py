"""Build the Outcome of a launch from its run directory: facts from the record, opinion from the observer's verdict.

The facts decide the state, and no trouble with the opinion can change them, or delay them beyond a bound: an observer
that is gone is replaced by a scan here; a scan that is slow or breaks leaves ``failure_class`` unknown, with a warning.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from typing import Any

from gpualert import __version__, observer, procfs, records
from gpualert.errors import GpuAlertError
from gpualert.guard import OBSERVER_DELAY_S
from gpualert.outcome import Outcome
from gpualert.records import ExitStatus, RunRecord, RunState
from gpualert.rundir import RunDirectory
from gpualert.taxonomy import FailureClass, FailureDomain
from gpualert.verdict import Classification, Outlook

#: Seconds that a scan of the log may take here, when the observer left no verdict.
SCAN_BOUND_S = 30.0
#: A result file larger than this is not read; the outcome keeps less than half of 48 KiB.
MAX_RESULT_BYTES = 1024 * 1024
#: How much older than the launch a result may look and still be its own: clocks of file servers differ.
RESULT_AGE_TOLERANCE_S = 5.0
#: How long after its start a launch's checkout is taken for the code that ran, when nobody asked git meanwhile.
_STILL_THE_SAME_CODE_S = 30.0
_CLOCK_STEP_S = 1.0
_CUT = "the command cut its own log (`> /dev/stderr` does; `>&2` does not): what stood before is gone"
_WAIT_STEP_S = 0.01
_LOOK_STEP_S = 0.1
#: How long an observer may take from the child's end until it first saves its state, and one that is gone until the
#: guard has started another.
_STARTING_S = 1.0
_RESTART_S = 0.5


def build(
    run_directory: str,
    *,
    verdict_wait_s: float = 5.0,
    host_name: str | None = None,
    scan_bound_s: float = SCAN_BOUND_S,
    ask_git: bool = True,
) -> Outcome:
    """
    What became of a launch, as far as it can be told now.

    :param verdict_wait_s: seconds to wait for a living observer's verdict once the launch has ended.
    :param host_name: what the caller calls this host; None takes the host's own name.
    :param scan_bound_s: seconds for a scan of our own, where there is no observer.
    :param ask_git: ask git (at most 5 s) about the folder of a launch that was over before an observer could.
    :return: with ``failure_class`` None as long as the launch has not ended.
    :raises RunDirectoryError: the facts cannot be read. Trouble with the opinion is a warning, never an exception.
    """
    directory = RunDirectory(run_directory)
    record = records.read(run_directory)
    warnings = [*record.warnings, *([record.note] if record.note else [])]
    opinion: dict[str, Any] = {}
    if record.state.ended:
        classification, trouble = _classification(directory, record, verdict_wait_s, scan_bound_s)
        opinion = {
            name: tuple(value) if isinstance(value, list) else value for name, value in classification.to_json().items()
        }
        warnings += [*trouble, *opinion.pop("warnings")]
        opinion["observations"] = _observations(directory, record)
    if record.log_truncated:
        warnings.append(_CUT)
    git, git_warning = _git(directory, ask_git and _just_ended(record))
    result, result_error, result_warning = _result(directory, record)
    warnings += [warning for warning in (git_warning, result_warning) if warning]
    return Outcome(
        **_facts(record, host_name),
        **opinion,
        git=git,
        result=result,
        result_error=result_error,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _facts(record: RunRecord, host_name: str | None) -> dict[str, Any]:
    end = record.exit or ExitStatus()
    return {
        "state": record.state,
        "launch_id": record.launch_id,
        "launch_number": record.number,
        "attempt": record.attempt,
        "host": {
            "name": host_name or platform.node() or None,
            "machine_id": record.machine_id,
            "boot_id": record.boot_id,
        },
        "exit_code": end.code,
        "signal": end.signal_name,
        "core_dumped": end.core_dumped,
        "stopped_by": record.stopped_by,
        "lost_reason": record.lost_reason,
        "run_directory": record.run_directory,
        "log_path": record.log_path,
        "log_size_bytes": record.log_size_bytes,
        "log_generation": record.log_generation,
        "log_truncated": record.log_truncated,
        "created_at": _iso(record.created_at),
        "started_at": _iso(record.started_at),
        "ended_at": _iso(record.ended_at),
        "duration_s": record.elapsed_s,
        "survivors": record.survivors,
        "versions": {
            "gpualert": __version__,
            "python": platform.python_version(),
            "archive": record.archive_digest,
        },
    }


# -- opinion


def _classification(
    directory: RunDirectory, record: RunRecord, wait_s: float, scan_bound_s: float
) -> tuple[Classification, list[str]]:
    """The verdict and warnings about how it was come by."""
    try:
        verdict = None
        # Without exit.json no observer concludes: nobody saw the end.
        if record.exit is not None:
            verdict = _wait_for_verdict(directory, record.elapsed_s, wait_s)
        if verdict is not None:
            return verdict, []
        return _classify_here(directory, scan_bound_s)
    except Exception as error:
        return _unknown(), [f"the classifier failed ({type(error).__name__}: {error}); the state does not depend on it"]


def _wait_for_verdict(directory: RunDirectory, elapsed_s: float | None, wait_s: float) -> Classification | None:
    """None when there is none in time, when it cannot be understood, or when nobody is there to write one."""
    began = looked_at = time.monotonic()
    while True:
        value = directory.read_verdict()
        if value is not None:
            try:
                return Classification.from_json(value)
            except (KeyError, ValueError):  # a newer observer's words: scan with ours
                return None
        now = time.monotonic()
        if now - began >= wait_s:
            return None
        if now - looked_at >= _LOOK_STEP_S or looked_at == began:
            looked_at = now
            if not _observer_may_answer(directory, elapsed_s, now - began):
                return None
        time.sleep(_WAIT_STEP_S)


def _observer_may_answer(directory: RunDirectory, elapsed_s: float | None, waited_s: float) -> bool:
    state = observer.load_scan(directory)
    if state is None or state.get("observer") is None:
        # None has saved its state yet: it is starting, or the launch was over before one was started.
        return elapsed_s is not None and elapsed_s >= OBSERVER_DELAY_S and waited_s < _STARTING_S
    alive = procfs.alive(procfs.ProcessIdentity.from_json(state["observer"]))
    return alive is not False or waited_s < _RESTART_S


def _classify_here(directory: RunDirectory, bound_s: float) -> tuple[Classification, list[str]]:
    until = time.monotonic() + bound_s
    progress = observer.ScanProgress(directory, observer.load_scan(directory))
    size = progress.reader.size() or 0
    while progress.advance() > 0 and progress.reader.position[1] < size:
        if time.monotonic() > until:
            done = progress.reader.position[1]
            return _unknown(), [f"of the log's {size} bytes, {done} could be scanned within {bound_s:g} s: no verdict"]
    return progress.judge(directory), []


def _unknown() -> Classification:
    return Classification(FailureClass.UNKNOWN, FailureDomain.UNKNOWN, Outlook.default(FailureClass.UNKNOWN))


# -- what lies beside


def _observations(directory: RunDirectory, record: RunRecord) -> dict[str, Any] | None:
    """What was seen of the host, for people; None when nothing was."""
    try:
        if not os.path.exists(directory.before_path) and not os.path.exists(directory.after_path):
            return None  # nearly all short runs: not worth an import
        from gpualert import observations, probes

        before, after = probes.read(directory)
        if before is None and after is None:
            return None
        return observations.for_outcome(before, after, (after or {}).get("reduced") or {})
    except Exception:  # damaged, or of a newer version: the verdict has been said
        return None


def _git(directory: RunDirectory, ask: bool) -> tuple[dict[str, Any] | None, str | None]:
    try:
        value = directory.read_git()
        if value is None and ask:
            # It ended before an observer was there to ask; the checkout is still the one that ran.
            observer.record_git(directory)
            value = directory.read_git()
    except GpuAlertError as error:
        return None, f"git facts could not be read: {error}"
    return (None, None) if value is None else (value.get("git"), value.get("warning"))


def _just_ended(record: RunRecord) -> bool:
    return (
        record.exit is not None
        and record.started_at is not None
        and -_CLOCK_STEP_S < time.time() - record.started_at < _STILL_THE_SAME_CODE_S
    )


def _result(directory: RunDirectory, record: RunRecord) -> tuple[Any, str | None, str | None]:
    """(result, result_error, warning) of the result file that the spec names."""
    try:
        spec = directory.read_spec() or {}
    except GpuAlertError:
        return None, None, None
    name = spec.get("result_file")
    if name is None:
        return None, None, None
    if record.state is not RunState.SUCCEEDED:
        return None, None if not record.state.ended else "not read, since the command did not succeed", None
    folder = os.path.expanduser(spec.get("cwd") or "~")
    return read_result(os.path.join(folder, os.path.expanduser(name)), record.created_at)


def read_result(path: str, not_before: float) -> tuple[Any, str | None, str | None]:
    """
    The content of a result file, with NaN and infinities replaced by None.

    :param not_before: seconds since the epoch; a file older than that is an earlier run's.
    :return: (result, None, warning or None), or (None, why there is no result, None).
    """
    try:
        # Not blocking: a FIFO there would hold us for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return None, f"{path}: {error.strerror}", None
    try:
        status = os.fstat(fd)
        if status.st_mode & 0o170000 != 0o100000:
            return None, f"{path}: expected a file, found something else", None
        if status.st_size > MAX_RESULT_BYTES:
            return None, f"{path}: expected at most {MAX_RESULT_BYTES} bytes, found {status.st_size}", None
        if status.st_mtime < not_before - RESULT_AGE_TOLERANCE_S:
            age = not_before - status.st_mtime
            return None, f"{path}: is {age:.0f} s older than this launch, so an earlier run wrote it", None
        data = _read_up_to(fd, MAX_RESULT_BYTES)
    except OSError as error:
        return None, f"{path}: {error.strerror}", None
    finally:
        os.close(fd)
    not_numbers: list[str] = []

    def no_number(word: str) -> None:
        not_numbers.append(word)

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=no_number, parse_float=_finite_or(no_number))
    except (ValueError, RecursionError) as error:
        return None, f"{path}: expected JSON: {error}", None
    if not_numbers:
        what = ", ".join(sorted(set(not_numbers)))
        return value, None, f"{path}: {len(not_numbers)} value(s) that are no number ({what}) became null"
    return value, None, None


def _read_up_to(fd: int, limit: int) -> bytes:
    pieces = []
    while limit > 0:
        piece = os.read(fd, limit)
        if not piece:
            break
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def _finite_or(note: Any) -> Any:
    def parse(text: str) -> float | None:
        number = float(text)
        if math.isfinite(number):
            return number
        note(text)  # 1e999 is valid JSON and an infinity in Python
        return None

    return parse


def _iso(unix_time: float | None) -> str | None:
    """ISO 8601 in UTC with microseconds."""
    if unix_time is None:
        return None
    from datetime import datetime, timezone

    return datetime.fromtimestamp(unix_time, timezone.utc).isoformat(timespec="microseconds")

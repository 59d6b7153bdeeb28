"""A launch's whole log, put where it outlives the GPU host, when the training has ended.

It never changes what the training was: it is bounded in time, and whatever prevents it is told together with the
command that fetches the log by hand. What is kept is redacted, as everything is that leaves the host through Airflow;
the log on the host stays as it was written.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpualert.errors import GpuAlertError
from gpualert.outcome import Outcome
from gpualert.records import RunState
from gpualert_provider.hooks.blocking import Target
from gpualert_provider.redaction import Redactor
from gpualert_provider.store import Destination

T = TypeVar("T")

KEPT_LOG_KEY = "kept_log"
DEFAULT_LIMIT_S = 120.0
_PIECE_BYTES = 1024 * 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptLog:
    """
    What became of a log that was to be kept.

    :param url: where the copy lies; None when there is none.
    :param size_bytes: of the copy, and of the log.
    :param sha256: of the log on the host, in hex. The copy's is the same unless something in it was masked.
    :param masked_bytes: so many bytes of the copy are masks.
    :param why_not: why there is no copy, for people.
    :param fetch_command: brings the log from the host, as long as it is there.
    """

    url: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    masked_bytes: int | None = None
    why_not: str | None = None
    fetch_command: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class OutOfTime(GpuAlertError):
    """The limit was reached first."""

    kind = "timeout"


def keep_log(
    target: Target,
    outcome: Outcome,
    where: str,
    parts: tuple[str, ...],
    *,
    redactor: Redactor,
    root: str | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    tell: Callable[[str], None] = log.info,
) -> KeptLog:
    """
    Fetch, check by hash, redact, put. Never raises an ``Exception``.

    :param where: see :class:`~gpualert_provider.store.Destination`.
    :param parts: folders below it: DAG, run, task, map index. The file is ``LAUNCH_ID.log``.
    :param root: configured root on the host.
    :param limit_s: for all of it.
    """
    command = fetch_command(target, outcome.launch_id, root)
    if outcome.launch_id is None or outcome.log_path is None:
        return KeptLog(why_not="the launch has no log that anybody knows of")
    if outcome.state is RunState.UNREACHABLE:
        return KeptLog(why_not="the host cannot be reached", fetch_command=command)
    deadline = time.monotonic() + limit_s
    folder: Path | None = None
    try:
        # Connections come from Airflow's supervisor, which this thread talks to.
        destination = Destination.of(where)
        folder = Path(tempfile.mkdtemp(prefix="gpualert-log-"))
        copy = folder / "log"
        return _within(
            limit_s,
            lambda: _keep(target, str(outcome.launch_id), copy, destination, parts, redactor, root, deadline, tell),
        )
    except Exception as error:
        why = str(error) if isinstance(error, GpuAlertError) else f"{type(error).__name__}: {error}"
        return KeptLog(why_not=redactor.text(why), fetch_command=command)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # also under a thread that was left behind


def fetch_command(target: Target, launch_id: str | None, root: str | None = None) -> str | None:
    """What brings the log from its host, for people; None where there is no connection, or no launch."""
    conn_id = getattr(target, "conn_id", None)
    if launch_id is None or conn_id is None:
        return None
    return shlex.join(["gpualert", "fetch", conn_id, launch_id, *(["--root", root] if root else [])])


def _keep(
    target: Target,
    launch_id: str,
    copy: Path,
    destination: Destination,
    parts: tuple[str, ...],
    redactor: Redactor,
    root: str | None,
    deadline: float,
    tell: Callable[[str], None],
) -> KeptLog:
    from gpualert_provider import fetch

    def in_time(*_: int) -> None:
        if time.monotonic() > deadline:
            raise OutOfTime("the time for it is over")

    def nap(seconds: float) -> None:
        in_time()
        time.sleep(max(0.0, min(seconds, deadline - time.monotonic())))

    found = fetch.fetch_from(
        target,
        launch_id,
        str(copy),
        patience_s=max(0.0, deadline - time.monotonic()),
        root=root,
        tell=tell,
        progress=in_time,
        sleep=nap,
    )
    masked = mask_in_place(copy, redactor, in_time)
    url = destination.put(copy, (*parts, f"{launch_id}.log"))
    return KeptLog(url=url, size_bytes=found["size_bytes"], sha256=found["sha256"], masked_bytes=masked)


def mask_in_place(path: Path, redactor: Redactor, in_time: Callable[[], None] = lambda: None) -> int:
    """
    Redact a file where it lies, whatever its size: a mask has the length of what it hides.

    :param in_time: called between pieces; may raise.
    :return: how many bytes are other ones now.
    """
    stream = redactor.stream()
    changed = 0
    with open(path, "r+b", buffering=0) as original, open(path, "r+b", buffering=0) as out:

        def write(masked: bytes) -> None:
            nonlocal changed
            at = out.tell()
            out.seek(at)
            before = out.read(len(masked))
            if before != masked:
                changed += sum(a != b for a, b in zip(before, masked, strict=True))
                out.seek(at)
                out.write(masked)

        while piece := original.read(_PIECE_BYTES):
            in_time()
            write(stream.feed(piece))
        write(stream.finish())
    return changed


def _within(limit_s: float, act: Callable[[], T]) -> T:
    """
    Do it in a thread that is left behind when it takes too long: a store's library may wait where nobody can
    interrupt it. A task's process ends soon after.

    :raises OutOfTime: the limit was reached.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(act())
        except BaseException as error:  # a library that exits must not take the task along
            failed.append(error)

    thread = threading.Thread(target=run, name="gpualert-keep-log", daemon=True)
    thread.start()
    thread.join(limit_s)
    if done:
        return done[0]
    if failed:
        error = failed[0]
        if isinstance(error, Exception):
            raise error
        raise GpuAlertError(f"{type(error).__name__}: {error}", "store") from error
    raise OutOfTime(f"not done after {limit_s:g} s")

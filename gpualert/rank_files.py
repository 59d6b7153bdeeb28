"""What the ranks of a run leave in files of their own, read when it exists.

``torch.distributed.elastic``'s ``@record`` writes an error file per rank, and torchrun's summary table names it
(``error_file: /tmp/torchelastic_…/attempt_0/3/error.json``). With ``--redirects`` the ranks write into
``LOG_DIR/RUN/attempt_N/RANK/stderr.log``, and the cause stands nowhere else. A name in a log is hostile input: only
regular files of our own user are opened, no link is followed at the end, and all reading is bounded.

The format is that of ``torch/distributed/elastic/multiprocessing/errors/error_handler.py``, the layout that of
``torch/distributed/elastic/multiprocessing/api.py`` (``DefaultLogsSpecs``), both of PyTorch 2.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

from gpualert.scan import ScanResult

#: Bytes of an error file, and of the end of a rank's own log, that are read.
MAX_ERROR_BYTES = 1 << 20
MAX_LOG_BYTES = 8 << 20
#: Ranks whose files are read; a table names no more than one node's.
MAX_FILES = 16
_MAX_LISTED = 2000
#: The note in a scan that names an error file.
NOTE = "note.error_file"
#: How much older than the launch a file may look: clocks of file servers differ.
_AGE_TOLERANCE_S = 5.0

_LOG_DIR = re.compile(r"(?:--log[-_]dir[= ]\s*|\bPET_LOG_DIR=)(\"[^\"]+\"|'[^']+'|[^\s\"';&|]+)")
_PATH = re.compile(r"(?:error_file\s*:|(?:reply|error)[ _]file(?: to)?:?)\s*\(?(/\S{1,1000}\.json)\b")
_RANK = re.compile(r"/attempt_\d+/(\d{1,7})/[^/]+$")


@dataclass(frozen=True)
class RankFile:
    """
    What one rank left in a file.

    :param rank: the local rank that the path names; None when it names none.
    :param text: a traceback or the end of the rank's own log.
    :param written_at: seconds since the epoch: by the file's own word, else its modification time.
    """

    path: str
    rank: int | None
    text: bytes
    written_at: float
    #: ``text`` begins where the file does
    whole: bool = True


def named_in(scan: ScanResult) -> list[str]:
    """Paths of error files that a log names, in its order, without doubles."""
    found: list[str] = []
    for event in scan.events:
        if event.rule == NOTE:
            found.extend(match.group(1) for match in _PATH.finditer(event.text))
    return list(dict.fromkeys(found))[:MAX_FILES]


def log_dir_of(command: str, cwd: str, environ: Mapping[str, str]) -> str | None:
    """
    The folder that a command tells torchrun to keep its ranks' logs in.

    :return: an absolute path; None when the command names none, or names it by what only a shell can tell.
    """
    found = _LOG_DIR.search(command)
    value = found.group(1).strip("\"'") if found is not None else environ.get("PET_LOG_DIR", "")
    if not value or "$" in value or "`" in value:
        return None
    return os.path.normpath(os.path.join(cwd, os.path.expanduser(value)))


def read_rank_files(scan: ScanResult, not_before: float, log_dir: str | None = None) -> list[RankFile]:
    """
    The error files that a log names, the logs beside them, and the ranks' logs below ``log_dir``; earliest first.

    :param not_before: seconds since the epoch; older files are an earlier run's and are left alone.
    :return: empty when there are none, or none can be read.
    """
    errors = named_in(scan)
    folders = [os.path.dirname(path) for path in errors]
    if log_dir is not None:
        folders.extend(_rank_folders(log_dir))
        errors.extend(os.path.join(folder, "error.json") for folder in folders)
    found: list[RankFile] = []
    for path in list(dict.fromkeys(errors))[:MAX_FILES]:
        error = _read(path, MAX_ERROR_BYTES, not_before)
        text = None if error is None else traceback_of(error[0])
        if error is not None and text is not None:
            found.append(RankFile(path, _rank_of(path), text, _own_time(error[0]) or error[1], error[2]))
    for folder in list(dict.fromkeys(folders))[:MAX_FILES]:
        path = os.path.join(folder, "stderr.log")
        own = _read(path, MAX_LOG_BYTES, not_before)
        if own is not None and own[0].strip():
            found.append(RankFile(path, _rank_of(path), *own))
    found.sort(key=lambda item: item.written_at)
    return found


def _rank_of(path: str) -> int | None:
    found = _RANK.search(path)
    return int(found.group(1)) if found is not None else None


def _rank_folders(log_dir: str) -> list[str]:
    """``RUN/attempt_N/RANK`` below a folder, the newest first."""
    found: list[tuple[float, str]] = []
    for run in _folders(log_dir):
        for attempt in _folders(run.path):
            if attempt.name.startswith("attempt_"):
                for rank in _folders(attempt.path):
                    if rank.name.isdigit():
                        found.append((rank.stat(follow_symlinks=False).st_mtime, rank.path))
    return [path for _, path in sorted(found, reverse=True)][:MAX_FILES]


def _folders(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            for count, entry in enumerate(entries):
                if count >= _MAX_LISTED:
                    return
                if entry.is_dir(follow_symlinks=False):
                    yield entry
    except OSError:
        return


def traceback_of(data: bytes) -> bytes | None:
    """
    The traceback in an error file, as a log would show it.

    :return: None when the bytes are no error file.
    """
    value = _load(data)
    if value is None:
        return None
    message = value["message"]
    if isinstance(message, str):
        return message.encode("utf-8", "replace") + b"\n" if message.strip() else None
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    text = stack if isinstance(stack, str) and stack.strip() else message.get("message")
    if not isinstance(text, str) or not text.strip():
        return None
    return text.encode("utf-8", "replace") + b"\n"


def _own_time(data: bytes) -> float | None:
    value = _load(data)
    message = value["message"] if value is not None else None
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    stamp = extra.get("timestamp") if isinstance(extra, dict) else None
    try:
        seconds = float(stamp)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return seconds if 0 < seconds < 1e11 else None


def _load(data: bytes) -> Mapping[str, Any] | None:
    if not data.lstrip()[:1] == b"{":
        return None
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("message"), (str, dict)):
        return None
    return value


def _read(path: str, limit: int, not_before: float) -> tuple[bytes, float, bool] | None:
    """The end of a regular file of our own, when it was written, whether that is all; None where it is none of ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        if status.st_mtime < not_before - _AGE_TOLERANCE_S:
            return None
        pieces = []
        at = max(0, status.st_size - limit)
        whole = at == 0
        while limit > 0:
            piece = os.pread(fd, min(limit, 1 << 20), at)
            if not piece:
                break
            pieces.append(piece)
            at += len(piece)
            limit -= len(piece)
        return b"".join(pieces), status.st_mtime, whole
    except OSError:
        return None
    finally:
        os.close(fd)

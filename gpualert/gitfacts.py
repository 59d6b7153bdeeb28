"""Which code ran: commit and dirty flag of the folder that a command starts in. Git is asked within bounds.

A repository may be huge, on a slow disk, owned by somebody else, or hold hooks: git runs in a process of its own that
is killed at the deadline, with the file-system monitor off and without locks that would disturb the user's own git.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

BOUND_S = 5.0
_MAX_OUTPUT_BYTES = 64 * 1024
#: They would point git at another repository than the folder's own.
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE")


def read_git(folder: str, bound_s: float = BOUND_S) -> tuple[dict[str, Any] | None, str | None]:
    """
    Commit and dirty flag of the checkout that ``folder`` lies in.

    :param bound_s: seconds for all questions together.
    :return: ({commit, dirty}, None); (None, None) when it is no checkout; (None, warning) when git could not say.
        ``dirty`` speaks of tracked files only (untracked data would make the question slow), and is None when that
        question alone took too long. Never raises.
    """
    if not _in_checkout(folder):
        return None, None
    until = time.monotonic() + bound_s
    try:
        status, out, err = _git(folder, ["rev-parse", "--verify", "HEAD^{commit}"], until)
        if status is None:
            return None, f"git did not answer within {bound_s:g} s in {folder}"
        if status != 0:
            return None, _reason(folder, err)
        commit = out.decode("ascii", "replace").strip()
        status, out, err = _git(folder, ["status", "--porcelain", "--untracked-files=no"], until)
    except FileNotFoundError:
        return None, f"git is not installed, so the commit of {folder} is not known"
    except OSError as error:
        return None, f"git could not be asked about {folder}: {error}"
    if status is None:
        return {"commit": commit, "dirty": None}, f"git status did not answer within {bound_s:g} s in {folder}"
    return {"commit": commit, "dirty": bool(out.strip()) if status == 0 else None}, None


def _in_checkout(folder: str) -> bool:
    """Whether this folder or one above holds ``.git``; so that most launches do not start git at all."""
    path = os.path.abspath(folder)
    while True:
        if os.path.exists(os.path.join(path, ".git")):
            return True
        above = os.path.dirname(path)
        if above == path:
            return False
        path = above


def _reason(folder: str, err: bytes) -> str:
    text = err.decode("utf-8", "replace").strip()
    if "dubious ownership" in text:
        return (
            f"git does not trust {folder}, because somebody else owns it; "
            f"to record the commit: git config --global --add safe.directory {folder}"
        )
    if "Needed a single revision" in text:
        return f"the checkout {folder} has no commit yet"
    return f"git could not name the commit of {folder}: {text[:200] or 'it said nothing'}"


def _git(folder: str, words: list[str], until: float) -> tuple[int | None, bytes, bytes]:
    """Exit status, stdout and stderr; the status is None when the deadline came first."""
    environment = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    environment.update(GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0", LC_ALL="C")
    process = subprocess.Popen(
        ["git", "-c", "core.fsmonitor=false", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that git's own children can be ended with it
    )
    try:
        out, err = process.communicate(timeout=max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process)
        return None, b"", b""
    return process.returncode, out[:_MAX_OUTPUT_BYTES], err[:_MAX_OUTPUT_BYTES]


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:  # in uninterruptible sleep on a dead disk: nothing more can be done
        pass

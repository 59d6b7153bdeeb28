"""What may be removed from a host, and removing it: old launches, archives that nothing needs, damaged run directories.

A launch that lives, or may live, stays; so does an end that Airflow was not told of, for three months; and so does code
that any launch was made with or any session runs. Where it cannot be seen what is needed, nothing is removed.
"""

from __future__ import annotations

import os
import time
from typing import Any

from gpualert import control, procfs, rundir
from gpualert.errors import GpuAlertError
from gpualert.records import RunRecord
from gpualert.rundir import ARCHIVES, MANIFEST, KeyDirectory, RunDirectory

#: Seconds for which a launch that has been reported is kept in any case.
REPORTED_REST_S = 900.0
#: Seconds for which an end that a task was never told of is kept, whatever the age limit.
UNREPORTED_REST_S = 90 * 86400.0
#: An archive that no launch names goes when it was not used for so many seconds, or is not among so many newest ones.
ARCHIVE_AGE_S = 30 * 86400.0
ARCHIVES_KEPT = 3
#: Nothing is taken away from whoever has just found it there; seconds.
ARCHIVE_REST_S = 3600.0


def clean(
    root: str | None = None,
    *,
    older_than_s: float,
    keep_bytes: int | None = None,
    keep_count: int | None = None,
    damaged: bool = False,
    dry_run: bool,
) -> list[dict[str, Any]]:
    """
    Remove run directories of launches that have ended, and archives that nothing on the host needs any more.

    Whatever is older than the limit goes, save launches of a task whose end was never delivered, which stay for
    :data:`UNREPORTED_REST_S`. Of the rest, the oldest go until ``keep_count`` and ``keep_bytes`` are kept, but only
    those whose end was delivered to a follower, some time ago (what was delivered can be lost with whoever took it). A
    launch that lives, or may live, stays in any case.

    :param older_than_s: seconds since the end; for a damaged launch, since anything in it changed.
    :param damaged: remove also launches whose files cannot be read, if nothing of them is alive.
    :return: what was removed (or would be), as {kind, launch_id, run_directory, size_bytes, ended_at, why}, launches
        first, the oldest first; ``kind`` is ``launch``, ``damaged`` or ``archive``. For an archive ``launch_id`` and
        ``ended_at`` are None, and ``run_directory`` is its folder.
    """
    now = time.time()
    found, broken = control.survey(root)
    removed = _old_launches(found, now, older_than_s, keep_bytes, keep_count)
    if damaged:
        removed += _damaged(broken, now, older_than_s)
    if not dry_run:
        removed = [item for item in removed if _remove(RunDirectory(item["run_directory"]), root)]
    going = {item["run_directory"] for item in removed}
    unneeded = _unneeded_archives(
        root,
        now,
        [r for r in found if r.run_directory not in going],
        [b for b in broken if b["run_directory"] not in going],
    )
    if not dry_run:
        unneeded = [item for item in unneeded if _remove_archive(item["run_directory"])]
    return removed + unneeded


def _old_launches(
    found: list[RunRecord], now: float, older_than_s: float, keep_bytes: int | None, keep_count: int | None
) -> list[dict[str, Any]]:
    ended = []
    kept_bytes = kept_count = 0
    for record in found:
        size = _size(record.run_directory)
        kept_bytes += size
        kept_count += 1
        if record.state.ended and not _being_wound_up(record):
            ended.append((record.ended_at or _last_change(record) or record.created_at, size, record))
    removed = []
    for ended_at, size, record in sorted(ended, key=lambda item: item[0]):
        reported = _reported(record)
        limit_s = older_than_s if reported or not _of_a_task(record) else max(older_than_s, UNREPORTED_REST_S)
        why = None
        if now - ended_at > limit_s:
            why = f"ended more than {limit_s:g} s ago"
        elif reported and now - ended_at > REPORTED_REST_S:
            if keep_count is not None and kept_count > keep_count:
                why = f"more than {keep_count} launches"
            elif keep_bytes is not None and kept_bytes > keep_bytes:
                why = f"more than {keep_bytes} bytes"
        if why is None:
            continue
        kept_count -= 1
        kept_bytes -= size
        removed.append(_item("launch", record.launch_id, record.run_directory, size, ended_at, why))
    return removed


def _item(kind: str, launch_id: str | None, path: str, size: int, ended_at: float | None, why: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "launch_id": launch_id,
        "run_directory": path,
        "size_bytes": size,
        "ended_at": ended_at,
        "why": why,
    }


def _reported(record: RunRecord) -> bool:
    try:
        ack = RunDirectory(record.run_directory).read_ack()
    except GpuAlertError:
        return False
    return bool((ack or {}).get("ended"))


def _of_a_task(record: RunRecord) -> bool:
    """A scheduler's launch, not one by hand: its key is deployment, DAG, run, task and map index."""
    parts = record.key_parts
    return len(parts) == 5 and parts[4].lstrip("-").isdigit()


def _being_wound_up(record: RunRecord) -> bool:
    """Its keepers are still at work: ending what was left of the tree, or judging the log."""
    started = RunDirectory(record.run_directory).read_started() or {}
    keepers = [procfs.ProcessIdentity.from_json(started[name]) for name in ("supervisor", "guard") if name in started]
    return any(procfs.alive(keeper) is True for keeper in keepers)


def _remove(run: RunDirectory, root: str | None) -> bool:
    import shutil

    folder = run.key_directory
    # The run directory first: a claim without one is at worst a launch that never started.
    shutil.rmtree(run.path, ignore_errors=True)
    if os.path.isdir(run.path):
        return False
    folder.discard(run.number)
    for r in rundir.find_roots(root):
        if r.exists and r.readable:
            KeyDirectory(r.launches + "/" + folder.name).discard(run.number)
    return True


def _last_change(record: RunRecord) -> float | None:
    return RunDirectory(record.run_directory).heartbeat_at()


# -- damaged launches


def _damaged(broken: list[dict[str, Any]], now: float, older_than_s: float) -> list[dict[str, Any]]:
    removed = []
    for item in broken:
        path = item["run_directory"]
        if item["newer"] or item["launch_id"] is None:
            continue  # not damage; or a key directory that cannot even be listed
        changed_at = _newest(path)
        if changed_at is None or now - changed_at <= max(older_than_s, rundir.HEARTBEAT_STALE_S):
            continue
        if any(procfs.is_tagged(one.pid, item["launch_id"]) for one in procfs.all_processes()):
            continue
        removed.append(_item("damaged", item["launch_id"], path, _size(path), None, f"damaged: {item['why']}"))
    return removed


def _newest(path: str) -> float | None:
    """When anything in a run directory, or its claim, last changed; the heartbeat does while somebody watches it."""
    run = RunDirectory(path)
    times = []
    for name in (run.key_directory.claim_path(run.number), path):
        try:
            times.append(os.lstat(name).st_mtime)
        except OSError:
            pass
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                times.append(os.lstat(os.path.join(folder, name)).st_mtime)
            except OSError:
                pass
    return max(times, default=None)


# -- archives


def _unneeded_archives(
    root: str | None, now: float, found: list[RunRecord], broken: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    roots = rundir.find_roots(root)
    if broken or not all(r.readable for r in roots):
        return []  # a launch that cannot be read may run any of them
    named = {record.archive_digest for record in found}
    held = None
    removed = []
    for r in roots:
        if not r.exists:
            continue
        shelf = f"{r.path}/{ARCHIVES}"
        newest_first = sorted(_archives(shelf), reverse=True)
        for rank, (used_at, digest) in enumerate(newest_first):
            age_s, path = now - used_at, f"{shelf}/{digest}"
            if digest in named or age_s <= ARCHIVE_REST_S or (age_s <= ARCHIVE_AGE_S and rank < ARCHIVES_KEPT):
                continue
            if held is None:
                held = _held()
            if any(name.startswith(path + "/") for name in held):
                continue
            why = "not used for 30 days" if age_s > ARCHIVE_AGE_S else f"not among the {ARCHIVES_KEPT} newest"
            removed.append(_item("archive", None, path, _size(path), None, f"code that no launch names; {why}"))
    return removed


def _archives(shelf: str) -> list[tuple[float, str]]:
    """(when it was last used, digest) of each; what is being unpacked or taken away has a dot in its name."""
    found = []
    try:
        names = os.listdir(shelf)
    except OSError:
        return []
    for name in names:
        if len(name) == 64 and name.isalnum():
            try:
                found.append((os.lstat(f"{shelf}/{name}/{MANIFEST}").st_mtime, name))
            except OSError:
                pass
    return found


def _held() -> set[str]:
    """Files that this user's processes have open, and our own code: each session keeps its archive's manifest open."""
    paths = {os.path.realpath(__file__)}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                paths.update(os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd"))
            except OSError:  # another user's, or it has ended
                pass
    return paths


def _remove_archive(path: str) -> bool:
    """Out of the way at once, so that nobody finds half of it; what is left of it goes with the next unpacking."""
    import shutil

    away = f"{path}.{os.getpid()}-gone"
    try:
        os.rename(path, away)
    except OSError:
        return False
    shutil.rmtree(away, ignore_errors=True)
    return True


def _size(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                pass
    return total

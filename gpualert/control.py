"""Use cases on existing launches: inspect, attach, stop, list, clean.

A stop is a durable request, carried out on the host by the supervisor. Only when supervisor and guard are both dead
does whoever visits carry it out instead.
"""

from __future__ import annotations

import _signal
import os
import time
from typing import Any

from gpualert import child as children
from gpualert import claim, procfs, records, rundir
from gpualert.errors import GpuAlertError, Refused, UnknownLaunch
from gpualert.key import Attempt, LaunchKey, split_launch_id
from gpualert.records import RunRecord, RunState
from gpualert.rundir import KeyDirectory, Root, RunDirectory
from gpualert.supervisor import Settings, Watch, now_boottime


def _roots(root: str | None) -> list[Root]:
    return rundir.find_roots(root)


def locate(launch_id: str, root: str | None = None) -> RunDirectory:
    """
    :param root: the configured root, looked at beside the usual ones.
    :raises UnknownLaunch: no readable root knows it; the message names the unreadable ones.
    """
    try:
        name, number = split_launch_id(launch_id)
    except ValueError as error:
        raise UnknownLaunch(str(error)) from error
    roots = _roots(root)
    found = claim.locate(roots, name, number)
    if found is None:
        unread = [r.path for r in roots if not r.readable]
        raise UnknownLaunch(
            f"{launch_id}: no such launch in {', '.join(r.path for r in roots)}"
            + (f"; could not read {', '.join(unread)}" if unread else "")
        )
    return found


def find(word: str, root: str | None = None) -> RunDirectory:
    """
    A launch by its id, by the start of its id, by its key's name (then its latest launch), or by its run directory's
    path.

    :raises UnknownLaunch: none, or more than one, and then which.
    """
    if not word:  # an unset variable in a script; where there is but one launch it would name that one
        raise UnknownLaunch("launch: expected an id or the beginning of one, found an empty text")
    if word.startswith("/"):
        run = RunDirectory(os.path.realpath(word))
        if os.path.basename(run.path).isdigit():
            return run
        raise UnknownLaunch(f"{word}: expected the path of a run directory")
    by_key: dict[str, list[int]] = {}
    for r in _roots(root):
        if r.exists and r.readable:
            for folder in rundir.key_directories(r.path):
                by_key.setdefault(folder.name, []).extend(folder.claims())
    exact = [f"{name}.{n}" for name, numbers in by_key.items() for n in set(numbers) if f"{name}.{n}" == word]
    if exact:
        return locate(exact[0], root)
    matching = {name: max(numbers) for name, numbers in by_key.items() if numbers and name.startswith(word)}
    if not matching:
        matching = {name: n for name, numbers in by_key.items() for n in numbers if f"{name}.{n}".startswith(word)}
    if len(matching) == 1:
        name, number = next(iter(matching.items()))
        return locate(f"{name}.{number}", root)
    if not matching:
        raise UnknownLaunch(f"{word}: no launch whose id starts so")
    shown = sorted(f"{name}.{n}" for name, n in matching.items())
    raise UnknownLaunch(
        f"{word}: {len(shown)} launches start so: {', '.join(shown[:5])}{' …' if len(shown) > 5 else ''}"
    )


def inspect(key: LaunchKey | None = None, launch_id: str | None = None, root: str | None = None) -> RunRecord:
    """
    The record of one launch, or of the latest launch of a key. If nobody supervises it any more, a stop or deadline
    that is due is carried out.

    :raises UnknownLaunch: there is none.
    """
    if launch_id is not None:
        run = locate(launch_id, root)
    elif key is not None:
        roots = _roots(root)
        latest = _latest(roots, key.directory_name)
        if latest is None:
            raise UnknownLaunch(f"{key.directory_name}: never launched here")
        run = latest
    else:
        raise ValueError("inspect: expected a key or a launch id, found neither")
    record = records.read(run.path)
    if record.supervised is False:
        tend(run)
    return record


def _latest(roots: list[Root], key_name: str) -> RunDirectory | None:
    latest = 0
    for r in roots:
        if r.exists and r.readable:
            latest = max([latest, *KeyDirectory(r.launches + "/" + key_name).claims()])
    return claim.locate(roots, key_name, latest) if latest else None


def attach(launch_id: str, who: str, root: str | None = None) -> int:
    """
    Begin to follow a launch: take the next epoch. Stops that carry an older one are refused from now on.

    :param who: for people, kept in the epoch's file.
    :return: the epoch taken.
    """
    run = locate(launch_id, root)
    if not os.path.isdir(run.path):
        raise UnknownLaunch(f"{launch_id}: it was claimed but never got a run directory")
    while True:
        number = run.epoch() + 1
        if run.take_epoch(number, who):
            return number


def stop(
    launch_id: str, *, epoch: int | None, reason: str, who: str, wait_s: float, root: str | None = None
) -> RunRecord:
    """
    Ask for a stop, durably, and wait a while for the end.

    :param epoch: the follower's own; None is an operator's word, which always counts.
    :param wait_s: seconds to wait for the end; 0 only asks.
    :return: the record after that time; its state tells whether it has ended. A launch that had ended before is left as
        it was.
    :raises Refused: kind ``stale_epoch``: somebody attached after this follower.
    :raises UnknownLaunch: there is none.
    """
    run = locate(launch_id, root)
    current = run.epoch()
    if epoch is not None and epoch < current:
        raise Refused(
            f"{launch_id}: a stop with epoch {epoch}, but epoch {current} has attached since and decides now",
            "stale_epoch",
        )
    return _stop(run, epoch, reason, who, wait_s)


def stop_key(
    key: LaunchKey, attempt: Attempt, *, reason: str, who: str, wait_s: float, root: str | None = None
) -> RunRecord | None:
    """
    Stop whatever an attempt has launched or adopted, or will launch: for a caller who does not know how far the launch
    got.

    :return: the record of the launch stopped; None when there was none to stop. Unless the attempt's own launch was
        found, a tombstone is left that refuses a late one.
    :raises Refused: kind ``superseded``: a newer attempt has been here, and what runs now is its own;
        ``root_unreadable``.
    """
    roots = _roots(root)
    claim.check_readable(roots)
    chosen = rundir.meeting_place(roots) or rundir.choose_among(roots)
    name = key.directory_name
    until = time.monotonic() + 10.0
    while True:
        seen = claim.look(roots, name)
        if seen.attempt > attempt.number:
            raise Refused(
                f"attempt {attempt.number}: attempt {seen.attempt} of this task was here; an older one stops nothing",
                "superseded",
            )
        run = claim.locate(roots, name, seen.latest) if seen.latest else None
        owner = claim.claimed_by(roots, name, seen.latest) if seen.latest else None
        own = owner is not None and owner.number >= attempt.number
        if not own and seen.tombstone < attempt.number:
            folder = KeyDirectory(chosen.launches + "/" + name)
            folder.create(key.to_json())
            folder.write_tombstone(attempt.number, {"reason": reason, "who": who, "at": time.time()})
            continue  # look again: a launch that was claimed before it saw the tombstone is found now
        if run is None:
            return None
        if not os.path.isdir(run.path) and time.monotonic() < until:
            # Claimed a moment ago. Its launcher fills the folder, or sees our tombstone and takes the claim back.
            if records.read(run.path).state is RunState.LAUNCHING:
                time.sleep(0.01)
                continue
        try:
            record = records.read(run.path)
        except UnknownLaunch:
            continue
        if record.state.ended:
            return record if own else None
        return _stop(run, None, reason, who, wait_s)


def _stop(run: RunDirectory, epoch: int | None, reason: str, who: str, wait_s: float) -> RunRecord:
    record = records.read(run.path)
    if record.state.ended:
        return record
    run.write_stop({"epoch": epoch, "reason": reason, "who": who, "at": time.time()})
    poke(run)
    until = time.monotonic() + max(0.0, wait_s)
    pause = 0.005
    while True:
        record = records.read(run.path)
        if record.state.ended or record.state is RunState.UNREACHABLE:
            return record
        if record.supervised is False:
            tend(run)
        left = until - time.monotonic()
        if left <= 0:
            return record
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.25)


def poke(run: RunDirectory) -> None:
    """
    Make the keepers look now instead of within a second. SIGURG does nothing to a process that does not wait for it.
    """
    started = run.read_started()
    if started is None:
        return
    for name in ("supervisor", "guard"):
        identity = procfs.ProcessIdentity.from_json(started[name])
        if procfs.same_place(identity):
            try:
                procfs.send_signal(identity.pid, identity.start_ticks, _signal.SIGURG)
            except PermissionError:
                pass


def tend(run: RunDirectory) -> bool:
    """
    Do what dead keepers cannot: if a stop was requested or the deadline is over, a process of its own carries it out.

    :return: True when there was something to do.
    """
    started, spec = run.read_started(), run.read_spec()
    if started is None or spec is None or run.has_ended():
        return False
    settings = Settings.from_spec(spec)
    late = settings.deadline_s is not None and now_boottime() >= started["clock_boottime_s"] + settings.deadline_s
    if not run.stop_requested() and not late:
        return False
    stopping = run.read_stopping() or {}
    if stopping.get("by") and procfs.alive(procfs.ProcessIdentity.from_json(stopping["by"])):
        return True  # somebody is at it
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _tend(run, started, settings)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return True


def _tend(run: RunDirectory, started: dict[str, Any], settings: Settings) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    children.keep_only(())
    os.chdir("/")
    watch = Watch(run, started, settings, "visitor")
    watch.resume()
    watch.watch()


def list_launches(root: str | None = None) -> list[RunRecord]:
    """Every launch in every readable root, the oldest first. One that cannot be read (damaged, newer) is left out."""
    found: dict[str, RunRecord] = {}
    for run in _all_runs(root):
        try:
            record = records.read(run.path)
        except GpuAlertError:
            continue
        found.setdefault(record.launch_id, record)
    return sorted(found.values(), key=lambda record: record.created_at)


def _all_runs(root: str | None) -> list[RunDirectory]:
    runs: dict[str, RunDirectory] = {}
    for r in _roots(root):
        if not (r.exists and r.readable):
            continue
        for folder in rundir.key_directories(r.path):
            try:
                numbers = folder.claims()
            except GpuAlertError:  # one that cannot be read hides no other
                continue
            for number in numbers:
                run = folder.run_directory(number)
                if not os.path.isdir(run.path):
                    try:
                        value = folder.read_claim(number)
                    except GpuAlertError:
                        continue
                    if value is not None and value.get("root") not in (None, r.path):
                        # It lives in a root that was configured for it alone; the claim knows which.
                        run = KeyDirectory(f"{value['root']}/launches/{folder.name}").run_directory(number)
                runs.setdefault(run.path, run)
    return list(runs.values())


#: Seconds for which a launch that has been reported is kept in any case.
REPORTED_REST_S = 900.0


def clean(
    root: str | None = None,
    *,
    older_than_s: float,
    keep_bytes: int | None = None,
    keep_count: int | None = None,
    dry_run: bool,
) -> list[dict[str, Any]]:
    """
    Remove run directories of launches that have ended.

    Whatever is older than the limit goes; of the rest, the oldest go until ``keep_count`` and ``keep_bytes`` are kept,
    but only those whose end was delivered to a follower, some time ago (what was delivered can be lost with whoever
    took it). A launch that lives, or may live, stays in any case.

    :param older_than_s: seconds since the end.
    :return: what was removed (or would be), as {launch_id, run_directory, size_bytes, ended_at, why}, the oldest first.
    """
    now = time.time()
    ended = []
    kept_bytes = kept_count = 0
    for record in list_launches(root):
        size = _size(record.run_directory)
        kept_bytes += size
        kept_count += 1
        if record.state.ended and not _being_wound_up(record):
            ended.append((record.ended_at or _last_change(record) or record.created_at, size, record))
    removed = []
    for ended_at, size, record in sorted(ended, key=lambda item: item[0]):
        ack = RunDirectory(record.run_directory).read_ack() or {}
        why = None
        if now - ended_at > older_than_s:
            why = f"ended more than {older_than_s:g} s ago"
        elif ack.get("ended") and now - ended_at > REPORTED_REST_S:
            if keep_count is not None and kept_count > keep_count:
                why = f"more than {keep_count} launches"
            elif keep_bytes is not None and kept_bytes > keep_bytes:
                why = f"more than {keep_bytes} bytes"
        if why is None:
            continue
        kept_count -= 1
        kept_bytes -= size
        removed.append(
            {
                "launch_id": record.launch_id,
                "run_directory": record.run_directory,
                "size_bytes": size,
                "ended_at": ended_at,
                "why": why,
            }
        )
        if not dry_run:
            _remove(RunDirectory(record.run_directory), root)
    return removed


def _being_wound_up(record: RunRecord) -> bool:
    """Its keepers are still at work: ending what was left of the tree, or judging the log."""
    started = RunDirectory(record.run_directory).read_started() or {}
    keepers = [procfs.ProcessIdentity.from_json(started[name]) for name in ("supervisor", "guard") if name in started]
    return any(procfs.alive(keeper) is True for keeper in keepers)


def _remove(run: RunDirectory, root: str | None) -> None:
    import shutil

    folder = run.key_directory
    # The run directory first: a claim without one is at worst a launch that never started.
    shutil.rmtree(run.path, ignore_errors=True)
    if os.path.isdir(run.path):
        return
    folder.discard(run.number)
    for r in _roots(root):
        if r.exists and r.readable:
            KeyDirectory(r.launches + "/" + folder.name).discard(run.number)


def _last_change(record: RunRecord) -> float | None:
    return RunDirectory(record.run_directory).heartbeat_at()


def _size(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                pass
    return total

"""Use cases on existing launches: inspect, attach, stop, list.

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
from gpualert.errors import GpuAlertError, NewerFormat, Refused, UnknownLaunch
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
    """Every launch in every readable root, the oldest first. :func:`survey` also tells which cannot be read."""
    return survey(root)[0]


def survey(root: str | None = None) -> tuple[list[RunRecord], list[dict[str, Any]]]:
    """
    :return: every launch in every readable root, the oldest first; and those that cannot be read, as {launch_id,
        run_directory, why, newer}: ``newer`` is true for one that a newer version wrote, which is no damage.
    """
    found: dict[str, RunRecord] = {}
    runs, damaged = _all_runs(root)
    for run in runs:
        try:
            record = records.read(run.path)
        except UnknownLaunch:  # removed since it was listed
            continue
        except GpuAlertError as error:
            damaged.append(_damage(run.launch_id, run.path, error))
            continue
        found.setdefault(record.launch_id, record)
    return sorted(found.values(), key=lambda record: record.created_at), damaged


def _damage(launch_id: str | None, path: str, error: GpuAlertError) -> dict[str, Any]:
    newer = isinstance(error, NewerFormat)
    return {"launch_id": launch_id, "run_directory": path, "why": str(error), "newer": newer}


def _all_runs(root: str | None) -> tuple[list[RunDirectory], list[dict[str, Any]]]:
    """Run directories of claimed launches, wherever they lie; and what could not be looked at, as of ``survey``."""
    runs: dict[str, RunDirectory] = {}
    damaged: dict[str, dict[str, Any]] = {}
    for r in _roots(root):
        if not (r.exists and r.readable):
            continue
        for folder in rundir.key_directories(r.path):
            try:
                numbers = folder.claims()
            except GpuAlertError as error:  # one that cannot be read hides no other
                damaged.setdefault(folder.path, _damage(None, folder.path, error))
                continue
            for number in numbers:
                run = folder.run_directory(number)
                if not os.path.isdir(run.path):
                    try:
                        value = folder.read_claim(number)
                    except GpuAlertError as error:
                        damaged.setdefault(run.launch_id, _damage(run.launch_id, run.path, error))
                        continue
                    if value is not None and value.get("root") not in (None, r.path):
                        # It lives in a root that was configured for it alone; the claim knows which.
                        run = KeyDirectory(f"{value['root']}/launches/{folder.name}").run_directory(number)
                runs.setdefault(run.path, run)
    readable = {run.launch_id for run in runs.values()}
    return list(runs.values()), [item for item in damaged.values() if item["launch_id"] not in readable]

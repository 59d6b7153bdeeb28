"""Look at a host and say, finding by finding, whether trainings will live there, and what to do where they will not.

Judging is pure: each ``judge_*`` turns answers into one :class:`Finding`, so that a test can give any host's answers.
Looking is bounded: every program runs in a process of its own that is ended at a deadline, for a driver that hangs must
not hang the doctor. Nothing is changed on the host.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from gpualert import procfs, survival

SCHEMA_VERSION = 1
OK, WARNING, PROBLEM, UNKNOWN = "ok", "warning", "problem", "unknown"
ENTRY_POINT_GROUP = "gpualert.doctor"
OLDEST_PYTHON = (3, 8)

_GIB = 1024**3
_MIB = 1024**2


@dataclass(frozen=True)
class Finding:
    """
    One thing that was looked at.

    :param name: a short stable word.
    :param status: ``ok``, ``warning`` (it may hurt), ``problem`` (it will), or ``unknown`` (it could not be seen).
    :param found: what was found, for people.
    :param advice: what to do about it; None when there is nothing to do.
    """

    name: str
    status: str
    found: str
    advice: str | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def examine(configured_root: str | None = None) -> list[Finding]:
    """All findings about this host, in a fixed order. A check that breaks is itself a finding, ``unknown``."""
    checks: Sequence[tuple[str, Callable[[], list[Finding]]]] = (
        ("python", lambda: [judge_python(sys.version_info[:3], sys.executable)]),
        ("system", lambda: [judge_system(platform.system(), procfs.boot_id(), procfs.machine_id())]),
        ("roots", lambda: _roots(configured_root)),
        ("logout", _logout),
        ("shm", lambda: [judge_shm(_space("/dev/shm"), os.access("/dev/shm", os.W_OK))]),
        ("clock", lambda: [judge_clock(time.time(), _clock_synchronised())]),
        ("limits", lambda: [judge_limits(_limits())]),
        ("disk", lambda: [judge_disk(_disks())]),
        ("gpu", _gpu),
        ("programs", _programs),
    )
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings.extend(check())
        except Exception as error:
            findings.append(Finding(name, UNKNOWN, f"could not be looked at: {type(error).__name__}: {error}"))
    return findings


def examine_connection(conn_id: str) -> list[Finding]:
    """
    What the provider's doctor says about the host of an Airflow connection.

    :raises LookupError: nothing is installed that knows connections, or it could not examine this one.
    """
    for entry_point in _entry_points():
        try:
            examine_there = entry_point.load()
            return [item if isinstance(item, Finding) else Finding(**item) for item in examine_there(conn_id)]
        except LookupError:
            raise
        except Exception as error:
            raise LookupError(f"{conn_id}: could not be examined: {type(error).__name__}: {error}") from error
    raise LookupError(
        f"{conn_id}: the host of an Airflow connection is examined from where airflow-provider-gpualert is installed; "
        f"here nothing is registered under the entry point {ENTRY_POINT_GROUP!r}. Without a name, this host is examined"
    )


def worst(findings: Sequence[Finding]) -> str:
    """The gravest status among them: problem, warning, unknown, ok."""
    present = {finding.status for finding in findings}
    return next((status for status in (PROBLEM, WARNING, UNKNOWN) if status in present), OK)


# -- judging


def judge_python(version: Sequence[int], executable: str) -> Finding:
    text = f"Python {'.'.join(map(str, version))} ({executable})"
    if tuple(version[:2]) < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return Finding("python", PROBLEM, f"{text}: expected {wanted} or newer", f"install Python {wanted} or newer")
    return Finding("python", OK, text)


def judge_system(system: str, boot: str | None, machine: str | None) -> Finding:
    if system != "Linux":
        return Finding("system", PROBLEM, f"{system}: expected Linux", "run trainings on a Linux host")
    if boot is None:
        return Finding(
            "system", PROBLEM, "/proc cannot be read, so no process can be told from another", "mount /proc (proc(5))"
        )
    if machine is None:
        return Finding(
            "system",
            WARNING,
            "there is no /etc/machine-id, so this machine cannot be told from another one behind the same name",
            "systemd-machine-id-setup, or write 32 random hexadecimal digits to /etc/machine-id",
        )
    return Finding("system", OK, f"{platform.platform(terse=True)}, machine {machine[:8]}…")


@dataclass(frozen=True)
class RootFacts:
    """What is known of one candidate root. ``free_*`` are what this user may still use; None: could not be seen."""

    path: str
    usable: bool
    why: str | None
    filesystem: str | None = None
    options: frozenset[str] = frozenset()
    free_bytes: int | None = None
    free_inodes: int | None = None


def judge_roots(roots: Sequence[RootFacts]) -> list[Finding]:
    """One finding per root, and one in front if no root can be used at all."""
    findings = []
    chosen = next((root for root in roots if root.usable), None)
    if chosen is None:
        reasons = "; ".join(f"{root.path}: {root.why or 'not usable'}" for root in roots)
        findings.append(
            Finding(
                "root",
                PROBLEM,
                f"no place for run directories: {reasons}",
                "make one of them a directory of yours with mode 0700 on a writable disk, or configure another root",
            )
        )
    for root in roots:
        findings.append(_judge_root(root, chosen))
    return findings


def _judge_root(root: RootFacts, chosen: RootFacts | None) -> Finding:
    where = f"{root.path} ({root.filesystem or 'unknown file system'})"
    if not root.usable:
        status = WARNING if chosen is not None else PROBLEM
        return Finding("root", status, f"{where}: {root.why or 'not usable'}", "repair it, or configure another root")
    if root is not chosen:
        return Finding("root", OK, f"{where}: could be used, but an earlier one is")
    if root.free_bytes is not None and root.free_bytes < 64 * _MIB:
        return Finding(
            "root", PROBLEM, f"{where}: {_size(root.free_bytes)} free", "free space: gpualert clean --dry-run"
        )
    if root.free_inodes is not None and root.free_inodes < 200:
        return Finding(
            "root", PROBLEM, f"{where}: {root.free_inodes} inodes free", "remove small files: gpualert clean --dry-run"
        )
    if root.filesystem in ("tmpfs", "ramfs"):
        return Finding(
            "root", WARNING, f"{where}: in memory, so logs are gone after a reboot", "configure a root on a disk"
        )
    if root.filesystem is not None and (root.filesystem.startswith("nfs") or root.filesystem in _NETWORK):
        return Finding(
            "root",
            WARNING,
            f"{where}: on the network, so its trouble is the training's trouble",
            "configure a root on a local disk",
        )
    if root.free_bytes is not None and root.free_bytes < _GIB:
        return Finding(
            "root", WARNING, f"{where}: {_size(root.free_bytes)} free", "free space: gpualert clean --dry-run"
        )
    noexec = ", noexec (no harm: nothing is executed from it)" if "noexec" in root.options else ""
    free = "free space unknown" if root.free_bytes is None else f"{_size(root.free_bytes)} free"
    return Finding("root", OK, f"{where}: {free}{noexec}")


_NETWORK = frozenset(("cifs", "smb3", "fuse.sshfs", "9p", "afs", "ceph", "lustre", "glusterfs", "beegfs", "gpfs"))


def judge_logout(systemd: bool, facts: survival.LoginFacts | None, user: str) -> Finding:
    """What a logout does to a detached training of this user."""
    if not systemd or facts is None:
        return Finding("logout", OK, "no systemd here: a logout ends nothing")
    warnings = survival.warnings_after(facts, user)
    if facts.killed_at_logout:
        return Finding("logout", PROBLEM, warnings[0], f"KillUserProcesses=no, or: loginctl enable-linger {user}")
    if warnings:
        # A launch tries this by itself; it is a problem only where it is not allowed to.
        return Finding("logout", WARNING, warnings[0], f"loginctl enable-linger {user} (each launch tries it, too)")
    if facts.kill_user_processes is None or (facts.remove_ipc is None and not facts.linger):
        return Finding(
            "logout",
            UNKNOWN,
            "logind's configuration does not say whether a logout ends processes or removes shared memory",
            f"to be safe: loginctl enable-linger {user}",
        )
    return Finding("logout", OK, "lingering is on" if facts.linger else "a logout ends neither processes nor IPC")


def judge_shm(space: tuple[int, int] | None, writable: bool) -> Finding:
    """:param space: (total, free) bytes of /dev/shm; None when there is none."""
    advice = "docker run --shm-size=16g, or: mount -o remount,size=50% /dev/shm"
    if space is None or not writable:
        return Finding(
            "shm", PROBLEM, "/dev/shm is missing or not writable: DataLoader workers and NCCL need it", advice
        )
    total, free = space
    text = f"/dev/shm: {_size(free)} of {_size(total)} free"
    if total < _GIB:
        return Finding("shm", WARNING, f"{text}: little for DataLoader workers and NCCL", advice)
    if free < total // 10:
        return Finding("shm", WARNING, text, "remove what nobody uses any more from /dev/shm")
    return Finding("shm", OK, text)


def judge_clock(now: float, synchronised: bool | None) -> Finding:
    """:param synchronised: what the kernel says of its clock (adjtimex(2)); None if unknown."""
    date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if not 1735689600 <= now < 4102444800:  # 2025 to 2100
        return Finding("clock", PROBLEM, f"the clock says {date}", "set the clock, and install chrony")
    if synchronised is None:
        return Finding("clock", UNKNOWN, f"{date}; the kernel does not say whether it is synchronised")
    if not synchronised:
        return Finding(
            "clock", WARNING, f"{date}; not synchronised, so times of several hosts do not compare", "install chrony"
        )
    return Finding("clock", OK, f"{date}, synchronised")


def judge_limits(limits: Mapping[str, int | None]) -> Finding:
    """:param limits: soft limits of the login session by their name in ``ulimit``; None means unlimited."""
    text = ", ".join(f"{name} {'unlimited' if value is None else value}" for name, value in limits.items())

    def below(name: str, wanted: int) -> bool:
        value = limits.get(name)
        return value is not None and value < wanted

    fatal = [name for name in ("file size", "cpu seconds") if limits.get(name) is not None]
    if fatal:
        return Finding(
            "limits", PROBLEM, f"{text}: {' and '.join(fatal)} end a long training", "raise them in limits.conf(5)"
        )
    tight = [
        name
        for name, low in (("open files", below("open files", 4096)), ("processes", below("processes", 2048)))
        if low
    ]
    if limits.get("address space") is not None:
        tight.append("address space")
    if tight:
        return Finding(
            "limits",
            WARNING,
            f"{text}: {' and '.join(tight)} may be too few for loaders",
            "raise them in limits.conf(5)",
        )
    return Finding("limits", OK, text)


def judge_disk(disks: Sequence[tuple[str, tuple[int, int] | None]]) -> Finding:
    """:param disks: (folder, (total, free) bytes, or None where it cannot be seen)."""
    text = ", ".join(f"{path} {'unknown' if space is None else _size(space[1]) + ' free'}" for path, space in disks)
    free = [space[1] for _, space in disks if space is not None]
    if not free:
        return Finding("disk", UNKNOWN, text)
    if min(free) < 200 * _MIB:
        return Finding("disk", PROBLEM, text, "free space there: checkpoints and caches will not fit")
    if min(free) < 5 * _GIB:
        return Finding("disk", WARNING, text, "a checkpoint may not fit there")
    return Finding("disk", OK, text)


def judge_programs(found: Mapping[str, str | None]) -> list[Finding]:
    """:param found: where each of ``bash`` and ``git`` is, None where it is not installed."""
    findings = []
    if found.get("bash") is None:
        findings.append(
            Finding("bash", WARNING, "bash is not installed: commands given as text run under sh", "install bash")
        )
    else:
        findings.append(Finding("bash", OK, str(found["bash"])))
    if found.get("git") is None:
        findings.append(
            Finding("git", WARNING, "git is not installed: the commit that ran is not recorded", "install git")
        )
    else:
        findings.append(Finding("git", OK, str(found["git"])))
    return findings


# -- looking


def _roots(configured: str | None) -> list[Finding]:
    from gpualert import rundir

    mounts = _mounts()
    facts = []
    for root in rundir.find_roots(configured):
        filesystem, options = _mount_of(root.path, mounts)
        status = _statvfs(root.path)
        facts.append(
            RootFacts(
                root.path,
                root.usable,
                root.why,
                filesystem,
                options,
                None if status is None else status.f_bavail * status.f_frsize,
                # A file system without a fixed number of inodes (btrfs) reports 0 of 0.
                None if status is None or status.f_files == 0 else status.f_favail,
            )
        )
    return judge_roots(facts)


def _logout() -> list[Finding]:
    user = survival.user_name()
    systemd = os.path.isdir(survival.SYSTEMD_MARKER)
    return [judge_logout(systemd, survival.read_facts(user) if systemd else None, user)]


def _statvfs(path: str) -> os.statvfs_result | None:
    """Of the path or, before it exists, of the nearest folder above it."""
    while True:
        try:
            return os.statvfs(path)
        except FileNotFoundError:
            above = os.path.dirname(path)
            if above == path:
                return None
            path = above
        except OSError:
            return None


def _space(path: str) -> tuple[int, int] | None:
    status = _statvfs(path) if os.path.isdir(path) else None
    return None if status is None else (status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def _disks() -> list[tuple[str, tuple[int, int] | None]]:
    return [(path, _space(path)) for path in (os.path.expanduser("~"), "/tmp", "/var/tmp")]


def _mounts() -> list[tuple[str, str, frozenset[str]]]:
    """(mount point, file system type, options) of /proc/self/mountinfo, in its order."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return list(parse_mounts(file.read()))
    except OSError:
        return []


def parse_mounts(text: str) -> list[tuple[str, str, frozenset[str]]]:
    """The lines of mountinfo (proc(5)); blanks in paths are written there as ``\\040``."""
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        words, rest = left.split(), right.split()
        if len(words) < 6 or not rest:
            continue
        point = words[4].encode("utf-8", "surrogateescape").decode("unicode_escape") if "\\" in words[4] else words[4]
        mounts.append((point, rest[0], frozenset(words[5].split(","))))
    return mounts


def _mount_of(path: str, mounts: Sequence[tuple[str, str, frozenset[str]]]) -> tuple[str | None, frozenset[str]]:
    """The mount a path lies in: the longest mount point above it, the last one where several lie on each other."""
    real = os.path.realpath(path)
    best: tuple[str, str, frozenset[str]] | None = None
    for mount in mounts:
        point = mount[0].rstrip("/")
        if (real == point or real.startswith(point + "/")) and (best is None or len(mount[0]) >= len(best[0])):
            best = mount
    return (None, frozenset()) if best is None else (best[1], best[2])


def _clock_synchronised() -> bool | None:
    """The kernel's STA_UNSYNC flag. Source: adjtimex(2)."""
    import ctypes

    try:
        buffer = (ctypes.c_char * 256)()  # struct timex has 208 bytes at most; modes = 0 changes nothing
        state = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return bool(state != 5)  # TIME_ERROR


def _limits() -> dict[str, int | None]:
    import resource

    names = {
        "open files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "file size": resource.RLIMIT_FSIZE,
        "cpu seconds": resource.RLIMIT_CPU,
        "address space": resource.RLIMIT_AS,
        "core size": resource.RLIMIT_CORE,
    }
    soft = {name: resource.getrlimit(number)[0] for name, number in names.items()}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in soft.items()}


def _gpu() -> list[Finding]:
    from gpualert import doctor_gpu

    return doctor_gpu.look()


def _programs() -> list[Finding]:
    import shutil

    return judge_programs({name: shutil.which(name) for name in ("bash", "git")})


def _entry_points() -> list[Any]:
    from importlib import metadata

    found: Any = metadata.entry_points()
    # Before Python 3.10 this is a dictionary by group.
    group = found.select(group=ENTRY_POINT_GROUP) if hasattr(found, "select") else found.get(ENTRY_POINT_GROUP, ())
    return list(group)


def _size(count: int) -> str:
    for unit, factor in (("TiB", 1024**4), ("GiB", _GIB), ("MiB", _MIB), ("KiB", 1024)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"

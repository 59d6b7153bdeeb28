"""Which process is which, read from /proc: identities that survive pid reuse and reboots, liveness, and the process
tree of a launch.

A pid alone names nobody: it is reused, and it means something else on another machine or in another pid namespace. So
every process is remembered as (pid, start ticks, boot id, machine id, pid namespace), and whoever cannot compare them
says None, not False.

On the way to the child's start: no import beyond os.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping

#: The variable that tags every process of a launch (children inherit it).
TAG = "GPUALERT_LAUNCH_ID"


class ProcessIdentity:
    """
    One process, for ever.

    :param start_ticks: clock ticks from boot to the process's start (field 22 of /proc/PID/stat).
    :param boot_id: the kernel's random id of this boot.
    :param machine_id: /etc/machine-id, or None where there is none (many containers).
    :param pid_namespace: the inode of the pid namespace in which ``pid`` means something, or None when it cannot be
        read.

    Source: proc(5), random(4), machine-id(5), namespaces(7).
    """

    __slots__ = ("boot_id", "machine_id", "pid", "pid_namespace", "start_ticks")

    def __init__(
        self, pid: int, start_ticks: int, boot_id: str | None, machine_id: str | None, pid_namespace: str | None
    ) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self.boot_id = boot_id
        self.machine_id = machine_id
        self.pid_namespace = pid_namespace

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProcessIdentity:
        return cls(
            int(value["pid"]),
            int(value["start_ticks"]),
            value.get("boot_id"),
            value.get("machine_id"),
            value.get("pid_namespace"),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessIdentity) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.pid, self.start_ticks, self.boot_id))

    def __repr__(self) -> str:
        return "ProcessIdentity({})".format(", ".join("{}={!r}".format(*item) for item in self.to_json().items()))


class ProcessStat:
    """A few fields of /proc/PID/stat."""

    __slots__ = ("command", "group", "parent", "pid", "session", "start_ticks", "state")

    def __init__(
        self, pid: int, command: str, state: str, parent: int, group: int, session: int, start_ticks: int
    ) -> None:
        self.pid = pid
        self.command = command
        self.state = state
        self.parent = parent
        self.group = group
        self.session = session
        self.start_ticks = start_ticks

    @property
    def dead(self) -> bool:
        """Ended, whether or not somebody has collected its status."""
        return self.state in ("Z", "X", "x")


def stat(pid: int) -> ProcessStat | None:
    """
    :return: None when there is no such process (or it is hidden from us).
    """
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The command name may hold spaces and parentheses; the last ')' ends it.
    opening, closing = text.find("("), text.rfind(")")
    rest = text[closing + 2 :].split()
    if opening < 0 or len(rest) < 20:
        return None
    return ProcessStat(
        pid, text[opening + 1 : closing], rest[0], int(rest[1]), int(rest[2]), int(rest[3]), int(rest[19])
    )


def cpu_seconds(pid: int) -> tuple[float, float] | None:
    """User and system seconds a process has used, also of a zombie; None when there is no such process."""
    try:
        rest = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        hertz = os.sysconf("SC_CLK_TCK")
        return int(rest[11]) / hertz, int(rest[12]) / hertz
    except (OSError, IndexError, ValueError):
        return None


_boot_id: str | None = None


def boot_id() -> str | None:
    """The random id of this boot; None when it cannot be read."""
    global _boot_id
    if _boot_id is None:
        try:
            _boot_id = _read("/proc/sys/kernel/random/boot_id").strip() or None
        except OSError:
            return None
    return _boot_id


def machine_id() -> str | None:
    """What tells this machine from others that share its files; None when there is no machine id here."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = _read(path).strip()
        except OSError:
            continue
        if text and text != "uninitialized":
            return text
    return None


def pid_namespace() -> str | None:
    """For example ``pid:[4026531836]``; None when it cannot be read."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def identify(pid: int) -> ProcessIdentity | None:
    """
    :return: the identity of a live (or zombie) process of ours; None when there is none of that pid.
    """
    found = stat(pid)
    if found is None:
        return None
    return ProcessIdentity(pid, found.start_ticks, boot_id(), machine_id(), pid_namespace())


def same_place(identity: ProcessIdentity) -> bool | None:
    """
    Whether this process's pid can be looked up from here.

    :return: True; False when it lived under an earlier boot of this machine; None when it lives (or lived) on another
        machine or in another pid namespace.
    """
    if identity.boot_id is not None and identity.boot_id == boot_id():
        return True if identity.pid_namespace == pid_namespace() else None
    ours = machine_id()
    # Without a machine id on either side, another boot may as well be another machine that shares the disk.
    if ours is None or identity.machine_id is None or identity.machine_id != ours:
        return None
    return False


def alive(identity: ProcessIdentity) -> bool | None:
    """
    :return: True while this very process runs; False when it has ended (a zombie has); None when that cannot be seen
        from here.
    """
    place = same_place(identity)
    if place is not True:
        return place
    found = stat(identity.pid)
    return found is not None and found.start_ticks == identity.start_ticks and not found.dead


def boot_time() -> float:
    """When this machine booted: seconds since the epoch, by today's clock."""
    import time

    return time.time() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def all_processes() -> list[ProcessStat]:
    """Every process visible in this pid namespace."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            one = stat(int(name))
            if one is not None:
                found.append(one)
    return found


def is_tagged(pid: int, launch_id: str) -> bool:
    """
    The process was started with this launch's tag in its environment. False also when that cannot be read (another
    user's).
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return False
    return (TAG + "=" + launch_id).encode() in environment.split(b"\0")


def command_line(pid: int, limit: int = 200) -> str | None:
    """For people; None when there is no such process. Kernel threads and zombies show their name only."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4 * limit).rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    text = b" ".join(words).decode("utf-8", "replace")
    if not text:
        found = stat(pid)
        text = "" if found is None else f"[{found.command}]"
    return text[:limit]


def tree(
    child: ProcessIdentity, guard: ProcessIdentity | None, launch_id: str, exclude: Iterable[int] = ()
) -> list[ProcessStat]:
    """
    Every live process of a launch, the child included; zombies and our own keepers are not.

    It belongs if it carries the launch's tag, descends from the child or from the guard (to whom orphans return), or is
    in their session; so a process may leave its group, its session and its parents, or clear its environment, and is
    still found: only doing all of it while the guard is dead hides it.

    :param guard: the session's leader, whose own process group holds the keepers and is left out; None when there is
        none.
    :param exclude: pids never to be listed, such as the caller's own.
    """
    processes = [one for one in all_processes() if not one.dead]
    by_parent: dict[int, list[ProcessStat]] = {}
    for one in processes:
        by_parent.setdefault(one.parent, []).append(one)
    keepers = guard.pid if guard is not None else None
    left_out = set(exclude)
    found: dict[int, ProcessStat] = {}

    def add(one: ProcessStat) -> None:
        waiting = [one]
        while waiting:
            this = waiting.pop()
            if this.pid in found or this.pid in left_out or (keepers is not None and this.group == keepers):
                continue
            found[this.pid] = this
            waiting.extend(by_parent.get(this.pid, ()))

    child_is_here = alive(child) is True
    guard_is_here = guard is not None and alive(guard) is True
    leader = stat(child.pid) if child_is_here else None
    # A session's id stays taken while it has members; once guard and child are gone it may name a stranger's session.
    session = keepers if guard_is_here or (leader is not None and leader.session == keepers) else None
    for one in processes:
        # Nothing of a launch is older than its child, which keeps a reused pid's family out.
        if one.start_ticks < child.start_ticks:
            continue
        if (child_is_here and one.pid == child.pid) or (session is not None and one.session == session):
            add(one)
        elif guard_is_here and one.parent == keepers and one.group != keepers:
            add(one)
        elif one.pid not in found and is_tagged(one.pid, launch_id):
            if one.pid not in left_out:
                found[one.pid] = one
            for below in by_parent.get(one.pid, ()):
                add(below)
    return list(found.values())


def send_signal(pid: int, start_ticks: int, number: int) -> bool:
    """
    Signal one very process, not whoever has its pid now.

    :return: False when it has ended. Where the kernel or Python has no pidfd (before Linux 5.3, Python 3.9) a gap of
        microseconds remains.
    :raises PermissionError: it is not ours (it changed its user).

    Source: pidfd_open(2), pidfd_send_signal(2).
    """
    import _signal

    descriptor = None
    try:
        descriptor = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        pass
    try:
        found = stat(pid)
        if found is None or found.start_ticks != start_ticks or found.dead:
            return False
        if descriptor is not None:
            _signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 8192).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)

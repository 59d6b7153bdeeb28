"""What the kernel said while a launch ran, and which of it is about the launch's own processes.

Lines come from /dev/kmsg, else from dmesg(1), else from journalctl(1). They are hostile: a process chooses its own
name, and a driver writes what it likes. So they are bounded, cut into printable text, and believed only for what the
kernel itself puts into them: a pid, a memory cgroup, a user id, a PCI address.

Source: Documentation/ABI/testing/dev-kmsg, mm/oom_kill.c, NVIDIA's XID errors, arch/x86/mm/fault.c.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from gpualert.probe_program import output_of

#: Kept of one look, the newest: interesting lines, and characters of each.
MAX_LINES = 120
MAX_LINE_CHARS = 400
#: Read of one source at most.
MAX_BYTES = 8 * 1024 * 1024
#: Asked of the journal: from the end, so that a kernel that was quiet since the start can be told from a closed door.
_JOURNAL_LINES = 2000
#: The kernel's clock for its log is not disciplined by NTP: it may be off by this part of the uptime.
_DRIFT = 1e-4
_SLACK_S = 2.0
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"

_INTERESTING = re.compile(
    r"(?i)out of memory|oom-kill|oom_reaper|killed as a result of limit|going to be killed due to memory|\bS?Xid\b"
    r"|segfault at|general protection|traps: |trap (?:invalid opcode|divide error|int3)|I/O error|nfs: server"
    r"|not responding|Machine check|mce: |Hardware Error|EXT4-fs error|XFS .{0,60}(?:error|shut|corruption)"
    r"|No space left|blocked for more than|NVRM: .{0,80}(?:fallen off|GPU lost|API mismatch|failed)"
    r"|AER: .{0,60}[Ff]atal"
)
_DMESG = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\](?:\[[^\]]{0,20}\])? (.*)$")
_JOURNAL = re.compile(r"^\[\s*(\d+\.\d+)\] \S+ kernel: (.*)$")
_NO_TEXT = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\uffff]+")


class Record(NamedTuple):
    """One line of the kernel's.

    :param sequence: the kernel's own count; None where the source does not tell it.
    :param time_s: since boot, by the kernel's clock for its log.
    """

    sequence: int | None
    time_s: float
    text: str

    def to_json(self) -> list[Any]:
        return list(self)


def records_of(value: Iterable[Sequence[Any]]) -> list[Record]:
    """What ``to_json`` wrote; anything else among it is left out."""
    found = []
    for item in value:
        try:
            sequence, time_s, text = item
            found.append(Record(None if sequence is None else int(sequence), float(time_s), str(text)))
        except (TypeError, ValueError):
            continue
    return found


# -- looking


def look(began_s: float | None, before: Mapping[str, Any] | None, bound_s: float = 1.0) -> dict[str, Any]:
    """
    The interesting lines since a launch began.

    :param began_s: by the monotonic clock; None when nobody knows: then all lines since boot.
    :param before: what an earlier look of this launch saw: lines that it knew are not told again, and its way is taken.
    :return: {"seen": {via, last_sequence, last_time_s, records, lost}} or {"not_seen": why}.
    """
    ways = {"/dev/kmsg": _read_kmsg, "dmesg": _ask_dmesg, "journalctl": _ask_journal}
    known = before or {}
    reasons = []
    until = time.monotonic() + bound_s
    for name, way in ways.items():
        if known.get("via") not in (None, name):
            continue
        try:
            records, lost = way(began_s, until)
        except OSError as error:
            reasons.append(f"{name}: {error.strerror or error}")
            continue
        last = records[-1] if records else None
        if before is not None:
            records = after(records, before)
        elif began_s is not None:
            records = [one for one in records if one.time_s >= began_s - _SLACK_S - _DRIFT * began_s]
        texts = [one._replace(text=printable(one.text)) for one in records if _INTERESTING.search(one.text)]
        return {
            "seen": {
                "via": name,
                "last_sequence": known.get("last_sequence") if last is None else last.sequence,
                "last_time_s": known.get("last_time_s") if last is None else last.time_s,
                "records": [one.to_json() for one in texts[-MAX_LINES:]],
                "lost": lost,
            }
        }
    return {"not_seen": "; ".join(reasons)}


def after(records: Sequence[Record], before: Mapping[str, Any]) -> list[Record]:
    """Those that an earlier look had not seen: by the kernel's count, or else by its clock."""
    sequence, time_s = before.get("last_sequence"), before.get("last_time_s")
    if isinstance(sequence, int):
        return [one for one in records if one.sequence is None or one.sequence > sequence]
    if isinstance(time_s, (int, float)):
        return [one for one in records if one.time_s > time_s]
    return list(records)


def _read_kmsg(began_s: float | None, until: float) -> tuple[list[Record], bool]:
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    records: list[Record] = []
    size, lost = 0, False
    try:
        while size < MAX_BYTES and time.monotonic() < until:
            try:
                piece = os.read(descriptor, 8192)
            except BlockingIOError:
                return records, lost
            except BrokenPipeError:  # overwritten while we read: the next read goes on behind the gap
                lost = True
                continue
            if not piece:
                return records, lost
            size += len(piece)
            record = parse_kmsg(piece)
            if record is not None:
                records.append(record)
        return records, True
    finally:
        os.close(descriptor)


def _ask_dmesg(began_s: float | None, until: float) -> tuple[list[Record], bool]:
    return _dated(output_of(["dmesg"], until, MAX_BYTES), _DMESG), False


def _ask_journal(began_s: float | None, until: float) -> tuple[list[Record], bool]:
    words = ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", "-n", str(_JOURNAL_LINES)]
    return _dated(output_of(words, until, MAX_BYTES), _JOURNAL), False


def _dated(text: str, form: re.Pattern[str]) -> list[Record]:
    """:raises OSError: there is no line at all: who may not read the journal is told nothing, and that all is well."""
    found = parse_dated(text, form)
    if not found:
        raise OSError(0, "showed no dated line")
    return found


def parse_kmsg(piece: bytes) -> Record | None:
    """
    One record of /dev/kmsg: ``priority,sequence,microseconds,flags;text``, then lines with a blank in front.

    :return: None for what is no record.
    """
    head, mark, rest = piece.partition(b";")
    words = head.split(b",")
    if not mark or len(words) < 3:
        return None
    try:
        sequence, time_s = int(words[1]), int(words[2]) / 1e6
    except ValueError:
        return None
    text = rest.partition(b"\n")[0][: 4 * MAX_LINE_CHARS].decode("utf-8", "replace")
    return Record(sequence, time_s, text)


def parse_dated(text: str, form: re.Pattern[str]) -> list[Record]:
    """Lines that bear the kernel's clock; others cannot be told from an earlier launch's, and are left out."""
    found = []
    for line in text.split("\n"):
        match = form.match(line[: 8 * MAX_LINE_CHARS])
        if match is not None:
            found.append(Record(None, float(match.group(1)), match.group(2)))
    return found


def printable(text: str) -> str:
    """Bounded, on one line, without control characters."""
    return _NO_TEXT.sub("?", text[: 4 * MAX_LINE_CHARS])[:MAX_LINE_CHARS].strip()


# -- understanding


class Kill(NamedTuple):
    """One process that the OOM killer ended. What the kernel did not say is None.

    :param told_of_group: the memory cgroup that the killed process was in.
    """

    pid: int
    task: str | None
    group: str | None
    uid: int | None
    time_s: float
    text: str


_KILLED = re.compile(
    r"^(?:Memory cgroup out of memory|Out of memory(?: \([^)]{0,40}\))?): Kill(?:ed)? process (\d{1,10})"
    r"(?:, UID (\d{1,10}),)? \((.{0,64})\)(?= total-vm| score |, |$)(.*)$"
)
_UID = re.compile(r"\bUID:(\d{1,10})\b")
_OOM_KILL = re.compile(
    r"^oom-kill:constraint=(?:.{0,300}),task_memcg=(.{0,300}),task=.{0,64},pid=(\d{1,10}),uid=(\d{1,10})$"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{1,8}:[0-9a-fA-F:.]{2,12})\): (\d{1,4}),?(.*)$")
_XID_PID = re.compile(r"\bpid='?(\d{1,10})\b")
_SEGFAULT = re.compile(
    r"^(?:traps: )?(.{1,64}?)\[(\d{1,10})\](?: |: )(?:segfault at|general protection|trap |unhandled signal)"
)


def kills(records: Iterable[Record]) -> list[Kill]:
    """Whom the OOM killer ended. The line with the cgroup comes right before the one with the process's name."""
    groups: dict[int, tuple[str, int]] = {}
    found = []
    for one in records:
        told = _OOM_KILL.match(one.text)
        if told is not None:
            groups[int(told.group(2))] = (told.group(1), int(told.group(3)))
            continue
        match = _KILLED.match(one.text)
        if match is None:
            continue
        pid = int(match.group(1))
        group, uid = groups.pop(pid, (None, None))
        said = _UID.search(match.group(4))
        if uid is None:
            uid = int(match.group(2)) if match.group(2) else int(said.group(1)) if said else None
        found.append(Kill(pid, match.group(3), group, uid, one.time_s, one.text))
    return found


class Xid(NamedTuple):
    """One error that the NVIDIA driver reported.

    :param pci: as the kernel writes it, ``0000:3b:00``, without the function.
    :param pid: of the process that the driver names, in the initial pid namespace.
    """

    pci: str
    number: int
    pid: int | None
    text: str


def xids(records: Iterable[Record]) -> list[Xid]:
    found = []
    for one in records:
        match = _XID.search(one.text)
        if match is not None:
            named = _XID_PID.search(match.group(3))
            found.append(
                Xid(pci_address(match.group(1)), int(match.group(2)), int(named.group(1)) if named else None, one.text)
            )
    return found


def pci_address(text: str) -> str:
    """``0000:3b:00`` for every way in which an address is written (``00000000:3B:00.0``, ``3b:00.0``)."""
    parts = text.lower().partition(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:3]])


def crashes(records: Iterable[Record]) -> list[tuple[int, str]]:
    """(pid, line) of processes that died of a bad address or instruction."""
    found = []
    for one in records:
        match = _SEGFAULT.match(one.text)
        if match is not None:
            found.append((int(match.group(2)), one.text))
    return found


class Launch(NamedTuple):
    """Who a launch is, in the kernel's words.

    :param pids: of its processes, in our pid namespace.
    :param groups: memory cgroups it ran in, as /proc/PID/cgroup names them; "/" says nothing.
    :param marks: ids of the container we are in (they stand in the kernel's names of its cgroups).
    :param uid: None when unknown.
    :param killed_child: pid of the child when SIGKILL itself ended it; None when it ended otherwise.
    :param killed: it, or one of its ranks, died of SIGKILL.
    :param began_s: and ``ended_s``: by the monotonic clock; None when unknown.
    :param pci: addresses of the GPUs it used; None when that is not known.
    """

    pids: frozenset[int] = frozenset()
    groups: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()
    uid: int | None = None
    killed_child: int | None = None
    killed: bool = False
    began_s: float | None = None
    ended_s: float | None = None
    pci: frozenset[str] | None = None
    pid_namespace: str | None = None


class About(NamedTuple):
    """What the kernel's lines mean for a launch.

    :param kills: lines of OOM kills of its processes.
    :param xids: of its GPUs, or of its processes.
    :param crashes: lines about its processes.
    :param context: lines that may have to do with it.
    """

    kills: tuple[str, ...] = ()
    xids: tuple[Xid, ...] = ()
    crashes: tuple[str, ...] = ()
    context: tuple[str, ...] = ()


def about(records: Sequence[Record], launch: Launch) -> About:
    """Which of the lines are about this launch. Pure."""
    pids_count = launch.pid_namespace in (None, _INITIAL_PID_NAMESPACE)
    ours = tuple(kill.text for kill in kills(records) if _is_ours(kill, launch, pids_count))
    mine = [
        xid
        for xid in xids(records)
        if launch.pci is None
        or xid.pci in launch.pci
        or (pids_count and xid.pid is not None and xid.pid in launch.pids)
    ]
    crashed = tuple(text for pid, text in crashes(records) if pids_count and pid in launch.pids)
    used = {*ours, *crashed, *(xid.text for xid in mine)}
    context = tuple(one.text for one in records if one.text not in used)
    return About(ours[-8:], tuple(mine[-8:]), crashed[-4:], context[-8:])


def _is_ours(kill: Kill, launch: Launch, pids_count: bool) -> bool:
    if pids_count and kill.pid in launch.pids:
        return True
    # What is left is about places and users, which others share: then something of ours must have died so.
    if not launch.killed or (launch.began_s is not None and kill.time_s < launch.began_s):
        return False
    # In our own pid namespace the kernel would have named the very process that SIGKILL ended.
    if pids_count and launch.killed_child is not None:
        return kill.pid == launch.killed_child
    if kill.group is not None:
        if any(kill.group == group or kill.group.startswith(group + "/") for group in launch.groups if group != "/"):
            return True
        if any(mark in kill.group for mark in launch.marks):
            return True
    if launch.uid is None or kill.uid != launch.uid or launch.ended_s is None:
        return False
    return abs(launch.ended_s - kill.time_s) <= 10.0

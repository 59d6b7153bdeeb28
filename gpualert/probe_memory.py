"""Host memory and memory cgroups: limits, peaks, and how often the kernel killed for memory, in cgroup v1 and v2.

A counter of a cgroup is about all that run in it; whoever judges must see a death by SIGKILL beside it.

Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, cgroups(7), proc(5).
"""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, NamedTuple

#: How many groups above the process's own are looked at.
MAX_ANCESTORS = 8
#: cgroup v1 writes this much, less a page, for "no limit".
_NO_LIMIT_V1 = 1 << 62
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_POD = re.compile(r"/pods/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/")


class Group(NamedTuple):
    """A memory cgroup.

    :param version: 1 or 2.
    :param name: as /proc/PID/cgroup has it, and the kernel's log, unless a cgroup namespace hides the start.
    :param folder: where it can be read; None when it is not mounted here.
    :param top: the mount's own folder: nothing above it is visible.
    """

    version: int
    name: str
    folder: str | None
    top: str | None


def group_of(cgroup: str, mountinfo: str) -> Group | None:
    """
    The memory cgroup of a process.

    :param cgroup: text of /proc/PID/cgroup.
    :param mountinfo: text of /proc/self/mountinfo.
    :return: None when it is in none.
    """
    version, name = 0, ""
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if "memory" in controllers.split(","):
            version, name = 1, path
            break
        if number == "0" and not controllers:
            version, name = 2, path
    if not version:
        return None
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        words, of_kind = fields.split(), kind.split()
        if len(words) < 5 or len(of_kind) < 3:
            continue
        if of_kind[0] != ("cgroup" if version == 1 else "cgroup2"):
            continue
        if version == 1 and "memory" not in of_kind[2].split(","):
            continue
        root, top = _unescape(words[3]), _unescape(words[4])
        if root == "/":
            below = name
        elif name == root or name.startswith(root + "/"):
            below = name[len(root) :]
        elif name == "/":  # a cgroup namespace, while the mount was made outside of it
            below = "/"
        else:
            continue
        if "/.." in below:  # the process is outside of what our namespace shows
            continue
        return Group(version, name, (top + below).rstrip("/") or "/", top)
    return Group(version, name, None, None)


def _unescape(word: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), word)


def container_marks(mountinfo: str) -> list[str]:
    """Ids of the container or pod that we are in, by what is mounted over its own files of /etc; the kernel's names of
    its cgroups hold them, although a cgroup namespace may hide those from us. Outside of a container: none."""
    found: dict[str, None] = {}
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if len(words) < 5 or words[4] not in ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"):
            continue
        found.update(dict.fromkeys(_CONTAINER.findall(words[3])))
        for pod in _POD.findall(words[3]):
            found.update({pod: None, pod.replace("-", "_"): None})
    return list(found)[:16]


def counters(group: Group) -> dict[str, Any]:
    """
    What a group says of itself, and how often its visible ancestors killed.

    :return: {version, name, oom, oom_kill, peak_bytes, limit_bytes, current_bytes, failures, ancestors}; what cannot be
        read is None; ``limit_bytes`` is the smallest that holds for the group.
    """
    found: dict[str, Any] = dict.fromkeys(("oom", "oom_kill", "peak_bytes", "limit_bytes", "current_bytes", "failures"))
    found.update(version=group.version, name=group.name, ancestors=[])
    if group.folder is None or group.top is None:
        return found
    found.update(_of_folder(group.version, group.folder))
    folder = group.folder
    while folder != group.top and folder.startswith(group.top) and len(found["ancestors"]) < MAX_ANCESTORS:
        folder = os.path.dirname(folder)
        above = _of_folder(group.version, folder)
        name = folder[len(group.top.rstrip("/")) :] or "/"
        found["ancestors"].append({"name": name, "oom_kill": above["oom_kill"]})
        if above["limit_bytes"] is not None:
            found["limit_bytes"] = min(above["limit_bytes"], found["limit_bytes"] or above["limit_bytes"])
    return found


def _of_folder(version: int, folder: str) -> dict[str, Any]:
    if version == 2:
        events = _numbers(text_of(folder + "/memory.events"))
        return {
            "oom": events.get("oom"),
            "oom_kill": events.get("oom_kill"),
            "failures": events.get("max"),
            "peak_bytes": _number(text_of(folder + "/memory.peak")),
            "limit_bytes": _number(text_of(folder + "/memory.max")),
            "current_bytes": _number(text_of(folder + "/memory.current")),
        }
    control = _numbers(text_of(folder + "/memory.oom_control"))
    limit = _number(text_of(folder + "/memory.limit_in_bytes"))
    return {
        "oom": None,
        "oom_kill": control.get("oom_kill"),
        "failures": _number(text_of(folder + "/memory.failcnt")),
        "peak_bytes": _number(text_of(folder + "/memory.max_usage_in_bytes")),
        "limit_bytes": None if limit is None or limit >= _NO_LIMIT_V1 else limit,
        "current_bytes": _number(text_of(folder + "/memory.usage_in_bytes")),
    }


def current_bytes(group: Group) -> int | None:
    """What the group uses now; one read."""
    if group.folder is None:
        return None
    return _number(text_of(group.folder + ("/memory.current" if group.version == 2 else "/memory.usage_in_bytes")))


def host_memory(meminfo: str) -> tuple[int | None, int | None]:
    """(available, total) bytes of /proc/meminfo."""
    found = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemAvailable", "MemTotal"):
            number = _number(rest.split()[0] if rest.split() else None)
            found[name] = None if number is None else number * 1024
    return found.get("MemAvailable"), found.get("MemTotal")


def own_group(pid: int | str = "self") -> Group | None:
    """The memory cgroup of a live process; None when it cannot be told."""
    cgroup, mounts = text_of(f"/proc/{pid}/cgroup"), text_of("/proc/self/mountinfo", 1 << 20)
    return None if cgroup is None or mounts is None else group_of(cgroup, mounts)


def look(names: Mapping[str, Any] | None = None, pid: int | None = None) -> dict[str, Any]:
    """
    Memory of the host and of a launch's cgroup.

    :param names: a group that an earlier look found, as it told it; that one is read again.
    :param pid: the child, while it lives; its cgroup may be another than ours.
    :return: {"seen": {group: counters or null, host_available_bytes, host_total_bytes, host_oom_kills, marks}}, with
        ``why_no_group`` where there is none.
    """
    mounts = text_of("/proc/self/mountinfo", 1 << 20) or ""
    group = None
    if names is not None:
        group = find(names, mounts)
    if group is None and pid is not None:
        group = own_group(pid)
    if group is None:
        group = own_group()
    available, total = host_memory(text_of("/proc/meminfo") or "")
    seen: dict[str, Any] = {
        "group": None,
        "host_available_bytes": available,
        "host_total_bytes": total,
        "host_oom_kills": _numbers(text_of("/proc/vmstat", 1 << 16)).get("oom_kill"),
        "marks": container_marks(mounts),
    }
    if group is None:
        seen["why_no_group"] = "this process is in no memory cgroup"
    else:
        seen["group"] = counters(group)
        if seen["group"]["oom_kill"] is None:
            seen["why_no_group"] = _why_not(group)
    return {"seen": seen}


def find(names: Mapping[str, Any], mountinfo: str | None = None) -> Group | None:
    """The group that earlier counters are of."""
    mounts = text_of("/proc/self/mountinfo", 1 << 20) if mountinfo is None else mountinfo
    version = "1:memory:" if names.get("version") == 1 else "0::"
    return group_of(version + str(names.get("name") or "/"), mounts or "")


def _why_not(group: Group) -> str:
    if group.folder is None:
        return f"the memory cgroup {group.name} is not mounted here"
    name = group.folder + ("/memory.events" if group.version == 2 else "/memory.oom_control")
    try:
        os.close(os.open(name, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if group.folder == group.top and group.version == 2 and isinstance(error, FileNotFoundError):
            return "the process is in the root cgroup, which counts no memory"
        return f"{name}: {error.strerror}"
    return f"{name} has no counter oom_kill (before Linux 4.13)"


def compare(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    What grew between two looks.

    :return: {oom_kills, group, shared_oom_kills, host_oom_kills}: kills in the launch's own group; in the nearest group
        above it, where only that could be read twice; on the whole host. None: not known.
    """
    found: dict[str, Any] = {"oom_kills": None, "group": None, "shared_oom_kills": None, "host_oom_kills": None}
    if after is None:
        return found
    if before is None:
        now = after.get("group") or {}
        if now.get("oom_kill") == 0:  # never, so not since then either
            found.update(oom_kills=0, group=now.get("name"))
        return found
    found["host_oom_kills"] = _growth(before.get("host_oom_kills"), after.get("host_oom_kills"))
    first, last = before.get("group"), after.get("group")
    if not isinstance(first, Mapping) or not isinstance(last, Mapping) or first.get("name") != last.get("name"):
        return found
    found["group"] = first.get("name")
    found["oom_kills"] = _growth(first.get("oom_kill"), last.get("oom_kill"))
    if found["oom_kills"] is None:
        later = {one["name"]: one["oom_kill"] for one in last.get("ancestors") or ()}
        for one in first.get("ancestors") or ():
            grown = _growth(one["oom_kill"], later.get(one["name"]))
            if grown is not None:
                found.update(shared_oom_kills=grown, group=one["name"])
                break
    return found


def _growth(first: Any, last: Any) -> int | None:
    if not isinstance(first, int) or not isinstance(last, int) or last < first:
        return None
    return last - first


def _numbers(text: str | None) -> dict[str, int]:
    found = {}
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdigit() else None


def text_of(path: str, limit: int = 65536) -> str | None:
    """Of a small file of the kernel's; None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        pieces = []
        while limit > 0:
            piece = os.read(descriptor, limit)
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)

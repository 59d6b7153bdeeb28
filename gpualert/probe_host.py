"""Room on disks and in shared memory, and the child's own limits: what may have run out.

Source: statvfs(3), proc(5), getrlimit(2).
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

SHM = "/dev/shm"
#: A filesystem with less of its space or inodes left is full, for whoever writes in blocks of any size.
FULL_SHARE = 0.01
#: Names in /proc/PID/limits, and ours.
_LIMITS = {
    "Max open files": "open_files",
    "Max core file size": "core_bytes",
    "Max locked memory": "locked_memory_bytes",
    "Max stack size": "stack_bytes",
    "Max address space": "address_space_bytes",
    "Max file size": "file_size_bytes",
    "Max processes": "processes",
}
_MOST_FILES = 100000
#: A CUDA context opens its devices early.
_FIRST_FILES = 256


def look(places: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """
    Free space of filesystems, each once.

    :param places: (what for, path): ``cwd``, ``shm``, ``tmp``, ``run_directory``; a path that does not exist is asked
        by its next folder above that does.
    :return: {"seen": {disks: [{what, path, free_bytes, total_bytes, free_inodes, total_inodes}]}}. What a filesystem
        does not say (btrfs counts no inodes) is None. A dead file server may hold us for ever: run this where it can be
        killed.
    """
    disks: list[dict[str, Any]] = []
    devices: dict[int, dict[str, Any]] = {}
    for what, path in places:
        try:
            path = _existing(os.path.expanduser(path))
            device = os.stat(path).st_dev
            if device in devices:
                devices[device]["what"] += "," + what
                continue
            disks.append({"what": what, "path": path, **room(path)})
            devices[device] = disks[-1]
        except OSError as error:
            disks.append({"what": what, "path": path, "trouble": error.strerror or str(error)})
    return {"seen": {"disks": disks}}


def room(path: str) -> dict[str, int | None]:
    """
    {free_bytes, total_bytes, free_inodes, total_inodes} for an ordinary user.

    :raises OSError: the path cannot be asked.
    """
    found = os.statvfs(path)
    return {
        "free_bytes": found.f_bavail * found.f_frsize,
        "total_bytes": found.f_blocks * found.f_frsize,
        "free_inodes": found.f_favail if found.f_files else None,
        "total_inodes": found.f_files or None,
    }


def _existing(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    return path


def is_full(disk: Mapping[str, Any]) -> bool | None:
    """Whether hardly any space or inodes are left; None when it is not known."""
    answers = []
    for free, total in (("free_bytes", "total_bytes"), ("free_inodes", "total_inodes")):
        if isinstance(disk.get(free), int) and disk.get(total):
            answers.append(disk[free] < FULL_SHARE * disk[total])
    return any(answers) if answers else None


def limits_of(text: str) -> dict[str, int | str]:
    """
    The soft limits of /proc/PID/limits: numbers, or ``"unlimited"``.

    :param text: of that file.
    """
    found: dict[str, int | str] = {}
    for line in text.splitlines():
        for words, name in _LIMITS.items():
            if line.startswith(words + " "):
                rest = line[len(words) :].split()
                if rest and rest[0] == "unlimited":
                    found[name] = "unlimited"
                elif rest and rest[0].isdigit():
                    found[name] = int(rest[0])
    return found


def limits(pid: int) -> dict[str, int | str] | None:
    """Of a live process; None when they cannot be read."""
    try:
        with open(f"/proc/{pid}/limits", encoding="utf-8", errors="replace") as file:
            return limits_of(file.read(65536))
    except OSError:
        return None


def open_files(pid: int) -> int | None:
    """How many descriptors a process holds; None when it cannot be seen. Counts no further than 100,000."""
    count = 0
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for _ in entries:
                count += 1
                if count >= _MOST_FILES:
                    break
    except OSError:
        return None
    return count


def holds_device(pid: int, start: str) -> bool | None:
    """Whether one of a process's first descriptors is a device whose path begins so; None when that cannot be seen."""
    looked = False
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for _, entry in zip(range(_FIRST_FILES), entries):
                try:
                    looked = True
                    if os.readlink(entry.path).startswith(start):
                        return True
                except OSError:
                    continue
    except OSError:
        return None
    return False if looked else None


def environment_of(pid: int, names: Sequence[str]) -> dict[str, str] | None:
    """Some variables of a live process's environment as it was started; None when that cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(1 << 20)
    except OSError:
        return None
    found = {}
    for item in data.split(b"\0"):
        name, mark, value = item.partition(b"=")
        text = name.decode("utf-8", "replace")
        if mark and text in names:
            found[text] = value.decode("utf-8", "replace")[:1000]
    return found

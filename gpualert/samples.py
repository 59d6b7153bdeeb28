"""What is noted while a launch runs, because nobody can look it up afterwards: how full memory was, and which processes
were its own.

It must be cheap: a few reads of /proc every two seconds, the process tree rarely, and the more rarely the longer it
takes. The tree is looked at in a process of its own: reading about another process can hang with that process.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from gpualert import probe_fork, probe_host, probe_memory, procfs

EVERY_S = 2.0
#: The process tree is looked at so often at most, and takes at most this part of the time.
TREE_EVERY_S = 10.0
_TREE_SHARE = 0.005
_TREE_BOUND_S = 5.0
MAX_PIDS = 2048
#: Members of the tree whose open files and cgroups are looked at.
_LOOKED_INTO = 16
_MAX_GROUPS = 8


class Samples:
    """
    Of one launch, from its start to its end.

    :param launch_id: the tag of its processes.
    """

    def __init__(self, launch_id: str) -> None:
        self._launch_id = launch_id
        self._next_s = float("-inf")
        self._next_tree_s = float("-inf")
        self._tree: probe_fork.Fork | None = None
        self._tree_began_s = 0.0
        self._group: probe_memory.Group | None = None
        #: of every process of the launch that was ever seen
        self.pids: set[int] = set()
        #: counters of each memory cgroup that a process of it was in, as they were when that was first seen
        self.groups: dict[str, dict[str, Any]] = {}
        self.taken = 0
        self.last_at_s: float | None = None
        self.available_bytes: int | None = None
        self.least_available_bytes: int | None = None
        self.total_bytes: int | None = None
        self.most_used_bytes: int | None = None
        self.shm_free_share: float | None = None
        self.most_open_files: int | None = None
        #: one of its processes held a device of NVIDIA's; None when none could be looked into
        self.touched_gpu: bool | None = None

    def take(self, child: procfs.ProcessIdentity, guard: procfs.ProcessIdentity | None) -> None:
        """If it is time; costs nothing otherwise."""
        now = time.monotonic()
        self._collect_tree()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        if self._tree is None and now >= self._next_tree_s:
            self._tree_began_s = now
            try:
                look = partial(look_at_tree, child, guard, self._launch_id)
                self._tree = probe_fork.Fork(look, _TREE_BOUND_S)
            except OSError:
                self._next_tree_s = now + TREE_EVERY_S
        self._look_at_memory()
        self.taken += 1
        self.last_at_s = now

    def stop(self) -> None:
        """The launch has ended: what has not been seen by now will not be."""
        self._collect_tree()
        if self._tree is not None:
            self._tree.stop()
            self._tree = None

    def _collect_tree(self) -> None:
        found = None if self._tree is None else self._tree.poll()
        if found is None:
            return
        self._tree = None
        took = time.monotonic() - self._tree_began_s
        self._next_tree_s = self._tree_began_s + max(TREE_EVERY_S, took / _TREE_SHARE)
        seen = found.get("seen") or {}
        self.pids.update(list(seen.get("pids") or ())[: MAX_PIDS - len(self.pids)])
        if seen.get("most_open_files") is not None:
            self.most_open_files = max(seen["most_open_files"], self.most_open_files or 0)
        if seen.get("touched_gpu") is not None:
            self.touched_gpu = self.touched_gpu or seen["touched_gpu"]
        for counters in seen.get("groups") or ():
            if counters["name"] not in self.groups and len(self.groups) < _MAX_GROUPS:
                self.groups[counters["name"]] = counters
                self._group = self._group or probe_memory.find(counters)

    def _look_at_memory(self) -> None:
        available, total = probe_memory.host_memory(probe_memory.text_of("/proc/meminfo") or "")
        self.total_bytes = total if total is not None else self.total_bytes
        if available is not None:
            self.available_bytes = available
            self.least_available_bytes = min(available, self.least_available_bytes or available)
        if self._group is not None:
            used = probe_memory.current_bytes(self._group)
            if used is not None:
                self.most_used_bytes = max(used, self.most_used_bytes or 0)
        try:
            room = probe_host.room(probe_host.SHM)
            free, size = room["free_bytes"], room["total_bytes"]
            self.shm_free_share = free / size if free is not None and size else None
        except OSError:
            self.shm_free_share = None

    def grown(self) -> tuple[str, int] | None:
        """(group, kills) of the first group in which the OOM killer has been since the launch was seen in it."""
        for name, first in self.groups.items():
            group = probe_memory.find(first)
            last = None if group is None else probe_memory.counters(group)
            kills = probe_memory.compare({"group": first}, {"group": last})["oom_kills"]
            if kills:
                return name, kills
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "taken": self.taken,
            "age_s": None if self.last_at_s is None else round(time.monotonic() - self.last_at_s, 3),
            "pids": sorted(self.pids)[:MAX_PIDS],
            "groups": list(self.groups),
            "available_bytes": self.available_bytes,
            "least_available_bytes": self.least_available_bytes,
            "total_bytes": self.total_bytes,
            "most_used_bytes": self.most_used_bytes,
            "shm_free_share": self.shm_free_share,
            "most_open_files": self.most_open_files,
            "touched_gpu": self.touched_gpu,
        }


def look_at_tree(child: procfs.ProcessIdentity, guard: procfs.ProcessIdentity | None, launch_id: str) -> dict[str, Any]:
    """{"seen": {pids, most_open_files, touched_gpu, groups}} of a launch's processes now; the child first."""
    processes = procfs.tree(child, guard, launch_id, (os.getpid(),))
    processes.sort(key=lambda one: one.pid != child.pid)
    groups: dict[str, dict[str, Any]] = {}
    most: int | None = None
    touched: bool | None = None
    for one in processes[:_LOOKED_INTO]:
        count = probe_host.open_files(one.pid)
        most = most if count is None else max(count, most or 0)
        if not touched:
            holds = probe_host.holds_device(one.pid, "/dev/nvidia")
            touched = touched if holds is None else holds
        group = probe_memory.own_group(one.pid)
        if group is not None and group.name not in groups and len(groups) < _MAX_GROUPS:
            groups[group.name] = probe_memory.counters(group)
    pids = [one.pid for one in processes[:MAX_PIDS]]
    return {"seen": {"pids": pids, "most_open_files": most, "touched_gpu": touched, "groups": list(groups.values())}}

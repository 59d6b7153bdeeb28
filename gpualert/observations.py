"""Evidence beyond the log: what was seen of the host before and after a launch, reduced to what a judgement needs.

Each probe's entry says either what it saw, ``{"seen": {…}}``, or why it could not look, ``{"not_seen": "reason"}``.
What is here is pure: the looking is done by ``probes`` and the rooms named ``probe_*``.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from gpualert import probe_host, probe_kernel, probe_memory
from gpualert.exit_facts import SIGKILL, ExitFacts

#: Of ``for_outcome``, as JSON.
MAX_OUTCOME_BYTES = 6 * 1024
#: A sample older than this says nothing about the end.
FRESH_S = 8.0
_NAMES = {
    "memory": "the memory cgroup",
    "kernel": "the kernel log",
    "scheduler": "the scheduler",
    "host": "the disks",
    "gpu": "the GPUs",
}
#: Which entry answers which key of :func:`reduce`.
ANSWERS = {"kernel_lines": "kernel", "oom_kills": "memory", "scheduler_state": "scheduler", "gpu_lost": "gpu"}

Look = Mapping[str, Any]


def seen(look: Look | None, name: str) -> Mapping[str, Any] | None:
    """What a probe saw; None when it did not look, or could not."""
    entry = (look or {}).get(name)
    found = entry.get("seen") if isinstance(entry, Mapping) else None
    return found if isinstance(found, Mapping) else None


def why_not(look: Look | None, name: str) -> str:
    """Why a probe did not see what it was to look at, in words that begin with what that is."""
    entry = (look or {}).get(name)
    reason = entry.get("not_seen") if isinstance(entry, Mapping) else None
    return f"{_NAMES[name]}: {str(reason or 'not looked at')[:160]}"


def does_not_apply(look: Look | None, name: str) -> bool:
    """There is nothing of the kind on this host, so nothing was missed."""
    entry = (look or {}).get(name)
    return isinstance(entry, Mapping) and entry.get("kind") in ("no_driver", "no_job")


def reduce(
    before: Look | None, after: Look | None, exit: ExitFacts, child_pid: int | None, rank_killed: bool = False
) -> dict[str, Any]:
    """
    What :func:`gpualert.classify.classify` takes as ``observations``; a key is absent when it could not be seen.

    :param rank_killed: the log says that one of the launch's processes died of SIGKILL.
    :return: with ``not_seen`` ({key: why}) and ``does_not_apply`` (keys that mean nothing on this host) besides.
    """
    found: dict[str, Any] = {"not_seen": {}, "does_not_apply": []}
    samples = (after or {}).get("samples") or {}
    _memory(found, before, after, samples)
    _gpu(found, before, after, samples)
    _kernel(found, before, after, samples, exit, child_pid, rank_killed)
    _scheduler(found, after)
    _host(found, before, after, samples)
    for key, name in ANSWERS.items():
        if key in found:
            continue
        if (
            exit.stopped_by
            or does_not_apply(after, name)
            or (name not in (after or {}) and does_not_apply(before, name))
        ):
            found["does_not_apply"].append(key)
        else:
            found["not_seen"][key] = why_not(after, name) + (" after exit 0" if exit.succeeded else "")
    group = seen(after, "memory")
    if "oom_kills" not in found and group is not None and group.get("why_no_group"):
        found["not_seen"]["oom_kills"] = f"{_NAMES['memory']}: {group['why_no_group']}"
    return found


def _memory(found: dict[str, Any], before: Look | None, after: Look | None, samples: Mapping[str, Any]) -> None:
    first, last = seen(before, "memory"), seen(after, "memory")
    grown = probe_memory.compare(first, last)
    for key in ("oom_kills", "shared_oom_kills", "host_oom_kills"):
        if grown[key] is not None:
            found[key] = grown[key]
    found["cgroup"] = grown["group"]
    moved = samples.get("grown")  # into a group that it was not in at the start
    if moved and not found.get("oom_kills"):
        found["cgroup"], found["oom_kills"] = str(moved[0]), int(moved[1])
    group = (last or first or {}).get("group") or {}
    found["cgroup_version"] = group.get("version")
    found["memory_limit_bytes"] = group.get("limit_bytes")
    found["memory_peak_bytes"] = group.get("peak_bytes")
    available, total = samples.get("available_bytes"), samples.get("total_bytes")
    if available is not None and total and (samples.get("age_s") or 0.0) <= FRESH_S and samples.get("taken"):
        found["host_memory_percent"] = 100.0 * (1.0 - available / total)


def kernel_records(before: Look | None, after: Look | None) -> list[probe_kernel.Record]:
    """All lines of the two looks."""
    records = []
    for look in (before, after):
        records += probe_kernel.records_of((seen(look, "kernel") or {}).get("records") or ())
    return records


def _kernel(
    found: dict[str, Any],
    before: Look | None,
    after: Look | None,
    samples: Mapping[str, Any],
    exit: ExitFacts,
    child_pid: int | None,
    rank_killed: bool,
) -> None:
    if seen(after, "kernel") is None:
        return
    who = (before or {}).get("who") or (after or {}).get("who") or {}
    group = (seen(before, "memory") or seen(after, "memory") or {}).get("group") or {}
    groups = {str(name) for name in samples.get("groups") or ()} | (
        {str(group["name"])} if group.get("name") else set()
    )
    pids = {int(pid) for pid in samples.get("pids") or ()} | ({child_pid} if child_pid is not None else set())
    launch = probe_kernel.Launch(
        pids=frozenset(pids),
        groups=frozenset(groups),
        marks=frozenset((seen(before, "memory") or seen(after, "memory") or {}).get("marks") or ()),
        uid=who.get("uid"),
        killed_child=child_pid if exit.signal == SIGKILL else None,
        killed=exit.likely_signal == SIGKILL or rank_killed,
        began_s=(after or {}).get("began_s"),
        ended_s=(after or {}).get("ended_s"),
        pci=_used_addresses(before, after),
        pid_namespace=who.get("pid_namespace"),
    )
    about = probe_kernel.about(kernel_records(before, after), launch)
    found["kernel_lines"] = [*about.kills, *(xid.text for xid in about.xids)]
    found["kernel_crashes"] = list(about.crashes)
    found["kernel_context"] = list(about.context)
    found["xids"] = [{"pci": xid.pci, "xid": xid.number, "pid": xid.pid} for xid in about.xids]


def _used_addresses(before: Look | None, after: Look | None) -> frozenset[str] | None:
    """Of the GPUs that the launch could use; None when that is not known."""
    for look in (before, after):
        gpus = seen(look, "gpu")
        visible = None if gpus is None else gpus.get("visible")
        if gpus is None or not visible or visible.get("indices") is None:
            continue
        used = [gpu for gpu in gpus.get("gpus") or () if gpu.get("index") in visible["indices"]]
        if all(gpu.get("pci_bus_id") for gpu in used):
            return frozenset(probe_kernel.pci_address(str(gpu["pci_bus_id"])) for gpu in used)
    return None


def _gpu(found: dict[str, Any], before: Look | None, after: Look | None, samples: Mapping[str, Any]) -> None:
    if samples.get("touched_gpu") is not None:
        found["touched_gpu"] = bool(samples["touched_gpu"])
    first, last = (before or {}).get("gpu"), (after or {}).get("gpu")
    if not isinstance(last, Mapping) or does_not_apply(after, "gpu"):
        return
    from gpualert.probe_gpu_compare import compare

    grown = compare(first or {}, last, samples.get("pids") or ())
    if "seen" in last or grown["gpu_lost"]:
        found["gpu_lost"] = _texts(grown["gpu_lost"], lambda item: not item.get("already"))
    errors = [*grown["ecc"], *grown["remapped_rows"], *grown["retired_pages"]]
    found["gpu_errors"] = _texts(errors, lambda item: item.get("before") is not True)
    for name in ("driver_mismatch", "driver_changed", "unresponsive"):
        if grown[name]:
            found["gpu_" + name if name == "unresponsive" else name] = str(grown[name])[:300]
    found["throttled"] = _texts(grown["throttled"], lambda item: True)


def _texts(items: Sequence[Mapping[str, Any]], wanted: Any) -> list[str]:
    """Of GPUs that the launch could have used."""
    return [str(item["text"])[:300] for item in items if item.get("used") is not False and wanted(item)][:8]


def _scheduler(found: dict[str, Any], after: Look | None) -> None:
    job = seen(after, "scheduler")
    if job is not None:
        found["scheduler_state"] = str(job.get("state") or "")
        found["scheduler_said"] = job.get("said")
        found["scheduler_reason"] = job.get("reason")


def _host(found: dict[str, Any], before: Look | None, after: Look | None, samples: Mapping[str, Any]) -> None:
    disks = (seen(after, "host") or {}).get("disks") or ()
    share = samples.get("shm_free_share")
    for disk in disks:
        full = probe_host.is_full(disk)
        if full is None:
            continue
        names = str(disk.get("what") or "").split(",")
        if "shm" in names:
            found["shm_full"] = _room(disk) if full else None
            if len(names) == 1:
                continue
        found.setdefault("disks_full", [])
        if full:
            found["disks_full"].append(_room(disk))
    if not found.get("shm_full") and share is not None and (samples.get("age_s") or 0.0) <= FRESH_S:
        if share < probe_host.FULL_SHARE:
            found["shm_full"] = f"{probe_host.SHM}: {100 * share:.1f} % free at the last sample"
        else:
            found.setdefault("shm_full", None)
    limits = (before or {}).get("limits") or {}
    limit, most = limits.get("open_files"), samples.get("most_open_files")
    if isinstance(limit, int):
        found["open_files"] = {"limit": limit, "most": most}


def _room(disk: Mapping[str, Any]) -> str:
    parts = []
    for name, unit in (("bytes", "bytes"), ("inodes", "inodes")):
        free, total = disk.get("free_" + name), disk.get("total_" + name)
        if free is not None and total is not None:
            parts.append(f"{free} of {total} {unit} free")
    return f"{str(disk.get('path'))[:200]} ({disk.get('what')}): {', '.join(parts)}"


# -- for people and XComs


def for_outcome(before: Look | None, after: Look | None, reduced: Mapping[str, Any]) -> dict[str, Any]:
    """
    The part of an outcome that says what was seen beside the log, below :data:`MAX_OUTCOME_BYTES` of JSON.

    :param reduced: of :func:`reduce`; may be empty.
    """
    samples = (after or {}).get("samples") or {}
    memory = seen(after, "memory") or seen(before, "memory") or {}
    group = memory.get("group") or {}
    peaks = [value for value in (group.get("peak_bytes"), samples.get("most_used_bytes")) if value is not None]
    value: dict[str, Any] = {
        "memory": {
            "cgroup": group.get("name"),
            "peak_bytes": max(peaks) if peaks else None,
            "limit_bytes": group.get("limit_bytes"),
            "oom_kills": reduced.get("oom_kills"),
            "host_total_bytes": memory.get("host_total_bytes") or samples.get("total_bytes"),
            "host_least_available_bytes": samples.get("least_available_bytes"),
        },
        "disks": [
            {name: disk.get(name) for name in ("what", "path", "free_bytes", "total_bytes", "free_inodes")}
            for disk in (seen(after, "host") or seen(before, "host") or {}).get("disks") or ()
        ][:6],
        "open_files": reduced.get("open_files"),
        "gpus": _gpus(before, after, reduced),
        "driver": _driver(before, after),
        "scheduler": _job(after),
        "kernel": [str(line)[:240] for line in [*reduced.get("kernel_lines", ()), *reduced.get("kernel_crashes", ())]][
            :6
        ],
        "not_seen": sorted(str(reason) for reason in (reduced.get("not_seen") or {}).values())[:6],
    }
    return _bounded(value)


def _gpus(before: Look | None, after: Look | None, reduced: Mapping[str, Any]) -> list[dict[str, Any]]:
    first, last = seen(before, "gpu") or {}, seen(after, "gpu") or {}
    pairs = [(old, _same(old, last.get("gpus") or ())) for old in first.get("gpus") or ()]
    known = [id(new) for _, new in pairs if new is not None]
    pairs += [(None, new) for new in last.get("gpus") or () if id(new) not in known]
    visible = (first or last).get("visible") or {}
    xids: dict[str, list[int]] = {}
    for xid in reduced.get("xids") or ():
        xids.setdefault(xid["pci"], []).append(xid["xid"])
    found = []
    for one_before, one_after in pairs[:32]:
        old, new = one_before or {}, one_after or {}
        one = old or new
        address = one.get("pci_bus_id")
        found.append(
            {
                "index": one.get("index"),
                "name": one.get("name"),
                "uuid": one.get("uuid"),
                "pci_bus_id": address,
                "used": None if visible.get("indices") is None else one.get("index") in visible["indices"],
                "memory_total_bytes": one.get("memory_total_bytes"),
                "memory_used_before_bytes": old.get("memory_used_bytes"),
                "memory_used_after_bytes": new.get("memory_used_bytes"),
                "ecc_uncorrected": (new.get("ecc") or old.get("ecc") or {}).get("uncorrected_aggregate"),
                "xids": xids.get(probe_kernel.pci_address(str(address)), []) if address else [],
                "error": (new.get("error") or {}).get("kind"),
            }
        )
    return found


def _same(gpu: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """A GPU that is lost may not even tell its name: then its number is what is left."""
    for name in ("uuid", "pci_bus_id", "index"):
        for other in others:
            if gpu.get(name) is not None and other.get(name) == gpu[name]:
                return other
    return None


def _driver(before: Look | None, after: Look | None) -> str | None:
    gpus = seen(after, "gpu") or seen(before, "gpu") or {}
    version = gpus.get("driver_version")
    return None if version is None else str(version)[:60]


def _job(after: Look | None) -> dict[str, Any] | None:
    job = seen(after, "scheduler")
    if job is None:
        return None
    return {name: job.get(name) for name in ("job", "state", "reason", "exit_code", "max_rss")}


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    import json

    def size() -> int:
        return len(json.dumps(value).encode())

    while size() > MAX_OUTCOME_BYTES:
        longest = max(("gpus", "disks", "kernel", "not_seen"), key=lambda name: len(json.dumps(value[name])))
        if not value[longest]:
            value["memory"]["cgroup"] = None  # what else could be long
            break
        value[longest] = value[longest][:-1]
        value["shortened"] = True
    return value

"""What became of the GPUs between two snapshots. Pure; what one of them could not see is not concluded from."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping

from gpualert.probe_gpu_nvml import blank

#: Errors of one GPU after which nobody can compute on it.
LOSSES = frozenset(("gpu_lost", "unknown", "reset_required", "interrupt_issue", "insufficient_power"))
#: Reasons for slower clocks that say that the hardware could not keep up; the others are settings, or idleness.
HARMFUL_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)
_NOTHING: Mapping[str, Any] = {}


def compare(before: Mapping[str, Any], after: Mapping[str, Any], known_pids: Iterable[int] = ()) -> dict[str, Any]:
    """
    :param before: and ``after``: entries of ``probe_gpu.snapshot``.
    :param known_pids: processes of the run.
    :return: each of these lists may be empty; every item of one has ``index``, ``uuid``, ``pci_bus_id`` and ``name``
        of its GPU, ``used`` (whether the run could use it; None if not known) and ``text`` for people:

        ``gpu_lost``: ``kind`` (``gone``, or one of :data:`LOSSES`), ``already`` (it was so before the run);
        ``ecc``: ``counter`` (uncorrected ones), ``before``, ``after``;
        ``remapped_rows`` and ``retired_pages``: ``what``, ``before`` (None: not known), ``after``;
        ``throttled``: ``reasons``, those of :data:`HARMFUL_REASONS` at the end;
        ``processes_left``: ``pid``, ``used_bytes``.

        And texts, or None: ``driver_mismatch``, ``driver_changed``, ``unresponsive`` (it answered before the run and
        not after it).
    """
    earlier, later = _seen(before), _seen(after)
    return {
        "gpu_lost": list(_lost(earlier, later, after)),
        "ecc": list(_grown(earlier, later, "ecc", _ecc_text, ("uncorrected_volatile", "uncorrected_aggregate"))),
        "remapped_rows": list(_rows(earlier, later)),
        "retired_pages": list(_pages(earlier, later)),
        "throttled": list(_throttled(earlier, later)),
        "processes_left": list(_left(earlier, later, frozenset(known_pids))),
        "driver_mismatch": after["not_seen"] if after.get("kind") == "driver_mismatch" else None,
        "driver_changed": _changed(before, after),
        "unresponsive": (
            after["not_seen"] if after.get("kind") in ("timeout", "crashed") and "seen" in before else None
        ),
    }


def _seen(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """With all that may be told of a GPU: a snapshot that another version took may lack some of it."""
    found = entry.get("seen")
    if not isinstance(found, Mapping):
        return _NOTHING
    return {**found, "gpus": [{**blank(None), **gpu} for gpu in found.get("gpus") or ()]}


def _pairs(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Each GPU of after, and the same one of before, or None."""
    for gpu in later.get("gpus", ()):
        yield gpu, _same(gpu, earlier.get("gpus", ()), len(later["gpus"]) == len(earlier.get("gpus", ())))


def _same(gpu: Mapping[str, Any], others: Iterable[Mapping[str, Any]], by_place: bool) -> Mapping[str, Any] | None:
    for name in ("uuid", "pci_bus_id"):
        if gpu[name] is not None:
            found = [other for other in others if other[name] == gpu[name]]
            if found:
                return found[0]
    # Numbers are given by address: they mean the same only while none is missing.
    if by_place and gpu["uuid"] is None and gpu["pci_bus_id"] is None and gpu["index"] is not None:
        return next((other for other in others if other["index"] == gpu["index"]), None)
    return None


def _item(gpu: Mapping[str, Any], before: Mapping[str, Any] | None, seen: tuple[Any, Any], text: str) -> dict[str, Any]:
    known = {
        name: gpu[name] if gpu[name] is not None or before is None else before[name]
        for name in ("index", "uuid", "pci_bus_id", "name")
    }
    return {**known, "used": _used(gpu if before is None else before, *seen), "text": f"{describe(known)} {text}"}


def describe(gpu: Mapping[str, Any]) -> str:
    """``GPU 1 (0000:3b:00.0, NVIDIA H100)``, with what is known of it."""
    details = ", ".join(str(gpu[name]) for name in ("pci_bus_id", "name") if gpu.get(name) is not None)
    number = "a GPU" if gpu.get("index") is None else f"GPU {gpu['index']}"
    return f"{number} ({details})" if details else number


def _used(gpu: Mapping[str, Any], earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool | None:
    for seen in (earlier, later):
        visible = seen.get("visible")
        if not visible or visible.get("indices") is None:
            continue
        index = gpu["index"]
        same = _same(gpu, seen["gpus"], False)
        if same is not None:
            index = same["index"]
        return None if index is None else index in visible["indices"]
    return None


def _lost(earlier: Mapping[str, Any], later: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    both = (earlier, later)
    if after.get("kind") == "gpu_lost":  # NVML as a whole does not start: it does not say which one
        nameless = dict.fromkeys(("index", "uuid", "pci_bus_id", "name"))
        yield {**nameless, "used": None, "kind": "gpu_lost", "already": False, "text": str(after["not_seen"])}
    found = []
    for gpu, before in _pairs(earlier, later):
        if before is not None:
            found.append(id(before))
        error = gpu["error"]
        if error is not None and error["kind"] in LOSSES:
            already = before is not None and before["error"] is not None and before["error"]["kind"] in LOSSES
            words = f"no longer answers: {error['text']}" if not already else f"did not answer before: {error['text']}"
            yield {**_item(gpu, before, both, words), "kind": error["kind"], "already": already}
    if not later.get("complete") or any(gpu["uuid"] is None and gpu["pci_bus_id"] is None for gpu in later["gpus"]):
        return  # one that tells no name may be the one that is missing
    for gpu in earlier.get("gpus", ()):
        if id(gpu) not in found and gpu["error"] is None and gpu["uuid"] is not None:
            yield {
                **_item(gpu, None, both, "is gone: the driver does not list it any more"),
                "kind": "gone",
                "already": False,
            }


def _grown(
    earlier: Mapping[str, Any],
    later: Mapping[str, Any],
    group: str,
    text: Callable[[str, int, int], str],
    counters: Iterable[str],
) -> Iterator[dict[str, Any]]:
    for gpu, before in _pairs(earlier, later):
        old, new = (before or _NOTHING).get(group) or _NOTHING, gpu[group] or _NOTHING
        for counter in counters:
            was, is_ = old.get(counter), new.get(counter)
            if was is not None and is_ is not None and is_ > was:
                item = _item(gpu, before, (earlier, later), text(counter, was, is_))
                yield {**item, "counter" if group == "ecc" else "what": counter, "before": was, "after": is_}


def _flags(
    earlier: Mapping[str, Any], later: Mapping[str, Any], group: str, texts: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    for gpu, before in _pairs(earlier, later):
        for flag, words in texts.items():
            if (gpu[group] or _NOTHING).get(flag):
                was = ((before or _NOTHING).get(group) or _NOTHING).get(flag)
                when = {True: ", already before the run", False: ", since the run began", None: ""}[was]
                item = _item(gpu, before, (earlier, later), words + when)
                yield {**item, "what": flag, "before": was, "after": True}


def _ecc_text(counter: str, was: int, is_: int) -> str:
    kind = "since the driver was loaded" if counter.endswith("volatile") else "in its whole life"
    return f"counts {is_ - was} new uncorrected ECC error(s) ({was} → {is_} {kind})"


def _rows(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    def text(what: str, was: int, is_: int) -> str:
        return f"remapped {is_ - was} more row(s) of its memory for {what} errors ({was} → {is_})"

    yield from _grown(earlier, later, "remapped_rows", text, ("correctable", "uncorrectable"))
    words = {
        "pending": "waits for a reset to remap rows of its memory",
        "failure": "could not remap rows of its memory: it needs replacement",
    }
    yield from _flags(earlier, later, "remapped_rows", words)


def _pages(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    def text(what: str, was: int, is_: int) -> str:
        return f"retired {is_ - was} more page(s) of its memory for {what.replace('_', '-')} errors ({was} → {is_})"

    yield from _grown(earlier, later, "retired_pages", text, ("single_bit", "double_bit"))
    yield from _flags(earlier, later, "retired_pages", {"pending": "waits for a reset to retire pages of its memory"})


def _throttled(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for gpu, before in _pairs(earlier, later):
        reasons = [reason for reason in gpu["throttle_reasons"] or () if reason in HARMFUL_REASONS]
        if reasons:
            warm = "" if gpu["temperature_c"] is None else f" at {gpu['temperature_c']} °C"
            item = _item(gpu, before, (earlier, later), f"holds its clocks down{warm}: {', '.join(reasons)}")
            yield {**item, "reasons": reasons}


def _left(earlier: Mapping[str, Any], later: Mapping[str, Any], known_pids: frozenset[int]) -> Iterator[dict[str, Any]]:
    if not later.get("host_pids"):  # numbers of another pid namespace: they would meet ours by chance
        return
    for gpu, before in _pairs(earlier, later):
        for process in gpu["processes"] or ():
            if process["pid"] in known_pids:
                item = _item(gpu, before, (earlier, later), f"is still in use by pid {process['pid']} of this run")
                yield {**item, "pid": process["pid"], "used_bytes": process["used_bytes"]}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    was = _seen(before).get("driver_version")
    is_ = _seen(after).get("driver_version")
    if was is not None and after.get("kind") in ("driver_not_loaded", "no_driver"):
        return f"the NVIDIA driver {was} was loaded before the run and is not any more"
    if was is None or is_ is None or was == is_:
        return None
    return f"the NVIDIA driver was {was} before the run and is {is_} now"

"""What ``nvidia-smi`` says of the GPUs, for hosts where NVML cannot be asked by us.

Pure: what to ask, and what the answers of many driver generations mean. A query with one field that this ``nvidia-smi``
does not know is refused as a whole, so there are three lists, the last one with what all of them know.
"""

from __future__ import annotations

import re
from typing import Any, Sequence

from gpualert.probe_gpu_nvml import blank, pci_bus_id, throttle_reasons

_MIB = 1024 * 1024
_BASIC = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
)
_ECC = (
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
)
_RETIRED = ("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count", "retired_pages.pending")
#: Newest first; a list that is refused ("is not a valid field to query") is followed by the next one.
FIELD_LISTS: tuple[tuple[str, ...], ...] = (
    (
        *_BASIC,
        "persistence_mode",
        *_ECC,
        *_RETIRED,
        "clocks_event_reasons.active",
        "mig.mode.current",
        "remapped_rows.correctable",
        "remapped_rows.uncorrectable",
        "remapped_rows.pending",
        "remapped_rows.failure",
    ),
    (*_BASIC, "persistence_mode", *_ECC, *_RETIRED, "clocks_throttle_reasons.active"),
    _BASIC,
)
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")

_REFUSED = re.compile(r'Field "([^"]{1,80})" is not a valid field to query')
_HANDLE = re.compile(
    r"Unable to (?:determine|detect) the device handle for (?:gpu|GPU) ?(?:(\d{1,3}): )?"
    r"([0-9A-Fa-f]{3,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])?: ?([^\n]{1,200})"
)
#: Texts, and the kinds of ``probe_gpu_nvml.KINDS`` that they stand for. The first that is found counts.
_TEXTS = (
    ("version mismatch", "driver_mismatch"),
    ("driver not loaded", "driver_not_loaded"),
    ("couldn't communicate with the nvidia driver", "driver_not_loaded"),
    ("couldn't find libnvidia-ml", "no_library"),
    ("insufficient permissions", "no_permission"),
    ("gpu is lost", "gpu_lost"),
    ("gpu requires reset", "reset_required"),
    ("requires restart", "reset_required"),
    ("insufficient external power", "insufficient_power"),
    ("blocked by the operating system", "blocked"),
    ("operating system has blocked", "blocked"),
    ("unknown error", "unknown"),
)
#: What stands in a cell whose value is not there. Other texts in brackets are errors.
_ABSENT = frozenset(("", "n/a", "[n/a]", "[not supported]", "[not found]", "[function not found]"))


def gpu_query(fields: Sequence[str]) -> list[str]:
    """Arguments for nvidia-smi; memory comes in MiB."""
    return [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def process_query() -> list[str]:
    return [f"--query-compute-apps={','.join(PROCESS_FIELDS)}", "--format=csv,noheader,nounits"]


def refused_field(text: str) -> str | None:
    """The field that this nvidia-smi does not know; None when that is not what it complains about."""
    found = _REFUSED.search(text)
    return found[1] if found else None


def parse(text: str, status: int | None, fields: Sequence[str]) -> dict[str, Any]:
    """
    :param text: all that nvidia-smi said to :func:`gpu_query`.
    :param status: its exit status.
    :return: {"driver_version", "gpus": […], "complete": false where it gave up at a GPU that does not answer} (gpus as
        of ``probe_gpu_nvml.blank``), or {"error": {kind, text}}.
    """
    gpus: list[dict[str, Any]] = []
    driver = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(fields) and (cells[0].isdigit() or cells[1].startswith("GPU-")):
            row = dict(zip(fields, cells))
            gpus.append(_gpu(row))
            driver = driver or _value(row["driver_version"])
    handles = list(_HANDLE.finditer(text))
    for found in handles:
        gpu = blank(None if found[1] is None else int(found[1]))
        gpu["pci_bus_id"] = pci_bus_id(found[2])
        gpu["error"] = {"kind": _kind(found[3]) or "unknown", "text": found[3].strip()}
        gpus.append(gpu)
    if gpus or "No devices were found" in text:
        return {"driver_version": driver, "gpus": gpus, "complete": not handles}
    said = " ".join(text.split())[:300]
    if status == 0 and not said:
        return {"driver_version": None, "gpus": [], "complete": True}
    words = said or f"nothing, with exit status {status}"
    return {"error": {"kind": _kind(text) or "nvidia_smi_failed", "text": f"nvidia-smi says: {words}"}}


def parse_processes(text: str) -> dict[str, list[dict[str, Any]]]:
    """Compute processes by the GPU's UUID."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(PROCESS_FIELDS) and cells[1].isdigit():
            used = _number(cells[2])
            process = {"pid": int(cells[1]), "used_bytes": None if used is None else used * _MIB}
            found.setdefault(cells[0], []).append(process)
    return found


def _gpu(row: dict[str, str]) -> dict[str, Any]:
    gpu = blank(_number(row["index"]))
    gpu["uuid"] = _value(row["uuid"])
    gpu["name"] = _value(row["name"])
    gpu["pci_bus_id"] = pci_bus_id(row["pci.bus_id"])
    total, used = _number(row["memory.total"]), _number(row["memory.used"])
    gpu["memory_total_bytes"] = None if total is None else total * _MIB
    gpu["memory_used_bytes"] = None if used is None else used * _MIB
    gpu["utilization_percent"] = _number(row["utilization.gpu"])
    gpu["temperature_c"] = _number(row["temperature.gpu"])
    gpu["persistence_mode"] = _flag(row.get("persistence_mode"))
    gpu["mig_mode"] = _flag(row.get("mig.mode.current"))
    reasons = row.get("clocks_event_reasons.active", row.get("clocks_throttle_reasons.active", ""))
    if reasons.lower().startswith("0x"):
        try:
            gpu["throttle_reasons"] = throttle_reasons(int(reasons, 16))
        except ValueError:
            pass
    gpu["ecc"] = _group(row, {name[len("ecc.errors.") : -len(".total")].replace(".", "_"): name for name in _ECC})
    names = ("correctable", "uncorrectable", "pending", "failure")
    gpu["remapped_rows"] = _group(row, {name: f"remapped_rows.{name}" for name in names})
    gpu["retired_pages"] = _group(row, dict(zip(("single_bit", "double_bit", "pending"), _RETIRED)))
    for field, cell in row.items():
        if _is_error(cell):
            gpu["trouble"][field] = cell.strip("[]")
            kind = _kind(cell)
            if kind in ("gpu_lost", "reset_required") and gpu["error"] is None:
                gpu["error"] = {"kind": kind, "text": cell.strip("[]")}
    return gpu


def _group(row: dict[str, str], names: dict[str, str]) -> dict[str, Any] | None:
    values: dict[str, Any] = {}
    for name, field in names.items():
        cell = row.get(field)
        values[name] = _flag(cell) if name in ("pending", "failure") else _number(cell)
    return None if all(value is None for value in values.values()) else values


def _value(cell: str | None) -> str | None:
    return None if cell is None or cell.lower() in _ABSENT or _is_error(cell) else cell


def _is_error(cell: str) -> bool:
    lower = cell.lower()
    return lower not in _ABSENT and (lower in ("err!", "error") or (lower.startswith("[") and lower.endswith("]")))


def _number(cell: str | None) -> int | None:
    """A count without a unit, or with one behind it (older nvidia-smi ignore ``nounits`` for some fields)."""
    words = (cell or "").split()
    try:
        return int(float(words[0])) if words and len(words[0]) < 20 else None
    except (OverflowError, ValueError):
        return None


def _flag(cell: str | None) -> bool | None:
    return {"yes": True, "1": True, "enabled": True, "no": False, "0": False, "disabled": False}.get(
        (cell or "").lower()
    )


def _kind(text: str) -> str | None:
    lower = text.lower()
    return next((kind for words, kind in _TEXTS if words in lower), None)

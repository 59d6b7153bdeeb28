"""What the doctor says about GPUs: driver and number, who uses their memory, and which of them are not well.

Judging is pure: it takes what ``probe_gpu`` saw, or why it saw nothing.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

from gpualert import probe_gpu
from gpualert.doctor import OK, PROBLEM, UNKNOWN, WARNING, Finding
from gpualert.probe_gpu_compare import HARMFUL_REASONS, describe

BOUND_S = 15.0
_GIB = 1024**3
#: Memory in use that a training will miss. An idle GPU's driver keeps some hundred megabytes.
_IN_USE_BYTES = _GIB
_LOOK_IN_THE_KERNEL_LOG = "dmesg | grep -i -e xid -e nvrm"
_ADVICE = {
    "driver_mismatch": "reboot (or, once nothing uses the GPUs, unload the driver's modules and load them again)",
    "timeout": f"reboot the host: {_LOOK_IN_THE_KERNEL_LOG} says what happened",
    "no_permission": "add the user to the group of /dev/nvidia* (ls -l /dev/nvidiactl), often video or render",
    "insufficient_power": "connect the GPU's power cables",
    "no_library": "install its libraries and nvidia-smi, or give the container its GPUs: docker run --gpus all",
}


def look() -> list[Finding]:
    """All findings about this host's GPUs."""
    return judge(nvidia_devices(), probe_gpu.loaded_driver(), probe_gpu.snapshot(BOUND_S))


def judge(devices: int | None, driver: str | None, entry: Mapping[str, Any]) -> list[Finding]:
    """
    :param devices: NVIDIA display or compute devices on the PCI bus; None when the bus cannot be seen.
    :param driver: the loaded kernel driver's version; None when none is loaded.
    :param entry: of ``probe_gpu.snapshot``.
    """
    if "seen" not in entry:
        return [_judge_not_seen(devices, driver, str(entry["kind"]), str(entry["not_seen"]))]
    seen = entry["seen"]
    text = f"driver {seen['driver_version'] or driver or 'of unknown version'}"
    if seen.get("cuda_driver_version"):
        text += f", CUDA up to {seen['cuda_driver_version']}"
    answering = [gpu for gpu in seen["gpus"] if gpu["error"] is None]
    if not seen["gpus"]:
        advice = _LOOK_IN_THE_KERNEL_LOG if devices else None
        return [Finding("gpu", PROBLEM if devices else WARNING, f"{text}: it knows no GPU", advice)]
    findings = []
    if answering:
        findings.append(Finding("gpu", OK, f"{text}: {_listed(answering)}"))
    for gpu in seen["gpus"]:
        if gpu["error"] is not None:
            advice = _ADVICE.get(gpu["error"]["kind"], f"reset or reboot: {_LOOK_IN_THE_KERNEL_LOG}")
            status = WARNING if gpu["error"]["kind"] == "no_permission" else PROBLEM
            findings.append(
                Finding("gpu", status, f"{text}: {describe(gpu)} does not answer: {gpu['error']['text']}", advice)
            )
    findings += [finding for gpu in answering for finding in _judge_health(gpu)]
    findings += _judge_memory(answering)
    return findings


def _judge_not_seen(devices: int | None, driver: str | None, kind: str, why: str) -> Finding:
    if driver is None and kind in ("no_driver", "driver_not_loaded", "no_library", "no_pynvml", "nvidia_smi_failed"):
        if devices:
            return Finding(
                "gpu",
                PROBLEM,
                f"{devices} NVIDIA device(s), but the driver is not loaded",
                "install the NVIDIA driver for this kernel, or: modprobe nvidia; dmesg | grep -i nvidia says why not",
            )
        what = "no NVIDIA GPU" if devices == 0 else "no NVIDIA driver"
        return Finding("gpu", OK if devices == 0 else UNKNOWN, f"{what} here: trainings run on the CPU")
    text = why if driver is None or driver in why else f"driver {driver}: {why}"
    status = WARNING if kind in ("no_library", "no_pynvml", "no_permission") else PROBLEM
    return Finding("gpu", status, text, _ADVICE.get(kind, _LOOK_IN_THE_KERNEL_LOG))


def _listed(gpus: Sequence[Mapping[str, Any]]) -> str:
    """``4 × NVIDIA H100 (80.0 GiB), 1 × NVIDIA T400``."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        total = gpu["memory_total_bytes"]
        name = str(gpu["name"] or "GPU of unknown name") + ("" if total is None else f" ({_gib(total)})")
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} × {name}" for name, count in counts.items())


def _judge_health(gpu: Mapping[str, Any]) -> list[Finding]:
    rows, pages, ecc = (gpu[group] or {} for group in ("remapped_rows", "retired_pages", "ecc"))
    who = describe(gpu)
    findings = []
    if rows.get("failure"):
        findings.append((PROBLEM, f"{who} could not remap rows of its memory", "have the GPU replaced"))
    if rows.get("pending") or pages.get("pending"):
        what = "remap rows" if rows.get("pending") else "retire pages"
        words = f"{who} waits for a reset to {what} of its memory"
        findings.append((WARNING, words, "when it is idle: nvidia-smi --gpu-reset, or reboot"))
    if ecc.get("uncorrected_volatile"):
        words = f"{who} has seen {ecc['uncorrected_volatile']} uncorrected ECC error(s) since its driver was loaded"
        findings.append((WARNING, words, f"look whether they go on: {_LOOK_IN_THE_KERNEL_LOG}"))
    held = [reason for reason in gpu["throttle_reasons"] or () if reason in HARMFUL_REASONS]
    if held:
        words = f"{who} holds its clocks down now: {', '.join(held)}"
        findings.append((WARNING, words, "look after cooling and power: nvidia-smi -q -d PERFORMANCE"))
    return [Finding("gpu", *found) for found in findings]


def _judge_memory(gpus: Sequence[Mapping[str, Any]]) -> list[Finding]:
    known = [gpu for gpu in gpus if gpu["memory_used_bytes"] is not None]
    busy = [gpu for gpu in known if gpu["memory_used_bytes"] >= _IN_USE_BYTES]
    if not known:
        return []
    if not busy:
        return [Finding("gpu_use", OK, "no GPU's memory is in use")]
    texts = []
    for gpu in busy:
        total = "" if gpu["memory_total_bytes"] is None else f" of {_gib(gpu['memory_total_bytes'])}"
        texts.append(f"{describe(gpu)}: {_gib(gpu['memory_used_bytes'])}{total} in use by {_users(gpu)}")
    advice = "other GPUs: set CUDA_VISIBLE_DEVICES in the command's environment" if len(busy) < len(gpus) else None
    return [Finding("gpu_use", WARNING, "; ".join(texts), advice or "wait, or ask whose processes these are")]


def _users(gpu: Mapping[str, Any]) -> str:
    if gpu["processes"] is None:
        return "processes that the driver does not name"
    named = []
    for process in gpu["processes"][:8]:
        details = [str(process["command"])] if process.get("command") else []
        if process.get("uid") is not None:
            details.append(_user_name(int(process["uid"])))
        named.append(f"pid {process['pid']}" + (f" ({', '.join(details)})" if details else ""))
    if len(gpu["processes"]) > len(named):
        named.append(f"{len(gpu['processes']) - len(named)} more")
    return ", ".join(named) or "nobody that can be seen from here (another container, or what a process left behind)"


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"


def nvidia_devices() -> int | None:
    """NVIDIA display or compute devices on the PCI bus; None when it cannot be seen."""
    folder = "/sys/bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    count = 0
    for name in names:
        try:
            with open(f"{folder}/{name}/vendor") as vendor, open(f"{folder}/{name}/class") as kind:
                count += vendor.read().strip() == "0x10de" and kind.read().startswith(("0x0300", "0x0302"))
        except OSError:
            continue
    return count

"""What NVML says of the GPUs, read in a process that may be killed at any time, and told line by line.

This is the program of that process (``probe_gpu`` starts it). Each line is either ``? words``, what is going to be
asked next, so that after a hang or a crash it is known where, or ``= JSON``, what was found. One question that fails
loses only its own answer.

Source: nvml.h and the module ``pynvml`` of the package ``nvidia-ml-py``, whose older versions lack newer functions.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable

#: Stable words for what NVML's error numbers mean (nvmlReturn_t).
KINDS = {
    4: "no_permission",
    8: "insufficient_power",
    9: "driver_not_loaded",
    11: "interrupt_issue",
    12: "no_library",
    14: "corrupted_inforom",
    15: "gpu_lost",
    16: "reset_required",
    17: "blocked",
    18: "driver_mismatch",
    999: "unknown",
}
_NOT_THERE = frozenset((3, 6, 13, 21, 22, 25, 26))  # not supported, not found, no such function or data, other version
_OF_THE_WHOLE_GPU = frozenset((15, 16))
_MAX_PROCESSES = 64
_MAX_MIG_DEVICES = 16
#: Bits of nvmlDeviceGetCurrentClocksEventReasons, in nvidia-smi's words.
THROTTLE_REASONS = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
)


def main(bound_s: str) -> None:
    """
    Ask, tell on standard output, and end.

    :param bound_s: seconds after which the kernel ends this process, also if nobody is left to kill it.
    """
    import resource
    import signal

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(bound_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a library that crashes is told about, not stored
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # whatever the library prints

    def say(mark: str, text: str) -> None:
        os.write(out, f"{mark} {text}\n".encode("utf-8", "replace"))

    try:
        nvml = _load()
    except Exception as error:
        say("=", json.dumps({"error": {"kind": "no_pynvml", "text": f"{type(error).__name__}: {error}"}}))
        return
    try:
        for fact in read(nvml, lambda question: say("?", question)):
            say("=", json.dumps(fact))
    except Exception as error:
        say("=", json.dumps({"error": {"kind": "pynvml_failed", "text": f"{type(error).__name__}: {error}"}}))


def _load() -> Any:
    try:
        import pynvml
    except (EOFError, ValueError):
        # A disk that filled up while bytecode was written leaves a cut cache file; the source is intact.
        sys.dont_write_bytecode = True
        sys.pycache_prefix = os.devnull
        import pynvml
    return pynvml


def read(nvml: Any, asking: Callable[[str], None]) -> Any:
    """
    Facts as they are found: {"driver": {…}}, {"gpu": {…}} for each, {"done": true}; or {"error": {kind, text}}.

    :param nvml: the module ``pynvml``, or one like it.
    :param asking: told what is asked next.
    """
    asking("NVML to start")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield {"error": explain(error)}
        return
    trouble: dict[str, str] = {}
    system = _Questions(nvml, asking, "", trouble)
    cuda = system.ask("CUDA driver version", "nvmlSystemGetCudaDriverVersion_v2")
    if cuda is None:
        cuda = system.ask("CUDA driver version", "nvmlSystemGetCudaDriverVersion")
    yield {
        "driver": {
            "driver_version": _text(system.ask("driver version", "nvmlSystemGetDriverVersion")),
            "nvml_version": _text(system.ask("NVML version", "nvmlSystemGetNVMLVersion")),
            "cuda_driver_version": None if not cuda else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    }
    asking("the number of GPUs")
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        yield {"error": explain(error)}
        return
    for index in range(count):
        yield {"gpu": _gpu(nvml, asking, index)}
    yield {"done": True, "trouble": trouble}


def explain(error: Any) -> dict[str, str]:
    """{kind, text} of an NVMLError."""
    number = getattr(error, "value", None)
    return {"kind": KINDS.get(number, f"nvml_error_{number}"), "text": str(error)}  # type: ignore[arg-type]


class _WholeGpu(Exception):
    """The GPU itself is what fails, so nothing more is asked of it."""


class _Questions:
    """
    :param about: what the questions are about, for progress.
    :param trouble: gets the texts of failures that are more than "not supported", by question.
    """

    def __init__(self, nvml: Any, asking: Callable[[str], None], about: str, trouble: dict[str, str]) -> None:
        self.nvml = nvml
        self.asking = asking
        self.about = about
        self.trouble = trouble

    def ask(self, what: str, function: str, *arguments: Any) -> Any:
        """The answer; None when there is none."""
        call = getattr(self.nvml, function, None)
        if call is None:
            return None
        self.asking(f"the {what}{self.about}")
        try:
            return call(*arguments)
        except self.nvml.NVMLError as error:
            number = getattr(error, "value", None)
            if number in _OF_THE_WHOLE_GPU:
                raise _WholeGpu(error) from error
            if number not in _NOT_THERE:
                self.trouble[what] = str(error)
        except Exception as error:  # a binding of another time: this answer is lost, the others are not
            self.trouble[what] = f"{type(error).__name__}: {error}"
        return None


def _gpu(nvml: Any, asking: Callable[[str], None], index: int) -> dict[str, Any]:
    trouble: dict[str, str] = {}
    gpu = blank(index)
    gpu["trouble"] = trouble
    asking(f"GPU {index} for a handle")
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        gpu["error"] = explain(error)
        return gpu
    questions = _Questions(nvml, asking, f" of GPU {index}", trouble)
    try:
        _fill(gpu, questions, handle)
    except _WholeGpu as whole:
        gpu["error"] = explain(whole.args[0])
    return gpu


def blank(index: int | None) -> dict[str, Any]:
    """All that is told of one GPU, with nothing known yet."""
    return {
        "index": index,
        "uuid": None,
        "name": None,
        "pci_bus_id": None,
        "memory_total_bytes": None,
        "memory_used_bytes": None,
        "utilization_percent": None,
        "temperature_c": None,
        "throttle_reasons": None,
        "ecc": None,
        "remapped_rows": None,
        "retired_pages": None,
        "mig_mode": None,
        "mig_devices": None,
        "persistence_mode": None,
        "processes": None,
        "error": None,
        "trouble": {},
    }


def _fill(gpu: dict[str, Any], questions: _Questions, handle: Any) -> None:
    ask = questions.ask
    pci = ask("PCI address", "nvmlDeviceGetPciInfo", handle)
    if pci is not None:
        gpu["pci_bus_id"] = pci_bus_id(_text(pci.busId))
        if gpu["pci_bus_id"] is not None:
            questions.about += f" ({gpu['pci_bus_id']})"
    gpu["uuid"] = _text(ask("UUID", "nvmlDeviceGetUUID", handle))
    gpu["name"] = _text(ask("name", "nvmlDeviceGetName", handle))
    memory = None
    version = getattr(questions.nvml, "nvmlMemory_v2", None)
    if version is not None:  # the older form counts what the driver keeps for itself as used
        memory = ask("memory", "nvmlDeviceGetMemoryInfo", handle, version)
    if memory is None:
        memory = ask("memory", "nvmlDeviceGetMemoryInfo", handle)
    if memory is not None:
        questions.trouble.pop("memory", None)
        gpu["memory_total_bytes"], gpu["memory_used_bytes"] = int(memory.total), int(memory.used)
    utilization = ask("utilization", "nvmlDeviceGetUtilizationRates", handle)
    if utilization is not None:
        gpu["utilization_percent"] = int(utilization.gpu)
    gpu["temperature_c"] = _first(
        ask, "temperature", ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), handle, 0
    )
    reasons = _first(
        ask,
        "clocks event reasons",
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        handle,
    )
    gpu["throttle_reasons"] = None if reasons is None else throttle_reasons(int(reasons))
    gpu["ecc"] = _known(
        {
            f"{error}_{counter}": ask(f"{counter} {error} ECC errors", "nvmlDeviceGetTotalEccErrors", handle, *numbers)
            for error, counter, numbers in (
                ("corrected", "volatile", (0, 0)),
                ("uncorrected", "volatile", (1, 0)),
                ("corrected", "aggregate", (0, 1)),
                ("uncorrected", "aggregate", (1, 1)),
            )
        }
    )
    rows = ask("remapped rows", "nvmlDeviceGetRemappedRows", handle)
    if rows is not None:
        correctable, uncorrectable, pending, failure = rows
        gpu["remapped_rows"] = {
            "correctable": int(correctable),
            "uncorrectable": int(uncorrectable),
            "pending": bool(pending),
            "failure": bool(failure),
        }
    single = ask("pages retired for single-bit errors", "nvmlDeviceGetRetiredPages", handle, 0)
    double = ask("pages retired for double-bit errors", "nvmlDeviceGetRetiredPages", handle, 1)
    pending = ask("pending page retirement", "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    gpu["retired_pages"] = _known(
        {
            "single_bit": None if single is None else len(single),
            "double_bit": None if double is None else len(double),
            "pending": None if pending is None else bool(pending),
        }
    )
    mode = ask("MIG mode", "nvmlDeviceGetMigMode", handle)
    gpu["mig_mode"] = None if mode is None else bool(mode[0])
    if gpu["mig_mode"]:
        gpu["mig_devices"] = _mig_devices(ask, handle)
    persistence = ask("persistence mode", "nvmlDeviceGetPersistenceMode", handle)
    gpu["persistence_mode"] = None if persistence is None else bool(persistence)
    processes = ask("compute processes", "nvmlDeviceGetComputeRunningProcesses", handle)
    if processes is not None:
        gpu["processes"] = [
            {"pid": int(one.pid), "used_bytes": None if one.usedGpuMemory is None else int(one.usedGpuMemory)}
            for one in processes[:_MAX_PROCESSES]
        ]


def _mig_devices(ask: Callable[..., Any], handle: Any) -> list[str] | None:
    most = ask("number of MIG devices", "nvmlDeviceGetMaxMigDeviceCount", handle)
    if most is None:
        return None
    found = []
    for number in range(min(int(most), _MAX_MIG_DEVICES)):
        device = ask(f"MIG device {number}", "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = None if device is None else _text(ask(f"UUID of MIG device {number}", "nvmlDeviceGetUUID", device))
        if uuid is not None:
            found.append(uuid)
    return found


def _first(ask: Callable[..., Any], what: str, functions: tuple[str, ...], *arguments: Any) -> Any:
    for function in functions:
        answer = ask(what, function, *arguments)
        if answer is not None:
            return answer
    return None


def _known(values: dict[str, Any]) -> dict[str, Any] | None:
    """None when nothing of it is known."""
    return None if all(value is None for value in values.values()) else values


def _text(value: Any) -> str | None:
    """Older bindings give bytes."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def throttle_reasons(bits: int) -> list[str]:
    """Names of the reasons why clocks are held down; bits that have no name here as hexadecimal numbers."""
    names = [name for bit, name in THROTTLE_REASONS if bits & bit]
    rest = bits & ~sum(bit for bit, _ in THROTTLE_REASONS)
    return names + ([hex(rest)] if rest else [])


def pci_bus_id(text: str | None) -> str | None:
    """
    A PCI address as the kernel writes it (``0000:3b:00.0``); NVML and nvidia-smi write eight digits and capitals.
    None when it is none.
    """
    parts = (text or "").strip().lower().split(":")
    try:
        domain, bus, (device, _, function) = int(parts[-3], 16), int(parts[-2], 16), parts[-1].partition(".")
        return f"{domain:04x}:{bus:02x}:{int(device, 16):02x}.{int(function or '0', 16):x}"
    except (IndexError, ValueError):
        return None

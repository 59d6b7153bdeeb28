"""The GPUs of this host as their driver sees them, asked so that a driver that hangs or crashes cannot harm the asker.

NVML is read in a process of its own (``probe_gpu_nvml``), through the module ``pynvml``, which lies beside the package
in the archive that travels to hosts. Where that is not possible ``nvidia-smi`` is asked. Everything is bounded in time
and size; where no NVIDIA driver is, nothing is started at all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import util
from typing import Any, Mapping

from gpualert import probe_gpu_smi, procfs
from gpualert.probe_gpu_compare import compare
from gpualert.probe_gpu_nvml import pci_bus_id
from gpualert.probe_gpu_process import ENDED, HANGS, MISSING, Said, ask
from gpualert.probe_gpu_visible import environment_of, visible

LIBRARY = "libnvidia-ml.so.1"
#: The kernel's number of the first pid namespace (PROC_PID_INIT_INO). In another one the driver may give foreign pids.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_DRIVER_FOLDER = "/proc/driver/nvidia"
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # the second one: GPUs of a Windows host in WSL
#: Where the loader looks by itself.
_USUAL_PLACES = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
)
#: Where some systems keep it out of the loader's sight: container hosts, WSL, NixOS.
_OTHER_PLACES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/run/opengl-driver/lib")
_SMI_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/run/current-system/sw/bin")

_PROGRAM = "import sys; sys.path += sys.argv[1:-1]; from gpualert.probe_gpu_nvml import main; main(sys.argv[-1])"
#: After these words of NVML nvidia-smi has nothing to add, since it asks the same library.
_FINAL = frozenset(
    ("blocked", "driver_mismatch", "driver_not_loaded", "insufficient_power", "no_permission", "timeout")
)


def snapshot(timeout_s: float, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """
    What can be seen of the GPUs now.

    :param timeout_s: bound for everything together; passed by a few tenths of a second at most.
    :param environ: the run's own environment, or those variables of it that choose GPUs (``environment_of``); for
        ``visible``.
    :return: {"seen": {``source`` (nvml or nvidia-smi), ``driver_version``, ``nvml_version``, ``cuda_driver_version``,
        ``gpus`` (as of ``probe_gpu_nvml.blank``; None where the driver does not say), ``trouble``, ``visible`` (see
        ``probe_gpu_visible``; None without ``environ``), ``complete`` (no GPU that the driver knows is missing from
        ``gpus``), ``host_pids`` (the pids of ``processes`` mean what they mean here)}}; or {"not_seen": why, for
        people, "kind": a stable word}: ``no_driver``, ``timeout``, ``crashed``, ``no_pynvml``, one of
        ``probe_gpu_nvml.KINDS``, or another word for what failed. Never raises.
    """
    until = time.monotonic() + timeout_s
    try:
        entry = _look(until, timeout_s)
    except Exception as error:
        return _not_seen("failed", f"{type(error).__name__}: {error}")
    if "seen" in entry:
        seen = entry["seen"]
        seen["host_pids"] = procfs.pid_namespace() == _FIRST_PID_NAMESPACE
        _name_processes(seen["gpus"], seen["host_pids"])
        seen["visible"] = None if environ is None else visible(environ, seen)
    return entry


def _look(until: float, timeout_s: float) -> dict[str, Any]:
    library, smi = find_library(), find_smi()
    kernel_driver = loaded_driver()
    if library is None and smi is None and kernel_driver is None and not any(map(os.path.exists, _DEVICES)):
        return _not_seen("no_driver", "no NVIDIA driver on this host")
    entry = _ask_nvml(until, timeout_s, library)
    if "seen" in entry or entry["kind"] in _FINAL or smi is None:
        return _with_versions(entry, library, kernel_driver)
    second = _ask_smi(smi, until)
    if "seen" in second or entry["kind"] in ("no_pynvml", "no_library"):
        entry = second
    return _with_versions(entry, library, kernel_driver)


# -- what there is, without asking the driver


def find_library() -> str | None:
    """The path of NVML's library; None where it is in no place that is known here."""
    named = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(path)]
    for folder in (*named, *_USUAL_PLACES, *_OTHER_PLACES):
        path = os.path.join(folder, LIBRARY)
        if os.path.exists(path):
            return path
    return None


def find_smi() -> str | None:
    """The path of nvidia-smi; None where there is none."""
    on_path = [path for path in os.environ.get("PATH", "").split(":") if os.path.isabs(path)]
    for folder in (*on_path, *_SMI_PLACES):
        path = os.path.join(folder, "nvidia-smi")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def loaded_driver() -> str | None:
    """The version of the loaded kernel driver, or the line that should hold it; None when none is loaded."""
    try:
        with open(f"{_DRIVER_FOLDER}/version", encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    except OSError:
        return None
    return driver_version(text)


def driver_version(text: str) -> str:
    """The version within /proc/driver/nvidia/version; the first line where none can be made out."""
    first = text.strip().splitlines()[0] if text.strip() else "of unknown version"
    for word in first.split():
        if word.replace(".", "").isdigit() and "." in word:
            return word
    return first


def find_pynvml() -> str | None:
    """What to add to ``sys.path`` so that ``import pynvml`` works: beside this package, or where it is installed."""
    try:
        spec = util.find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.dirname(folder) if os.path.basename(spec.origin) == "__init__.py" else folder


# -- NVML


def _ask_nvml(until: float, timeout_s: float, library: str | None) -> dict[str, Any]:
    binding = find_pynvml()
    if binding is None:
        return _not_seen(
            "no_pynvml", "the module pynvml (package nvidia-ml-py) is neither in the archive nor installed"
        )
    if not sys.executable:
        return _not_seen("no_pynvml", "it is not known which Python runs here, so none can be started to ask NVML")
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    left = max(0.0, until - time.monotonic())
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-X",
        "utf8",
        "-c",
        _PROGRAM,
        *dict.fromkeys((ours, binding)),
        f"{left + 1:.3f}",
    ]
    return read_nvml(ask(argv, until, _environment(library)), timeout_s)


def _environment(library: str | None) -> dict[str, str]:
    """Ours, in a language that can be read, and with the library where the loader would not look."""
    environment = dict(os.environ, LC_ALL="C")
    folder = os.path.dirname(library) if library is not None else ""
    if folder in _OTHER_PLACES:
        searched = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
        environment["LD_LIBRARY_PATH"] = ":".join([*searched, folder])
    return environment


def read_nvml(said: Said, timeout_s: float) -> dict[str, Any]:
    """The entry made of what ``probe_gpu_nvml`` said."""
    seen: dict[str, Any] = {"source": "nvml", "gpus": [], "complete": True, "trouble": {}}
    done, asked_last, noise = False, "", ""
    for line in said.text.splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "?":
            asked_last = rest
        elif mark == "=":
            try:
                fact = json.loads(rest)
            except ValueError:  # cut by its end
                continue
            if "error" in fact:
                return _not_seen(fact["error"]["kind"], f"NVML: {fact['error']['text']}")
            if "gpu" in fact:
                seen["gpus"].append(fact["gpu"])
            elif "driver" in fact:
                seen.update(fact["driver"])
            else:
                done, seen["trouble"] = True, fact["trouble"]
        elif rest:
            noise = line
    if done:
        return {"seen": seen}
    where = f" (asked last for {asked_last})" if asked_last else ""
    if said.how == HANGS or said.status == -signal.SIGALRM:
        return _not_seen("timeout", f"NVML did not answer within {timeout_s:g} s{where}; the driver is slow or hangs")
    if said.how == MISSING:
        return _not_seen("no_pynvml", f"{sys.executable} cannot be started: {said.text[:200]}")
    if said.how == ENDED and said.status is not None and said.status < 0:
        return _not_seen("crashed", f"NVML crashed with {_signal_name(-said.status)}{where}")
    return _not_seen(
        "crashed", f"the process that asks NVML ended with {said.status}{where}: {noise[:200] or 'no word'}"
    )


# -- nvidia-smi


def _ask_smi(smi: str, until: float) -> dict[str, Any]:
    environment = dict(os.environ, LC_ALL="C")
    answer: dict[str, Any] = {}
    for fields in probe_gpu_smi.FIELD_LISTS:
        said = ask([smi, *probe_gpu_smi.gpu_query(fields)], until, environment)
        if said.how == HANGS:
            return _not_seen("timeout", "nvidia-smi did not answer in time; the driver is slow or hangs")
        if said.how != ENDED:
            return _not_seen("nvidia_smi_failed", f"{smi}: {said.how}: {said.text[:200]}")
        answer = probe_gpu_smi.parse(said.text, said.status, fields)
        if "gpus" in answer or probe_gpu_smi.refused_field(said.text) is None:
            break
    if "error" in answer:
        return _not_seen(answer["error"]["kind"], answer["error"]["text"])
    seen = {"source": "nvidia-smi", "nvml_version": None, "cuda_driver_version": None, "trouble": {}, **answer}
    if any(gpu["error"] is None for gpu in answer["gpus"]):
        said = ask([smi, *probe_gpu_smi.process_query()], until, environment)
        if said.how == ENDED and said.status == 0:
            processes = probe_gpu_smi.parse_processes(said.text)
            for gpu in answer["gpus"]:
                if gpu["uuid"] is not None:
                    gpu["processes"] = processes.get(gpu["uuid"], [])
        else:
            seen["trouble"]["compute processes"] = "nvidia-smi did not say" if said.how == ENDED else f"it {said.how}"
    return {"seen": seen}


# -- putting it together


def _with_versions(entry: dict[str, Any], library: str | None, kernel_driver: str | None) -> dict[str, Any]:
    if "seen" in entry:
        seen = entry["seen"]
        seen["driver_version"] = seen.get("driver_version") or kernel_driver
        _add_addresses(seen["gpus"])
        return entry
    if entry["kind"] == "driver_mismatch":
        there = "of another version" if library is None else _library_version(library)
        entry["not_seen"] += (
            f": the loaded kernel driver is {kernel_driver or 'of unknown version'}, the library on disk is {there};"
            " it was updated while the old driver stayed loaded, and a reboot ends that"
        )
    elif entry["kind"] == "no_library" and kernel_driver is not None:
        entry["not_seen"] += (
            f": the kernel driver {kernel_driver} is loaded, but {LIBRARY} is not here (a container without its GPUs?)"
        )
    return entry


def _library_version(path: str) -> str:
    """The library's file name ends in the driver's version, once links are followed."""
    name = os.path.basename(os.path.realpath(path))
    version = name.partition(".so.")[2]
    return version if "." in version else "of unknown version"


def _add_addresses(gpus: list[dict[str, Any]]) -> None:
    """A GPU that gives no handle has no address; NVML counts in the order of the kernel's list, so that has it."""
    if all(gpu["pci_bus_id"] is not None for gpu in gpus):
        return
    try:
        names = sorted(filter(None, (pci_bus_id(name) for name in os.listdir(f"{_DRIVER_FOLDER}/gpus"))))
    except OSError:
        return
    known = {gpu["pci_bus_id"] for gpu in gpus}
    if len(names) != len(gpus) or any(gpu["pci_bus_id"] not in (None, names[place]) for place, gpu in enumerate(gpus)):
        return
    for place, gpu in enumerate(gpus):
        if gpu["pci_bus_id"] is None and names[place] not in known:
            gpu["pci_bus_id"] = names[place]


def _name_processes(gpus: list[dict[str, Any]], host_pids: bool) -> None:
    """Adds ``command`` and ``uid`` to each; None for one that is gone, and where pids may mean other processes."""
    for gpu in gpus:
        for process in gpu["processes"] or ():
            process["command"] = process["uid"] = None
            if not host_pids:
                continue
            found = procfs.stat(process["pid"])
            process["command"] = None if found is None else found.command
            try:
                process["uid"] = os.stat(f"/proc/{process['pid']}").st_uid
            except OSError:
                pass


def _not_seen(kind: str, why: str) -> dict[str, Any]:
    return {"not_seen": why, "kind": kind}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


__all__ = ["compare", "environment_of", "snapshot", "visible"]

"""Which of a host's GPUs a run could use, from the environment that it was given.

Source: "CUDA environment variables" of the CUDA C++ programming guide: ``CUDA_VISIBLE_DEVICES`` lists numbers, UUIDs or
beginnings of UUIDs; the first entry that names no GPU hides all behind it.
"""

from __future__ import annotations

from typing import Any, Mapping

#: The variables of a run that are looked at.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def environment_of(pid: int) -> dict[str, str] | None:
    """Those of :data:`VARIABLES` that a process was started with; None when that cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read(1024 * 1024).split(b"\0")
    except OSError:
        return None
    found = {}
    for entry in entries:
        name, _, value = entry.partition(b"=")
        if name.decode("utf-8", "replace") in VARIABLES:
            found[name.decode()] = value.decode("utf-8", "replace")
    return found


def visible(environ: Mapping[str, str], seen: Mapping[str, Any]) -> dict[str, Any]:
    """
    :param environ: the run's environment.
    :param seen: what ``probe_gpu.snapshot`` saw.
    :return: {"asked": value of CUDA_VISIBLE_DEVICES, None when it is not set (all GPUs); "indices": NVML's numbers of
        the GPUs that the run could use, in their order, None when that cannot be told; "why": what could not be
        told, None when all could}.
    """
    gpus = [gpu for gpu in seen["gpus"] if gpu["index"] is not None]
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return _told(None, [gpu["index"] for gpu in gpus])
    indices: list[int] = []
    for entry in (part.strip() for part in asked.split(",")):
        if entry.lstrip("+-").isdigit():
            number = int(entry)
            if not 0 <= number < len(gpus):
                break
            if not _numbered_alike(environ, gpus):
                why = "CUDA numbers GPUs of different models by speed, unlike NVML, unless CUDA_DEVICE_ORDER=PCI_BUS_ID"
                return {"asked": asked, "indices": None, "why": why}
            index: int | None = sorted(gpu["index"] for gpu in gpus)[number]
        elif entry.upper().startswith(("GPU-", "MIG-")):
            index = _of_uuid(entry, gpus)
            if index is None and any(gpu["uuid"] is None for gpu in gpus):
                return {"asked": asked, "indices": None, "why": f"no GPU told that it is {entry}, but not all told"}
            if index is None and entry.upper().startswith("MIG-") and _mig_unknown(gpus):
                return {"asked": asked, "indices": None, "why": f"it is not known which GPU holds {entry}"}
            if index is None:
                break
        else:  # "NoDevFiles", or nothing
            break
        if index is not None and index not in indices:
            indices.append(index)
    return _told(asked, indices)


def _told(asked: str | None, indices: list[int]) -> dict[str, Any]:
    return {"asked": asked, "indices": indices, "why": None}


def _numbered_alike(environ: Mapping[str, str], gpus: list[Any]) -> bool:
    names = {gpu["name"] for gpu in gpus}
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or (len(names) == 1 and None not in names)


def _of_uuid(entry: str, gpus: list[Any]) -> int | None:
    wanted = entry.lower()
    if wanted.startswith("mig-gpu-"):  # older drivers: MIG-GPU-<uuid>/<instance>/<instance>
        wanted = wanted[len("mig-") :].partition("/")[0]
    found = [
        gpu["index"]
        for gpu in gpus
        if any(uuid.lower().startswith(wanted) for uuid in (gpu["uuid"], *(gpu["mig_devices"] or ())) if uuid)
    ]
    return found[0] if len(found) == 1 else None


def _mig_unknown(gpus: list[Any]) -> bool:
    return any(gpu["mig_mode"] is not False and gpu["mig_devices"] is None for gpu in gpus)

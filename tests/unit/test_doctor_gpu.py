"""What is said about GPUs of hosts that are not here; their answers are given as values."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpualert import doctor_gpu
from gpualert.doctor import OK, PROBLEM, UNKNOWN, WARNING, Finding
from gpualert.probe_gpu_nvml import blank

GIB = 1024**3
NO_DRIVER = {"not_seen": "no NVIDIA driver on this host", "kind": "no_driver"}


def gpu(number: int, /, **what: Any) -> dict[str, Any]:
    healthy = {
        "name": "NVIDIA H100",
        "pci_bus_id": f"0000:{number:02x}:00.0",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 0,
        "processes": [],
    }
    return {**blank(number), **healthy, **what}


def seen(*gpus: dict[str, Any]) -> dict[str, Any]:
    return {"seen": {"driver_version": "550.54.15", "cuda_driver_version": "12.4", "gpus": list(gpus)}}


def judge(*gpus: dict[str, Any]) -> list[Finding]:
    return doctor_gpu.judge(len(gpus), "550.54.15", seen(*gpus))


@pytest.mark.parametrize(
    ("devices", "driver", "kind", "status"),
    [
        (0, None, "no_driver", OK),
        (0, None, "driver_not_loaded", OK),  # a login node with the driver's libraries
        (None, None, "no_driver", UNKNOWN),
        (2, None, "no_driver", PROBLEM),
        (2, None, "driver_not_loaded", PROBLEM),
        (2, "550.54.15", "driver_mismatch", PROBLEM),
        (2, "550.54.15", "timeout", PROBLEM),
        (2, "550.54.15", "crashed", PROBLEM),
        (2, "550.54.15", "unknown", PROBLEM),
        (2, "550.54.15", "no_library", WARNING),
        (2, "550.54.15", "no_permission", WARNING),
    ],
)
def test_why_nothing_was_seen_decides(devices: int | None, driver: str | None, kind: str, status: str) -> None:
    """No device is no fault; a device that cannot be used is one, and comes with advice."""
    (finding,) = doctor_gpu.judge(devices, driver, {"not_seen": f"NVML: {kind}", "kind": kind})
    assert (finding.name, finding.status) == ("gpu", status)
    assert bool(finding.advice) == (status in (PROBLEM, WARNING))
    if driver is not None:
        assert driver in finding.found and kind in finding.found


def test_gpus_in_good_order() -> None:
    """Driver, what it can run, how many of which."""
    found = judge(gpu(0), gpu(1), gpu(2, name="NVIDIA T400", memory_total_bytes=None))
    assert found == [
        Finding("gpu", OK, "driver 550.54.15, CUDA up to 12.4: 2 × NVIDIA H100 (80.0 GiB), 1 × NVIDIA T400"),
        Finding("gpu_use", OK, "no GPU's memory is in use"),
    ]


def test_a_driver_without_gpus() -> None:
    """It is a problem where the bus has some."""
    assert doctor_gpu.judge(1, "550.54.15", seen())[0].status == PROBLEM
    assert doctor_gpu.judge(0, "550.54.15", seen())[0].status == WARNING


def test_a_lost_gpu_is_named_beside_the_others() -> None:
    lost = {**blank(1), "pci_bus_id": "0000:3b:00.0", "error": {"kind": "gpu_lost", "text": "GPU is lost"}}
    good, bad, _ = judge(gpu(0), lost)
    assert good.status == OK and "1 × NVIDIA H100" in good.found
    assert bad.status == PROBLEM and "GPU 1 (0000:3b:00.0) does not answer: GPU is lost" in bad.found and bad.advice


def test_memory_in_use_has_a_name() -> None:
    """Whose process it is, or that none can be seen."""
    users = [
        {"pid": 4242, "used_bytes": 60 * GIB, "command": "python3", "uid": os.getuid()},
        {"pid": 4243, "used_bytes": None, "command": None, "uid": None},
    ]
    busy = gpu(0, memory_used_bytes=61 * GIB, processes=users)
    leaked = gpu(1, memory_used_bytes=2 * GIB)
    unknown = gpu(2, memory_used_bytes=2 * GIB, processes=None)
    finding = judge(busy, leaked, unknown, gpu(3))[-1]
    assert (finding.name, finding.status) == ("gpu_use", WARNING)
    first, second, third = finding.found.split("; ")
    assert "61.0 GiB of 80.0 GiB in use by pid 4242 (python3, " in first and first.endswith(", pid 4243")
    assert "nobody that can be seen" in second
    assert "does not name" in third
    assert "CUDA_VISIBLE_DEVICES" in str(finding.advice)


@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ({"remapped_rows": {"failure": True, "pending": False}}, PROBLEM, "could not remap"),
        ({"remapped_rows": {"failure": False, "pending": True}}, WARNING, "reset to remap rows"),
        ({"retired_pages": {"pending": True}}, WARNING, "reset to retire pages"),
        ({"ecc": {"uncorrected_volatile": 3}}, WARNING, "3 uncorrected ECC"),
        ({"throttle_reasons": ["gpu_idle", "hw_thermal_slowdown"]}, WARNING, "hw_thermal_slowdown"),
    ],
)
def test_a_gpu_that_is_not_well(what: dict[str, Any], status: str, words: str) -> None:
    _, finding, _ = judge(gpu(0, **what))
    assert (finding.name, finding.status) == ("gpu", status) and words in finding.found and finding.advice


def test_this_host_is_looked_at() -> None:
    """Whatever it has."""
    assert all(finding.name.startswith("gpu") and finding.found for finding in doctor_gpu.look())

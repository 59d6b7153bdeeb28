"""Which GPUs a run could use, what became of them between two snapshots, and what a snapshot's process said."""

from __future__ import annotations

from typing import Any

import pytest

from gpualert.probe_gpu import compare, driver_version, read_nvml, visible
from gpualert.probe_gpu_nvml import blank, pci_bus_id, read, throttle_reasons
from gpualert.probe_gpu_process import ENDED, HANGS, MISSING, TALKS_TOO_MUCH, Said

LOST = {"kind": "gpu_lost", "text": "GPU is lost"}
NOT_SEEN = {"not_seen": "no NVIDIA driver on this host", "kind": "no_driver"}


def gpu(number: int, /, **what: Any) -> dict[str, Any]:
    """One in good order, unless told otherwise."""
    healthy = {
        "uuid": f"GPU-{number:08d}-aa",
        "name": "NVIDIA H100",
        "pci_bus_id": f"0000:{number:02x}:00.0",
        "ecc": {
            "corrected_volatile": 0,
            "uncorrected_volatile": 0,
            "corrected_aggregate": 5,
            "uncorrected_aggregate": 1,
        },
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "retired_pages": None,
        "throttle_reasons": [],
        "mig_mode": False,
        "processes": [],
    }
    return {**blank(number), **healthy, **what}


def lost(index: int | None, **what: Any) -> dict[str, Any]:
    return {**blank(index), "error": LOST, **what}


def entry(*gpus: dict[str, Any], **what: Any) -> dict[str, Any]:
    seen = {"driver_version": "550.54.15", "gpus": list(gpus), "complete": True, "host_pids": True, "visible": None}
    return {"seen": {**seen, **what}}


def sees(*indices: int) -> dict[str, Any]:
    return {"asked": None, "indices": list(indices), "why": None}


QUIET: dict[str, Any] = {
    "gpu_lost": [],
    "ecc": [],
    "remapped_rows": [],
    "retired_pages": [],
    "throttled": [],
    "processes_left": [],
    "driver_mismatch": None,
    "driver_changed": None,
    "unresponsive": None,
}


# -- compare


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (entry(gpu(0), gpu(1)), entry(gpu(0), gpu(1))),
        (NOT_SEEN, NOT_SEEN),
        (NOT_SEEN, entry(gpu(0))),
        (entry(gpu(0)), {"not_seen": "NVML: Insufficient Permissions", "kind": "no_permission"}),
        (entry(), entry()),
        # Corrected errors are what ECC is for; idleness and settings are no trouble.
        (entry(gpu(0)), entry(gpu(0, ecc={**gpu(0)["ecc"], "corrected_volatile": 9}))),
        (entry(gpu(0)), entry(gpu(0, throttle_reasons=["gpu_idle", "applications_clocks_setting"]))),
        # What was not known before is not known to have grown.
        (entry(gpu(0, ecc=None)), entry(gpu(0, ecc={**gpu(0)["ecc"], "uncorrected_volatile": 9}))),
        # A driver that was loaded anew counts from 0 again.
        (entry(gpu(0, ecc={"uncorrected_volatile": 4})), entry(gpu(0))),
        # nvidia-smi gave up before it came to the second one.
        (entry(gpu(0), gpu(1)), entry(gpu(0), complete=False)),
        # One that does not say who it is may be the one that seems to be missing.
        (entry(gpu(0), gpu(1)), entry(gpu(0), gpu(1, uuid=None, pci_bus_id=None, index=None))),
    ],
)
def test_nothing_is_made_of_nothing(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Neither of what is as it was, nor of what nobody could see."""
    assert compare(before, after) == QUIET


def only(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The one item of the one list that is not empty."""
    assert {key: value for key, value in found.items() if value} == {name: found[name]}
    (item,) = found[name]
    return dict(item)


@pytest.mark.parametrize(
    ("before", "after", "kind", "index"),
    [
        (entry(gpu(0), gpu(1)), entry(gpu(0), lost(1)), "gpu_lost", 1),
        (entry(gpu(0), gpu(1)), entry(gpu(0), lost(1, pci_bus_id="0000:01:00.0")), "gpu_lost", 1),
        (
            entry(gpu(0), gpu(1)),
            entry(gpu(0), lost(1, error={"kind": "unknown", "text": "Unknown Error"})),
            "unknown",
            1,
        ),
        (entry(gpu(0), gpu(1)), entry(lost(None, pci_bus_id="0000:01:00.0"), complete=False), "gpu_lost", 1),
        (entry(gpu(0), gpu(1)), entry(gpu(1, index=0)), "gone", 0),
        (entry(gpu(0)), entry(), "gone", 0),
        (NOT_SEEN, entry(gpu(0), lost(1)), "gpu_lost", 1),
        (entry(gpu(0)), {"not_seen": "NVML: GPU is lost", "kind": "gpu_lost"}, "gpu_lost", None),
    ],
)
def test_a_lost_gpu(before: dict[str, Any], after: dict[str, Any], kind: str, index: int | None) -> None:
    """It gives errors, or is not listed any more (then the others have new numbers); it is named as it was before."""
    item = only(compare(before, after), "gpu_lost")
    assert (item["kind"], item["index"], item["already"]) == (kind, index, False)


def test_a_gpu_that_was_lost_before() -> None:
    """It did not get lost during the run."""
    item = only(compare(entry(gpu(0), lost(1)), entry(gpu(0), lost(1))), "gpu_lost")
    assert item["already"] is True


def test_a_gpu_that_may_not_be_asked_is_not_lost() -> None:
    """Another container's, for example."""
    locked = {**blank(1), "error": {"kind": "no_permission", "text": "Insufficient Permissions"}}
    assert compare(entry(gpu(0), locked), entry(gpu(0), locked)) == QUIET


@pytest.mark.parametrize(
    ("visible_", "used"), [(sees(0), False), (sees(1, 0), True), ({"asked": "1", "indices": None, "why": "?"}, None)]
)
def test_whether_the_run_used_it(visible_: dict[str, Any], used: bool | None) -> None:
    """By the numbers of the snapshot in which they were told."""
    before, after = entry(gpu(0), gpu(1), visible=visible_), entry(gpu(0), lost(1))
    assert only(compare(before, after), "gpu_lost")["used"] is used


def test_whether_the_run_used_it_when_numbers_have_moved() -> None:
    """GPU 0 is gone, so the one that was 1 is 0 now."""
    before = entry(gpu(0), gpu(1), visible=sees(1))
    after = entry(gpu(1, index=0, throttle_reasons=["hw_slowdown"]), visible=sees(0))
    found = compare(before, after)
    assert [(item["index"], item["used"]) for item in found["gpu_lost"]] == [(0, False)]
    assert [item["used"] for item in found["throttled"]] == [True]


def test_uncorrected_errors_have_grown() -> None:
    """By which counter, from what to what."""
    new = {**gpu(0)["ecc"], "uncorrected_volatile": 2}
    item = only(compare(entry(gpu(0)), entry(gpu(0, ecc=new))), "ecc")
    assert (item["counter"], item["before"], item["after"]) == ("uncorrected_volatile", 0, 2)
    assert item["text"].startswith("GPU 0 (0000:00:00.0, NVIDIA H100) counts 2 new uncorrected ECC error(s)")


def test_rows_are_remapped() -> None:
    """Counts that grew, and states whenever they hold."""
    before = entry(gpu(0), gpu(1, remapped_rows=None))
    rows = {"correctable": 0, "uncorrectable": 1, "pending": True, "failure": True}
    after = entry(gpu(0, remapped_rows=rows), gpu(1, remapped_rows=rows))
    found = compare(before, after)["remapped_rows"]
    assert [(item["index"], item["what"], item["before"], item["after"]) for item in found] == [
        (0, "uncorrectable", 0, 1),
        (0, "pending", False, True),
        (0, "failure", False, True),
        (1, "pending", None, True),
        (1, "failure", None, True),
    ]
    again = compare(after, after)["remapped_rows"]
    assert all(item["before"] is True and "already before the run" in item["text"] for item in again)


def test_pages_are_retired() -> None:
    """As GPUs before the A100 do."""
    old = gpu(0, retired_pages={"single_bit": 1, "double_bit": 0, "pending": False})
    new = gpu(0, retired_pages={"single_bit": 1, "double_bit": 1, "pending": True})
    found = compare(entry(old), entry(new))["retired_pages"]
    assert [(item["what"], item["after"]) for item in found] == [("double_bit", 1), ("pending", True)]


def test_clocks_are_held_down() -> None:
    """Only reasons that say that the hardware cannot keep up."""
    hot = gpu(0, throttle_reasons=["gpu_idle", "hw_thermal_slowdown"], temperature_c=92)
    item = only(compare(entry(gpu(0)), entry(hot)), "throttled")
    assert item["reasons"] == ["hw_thermal_slowdown"]
    assert "92 °C" in item["text"]


def test_processes_of_the_run_are_left() -> None:
    """Strangers' are not; and in a container a pid may be anybody's."""
    busy = gpu(0, processes=[{"pid": 7, "used_bytes": 5}, {"pid": 8, "used_bytes": 6}])
    item = only(compare(entry(gpu(0)), entry(busy), known_pids=(7, 9)), "processes_left")
    assert (item["pid"], item["used_bytes"]) == (7, 5)
    assert compare(entry(gpu(0)), entry(busy, host_pids=False), known_pids=(7,)) == QUIET


def test_a_snapshot_of_another_version_may_lack_what_is_told_today() -> None:
    """Then it is not known; nothing is raised."""
    poor = {"seen": {"gpus": [{"index": 0, "uuid": "GPU-1"}], "complete": True}}
    assert compare(poor, poor) == QUIET
    assert only(compare(poor, {"seen": {"gpus": [], "complete": True}}), "gpu_lost")["kind"] == "gone"


def test_the_driver_was_changed() -> None:
    """Replaced and loaded, replaced and not loaded, or taken away."""
    before = entry(gpu(0))
    assert "550.54.15 before the run and is 550.90.07" in str(
        compare(before, entry(gpu(0), driver_version="550.90.07"))["driver_changed"]
    )
    mismatch = {"not_seen": "NVML: version mismatch", "kind": "driver_mismatch"}
    assert compare(before, mismatch)["driver_mismatch"] == "NVML: version mismatch"
    gone = {"not_seen": "NVML: Driver Not Loaded", "kind": "driver_not_loaded"}
    assert "not any more" in str(compare(before, gone)["driver_changed"])
    assert compare(NOT_SEEN, gone) == QUIET


def test_the_driver_does_not_answer_any_more() -> None:
    """It did before; if it never did, that is no news."""
    silent = {"not_seen": "NVML did not answer within 3 s", "kind": "timeout"}
    assert compare(entry(gpu(0)), silent)["unresponsive"] == "NVML did not answer within 3 s"
    assert compare(silent, silent) == QUIET


# -- visible

FOUR = {"gpus": [gpu(index) for index in range(4)]}
MIXED = {"gpus": [gpu(0), gpu(1, name="NVIDIA T400")]}
MIG = {"gpus": [gpu(0), gpu(1, mig_mode=True, mig_devices=["MIG-aaaa", "MIG-bbbb"])]}


@pytest.mark.parametrize(
    ("asked", "seen", "indices"),
    [
        (None, FOUR, [0, 1, 2, 3]),
        ("2", FOUR, [2]),
        ("3, 1", FOUR, [3, 1]),
        ("", FOUR, []),
        ("NoDevFiles", FOUR, []),
        ("-1", FOUR, []),
        ("0,9,1", FOUR, [0]),  # what follows a wrong one is hidden
        ("1,-1,2", FOUR, [1]),
        ("GPU-00000002", FOUR, [2]),
        ("gpu-00000002-AA,0", FOUR, [2, 0]),
        ("GPU-0000000", FOUR, []),  # begins like several
        ("GPU-77", FOUR, []),
        ("MIG-bbbb", MIG, [1]),
        ("MIG-GPU-00000001-aa/3/0", MIG, [1]),
        ("0", MIXED, None),
        ("GPU-00000001", MIXED, [1]),
        ("MIG-cccc", {"gpus": [gpu(0, mig_mode=True, mig_devices=None)]}, None),
        ("GPU-77", {"gpus": [gpu(0, uuid=None)]}, None),
    ],
)
def test_cuda_visible_devices(asked: str | None, seen: dict[str, Any], indices: list[int] | None) -> None:
    """Read as CUDA reads it; where that cannot be known, it is not guessed, and the reason is given."""
    environ = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
    found = visible(environ, seen)
    assert (found["asked"], found["indices"]) == (asked, indices)
    assert (found["why"] is None) == (indices is not None)


def test_numbers_by_address() -> None:
    """With this order CUDA counts as NVML does, whatever the models."""
    assert visible({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED)["indices"] == [1]


# -- what the asking process said


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (Said(HANGS, None, b"? NVML to start\n"), "timeout", "within 3 s (asked last for NVML to start)"),
        (Said(ENDED, -14, b"? the name of GPU 3\n"), "timeout", "the name of GPU 3"),
        (Said(ENDED, -11, b"? the name of GPU 3\n"), "crashed", "SIGSEGV (asked last for the name of GPU 3)"),
        (Said(ENDED, 1, b"Traceback\nImportError: no\n"), "crashed", "ended with 1: ImportError: no"),
        (Said(ENDED, 0, b""), "crashed", "no word"),
        (Said(MISSING, None, b"No such file or directory"), "no_pynvml", "cannot be started"),
        (Said(TALKS_TOO_MUCH, None, b"x y\n" * 9), "crashed", ""),
        (
            Said(ENDED, 0, b'= {"error": {"kind": "unknown", "text": "Unknown Error"}}\n'),
            "unknown",
            "NVML: Unknown Error",
        ),
        (Said(HANGS, None, b'= {"driver": {}}\n= {"gpu": {"ind'), "timeout", ""),
    ],
)
def test_what_went_wrong_is_told(said: Said, kind: str, words: str) -> None:
    """Where it stood when it hung or died; half a line is no line."""
    entry = read_nvml(said, 3.0)
    assert entry["kind"] == kind
    assert words in entry["not_seen"]


def test_noise_of_a_library_is_passed_over() -> None:
    """It may print to standard error; what is ours is marked."""
    lines = ["loader: 1", '= {"driver": {}}', "noise", '= {"gpu": {"index": 0}}', '= {"done": true, "trouble": {}}', ""]
    assert read_nvml(Said(ENDED, 0, "\n".join(lines).encode()), 3.0)["seen"]["gpus"] == [{"index": 0}]


class OldBinding:
    """As much of a module ``pynvml`` as there was ten years ago: bytes for strings, few functions."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 1)
    nvmlSystemGetDriverVersion = staticmethod(lambda: b"340.29")
    nvmlSystemGetNVMLVersion = staticmethod(lambda: b"6.340.29")
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetName = staticmethod(lambda handle: b"Tesla K80")

    @staticmethod
    def nvmlDeviceGetUUID(handle: int) -> bytes:
        raise OldBinding.NVMLError(3)

    @staticmethod
    def nvmlDeviceGetTemperature(handle: int) -> int:  # the second argument came later
        return 40


def test_an_old_binding_loses_only_what_it_cannot_do() -> None:
    """Another one may be installed where the local form runs."""
    asked: list[str] = []
    driver, told, done = read(OldBinding, asked.append)
    assert driver == {"driver": {"driver_version": "340.29", "nvml_version": "6.340.29", "cuda_driver_version": None}}
    assert {**told["gpu"], "trouble": {}} == {**blank(0), "name": "Tesla K80"}
    assert list(told["gpu"]["trouble"]) == ["temperature"] and "TypeError" in told["gpu"]["trouble"]["temperature"]
    assert done == {"done": True, "trouble": {}}
    assert "the name of GPU 0" in asked


# -- words


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:AF:1F.1", "10000:af:1f.1"),
        ("", None),
        (None, None),
        ("[N/A]", None),
        ("nonsense:zz:00.0", None),
    ],
)
def test_addresses_are_written_as_the_kernel_does(text: str | None, address: str | None) -> None:
    """So that they meet Xid lines and /proc."""
    assert pci_bus_id(text) == address


def test_throttle_reasons_have_names() -> None:
    """Also those that nobody has named yet."""
    assert throttle_reasons(0) == []
    assert throttle_reasons(0x4 | 0x40 | 0x8000) == ["sw_power_cap", "hw_thermal_slowdown", "0x8000"]


def test_the_loaded_drivers_version() -> None:
    """Closed and open kernel modules say it in different words."""
    closed = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: gcc\n"
    )
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (a@b)  Thu Jan\n"
    assert (driver_version(closed), driver_version(opened)) == ("550.54.15", "570.86.15")
    assert driver_version("") == "of unknown version"

"""What nvidia-smi of several driver generations prints, and what it is taken to mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert import probe_gpu_smi
from gpualert.probe_gpu_smi import FIELD_LISTS, gpu_query, parse, parse_processes, refused_field

NEW, MIDDLE, BASIC = FIELD_LISTS
MIB = 1024**2


def test_each_list_asks_for_less() -> None:
    """What every nvidia-smi knows is in all of them, and comes last alone."""
    assert set(BASIC) < set(NEW) and set(BASIC) < set(MIDDLE)
    assert len(NEW) > len(MIDDLE) > len(BASIC)
    assert gpu_query(BASIC)[0].startswith("--query-gpu=index,uuid,name,pci.bus_id,driver_version,")


def test_a_data_centre_gpu_of_a_new_driver() -> None:
    """Driver 550: all fields are there; pages are not retired any more."""
    text = (
        "0, GPU-8c0e, NVIDIA H100 80GB HBM3, 00000000:1B:00.0, 550.54.15, 81559, 79321, 100, 66, Enabled, "
        "1, 0, 12, 0, [N/A], [N/A], [N/A], 0x0000000000000004, Disabled, 0, 1, Yes, No\n"
    )
    found = parse(text, 0, NEW)
    assert (found["driver_version"], found["complete"]) == ("550.54.15", True)
    (gpu,) = found["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["pci_bus_id"]) == (0, "GPU-8c0e", "0000:1b:00.0")
    assert (gpu["memory_total_bytes"], gpu["memory_used_bytes"]) == (81559 * MIB, 79321 * MIB)
    assert (gpu["utilization_percent"], gpu["temperature_c"]) == (100, 66)
    assert gpu["ecc"] == {
        "corrected_volatile": 1,
        "uncorrected_volatile": 0,
        "corrected_aggregate": 12,
        "uncorrected_aggregate": 0,
    }
    assert gpu["remapped_rows"] == {"correctable": 0, "uncorrectable": 1, "pending": True, "failure": False}
    assert gpu["retired_pages"] is None
    assert gpu["throttle_reasons"] == ["sw_power_cap"]
    assert (gpu["persistence_mode"], gpu["mig_mode"]) == (True, False)
    assert (gpu["error"], gpu["trouble"]) == (None, {})


def test_a_workstation_gpu_knows_less() -> None:
    """Driver 535 on a GeForce: no ECC, no MIG, no remapping; not known is None."""
    text = (
        "0, GPU-11, NVIDIA GeForce RTX 3090, 00000000:0A:00.0, 535.183.01, 24576, 10, 0, 34, Disabled, [N/A], [N/A], "
        "[N/A], [N/A], [N/A], [N/A], [N/A], 0x0000000000000001, [N/A], [N/A], [N/A], [N/A], [N/A]\n"
    )
    (gpu,) = parse(text, 0, NEW)["gpus"]
    assert gpu["ecc"] is gpu["remapped_rows"] is gpu["retired_pages"] is gpu["mig_mode"] is None
    assert gpu["throttle_reasons"] == ["gpu_idle"]
    assert gpu["trouble"] == {}


def test_a_gpu_of_before_row_remapping() -> None:
    """Driver 418 on a V100: pages are retired, and the words are older."""
    text = (
        "1, GPU-22, Tesla V100-SXM2-16GB, 00000000:16:00.0, 418.87.00, 16130, 0, 0, 38, Enabled, 0, 0, 5, 1, 2, 1, "
        "Yes, 0x0000000000000000\n"
    )
    (gpu,) = parse(text, 0, MIDDLE)["gpus"]
    assert gpu["retired_pages"] == {"single_bit": 2, "double_bit": 1, "pending": True}
    assert gpu["throttle_reasons"] == [] and gpu["remapped_rows"] is None


def test_a_very_old_driver() -> None:
    """Driver 340: [Not Supported], and units although none were asked for."""
    text = "0, GPU-33, GeForce GTX 680, 0000:01:00.0, 340.108, 2047 MiB, 15 MiB, [Not Supported], 41\n"
    (gpu,) = parse(text, 0, BASIC)["gpus"]
    assert gpu["memory_total_bytes"] == 2047 * MIB and gpu["memory_used_bytes"] == 15 * MIB
    assert gpu["utilization_percent"] is None and gpu["trouble"] == {}


def test_errors_within_a_row_are_not_values() -> None:
    """One GPU is lost, another has a sensor that fails."""
    text = (
        "0, GPU-1, NVIDIA A100, 00000000:07:00.0, 525.60.13, 40960, 0, 0, ERR!\n"
        "1, [GPU is lost], [GPU is lost], 00000000:0A:00.0, 525.60.13, [GPU is lost], [GPU is lost], [GPU is lost], "
        "[GPU is lost]\n"
        "2, GPU-3, NVIDIA A100, 00000000:0F:00.0, 525.60.13, 40960, [Unknown Error], [Insufficient Permissions], 30\n"
    )
    first, lost, third = parse(text, 0, BASIC)["gpus"]
    assert (first["temperature_c"], first["trouble"]) == (None, {"temperature.gpu": "ERR!"})
    assert lost["error"] == {"kind": "gpu_lost", "text": "GPU is lost"}
    assert (lost["uuid"], lost["pci_bus_id"], lost["memory_total_bytes"]) == (None, "0000:0a:00.0", None)
    assert third["memory_used_bytes"] is None and third["error"] is None
    assert third["trouble"] == {"memory.used": "Unknown Error", "utilization.gpu": "Insufficient Permissions"}


@pytest.mark.parametrize(
    ("text", "index", "address", "kind"),
    [
        ("Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error", None, "0000:3b:00.0", "unknown"),
        ("Unable to determine the device handle for GPU0000:65:00.0: Unknown Error", None, "0000:65:00.0", "unknown"),
        ("Unable to determine the device handle for GPU1: 0000:65:00.0: Unknown Error", 1, "0000:65:00.0", "unknown"),
        (
            "Unable to determine the device handle for gpu 0000:02:00.0: GPU is lost.  Reboot the system to recover "
            "this GPU",
            None,
            "0000:02:00.0",
            "gpu_lost",
        ),
    ],
)
def test_a_gpu_without_a_handle_is_one_that_does_not_answer(
    text: str, index: int | None, address: str, kind: str
) -> None:
    """nvidia-smi gives up there, so the GPUs that it did not come to are not taken for lost."""
    found = parse(text + "\n", 255, BASIC)
    (gpu,) = found["gpus"]
    assert (gpu["index"], gpu["pci_bus_id"], gpu["error"]["kind"]) == (index, address, kind)
    assert found["complete"] is False


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90",
            18,
            "driver_mismatch",
        ),
        ("Failed to initialize NVML: Driver Not Loaded", 9, "driver_not_loaded"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n",
            9,
            "driver_not_loaded",
        ),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12, "no_library"),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "no_permission"),
        ("Failed to initialize NVML: GPU access blocked by the operating system", 17, "blocked"),
        ("Failed to initialize NVML: Unknown Error", 255, "unknown"),
        ("Segmentation fault", 139, "nvidia_smi_failed"),
        ("", 1, "nvidia_smi_failed"),
    ],
)
def test_failures_have_names(text: str, status: int, kind: str) -> None:
    error = parse(text, status, BASIC)["error"]
    assert error["kind"] == kind
    assert (text.split("\n")[0][:40] or f"exit status {status}") in error["text"]


def test_no_device_is_an_answer() -> None:
    """The driver is there and works; it has no GPU (exit status 6)."""
    assert parse("No devices were found\n", 6, BASIC)["gpus"] == []


def test_a_field_that_is_not_known_is_named() -> None:
    """So that the next list is tried."""
    text = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
    assert refused_field(text) == "clocks_event_reasons.active"
    assert refused_field("Failed to initialize NVML: Unknown Error") is None
    assert "error" in parse(text, 2, NEW)


def test_warnings_between_rows_do_no_harm() -> None:
    """The loader and the driver print where they like."""
    text = (
        "ERROR: ld.so: object 'libjemalloc.so' from LD_PRELOAD cannot be preloaded: ignored.\n"
        "0, GPU-1, NVIDIA L4, 00000000:07:00.0, 525.60.13, 23034, 0, 0, 30\n"
        "WARNING: infoROM is corrupted at gpu 0000:07:00.0\n"
    )
    (gpu,) = parse(text, 0, BASIC)["gpus"]
    assert gpu["name"] == "NVIDIA L4"


def test_processes_by_gpu() -> None:
    """A process may use several GPUs; memory is not told on some."""
    text = "GPU-1, 4242, 998\nGPU-2, 4242, [N/A]\nGPU-2, 77, 12\nNo running processes found\n"
    assert parse_processes(text) == {
        "GPU-1": [{"pid": 4242, "used_bytes": 998 * MIB}],
        "GPU-2": [{"pid": 4242, "used_bytes": None}, {"pid": 77, "used_bytes": 12 * MIB}],
    }


@given(
    st.lists(
        st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(["0", "GPU-1", "[N/A]", "0xz", "1e999"])
    )
)
def test_whatever_it_prints_nothing_is_raised(cells: list[str]) -> None:
    """Rows of the right length with any content, and any text."""
    for fields in FIELD_LISTS:
        row = [*cells, *["7"] * len(fields)][: len(fields)]
        assert set(parse(", ".join(["0", *row[1:]]), 0, fields)) <= {"driver_version", "gpus", "complete", "error"}
    probe_gpu_smi.parse_processes(", ".join(cells))

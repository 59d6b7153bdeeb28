"""A snapshot from a real process that loads a real library, whatever that library does; and from nvidia-smi."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpualert import archive, probe_gpu, probe_gpu_process, procfs, protocol, receiver
from tests.support import needs
from tests.support.fake_nvml import FakeNvml, fake_smi
from tests.support.talk import Talk
from tests.support.waiting import wait_until

GIB = 1024**3
BOUND_S = 20.0


@pytest.fixture(autouse=True)
def no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever GPUs the machine under test has: it has none here, but for what a test puts there."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(probe_gpu, "_DRIVER_FOLDER", str(tmp_path / "proc" / "driver" / "nvidia"))
    monkeypatch.setattr(probe_gpu, "_DEVICES", (str(tmp_path / "nvidiactl"),))
    for places in ("_USUAL_PLACES", "_OTHER_PLACES", "_SMI_PLACES"):
        monkeypatch.setattr(probe_gpu, places, ())
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("PATH", str(empty))


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A library where the loader finds it."""
    monkeypatch.setenv("PATH", os.defpath)  # the compiler's
    fake = FakeNvml(tmp_path / "lib")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake.folder))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return fake


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts an nvidia-smi on PATH that is this shell script."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return lambda script: fake_smi(tmp_path / "bin", script)


def seen(timeout_s: float = BOUND_S, environ: dict[str, str] | None = None) -> dict[str, Any]:
    entry = probe_gpu.snapshot(timeout_s, environ)
    assert "seen" in entry, entry
    return dict(entry["seen"])


def kernel_driver(tmp_path: Path, version: str, *addresses: str) -> None:
    folder = tmp_path / "proc" / "driver" / "nvidia"
    for address in addresses:
        (folder / "gpus" / address).mkdir(parents=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "version").write_text(
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Jan 15 12:00:00 UTC 2025\nGCC version:  gcc\n"
    )


# -- NVML


def test_a_host_without_a_driver_answers_without_starting_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most hosts of a test farm are such; they must not pay for the question."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("something was started"))
    assert probe_gpu.snapshot(BOUND_S) == {"not_seen": "no NVIDIA driver on this host", "kind": "no_driver"}


def test_all_that_nvml_tells_is_told(nvml: FakeNvml) -> None:
    """Field by field, with units; what a GPU does not support is None, not 0."""
    nvml.says(
        "count 2\n1.name NVIDIA A100-SXM4-40GB\n1.mig 2\n1.temp 90\n1.throttle 0x60\n1.ecc_ue 3\n1.rows_ue 1\n"
        f"1.rows_pending 1\n1.pages_single 4\n1.pages_double 1\n0.procs {os.getpid()}:2048 999999999:-\n"
    )
    found = seen()
    assert found["source"] == "nvml"
    assert (found["driver_version"], found["nvml_version"]) == ("570.86.15", "12.570.86.15")
    assert found["cuda_driver_version"] == "12.8"
    first, second = found["gpus"]
    assert first == {
        "index": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "0000:1b:00.0",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": GIB,
        "utilization_percent": 97,
        "temperature_c": 61,
        "throttle_reasons": [],
        "ecc": {
            "corrected_volatile": 0,
            "uncorrected_volatile": 0,
            "corrected_aggregate": 2,
            "uncorrected_aggregate": 0,
        },
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
        "retired_pages": None,
        "mig_mode": False,
        "mig_devices": None,
        "persistence_mode": True,
        "processes": first["processes"],
        "error": None,
        "trouble": {},
    }
    ours, gone = first["processes"]
    assert (ours["pid"], ours["used_bytes"]) == (os.getpid(), 2048)
    assert gone == {"pid": 999999999, "used_bytes": None, "command": None, "uid": None}
    assert second["name"] == "NVIDIA A100-SXM4-40GB"
    assert second["throttle_reasons"] == ["sw_thermal_slowdown", "hw_thermal_slowdown"]
    assert second["ecc"]["uncorrected_volatile"] == 3
    assert second["remapped_rows"] == {"correctable": 0, "uncorrectable": 1, "pending": True, "failure": False}
    assert second["retired_pages"] == {"single_bit": 4, "double_bit": 1, "pending": None}
    assert second["mig_devices"] == [
        "MIG-00000000-0000-0000-0001-000000000000",
        "MIG-00000000-0000-0000-0001-000000000001",
    ]


def test_processes_have_names_where_their_pids_mean_something(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the driver may give the host's pids: whoever has that pid here is somebody else."""
    nvml.says(f"procs {os.getpid()}:2048\n")
    found = {}
    for namespace in ("pid:[4026531836]", "pid:[4026532999]", None):
        monkeypatch.setattr(procfs, "pid_namespace", lambda namespace=namespace: namespace)
        told = seen()
        (process,) = told["gpus"][0]["processes"]
        found[namespace] = (told["host_pids"], process["uid"], bool(process["command"]))
    assert found == {
        "pid:[4026531836]": (True, os.getuid(), True),
        "pid:[4026532999]": (False, None, False),
        None: (False, None, False),
    }


def test_one_question_that_fails_loses_only_its_own_answer(nvml: FakeNvml) -> None:
    nvml.says("error.ecc 999\nerror.util 4\nerror.mem_v2 13\nerror.event_reasons 13\nthrottle 4\n")
    (gpu,) = seen()["gpus"]
    assert gpu["ecc"] is None and gpu["utilization_percent"] is None
    assert gpu["trouble"]["utilization"] == "Insufficient Permissions"
    assert gpu["trouble"]["volatile uncorrected ECC errors"] == "Unknown Error"
    # Older drivers have only the older functions, in which what the driver keeps for itself counts as used.
    assert gpu["memory_used_bytes"] == GIB + GIB // 2
    assert gpu["throttle_reasons"] == ["sw_power_cap"]
    assert gpu["temperature_c"] == 61


def test_a_lost_gpu_is_named_and_hides_no_other(nvml: FakeNvml, tmp_path: Path) -> None:
    """Both forms: it gives a handle and no answers, or no handle; the kernel's list knows the address then."""
    kernel_driver(tmp_path, "570.86.15", "0000:1b:00.0", "0000:3b:00.0", "0000:5b:00.0")
    nvml.says("count 3\n1.error.handle 999\n2.lost 1\n")
    healthy, no_handle, lost = seen()["gpus"]
    assert healthy["error"] is None and healthy["name"]
    assert no_handle["error"] == {"kind": "unknown", "text": "Unknown Error"}
    assert no_handle["pci_bus_id"] == "0000:3b:00.0"
    assert lost["error"] == {"kind": "gpu_lost", "text": "GPU is lost"}
    assert lost["pci_bus_id"] == "0000:5b:00.0"


def test_a_mismatch_names_both_versions(nvml: FakeNvml, tmp_path: Path) -> None:
    """The one that runs and the one on disk, so that nobody has to look for them."""
    kernel_driver(tmp_path, "550.54.15")
    (nvml.folder / "libnvidia-ml.so.1").rename(nvml.folder / "libnvidia-ml.so.550.90.07")
    (nvml.folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.90.07")
    nvml.says("error.init 18\n")
    entry = probe_gpu.snapshot(BOUND_S)
    assert entry["kind"] == "driver_mismatch"
    assert "kernel driver is 550.54.15" in entry["not_seen"] and "on disk is 550.90.07" in entry["not_seen"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (4, "no_permission"),
        (8, "insufficient_power"),
        (9, "driver_not_loaded"),
        (15, "gpu_lost"),
        (17, "blocked"),
        (999, "unknown"),
        (77, "nvml_error_77"),
    ],
)
def test_errors_of_nvml_have_names(nvml: FakeNvml, number: int, kind: str) -> None:
    nvml.says(f"error.init {number}\n")
    entry = probe_gpu.snapshot(BOUND_S)
    assert entry["kind"] == kind
    assert entry["not_seen"].startswith("NVML: ")


@pytest.mark.parametrize("call", ["init", "count", "1.hang.mem"])
def test_a_driver_that_hangs_is_left_in_time(nvml: FakeNvml, call: str) -> None:
    """Where it hung is told; the process that hung is gone."""
    nvml.says(f"count 2\n{call if '.' in call else 'hang.' + call} 1\n")
    entry = probe_gpu.snapshot(3.0)
    assert entry["kind"] == "timeout", entry
    assert "did not answer within 3 s" in entry["not_seen"]
    if call == "1.hang.mem":
        assert "memory of GPU 1 (0000:3b:00.0)" in entry["not_seen"]
    wait_until(lambda: not children(), 20, "the process that asked NVML is gone")


def test_a_library_that_crashes_is_told_about(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.says("crash.rows 1\n")
    entry = probe_gpu.snapshot(BOUND_S)
    assert entry["kind"] == "crashed"
    assert "SIGSEGV" in entry["not_seen"] and "remapped rows of GPU 0" in entry["not_seen"]


def test_a_broken_library_is_no_gpu(nvml: FakeNvml) -> None:
    (nvml.folder / "libnvidia-ml.so.1").write_bytes(b"\x7fELF")
    entry = probe_gpu.snapshot(BOUND_S)
    assert entry["kind"] == "no_library"


@pytest.mark.parametrize("search_path", ["", ":", ".", "lib"])
def test_no_library_is_taken_from_the_folder_one_stands_in(
    search_path: str, nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty entry of LD_LIBRARY_PATH means the working directory, which may be anybody's."""
    kernel_driver(tmp_path, "550.54.15")
    monkeypatch.chdir(tmp_path if search_path == "lib" else nvml.folder)
    monkeypatch.setenv("LD_LIBRARY_PATH", search_path)
    assert probe_gpu.snapshot(BOUND_S)["kind"] == "no_library"


def test_no_nvidia_smi_is_taken_from_the_folder_one_stands_in(
    smi: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for PATH."""
    monkeypatch.chdir(smi(H100).parent)
    monkeypatch.setenv("PATH", ":.:")
    assert probe_gpu.snapshot(BOUND_S)["kind"] == "no_driver"


def test_the_environment_of_a_process() -> None:
    """Of which the variables that choose GPUs are read, and no other."""
    env = {"CUDA_VISIBLE_DEVICES": "1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TOKEN": "secret", "PATH": "/bin"}
    process = subprocess.Popen(["/bin/sleep", "600"], env=env)
    try:
        wait_until(lambda: probe_gpu.environment_of(process.pid), 20, "its environment is its own")
        found = probe_gpu.environment_of(process.pid)
    finally:
        process.kill()
        process.wait()
    assert found == {"CUDA_VISIBLE_DEVICES": "1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert probe_gpu.environment_of(process.pid) is None


def test_a_container_without_its_gpus_is_told_from_a_host_without_any(tmp_path: Path) -> None:
    """/proc is the host's: the kernel driver is loaded, and nothing is here to ask it with."""
    kernel_driver(tmp_path, "550.54.15")
    entry = probe_gpu.snapshot(BOUND_S)
    assert entry["kind"] == "no_library"
    assert "550.54.15" in entry["not_seen"] and "container" in entry["not_seen"]


def test_what_cannot_be_killed_is_left_behind(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process in uninterruptible sleep: SIGKILL has no effect for now. Later it is collected, no zombie stays."""
    nvml.says("hang.init 1\n")
    kill = os.killpg
    asked_to_die: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: asked_to_die.append(group))
    entry = probe_gpu.snapshot(1.0)
    assert entry["kind"] == "timeout"
    (pid,) = asked_to_die
    assert procfs.stat(pid) is not None
    kill(pid, 9)
    wait_until(lambda: procfs.stat(pid) is None, 20, "it is collected")


def test_the_asking_process_ends_although_its_parent_was_killed(nvml: FakeNvml) -> None:
    """Nobody is left to kill it: the kernel's alarm clock does."""
    nvml.says("hang.init 1\n")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(probe_gpu.__file__).parents[1])!r});"
        "from gpualert import probe_gpu; probe_gpu.snapshot(4.0)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    try:
        (asking,) = wait_until(lambda: list(filter(hangs, children(parent.pid))), 20, "it hangs in the library")
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: (found := procfs.stat(asking)) is None or found.dead, 20, "it has ended by itself")


def hangs(pid: int) -> bool:
    """The stand-in ignores SIGTERM while it hangs."""
    status = Path(f"/proc/{pid}/status").read_text()
    (ignored,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(ignored, 16) >> (signal.SIGTERM - 1) & 1)


def children(parent: int | None = None) -> list[int]:
    """Processes that ask NVML and are children of ``parent`` (us)."""
    above = os.getpid() if parent is None else parent
    return [
        one.pid
        for one in procfs.all_processes()
        if one.parent == above and "probe_gpu_nvml" in (procfs.command_line(one.pid) or "")
    ]


def test_it_says_no_more_than_it_may(tmp_path: Path) -> None:
    said = probe_gpu_process.ask(["/bin/sh", "-c", "while :; do echo ffffffffffffffff; done"], time.monotonic() + 60)
    assert said.how == probe_gpu_process.TALKS_TOO_MUCH
    assert len(said.output) == 256 * 1024


def test_a_descendant_that_keeps_the_pipe_holds_up_nobody() -> None:
    """The program has ended; what it left running is ended with it."""
    said = probe_gpu_process.ask(["/bin/sh", "-c", "/bin/sleep 600 & echo $!"], time.monotonic() + 60)
    assert (said.how, said.status) == (probe_gpu_process.ENDED, 0)
    wait_until(lambda: (found := procfs.stat(int(said.text))) is None or found.dead, 20, "the descendant is gone")


# -- from the archive, as on a host


@pytest.mark.parametrize("version", ["3.8", "3.11", "3.13"])
def test_a_snapshot_is_taken_from_the_unpacked_archive(version: str, nvml: FakeNvml, tmp_path: Path) -> None:
    """Packed with pynvml, placed as the receiver places it, and run as the host runs it: nothing else is installed."""
    python = needs.interpreter(version)
    built = archive.build(with_pynvml=True)
    folder = receiver.place(str(tmp_path), built.digest, built.data)
    found = from_folder(python, folder)
    assert found["seen"]["source"] == "nvml"
    assert found["seen"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert receiver.intact(folder)


def test_a_snapshot_is_taken_from_the_packed_archive(nvml: FakeNvml, tmp_path: Path) -> None:
    packed = tmp_path / "gpualert.pyz"
    packed.write_bytes(archive.build(with_pynvml=True).data)
    assert from_folder(sys.executable, str(packed))["seen"]["source"] == "nvml"


def test_an_archive_without_pynvml_asks_nvidia_smi(nvml: FakeNvml, smi: Callable[[str], Path], tmp_path: Path) -> None:
    """A worker on which nvidia-ml-py is not installed still gets what nvidia-smi tells."""
    smi(H100)
    built = archive.build()
    folder = receiver.place(str(tmp_path), built.digest, built.data)
    assert from_folder(sys.executable, folder)["seen"]["source"] == "nvidia-smi"


def from_folder(python: str, folder: str) -> dict[str, Any]:
    code = (
        f"import sys, json; sys.path.insert(0, {folder!r}); from gpualert import probe_gpu;"
        "print(json.dumps(probe_gpu.snapshot(20.0)))"
    )
    done = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_host_is_examined_with_what_was_sent_to_it(nvml: FakeNvml, tmp_path: Path) -> None:
    """Over the wire, with bootstrap and receiver: the doctor there finds pynvml beside itself."""
    nvml.says("count 2\n0.mem_used 42949672960\n0.procs 999999999:42949672960\n")
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "LD_LIBRARY_PATH": str(nvml.folder)}
    with Talk.over_shell(root=str(tmp_path / "root"), with_pynvml=None, env=env) as talk:
        findings = talk.ask(protocol.doctor_request(), "findings").header["findings"]
    found = {finding["name"]: finding for finding in findings}
    assert "CUDA up to 12.8: 2 × NVIDIA H100 80GB HBM3 (80.0 GiB)" in found["gpu"]["found"]
    assert "40.0 GiB of 80.0 GiB in use by pid 999999999" in found["gpu_use"]["found"]


# -- nvidia-smi

#: What a 550 driver prints; the list of fields is checked in the unit tests.
H100 = """
case "$1" in
--query-gpu=*mig.mode*) echo "0, GPU-aa, NVIDIA H100 80GB HBM3, 00000000:1B:00.0, 550.54.15, 81559, 1024, 3, 41, \
Enabled, 0, 0, 0, 0, [N/A], [N/A], [N/A], 0x0000000000000001, Disabled, 0, 0, No, No" ;;
--query-compute-apps=*) echo "GPU-aa, 4242, 998" ;;
*) echo "asked: $*"; exit 2 ;;
esac
"""
K80 = """
case "$1" in
*clocks_event*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
*clocks_throttle*) echo 'Field "clocks_throttle_reasons.active" is not a valid field to query.'; exit 2 ;;
--query-gpu=*) echo "0, GPU-kk, Tesla K80, 0000:05:00.0, 340.29, 11519, 55, 0, 33" ;;
--query-compute-apps=*) echo "No running processes found" ;;
esac
"""


@pytest.fixture
def no_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_gpu, "find_pynvml", lambda: None)


def test_nvidia_smi_is_asked_where_pynvml_is_missing(smi: Callable[[str], Path], no_pynvml: None) -> None:
    smi(H100)
    found = seen()
    assert (found["source"], found["driver_version"]) == ("nvidia-smi", "550.54.15")
    (gpu,) = found["gpus"]
    assert gpu["memory_total_bytes"] == 81559 * 1024**2
    assert gpu["processes"][0]["pid"] == 4242 and gpu["processes"][0]["used_bytes"] == 998 * 1024**2


def test_an_old_nvidia_smi_is_asked_for_less(smi: Callable[[str], Path], no_pynvml: None) -> None:
    """It refuses a query with one field that it does not know as a whole."""
    smi(K80)
    (gpu,) = seen()["gpus"]
    assert (gpu["name"], gpu["ecc"], gpu["temperature_c"], gpu["processes"]) == ("Tesla K80", None, 33, [])


def test_nvidia_smi_that_hangs_is_left_in_time(smi: Callable[[str], Path], no_pynvml: None) -> None:
    smi("trap '' TERM; while :; do /bin/sleep 1; done")
    assert probe_gpu.snapshot(1.0)["kind"] == "timeout"


def test_after_a_crash_of_nvml_nvidia_smi_is_asked(nvml: FakeNvml, smi: Callable[[str], Path]) -> None:
    nvml.says("crash.init 1\n")
    smi(H100)
    assert seen()["source"] == "nvidia-smi"


def test_what_nvml_says_stands_when_nvidia_smi_adds_nothing(nvml: FakeNvml, smi: Callable[[str], Path]) -> None:
    nvml.says("error.init 999\n")
    smi("echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    assert probe_gpu.snapshot(BOUND_S) == {"not_seen": "NVML: Unknown Error", "kind": "unknown"}


def test_the_runs_own_gpus_are_told(nvml: FakeNvml) -> None:
    nvml.says("count 4\n")
    found = seen(environ={"CUDA_VISIBLE_DEVICES": "2,GPU-00000003"})
    assert found["visible"] == {"asked": "2,GPU-00000003", "indices": [2, 3], "why": None}


def test_before_and_after(nvml: FakeNvml) -> None:
    """The whole way: two snapshots of a driver whose GPU 1 breaks in between."""
    nvml.says("count 2\n")
    before = probe_gpu.snapshot(BOUND_S, {"CUDA_VISIBLE_DEVICES": "1"})
    nvml.says("count 2\n0.ecc_ue 1\n1.lost 1\n")
    after = probe_gpu.snapshot(BOUND_S, {"CUDA_VISIBLE_DEVICES": "1"})
    found = probe_gpu.compare(before, after)
    (lost,) = found["gpu_lost"]
    assert (lost["index"], lost["used"], lost["kind"], lost["already"]) == (1, True, "gpu_lost", False)
    assert lost["text"] == "GPU 1 (0000:3b:00.0, NVIDIA H100 80GB HBM3) no longer answers: GPU is lost"
    (ecc,) = found["ecc"]
    assert (ecc["index"], ecc["used"], ecc["before"], ecc["after"]) == (0, False, 0, 1)

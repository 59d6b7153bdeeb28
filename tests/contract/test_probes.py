"""What is looked at beside the log: real kills, full filesystems, tools that misbehave; none of it harms a launch."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpualert import probe_gpu, probe_host, probe_kernel, probe_memory, probes, procfs, report, samples
from gpualert.outcome import Outcome
from gpualert.records import RunRecord, RunState
from gpualert.rundir import RunDirectory
from tests.support import needs
from tests.support.fake_nvml import FakeNvml
from tests.support.launching import Host, host
from tests.support.memory_group import memory_group
from tests.support.waiting import wait_until

__all__ = ["host", "memory_group"]

DEADLINE_S = 60.0

#: Waits for the file go, and then does what the test wants; BODY sees ``folder``.
PROGRAM = """\
import os, signal, sys, time
folder = sys.argv[1]
print("epoch 1 loss 0.5", flush=True)
{first}
while not os.path.exists(folder + "/go"):
    time.sleep(0.02)
{then}
"""


def start(host: Host, tmp_path: Path, then: str, first: str = "", **spec: Any) -> RunRecord:
    """A launch that has been looked at near its start, and waits."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(first=first, then=then))
    record = host.launch([sys.executable, "-S", str(program), str(tmp_path)], cwd=str(tmp_path), **spec)
    path = RunDirectory(record.run_directory).before_path
    wait_until(lambda: os.path.exists(path), DEADLINE_S, "the first look is written down")
    return record


def finish(host: Host, tmp_path: Path, record: RunRecord) -> Outcome:
    """Let it end, wait for the observer's verdict, and report."""
    (tmp_path / "go").touch()
    host.end(record)
    path = RunDirectory(record.run_directory).verdict_path
    wait_until(lambda: os.path.exists(path), DEADLINE_S, "the verdict is written")
    return report.build(record.run_directory)


def look(record: RunRecord, name: str) -> dict[str, Any]:
    path = getattr(RunDirectory(record.run_directory), name + "_path")
    return dict(json.loads(Path(path).read_text()))


def proofs(outcome: Outcome) -> dict[str, str]:
    """Source to texts of the evidence."""
    found: dict[str, str] = {}
    for item in outcome.evidence:
        found[item["source"]] = found.get(item["source"], "") + item["text"] + "\n"
    return found


def program(folder: Path, name: str, script: str) -> None:
    """A tool of the system's, as this shell script."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def running(folder: Path) -> list[str]:
    """Command lines of what runs from a folder, or was started there."""
    lines = [procfs.command_line(one.pid) or "" for one in procfs.all_processes() if not one.dead]
    return [line for line in lines if str(folder) in line]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs come first."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


# -- memory

EAT = "data = []\nwhile True: data.append(bytearray(os.urandom(1 << 20)))"


@pytest.mark.parametrize("through", ["directly", "a shell"])
def test_a_real_oom_kill_is_proved(host: Host, tmp_path: Path, memory_group: Path, through: str) -> None:
    """By the kernel's line where it can be read, else by the counter of the cgroup: SIGKILL alone proves nothing."""
    enter = f"open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    first = enter + "\nopen(folder + '/in', 'w').close()"
    if through == "directly":
        record = start(host, tmp_path, EAT, first)
    else:
        (tmp_path / "train.py").write_text(PROGRAM.format(first=first, then=EAT))
        record = host.launch(f"{sys.executable} -S train.py {tmp_path}; exit $?", cwd=str(tmp_path))
        before = RunDirectory(record.run_directory).before_path
        wait_until(lambda: os.path.exists(before), DEADLINE_S, "the first look is written down")
    wait_until(lambda: (tmp_path / "in").exists(), DEADLINE_S, "it is in the group")

    outcome = finish(host, tmp_path, record)

    assert outcome.exit_text == ("SIGKILL" if through == "directly" else "exit 137")
    assert outcome.failure_class == "oom_killer", outcome.evidence
    found = proofs(outcome)
    assert "Killed process" in found.get("kernel", "") or "oom_kill grew by" in found.get("cgroup", ""), found
    assert outcome.observations is not None


def test_the_counter_proves_it_where_the_kernel_log_is_closed(
    host: Host, tmp_path: Path, memory_group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ordinary users of most distributions cannot read the kernel's log."""
    monkeypatch.setattr(probe_kernel, "look", lambda *_: {"not_seen": "/dev/kmsg: Operation not permitted"})
    procs = memory_group / "cgroup.procs"
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(first="", then=EAT))
    enter = f"echo $$ > {procs}; exec {sys.executable} -S {program} {tmp_path}"
    record = host.launch(enter, cwd=str(tmp_path))
    before = RunDirectory(record.run_directory).before_path
    wait_until(lambda: os.path.exists(before), DEADLINE_S, "the first look is written down")

    outcome = finish(host, tmp_path, record)

    assert outcome.failure_class == "oom_killer", outcome.evidence
    assert f"of /{memory_group.name}: oom_kill grew by" in proofs(outcome)["cgroup"]
    assert outcome.observations is not None
    assert outcome.observations["memory"]["limit_bytes"] == 48 * 1024 * 1024
    assert "the kernel log: /dev/kmsg: Operation not permitted" in outcome.not_seen


def test_a_killed_rank_is_the_cause_of_what_its_launcher_reports(
    host: Host, tmp_path: Path, memory_group: Path
) -> None:
    """The launcher lives, says which rank died, and exits with 1."""
    rank = f"open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); data = []"
    then = f"""\
pid = os.fork()
if pid == 0:
    {rank}
    while True: data.append(bytearray(os.urandom(1 << 20)))
status = os.waitpid(pid, 0)[1]
print("E torch.distributed.elastic.multiprocessing.api: failed (exitcode: -%d) local_rank: 0 (pid: %d)" % (status, pid))
print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
print("Signal %d (SIGKILL) received by PID %d" % (status, pid))
sys.exit(1)
"""
    enter = f"open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    outcome = finish(host, tmp_path, start(host, tmp_path, then, enter))
    assert (outcome.exit_code, outcome.failure_class) == (1, "oom_killer"), (outcome.evidence, outcome.alternatives)
    assert {"kernel", "cgroup"} & set(proofs(outcome))
    assert any("exitcode: -9" in str(item["text"]) for item in outcome.cascade)


def test_sigkill_without_memory_is_not_an_oom_kill(host: Host, tmp_path: Path) -> None:
    record = start(host, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    outcome = finish(host, tmp_path, record)
    assert (outcome.exit_text, outcome.failure_class) == ("SIGKILL", "unknown")


def test_a_kill_is_found_by_a_report_when_the_observer_is_dead(host: Host, tmp_path: Path, memory_group: Path) -> None:
    """What the observer had seen lies in the run directory, and the kernel still tells the rest."""
    enter = f"open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    record = start(host, tmp_path, EAT, enter)
    state = wait_until(lambda: RunDirectory(record.run_directory).read_scan(), DEADLINE_S, "the observer has saved")
    watching = procfs.ProcessIdentity.from_json(state["observer"])
    host.kill(record, "guard")
    os.kill(watching.pid, signal.SIGKILL)
    wait_until(lambda: procfs.alive(watching) is False, DEADLINE_S, "the observer is gone")
    (tmp_path / "go").touch()
    host.end(record)

    outcome = report.build(record.run_directory)

    assert outcome.failure_class == "oom_killer", (outcome.evidence, outcome.not_seen)


def test_a_segfault_names_its_library_from_the_kernels_line(host: Host, tmp_path: Path) -> None:
    readable = probe_kernel.look(None, None)
    if "seen" not in readable:
        pytest.skip(f"needs a readable kernel log: {readable['not_seen']}")
    record = start(host, tmp_path, "import ctypes; ctypes.string_at(0)")
    outcome = finish(host, tmp_path, record)
    assert outcome.failure_class == "segfault"
    lines = look(record, "after")["kernel"]["seen"]["records"]
    if not any("segfault at" in line[2] for line in lines):
        pytest.skip("needs a kernel that reports segfaults (debug.exception-trace)")
    assert "segfault at 0" in proofs(outcome)["kernel"]


# -- shared memory and disks


@pytest.fixture
def small_shm(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tmpfs of 64 KiB in place of /dev/shm."""
    needs.mount_namespaces()
    folder = tmp_path / "shm"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    host.unmount.append(folder)
    monkeypatch.setattr(probe_host, "SHM", str(folder))
    return folder


BEYOND = """\
import mmap
descriptor = os.open({path!r}, os.O_RDWR | os.O_CREAT)
os.ftruncate(descriptor, 1 << 20)
{then}
memory = mmap.mmap(descriptor, 1 << 20)
for place in range(0, {size}, 4096):
    memory[place] = 1
"""


def test_a_real_bus_error_on_full_shared_memory(host: Host, tmp_path: Path, small_shm: Path) -> None:
    """A loader that writes beyond what /dev/shm holds dies of SIGBUS without a word."""
    body = BEYOND.format(path=str(small_shm / "torch_1"), then="", size=1 << 20)
    outcome = finish(host, tmp_path, start(host, tmp_path, body))
    assert (outcome.exit_text.split(" ")[0], outcome.failure_class) == ("SIGBUS", "shm_exhausted")
    assert str(small_shm) in proofs(outcome)["host"]


def test_shared_memory_that_is_freed_by_the_death(
    host: Host, tmp_path: Path, small_shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are unlinked while they are used, as torch's are: only a sample on the way has seen it full."""
    sample = samples.Samples._look_at_memory

    def tell(self: samples.Samples) -> None:
        sample(self)
        if self.shm_free_share is not None and self.shm_free_share < probe_host.FULL_SHARE:
            (tmp_path / "seen").touch()

    monkeypatch.setattr(samples.Samples, "_look_at_memory", tell)
    monkeypatch.setattr(samples, "EVERY_S", 0.05)
    path = str(small_shm / "torch_1")
    fill = BEYOND.format(path=path, then=f"os.unlink({path!r})", size=1 << 16)
    record = start(host, tmp_path, "memory[1 << 19] = 1", fill)
    wait_until(lambda: (tmp_path / "seen").exists(), DEADLINE_S, "a sample has seen it full")

    outcome = finish(host, tmp_path, record)

    assert (outcome.exit_text.split(" ")[0], outcome.failure_class) == ("SIGBUS", "shm_exhausted")
    assert "at the last sample" in proofs(outcome)["host"]


def test_a_bus_error_while_shared_memory_is_free_stays_unknown(host: Host, tmp_path: Path, small_shm: Path) -> None:
    outcome = finish(host, tmp_path, start(host, tmp_path, "os.kill(os.getpid(), signal.SIGBUS)"))
    assert (outcome.exit_text.split(" ")[0], outcome.failure_class) == ("SIGBUS", "unknown")


def test_an_error_that_names_no_file_is_about_the_filesystem_that_is_full(
    host: Host, tmp_path: Path, small_shm: Path
) -> None:
    """``No space left on device`` without a path: shared memory is full and the disk is not."""
    body = f"""\
with open({str(small_shm / "x")!r}, "wb", buffering=0) as file:
    while file.write(bytes(4096)) == 4096:
        pass
    raise OSError(28, "No space left on device")
"""
    body = body.replace("    while", "    try:\n     while").replace(
        "        pass", "         pass\n    except OSError: pass"
    )
    outcome = finish(host, tmp_path, start(host, tmp_path, body))
    assert outcome.failure_class == "shm_exhausted", outcome.evidence


def test_the_open_file_limit_is_told_beside_the_error(host: Host, tmp_path: Path) -> None:
    first = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    then = "kept = [open('/dev/null') for _ in range(100)]"
    (tmp_path / "train.py").write_text(PROGRAM.format(first=first, then=then))
    command = f"ulimit -n 64; exec {sys.executable} -S train.py {tmp_path}"
    record = host.launch(command, cwd=str(tmp_path))
    before = RunDirectory(record.run_directory).before_path
    wait_until(lambda: os.path.exists(before), DEADLINE_S, "the first look is written down")
    outcome = finish(host, tmp_path, record)
    assert outcome.failure_class == "fd_limit"
    assert "open-file limit 64" in proofs(outcome)["host"]


# -- Slurm

SACCT = 'echo "7|{0}|0:0|0:0|None||Unknown"; echo "7.batch|{1}|0:15||||Unknown"'


@pytest.mark.parametrize(
    ("job", "batch", "expected"),
    [
        ("TIMEOUT", "CANCELLED", "time_limit"),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY", "oom_killer"),
        ("PREEMPTED", "CANCELLED", "preempted"),
        ("NODE_FAIL", "CANCELLED", "node_failure"),
        ("CANCELLED by 1000", "CANCELLED", "interrupted"),
        ("RUNNING", "RUNNING", "unknown"),
    ],
)
def test_the_schedulers_reason_decides(
    host: Host, tmp_path: Path, tools: Path, job: str, batch: str, expected: str
) -> None:
    program(tools, "sacct", SACCT.format(job, batch))
    program(tools, "scontrol", 'echo "JobId=7 JobName=x"; echo "   JobState=RUNNING Reason=None"')
    record = start(host, tmp_path, "os.kill(os.getpid(), signal.SIGTERM)", env={"SLURM_JOB_ID": "7"})
    outcome = finish(host, tmp_path, record)
    assert outcome.failure_class == expected, outcome.evidence
    if expected != "unknown":
        assert f"sacct: 7 {job}" in proofs(outcome)["slurm"]
    assert outcome.observations is not None and outcome.observations["scheduler"]["job"] == "7"


def test_scontrol_is_enough(host: Host, tmp_path: Path, tools: Path) -> None:
    """Many sites store no accounting."""
    program(tools, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    program(tools, "scontrol", 'echo "JobId=7 JobName=x"; echo "   JobState=TIMEOUT Reason=TimeLimit"')
    record = start(host, tmp_path, "os.kill(os.getpid(), signal.SIGTERM)", env={"SLURM_JOB_ID": "7"})
    assert finish(host, tmp_path, record).failure_class == "time_limit"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sleep 3600; exit", "did not answer"),
        ("trap '' TERM; while :; do sleep 1; done", "did not answer"),
        ("head -c 4000000 /dev/zero | tr '\\0' 'x'; sleep 3600", "more than"),
        ("head -c 100000 /dev/urandom", "knows job 7"),
        ("echo 'sacct: error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("kill -SEGV $$", "signal 11"),
    ],
)
def test_a_scheduler_that_misbehaves_costs_only_its_own_word(
    host: Host, tmp_path: Path, tools: Path, script: str, words: str
) -> None:
    program(tools, "sacct", script)
    program(tools, "scontrol", script)
    record = start(host, tmp_path, "sys.exit(3)", env={"SLURM_JOB_ID": "7"})
    outcome = finish(host, tmp_path, record)
    assert (outcome.state, outcome.exit_code, outcome.failure_class) == (RunState.FAILED, 3, "unknown")
    wait_until(lambda: not running(tools), DEADLINE_S, "the tools to be gone")
    assert any(item.startswith("the scheduler: ") and words in item for item in outcome.not_seen), outcome.not_seen


def test_a_tool_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpualert.probe_program import output_of

    with pytest.raises(OSError) as caught:
        output_of(["no-such-tool-of-slurm"], time.monotonic() + 5, 1000)
    assert caught.value.strerror == "not installed"


# -- the kernel's log, where only dmesg may read it


@pytest.fixture
def closed_kmsg(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(probe_kernel, "_read_kmsg", refuse)
    monkeypatch.setattr(probe_kernel, "_ask_journal", refuse)


def test_dmesg_tells_where_the_device_is_closed(host: Host, tmp_path: Path, tools: Path, closed_kmsg: None) -> None:
    """And its own clock tells which lines are new."""
    line = "Out of memory: Killed process $(cat {0}/pid) (python) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB"
    old = "Out of memory: Killed process 1 (old) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB"
    new = f'echo "[900000001.000001] {line.format(tmp_path)}"'
    script = f'echo "[900000000.000001] {old}"; [ -e {tmp_path}/go ] && {new}; true'
    program(tools, "dmesg", script)
    then = "open(folder + '/pid', 'w').write(str(os.getpid()))\nos.kill(os.getpid(), signal.SIGKILL)"
    record = start(host, tmp_path, then)
    outcome = finish(host, tmp_path, record)
    assert outcome.failure_class == "oom_killer", (outcome.evidence, outcome.not_seen)
    assert "(python)" in proofs(outcome)["kernel"]
    assert look(record, "after")["kernel"]["seen"]["via"] == "dmesg"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sleep 3600; exit", "did not answer"),
        ("head -c 20000000 /dev/zero", "more than"),
        ("echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1", "Operation not permitted"),
    ],
)
def test_a_dmesg_that_misbehaves_is_named(
    host: Host, tmp_path: Path, tools: Path, closed_kmsg: None, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(probes, "BEFORE_S", 3.0)
    program(tools, "dmesg", script)
    record = start(host, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    outcome = finish(host, tmp_path, record)
    assert (outcome.exit_text, outcome.failure_class) == ("SIGKILL", "unknown")
    wait_until(lambda: not running(tools), DEADLINE_S, "dmesg to be gone")
    said = [item for item in outcome.not_seen if item.startswith("the kernel log: ")]
    assert said and words in said[0], outcome.not_seen


def test_a_dmesg_of_garbage_finds_nothing(host: Host, tmp_path: Path, tools: Path, closed_kmsg: None) -> None:
    program(tools, "dmesg", "head -c 200000 /dev/urandom")
    outcome = finish(host, tmp_path, start(host, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)"))
    assert (outcome.exit_text, outcome.failure_class) == ("SIGKILL", "unknown")


# -- GPUs


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(probe_gpu, "_USUAL_PLACES", ())
    monkeypatch.setattr(probe_gpu, "_SMI_PLACES", ())
    fake = FakeNvml(tmp_path / "lib")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake.folder))
    return fake


CUDA_ERROR = 'raise RuntimeError("CUDA error: unspecified launch failure")'


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("1.lost 1\n", "gpu_hardware"),
        ("1.ecc_ue 3\n1.ecc_ue_life 3\n", "gpu_hardware"),
        ("error.init 18\n", "driver_mismatch"),
        ("", "cuda_runtime"),
    ],
)
def test_a_cuda_error_is_explained_by_what_became_of_the_gpu(
    host: Host, tmp_path: Path, nvml: FakeNvml, script: str, expected: str
) -> None:
    nvml.says("count 2\n")
    record = start(host, tmp_path, CUDA_ERROR)
    assert len(look(record, "before")["gpu"]["seen"]["gpus"]) == 2
    nvml.says("count 2\n" + script)

    outcome = finish(host, tmp_path, record)

    assert outcome.failure_class == expected, (outcome.evidence, look(record, "after")["gpu"])
    assert outcome.observations is not None
    if "init" not in script:
        assert [card["name"] for card in outcome.observations["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2


@pytest.mark.parametrize("script", ["hang.init 1\n", "crash.init 1\n", "hang.mem 1\n"])
def test_a_driver_that_hangs_or_crashes_costs_only_its_own_word(
    host: Host, tmp_path: Path, nvml: FakeNvml, script: str
) -> None:
    record = start(host, tmp_path, CUDA_ERROR)
    nvml.says(script)
    outcome = finish(host, tmp_path, record)
    assert (outcome.state, outcome.exit_code) == (RunState.FAILED, 1)
    assert outcome.failure_class == "cuda_runtime", outcome.evidence


# -- probes that go wrong


def hang(*_: Any) -> dict[str, Any]:
    while True:
        time.sleep(3600)


def crash(*_: Any) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def talk(*_: Any) -> dict[str, Any]:
    return {"seen": "x" * (32 << 20)}


def lie(*_: Any) -> dict[str, Any]:
    return {"seen": {"group": 7, "records": "\x00", "disks": [1, None], "gpus": {"a": None}}}


def fail(*_: Any) -> dict[str, Any]:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("how", [hang, crash, talk, lie, fail])
def test_whatever_probes_do_verdict_and_exit_stay(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[..., dict[str, Any]]
) -> None:
    """Every one of them at once, near the start and at the end."""
    monkeypatch.setattr(probes, "BEFORE_S", 0.5)
    for room in (probe_memory, probe_kernel, probe_host):
        monkeypatch.setattr(room, "look", how)
    monkeypatch.setattr(probes, "_gpu", how)
    record = start(host, tmp_path, "raise ZeroDivisionError('division by zero')")
    outcome = finish(host, tmp_path, record)
    assert (outcome.state, outcome.exit_code, outcome.failure_class) == (RunState.FAILED, 1, "div_zero")


@pytest.mark.parametrize("method", ["step", "conclude"])
def test_a_defect_of_ours_costs_what_would_have_been_seen(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(probes.Looks, method, fail)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(first="", then="raise ZeroDivisionError('division by zero')"))
    record = host.launch([sys.executable, "-S", str(program), str(tmp_path)], cwd=str(tmp_path))
    wait_until(lambda: RunDirectory(record.run_directory).read_scan(), DEADLINE_S, "the observer has saved")
    outcome = finish(host, tmp_path, record)
    assert (outcome.state, outcome.exit_code, outcome.failure_class) == (RunState.FAILED, 1, "div_zero")


def test_a_success_is_not_kept_waiting_by_any_probe(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After exit 0 none is started; what was sampled on the way is written down all the same."""
    record = start(host, tmp_path, "print('Training completed.')")
    outcome = finish(host, tmp_path, record)
    assert (outcome.state, outcome.failure_class) == (RunState.SUCCEEDED, "success")
    after = look(record, "after")
    assert not {"memory", "kernel", "host", "gpu", "scheduler"} & set(after)
    assert after["samples"]["taken"] >= 1
    assert outcome.observations is not None and outcome.observations["memory"]["host_total_bytes"] > 0


def test_a_stop_that_was_asked_for_is_not_looked_into(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stopped it is known; so nobody waits for probes."""
    from tests.support.launching import stop

    record = start(host, tmp_path, "")
    ended = stop(record)
    outcome = finish(host, tmp_path, record)
    assert (ended.state, outcome.failure_class, outcome.not_seen) == (RunState.STOPPED, "interrupted", ())
    assert not {"memory", "kernel", "host", "gpu", "scheduler"} & set(look(record, "after"))


def test_what_was_seen_is_for_its_owner_alone(host: Host, tmp_path: Path) -> None:
    record = start(host, tmp_path, "sys.exit(3)")
    finish(host, tmp_path, record)
    run = RunDirectory(record.run_directory)
    for path in (run.before_path, run.after_path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_values_of_the_childs_environment_stay_out_of_what_is_written(host: Host, tmp_path: Path) -> None:
    """Of the environment, which holds secrets, only what names a job and GPUs is kept."""
    record = start(host, tmp_path, "sys.exit(3)", env={"WANDB_API_KEY": "s3cr3t-value", "CUDA_VISIBLE_DEVICES": "0"})
    finish(host, tmp_path, record)
    for name in ("before", "after"):
        assert "s3cr3t-value" not in json.dumps(look(record, name))
    assert look(record, "before")["environment"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_no_process_is_left_behind(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that hangs is gone when the launch's keepers are."""
    monkeypatch.setattr(probe_host, "look", hang)
    monkeypatch.setattr(probes, "BEFORE_S", 0.5)
    record = start(host, tmp_path, "sys.exit(3)")
    finish(host, tmp_path, record)
    guard = procfs.ProcessIdentity.from_json(host.started(record)["guard"])
    wait_until(lambda: procfs.alive(guard) is False, DEADLINE_S, "the guard to end")
    wait_until(
        lambda: not [one for one in procfs.all_processes() if one.session == guard.pid and not one.dead],
        DEADLINE_S,
        "every process of the launch's session to be gone",
    )

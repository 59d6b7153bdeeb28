"""The judgement: one table of traps, and the rules that decide between several truths."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from gpualert.classify import ExitFacts, classify
from gpualert.scan import Scanner
from gpualert.taxonomy import FailureClass as C
from gpualert.taxonomy import FailureDomain, RetryOutlook
from gpualert.verdict import Classification

STEPS = "".join(f"step {i}/100 | loss {3 - i / 50:.3f} | lr 1e-4\n" for i in range(30))
TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    step()\n'
TABLE = """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 92)
  error_file: <N/A>
============================================================
"""
FRAMES = "".join(f"frame #{i}: <unknown function> + 0x{i:x} (0x7f in libtorch_cuda.so)\n" for i in range(80))
WATCHDOG = (
    "[rank0]:[E0301 15:20:49.348274222 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9120, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600065 milliseconds before timing out.\n"
)


def judge(text: str, code: int | None = 1, observations: dict[str, Any] | None = None, **facts: Any) -> Classification:
    scanner = Scanner()
    scanner.feed(text.encode())
    return classify(ExitFacts(code=code, **facts), scanner.finish(), observations)


TRAPS = {
    "healthy nan counter": (STEPS + " iteration 9/10 | lm loss: 2.1E+00 | number of nan iterations:   0 |\nTraining complete\n", 0, C.SUCCESS),
    "nano and finance": ("loading nanoGPT on finance-inf data\n" + STEPS + "done.\n", 0, C.SUCCESS),
    "policy before a port": ('INFO fault-policy: on "CUDA out of memory" halve micro-batch\n' + TRACE + "RuntimeError: The server socket has failed to listen. (errno: 98 - Address already in use)\n", 1, C.RENDEZVOUS),
    "policy before an xid": ('oom_policy: "CUDA out of memory -> halve"\n' + STEPS + "kernel: NVRM: Xid (PCI:0000:4f:00): 119, pid=1, name=python, Timeout waiting for RPC from GSP!\n", 1, C.GPU_HARDWARE),
    "cause behind frames and table": (STEPS + TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" + WATCHDOG + FRAMES + TABLE.format(code=-6), 1, C.CUDA_OOM),
    "peer closed hides a permission": ("[rank0]: torch.distributed.DistBackendError: NCCL error in: x.hpp:268, remote process exited or there was a network error\n[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/w/a.py\", line 1, in f\n[rank1]: PermissionError: [Errno 13] Permission denied: '/.cache'\n", 1, C.PERMISSION),
    "peer closed hides a shape": ("[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/w/a.py\", line 1, in f\n[rank2]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x60 and 40x512)\n[rank0]: torch.distributed.DistBackendError: NCCL error in: x.hpp:268, remote process exited\n", 1, C.SHAPE_MISMATCH),
    "watchdog without nccl error": (STEPS + WATCHDOG + TABLE.format(code=-6), 1, C.NCCL),
    "oom without the words, vllm": ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n", 1, C.CUDA_OOM),
    "oom without the words, xla": (TRACE + "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0\n", 1, C.CUDA_OOM),
    "killed where slurm says oom": (STEPS + "/var/spool/slurm_script: line 8:  8156 Killed    python3 train.py\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.\n", 137, C.OOM_KILLER),
    "killed and nothing else": (STEPS + "Killed\n", 137, C.UNKNOWN),
    "final Killed reaps ranks": ("[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/w/a.py\", line 1, in f\n[rank1]: RuntimeError: received 0 items of ancdata\nKilled\n", 1, C.FD_LIMIT),
    "aborted is no segfault": (STEPS + "Aborted (core dumped)\n", 134, C.UNKNOWN),
    "an unset variable, not a missing program": ("train.sh: line 3: DATA_DIR: unbound variable\n", 127, C.USAGE_ERROR),
    "a service that is no rank": (TRACE + "socket.gaierror: [Errno -2] Name or service not known\n", 1, C.TRACEBACK),
    "a lower-case exception": (TRACE + "struct.error: ushort format requires 0 <= number <= 65535\n", 1, C.TRACEBACK),
    "tqdm makes one line": ("".join(f"\r{i}%|#| {i}/100 [00:01<00:01, 9.1it/s]" for i in range(3000)) + "\r" + TRACE.replace("\n", "\n", 1) + "RuntimeError: CUDA error: device-side assert triggered\n", 1, C.CUDA_RUNTIME),
    "table with -9 and no cause": (STEPS + TABLE.format(code=-9), 1, C.UNKNOWN),
    "retried oom": (STEPS + "WARNING: CUDA out of memory, retrying with batch size 8\n" + STEPS + "Training finished\n", 0, C.SUCCESS),
    "advice line": (STEPS + "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nTraining finished\n", 0, C.SUCCESS),
    "previous attempt": ("note: previous attempt ended with: OSError: [Errno 28] No space left on device\n" + TRACE + "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n", 1, C.CHECKPOINT_CORRUPT),
    "xid 45 alone": (STEPS + "NVRM: Xid (PCI:0000:4f:00): 45, pid=1, name=python, Ch 00000008\n", 1, C.UNKNOWN),
    "xid 31 alone": (STEPS + "NVRM: Xid (PCI:0000:4f:00): 31, pid=1, name=python\n" + TRACE + "RuntimeError: CUDA error: an illegal memory access was encountered\n", 1, C.CUDA_RUNTIME),
    "enospc on shm": (TRACE + "OSError: [Errno 28] No space left on device: '/dev/shm/x'\n", 1, C.SHM_EXHAUSTED),
    "enospc masked": (TRACE + "OSError: [Errno 28] No space left on device\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE + "RuntimeError: [enforce fail at inline_container.cc:300] . unexpected pos 320 vs 214\n", 1, C.DISK_FULL),
    "meaning over type, nan": (TRACE + "AssertionError: loss is NaN at step 12\n", 1, C.NAN_LOSS),
    "meaning over type, driver": (TRACE + "AssertionError: The NVIDIA driver on your system is too old (found version 11040).\n", 1, C.DRIVER_MISMATCH),
    "scheduler over the dying": (TRACE + "RuntimeError: DataLoader worker (pid 1) is killed by signal: Terminated. \nslurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n", 143, C.TIME_LIMIT),
    "126": ("bash: ./run.sh: Permission denied\n", 126, C.NOT_EXECUTABLE),
    "low port": (TRACE + "PermissionError: [Errno 13] Permission denied\n", 1, C.PERMISSION),
    "different collectives": (TRACE + "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: X\n", 1, C.RUNTIME_ERROR),
    "recovered error then killed": (STEPS + TRACE + "RuntimeError: CUDA out of memory\n" + STEPS + STEPS, 137, C.UNKNOWN),
    "deepspeed -9 with full host": (STEPS + "CPU Virtual Memory:  used = 480.5 GB, percent = 99.1%\n[ERROR] ['python'] exits with return code = -9\n", 247, C.OOM_KILLER),
    "usage text with scary flags": ("usage: t.py [--on_oom {fail}] [--nccl_timeout MIN]\nt.py: error: unrecognized arguments: --x\n", 2, C.USAGE_ERROR),
    "gc noise at the end": (STEPS + "Training completed.\nException ignored in: <function X.__del__ at 0x7f>\n" + TRACE + "TypeError: 'NoneType' object is not callable\n", 0, C.SUCCESS),
    "shm named by the line before": (STEPS + "staging into /dev/shm/tokens.bin\n" + TRACE + "OSError: [Errno 28] No space left on device\n", 1, C.SHM_EXHAUSTED),
    "full disk with no place named": (STEPS + TRACE + "OSError: [Errno 28] No space left on device\n", 1, C.DISK_FULL),
    "told to stop, and obeyed": (STEPS + "[rank: 0] Received SIGTERM: 15\n", 0, C.INTERRUPTED),
    "told to stop after the work": (STEPS + "Training completed.\n[rank: 0] Received SIGTERM: 15\n", 0, C.SUCCESS),
    "srun ends its step after a task": ("srun: error: n2: task 1: Exited with exit code 1\nsrun: launch/slurm: _step_signal: Terminating StepId=1.0\n0: slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-30T22:11:11 ***\n", 143, C.UNKNOWN),
    "a list of suspects": (STEPS + "Worker unexpectedly exits. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called.\n", 1, C.UNKNOWN),
    "task was perhaps preempted": (STEPS + "Either the leader task was preempted/died/restarted unexpectedly or this task is experiencing network issues.\n", 1, C.UNKNOWN),
    "monitor names the process": (STEPS + "watch: no new output from pid 15 for 900s, stopping it\n", 124, C.HANG),
    "throughput in percent": (STEPS + "ERROR throughput 48.6 samples/s is 7% of the baseline 692.9 samples/s; stopping\n", 1, C.SLOWDOWN),
    "loader goes on with what it has": ("ERROR: Unexpected segmentation fault encountered in worker.\n" + STEPS, 1, C.SEGFAULT),
    "exception group": ("  + Exception Group Traceback (most recent call last):\n  |   File \"/w/a.py\", line 8, in f\n  | ExceptionGroup: two (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"/w/a.py\", line 3, in g\n    | FileNotFoundError: [Errno 2] No such file or directory: 'x'\n    +------------------------------------\n", 1, C.FILE_NOT_FOUND),
    "nan that recovered": (STEPS + "step 31 | loss nan\nstep 32 | loss nan\nstep 33 | loss nan\n" + STEPS + "Training done\n", 0, C.SUCCESS),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TRAPS))
def test_traps_seen_in_real_logs(name: str) -> None:
    """Each is a way in which a keyword search is wrong."""
    text, code, expected = TRAPS[name]

    verdict = judge(text, code)

    assert verdict.failure_class is expected, (verdict.root, verdict.alternatives)


def test_the_first_independent_cause_wins() -> None:
    """The rank that failed first is the root; what the others print is the cascade."""
    text = (
        "[rank5]: Traceback (most recent call last):\n[rank5]:   File \"/w/a.py\", line 1, in f\n[rank5]: KeyError: 'labels'\n"
        + WATCHDOG
    )
    verdict = judge(text)
    assert verdict.failure_class is C.TRACEBACK
    assert verdict.root is not None
    assert (verdict.root.line, verdict.root.rank) == (3, 5)
    assert verdict.cascade[0].rule == "nccl.timeout"
    assert "/w/a.py:1 in f" in verdict.advice


def test_a_sigkill_without_evidence_of_memory_stays_unknown() -> None:
    """SIGKILL has many senders; what was not seen is said, and what was considered too."""
    verdict = judge(STEPS, None, signal=9)
    assert verdict.failure_class is C.UNKNOWN
    assert "kernel log" in verdict.not_seen
    assert [item.failure_class for item in verdict.alternatives] == [C.OOM_KILLER]


@pytest.mark.parametrize(
    "observed, expected",
    [
        ({"oom_kills": 1}, C.OOM_KILLER),
        ({"kernel_lines": ["Out of memory: Killed process 12 (python) total-vm:1kB"]}, C.OOM_KILLER),
        ({"kernel_lines": ["NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus."]}, C.GPU_HARDWARE),
        ({"scheduler_state": "TIMEOUT"}, C.TIME_LIMIT),
        ({"scheduler_state": "NODE_FAIL"}, C.NODE_FAILURE),
        ({"gpu_lost": ["GPU 3"]}, C.GPU_HARDWARE),
        ({"host_memory_percent": 99.0}, C.OOM_KILLER),
        ({"oom_kills": 0, "kernel_lines": []}, C.UNKNOWN),
    ],
)
def test_evidence_beyond_text_decides(observed: dict[str, Any], expected: C) -> None:
    """Cgroup counters, the kernel's lines, the scheduler's word and the GPUs' state explain a SIGKILL."""
    assert judge(STEPS, None, observed, signal=9).failure_class is expected


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({"stopped_by": "deadline"}, C.TIME_LIMIT),
        ({"stopped_by": "request"}, C.INTERRUPTED),
        ({"stopped_by": "hang"}, C.HANG),
        ({"exec_errno": errno.ENOENT}, C.COMMAND_NOT_FOUND),
        ({"exec_errno": errno.EACCES}, C.NOT_EXECUTABLE),
        ({"lost": "rebooted"}, C.NODE_FAILURE),
        ({"lost": "vanished"}, C.UNKNOWN),
        ({"signal": 11}, C.SEGFAULT),
        ({"signal": 2}, C.INTERRUPTED),
        ({"signal": 8}, C.DIV_ZERO),
        ({"signal": 15}, C.UNKNOWN),
        ({"signal": 6}, C.UNKNOWN),
    ],
)
def test_how_it_ended_counts_where_the_log_is_silent(facts: dict[str, Any], expected: C) -> None:
    """We know whom we stopped; a signal says as much as it can."""
    assert judge(STEPS, None, **facts).failure_class is expected


def test_a_failing_setup_is_a_matter_of_configuration() -> None:
    """The command never ran: whatever the setup says, its domain is configuration."""
    verdict = judge("bash: conda: command not found\n", 127, setup_failed=True)
    assert (verdict.failure_class, verdict.domain) == (C.COMMAND_NOT_FOUND, FailureDomain.CONFIGURATION)
    assert judge("", 1, setup_failed=True).domain is FailureDomain.CONFIGURATION


def test_a_pipe_hides_a_failure_and_a_warning_says_so() -> None:
    """Behind `| tee` the code is 0: class is the child's failure, with a warning."""
    verdict = judge(STEPS + TRACE + "ModuleNotFoundError: No module named 'deepspeed'\n", 0)
    assert verdict.failure_class is C.MISSING_MODULE
    assert "exit code 0" in verdict.warnings[0]


def test_failing_after_the_work_is_said() -> None:
    """A teardown that fails keeps its class, and the reader learns that the work was finished."""
    verdict = judge(STEPS + "Training completed.\n" + TRACE + "OSError: [Errno 28] No space left on device\n")
    assert verdict.failure_class is C.DISK_FULL
    assert "work finished" in verdict.warnings[0]


def test_offline_mode_never_retries() -> None:
    """The network is not at fault: the same setting fails again."""
    verdict = judge(TRACE + "ConnectionError: Couldn't reach 'c4' on the Hub (OfflineModeIsEnabled)\n")
    assert verdict.failure_class is C.HUB_NETWORK
    assert verdict.retry_outlook.same_host is RetryOutlook.NO


def test_settings_and_data_change_the_domain() -> None:
    """An exception keeps its class where the domain says whose it is."""
    assert (
        judge(TRACE + "ValueError: hidden_size must be divisible by num_heads\n").domain is FailureDomain.CONFIGURATION
    )
    text = 'Traceback (most recent call last):\n  File "/w/data.py", line 9, in sampler\nZeroDivisionError: division by zero\n'
    assert judge(text).domain is FailureDomain.DATA


def test_a_verdict_is_small_and_survives_json() -> None:
    """Below 24 KiB whatever the log holds, and the same after a round trip."""
    wide = "RuntimeError: CUDA out of memory " + "\U0001f600" * 900 + "\n"
    verdict = judge(
        "".join(f"[rank{i}]: {wide}" for i in range(50)) + WATCHDOG * 50 + "PermissionError: " + "é" * 900 + "\n"
    )
    text = json.dumps(verdict.to_json())
    assert len(text.encode()) < 24 * 1024
    again = Classification.from_json(json.loads(text))
    assert again.to_json() == verdict.to_json()


def test_no_output_is_no_cause() -> None:
    """An empty log is unknown and says that there was no output."""
    verdict = judge("", 1)
    assert verdict.failure_class is C.UNKNOWN
    assert "any output" in verdict.not_seen

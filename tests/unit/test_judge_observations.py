"""What was seen beside the log decides only where it explains the end, and is otherwise told as considered."""

from __future__ import annotations

from typing import Any

import pytest

from gpualert.classify import ExitFacts, classify
from gpualert.judge_observations import names_of_jobs, rank_killed
from gpualert.scan import Scanner, ScanResult
from gpualert.taxonomy import FailureClass
from gpualert.verdict import Classification

C = FailureClass

OOM = "Memory cgroup out of memory: Killed process 4462 (python) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB"
XID79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python3, Ch 00000008, intr 00000000."
SEGV = "python3[12]: segfault at 0 ip 00007f sp 00007ffd error 4 in libnccl.so.2[167ad8,7f4b06644000+156000]"
SHM = "/dev/shm (shm): 0 of 65536 bytes free"
DISK = "/scratch (cwd): 0 of 1000 bytes free"

QUIET = "epoch 1 loss 0.5\nepoch 2 loss 0.4\n"
TRACE = "Traceback (most recent call last):\n"
FRAME = '  File "train.py", line 3, in <module>\n    step()\n'
VALUE_ERROR = QUIET + TRACE + FRAME + "ValueError: bad mode\n"
CUDA = QUIET + TRACE + FRAME + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
UNSPECIFIED = QUIET + TRACE + FRAME + "RuntimeError: CUDA error: unspecified launch failure\n"
NCCL = (
    QUIET + "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)\n"
)
ELASTIC_KILLED = (
    QUIET
    + "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 1 (pid: 4462)"
    + " of binary: python\n"
    + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\n"
    + "Signal 9 (SIGKILL) received by PID 4462\n"
)
LOADER_KILLED = QUIET + TRACE + FRAME + "RuntimeError: DataLoader worker (pid 4462) is killed by signal: Killed. \n"
LOADER_BUS = QUIET + TRACE + FRAME + "RuntimeError: DataLoader worker (pid 4462) is killed by signal: Bus error. \n"
NO_SPACE = QUIET + TRACE + FRAME + "OSError: [Errno 28] No space left on device\n"
NO_SPACE_AT = QUIET + TRACE + FRAME + "OSError: [Errno 28] No space left on device: '/data/run/model.pt'\n"
TOO_MANY = QUIET + TRACE + FRAME + "OSError: [Errno 24] Too many open files: 'a'\n"
RESTARTED = ELASTIC_KILLED + "".join(f"epoch {n} loss 0.{n}\n" for n in range(1, 100)) + VALUE_ERROR
FINISHED = QUIET + "Training completed.\n"


def scan(text: str) -> ScanResult:
    scanner = Scanner()
    scanner.feed(text.encode())
    return scanner.finish()


def judge(text: str, seen: dict[str, Any], code: int | None = 1, **facts: Any) -> Classification:
    if facts.get("signal"):
        code = None
    return classify(ExitFacts(code=code, **facts), scan(text), seen)


#: (what, log, exit, seen, class)
TABLE: list[tuple[str, str, dict[str, Any], dict[str, Any], FailureClass]] = [
    ("the kernel killed the child", QUIET, {"signal": 9}, {"kernel_lines": [OOM]}, C.OOM_KILLER),
    ("through a shell", QUIET, {"code": 137}, {"kernel_lines": [OOM]}, C.OOM_KILLER),
    ("DeepSpeed's 247", QUIET, {"code": 247}, {"oom_kills": 1}, C.OOM_KILLER),
    ("a counter and SIGKILL", QUIET, {"signal": 9}, {"oom_kills": 2}, C.OOM_KILLER),
    ("a counter and a killed rank", ELASTIC_KILLED, {}, {"oom_kills": 1}, C.OOM_KILLER),
    ("a line and a killed rank", ELASTIC_KILLED, {}, {"kernel_lines": [OOM]}, C.OOM_KILLER),
    ("a line and a killed loader worker", LOADER_KILLED, {}, {"kernel_lines": [OOM]}, C.OOM_KILLER),
    ("SIGKILL alone", QUIET, {"signal": 9}, {"oom_kills": 0, "kernel_lines": []}, C.UNKNOWN),
    (
        "somebody else's kill",
        QUIET,
        {"signal": 9},
        {"oom_kills": 0, "kernel_lines": [], "host_oom_kills": 1},
        C.UNKNOWN,
    ),
    (
        "the host ran out, and no cgroup tells",
        QUIET,
        {"signal": 9},
        {"host_oom_kills": 1, "host_memory_percent": 93.0},
        C.OOM_KILLER,
    ),
    ("a counter of a group that others share", QUIET, {"signal": 9}, {"shared_oom_kills": 1}, C.UNKNOWN),
    ("a counter while nothing of ours was killed", VALUE_ERROR, {}, {"oom_kills": 1}, C.TRACEBACK),
    ("a counter and no word at all", QUIET, {"code": 3}, {"oom_kills": 1}, C.UNKNOWN),
    ("a helper was killed, and the cause is another", VALUE_ERROR, {}, {"kernel_lines": [OOM]}, C.TRACEBACK),
    ("a rank was killed long ago, and restarted", RESTARTED, {}, {"kernel_lines": [OOM], "oom_kills": 1}, C.TRACEBACK),
    ("a success", QUIET, {"code": 0}, {"kernel_lines": [OOM], "oom_kills": 1}, C.SUCCESS),
    ("a GPU fell off under a CUDA error", UNSPECIFIED, {}, {"kernel_lines": [XID79]}, C.GPU_HARDWARE),
    ("a GPU fell off under a collective", NCCL, {"signal": 6}, {"kernel_lines": [XID79]}, C.GPU_HARDWARE),
    ("a GPU fell off, and the log is cut", QUIET, {"signal": 9}, {"kernel_lines": [XID79]}, C.GPU_HARDWARE),
    (
        "a GPU fell off that nobody used",
        QUIET,
        {"signal": 9},
        {"kernel_lines": [XID79], "touched_gpu": False},
        C.UNKNOWN,
    ),
    ("a GPU fell off beside a program's error", VALUE_ERROR, {}, {"kernel_lines": [XID79]}, C.TRACEBACK),
    ("Xid 31 is the program's", CUDA, {}, {"kernel_lines": [XID31]}, C.CUDA_RUNTIME),
    ("a lost GPU", UNSPECIFIED, {}, {"gpu_lost": ["GPU 1 no longer answers: GPU is lost"]}, C.GPU_HARDWARE),
    ("a lost GPU and an error of the program", VALUE_ERROR, {}, {"gpu_lost": ["GPU 1 no longer answers"]}, C.TRACEBACK),
    ("new ECC errors under a CUDA error", UNSPECIFIED, {}, {"gpu_errors": ["GPU 0 counts 1 new"]}, C.GPU_HARDWARE),
    ("new ECC errors beside a program's error", VALUE_ERROR, {}, {"gpu_errors": ["GPU 0 counts 1 new"]}, C.TRACEBACK),
    ("a driver replaced under it", UNSPECIFIED, {}, {"driver_changed": "was 550.1, is 550.2"}, C.DRIVER_MISMATCH),
    ("a driver replaced beside it", VALUE_ERROR, {}, {"driver_changed": "was 550.1, is 550.2"}, C.TRACEBACK),
    ("Slurm's time limit", QUIET, {"signal": 15}, {"scheduler_state": "TIMEOUT"}, C.TIME_LIMIT),
    ("Slurm's memory limit", QUIET, {"signal": 9}, {"scheduler_state": "OUT_OF_MEMORY"}, C.OOM_KILLER),
    ("preempted", QUIET, {"signal": 15}, {"scheduler_state": "PREEMPTED"}, C.PREEMPTED),
    ("a lost node", NCCL, {}, {"scheduler_state": "NODE_FAIL"}, C.NODE_FAILURE),
    ("cancelled", QUIET, {"signal": 15}, {"scheduler_state": "CANCELLED by 1000"}, C.INTERRUPTED),
    ("cancelled after it had failed", VALUE_ERROR, {}, {"scheduler_state": "CANCELLED by 1000"}, C.TRACEBACK),
    (
        "cancelled because the kernel killed a rank",
        ELASTIC_KILLED,
        {},
        {"scheduler_state": "CANCELLED by 0", "kernel_lines": [OOM]},
        C.OOM_KILLER,
    ),
    (
        "hardware made the scheduler cancel",
        UNSPECIFIED,
        {},
        {"scheduler_state": "NODE_FAIL", "kernel_lines": [XID79]},
        C.GPU_HARDWARE,
    ),
    ("Slurm has nothing to say", VALUE_ERROR, {}, {"scheduler_state": "FAILED"}, C.TRACEBACK),
    ("Slurm still runs", QUIET, {"code": 3}, {"scheduler_state": "RUNNING"}, C.UNKNOWN),
    ("SIGBUS and full shared memory", QUIET, {"signal": 7}, {"shm_full": SHM}, C.SHM_EXHAUSTED),
    (
        "through a shell, and full",
        QUIET + "Bus error (core dumped)\n",
        {"code": 135},
        {"shm_full": SHM},
        C.SHM_EXHAUSTED,
    ),
    ("SIGBUS and free shared memory", QUIET, {"signal": 7}, {"shm_full": None}, C.UNKNOWN),
    ("a loader's bus error", LOADER_BUS, {}, {"shm_full": SHM}, C.SHM_EXHAUSTED),
    ("ENOSPC without a path, shared memory full", NO_SPACE, {}, {"shm_full": SHM, "disks_full": []}, C.SHM_EXHAUSTED),
    ("ENOSPC without a path, disk full", NO_SPACE, {}, {"shm_full": None, "disks_full": [DISK]}, C.DISK_FULL),
    ("ENOSPC without a path, both full", NO_SPACE, {}, {"shm_full": SHM, "disks_full": [DISK]}, C.DISK_FULL),
    ("ENOSPC of a file, shared memory full too", NO_SPACE_AT, {}, {"shm_full": SHM, "disks_full": []}, C.DISK_FULL),
    ("another error while shared memory is full", VALUE_ERROR, {}, {"shm_full": SHM}, C.TRACEBACK),
    ("our own deadline, whatever else", QUIET, {"signal": 9, "stopped_by": "deadline"}, {"oom_kills": 1}, C.TIME_LIMIT),
]


@pytest.mark.parametrize(("what", "log", "facts", "seen", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_the_verdict(what: str, log: str, facts: dict[str, Any], seen: dict[str, Any], expected: FailureClass) -> None:
    found = judge(log, seen, **facts)
    assert found.failure_class is expected, [item.text for item in found.evidence]


@pytest.mark.parametrize(
    ("log", "seen", "source", "words"),
    [
        (QUIET, {"kernel_lines": [OOM]}, "kernel", "Killed process 4462"),
        (
            QUIET,
            {"oom_kills": 1, "cgroup": "/jobs/a", "memory_limit_bytes": 62914560},
            "cgroup",
            "oom_kill grew by 1, limit 60 MiB",
        ),
        (
            QUIET,
            {"scheduler_state": "OUT_OF_MEMORY", "scheduler_said": "sacct: 7.0 OUT_OF_MEMORY"},
            "slurm",
            "7.0 OUT_OF",
        ),
    ],
)
def test_the_root_is_the_text_that_proves_it(log: str, seen: dict[str, Any], source: str, words: str) -> None:
    found = judge(log, seen, signal=9)
    assert found.root is not None
    assert found.root.source == source and words in found.root.text
    assert found.root.line is None and found.root.offset is None


def test_what_the_log_said_before_it_lost_is_kept() -> None:
    """A hardware error wins over the CUDA error that it provoked, which is what followed from it."""
    found = judge(UNSPECIFIED, {"kernel_lines": [XID79]})
    assert found.root is not None and "79" in found.root.text
    assert any("unspecified launch failure" in item.text for item in found.cascade)
    assert any("kernel" in one.reason for one in found.alternatives)


@pytest.mark.parametrize(
    ("log", "facts", "seen", "source", "words"),
    [
        (QUIET, {"signal": 11}, {"kernel_crashes": [SEGV]}, "kernel", "libnccl.so.2"),
        (TOO_MANY, {}, {"open_files": {"limit": 1024, "most": 1020}}, "host", "limit 1024, at most 1020"),
        (TOO_MANY, {}, {"open_files": {"limit": 1024, "most": None}}, "host", "limit 1024"),
        (NO_SPACE, {}, {"disks_full": [DISK]}, "host", "/scratch"),
        (CUDA, {}, {"kernel_lines": [XID31]}, "kernel", "Xid (PCI:0000:3b:00): 31"),
        (
            QUIET,
            {"signal": 9},
            {"kernel_lines": [OOM], "memory_peak_bytes": 99, "memory_limit_bytes": 100},
            "cgroup",
            "memory peak",
        ),
    ],
)
def test_what_agrees_is_added_as_evidence(
    log: str, facts: dict[str, Any], seen: dict[str, Any], source: str, words: str
) -> None:
    found = judge(log, seen, **facts)
    assert any(item.source == source and words in item.text for item in found.evidence), found.evidence


@pytest.mark.parametrize(
    ("log", "facts", "seen", "considered"),
    [
        (VALUE_ERROR, {}, {"kernel_lines": [OOM]}, C.OOM_KILLER),
        (VALUE_ERROR, {}, {"oom_kills": 1}, C.OOM_KILLER),
        (QUIET, {"signal": 9}, {"shared_oom_kills": 1}, C.OOM_KILLER),
        (VALUE_ERROR, {}, {"gpu_lost": ["GPU 1 no longer answers"]}, C.GPU_HARDWARE),
        (NCCL, {}, {"gpu_unresponsive": "NVML did not answer within 3 s"}, C.GPU_HARDWARE),
        (VALUE_ERROR, {}, {"kernel_lines": [XID79]}, C.GPU_HARDWARE),
    ],
)
def test_what_explains_nothing_is_told_as_considered(
    log: str, facts: dict[str, Any], seen: dict[str, Any], considered: FailureClass
) -> None:
    found = judge(log, seen, **facts)
    assert considered in {one.failure_class for one in found.alternatives}
    assert found.root is None or found.root.source in ("log", "exit")


@pytest.mark.parametrize("log", [QUIET, VALUE_ERROR, NCCL, UNSPECIFIED, NO_SPACE, ELASTIC_KILLED, ""])
@pytest.mark.parametrize("facts", [{"code": 1}, {"signal": 9}, {"signal": 11}, {"code": 0}])
def test_nothing_seen_changes_nothing(log: str, facts: dict[str, Any]) -> None:
    """Probes that looked and found all well leave the log's own verdict."""
    quiet = {"kernel_lines": [], "oom_kills": 0, "scheduler_state": "RUNNING", "gpu_lost": [], "shm_full": None}
    alone, with_probes = judge(log, {}, **facts), judge(log, quiet, **facts)
    assert alone.failure_class is with_probes.failure_class
    assert alone.evidence == with_probes.evidence and alone.alternatives == with_probes.alternatives


def test_what_could_not_be_looked_at_is_said_where_it_matters() -> None:
    reasons = {"kernel_lines": "the kernel log: /dev/kmsg: Permission denied"}
    seen = {"not_seen": reasons, "does_not_apply": ["gpu_lost", "scheduler_state"], "oom_kills": 0}
    assert judge(QUIET, seen, signal=9).not_seen == ("the kernel log: /dev/kmsg: Permission denied",)
    assert judge(VALUE_ERROR, seen).not_seen == ()
    assert "kernel log" in judge(VALUE_ERROR, {}).not_seen  # a log from anywhere


def test_an_end_that_nobody_saw_after_the_work_was_done_is_still_a_success() -> None:
    assert judge(FINISHED, {"oom_kills": 0, "gpu_lost": []}, code=None).failure_class is C.SUCCESS


@pytest.mark.parametrize(
    "seen",
    [
        {"kernel_lines": ["\x00\ufffd" * 200, ""]},
        {"kernel_lines": [OOM] * 500, "gpu_lost": ["x" * 10_000] * 500},
        {"scheduler_state": "\x00|||" * 1000},
        {"unknown_key": object()},
    ],
)
def test_hostile_observations_are_bounded(seen: dict[str, Any]) -> None:
    import json

    found = judge(NCCL, seen, signal=9)
    assert len(json.dumps(found.to_json())) < 24 * 1024


@pytest.mark.parametrize(
    ("log", "killed"),
    [
        (ELASTIC_KILLED, True),
        (LOADER_KILLED, True),
        (QUIET + "run.sh: line 3: 8156 Killed                  python3 train.py\n", True),
        (QUIET + "Killed\n", True),
        (QUIET, False),
        (VALUE_ERROR, False),
        (QUIET + "watchdog: will send SIGTERM, then give up\n", False),
        ("", False),
    ],
)
def test_whether_the_log_says_that_something_was_killed(log: str, killed: bool) -> None:
    assert rank_killed(ExitFacts(code=1), scan(log)) is killed


def test_a_job_that_the_log_names() -> None:
    assert names_of_jobs(scan("srun: job 12 queued and waiting for resources\n" + QUIET))
    assert names_of_jobs(scan(QUIET)) == ()

"""Two looks and the samples between them come to what a judgement takes; what was not seen stays unknown, with why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpualert import observations
from gpualert.exit_facts import ExitFacts

CHILD = 4462
OOM_KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,"
    f"task_memcg=/a,task=python,pid={CHILD},uid=0"
)
KILLED = f"Memory cgroup out of memory: Killed process {CHILD} (python) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB"
XID = "NVRM: Xid (PCI:0000:{:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
INITIAL = "pid:[4026531836]"


def memory(oom_kill: int | None) -> dict[str, Any]:
    group = {"version": 2, "name": "/a", "oom_kill": oom_kill, "limit_bytes": 1000, "peak_bytes": 990, "ancestors": []}
    seen: dict[str, Any] = {"group": group, "host_total_bytes": 5000, "host_oom_kills": 0, "marks": []}
    if oom_kill is None:
        seen["why_no_group"] = "the memory cgroup /a is not mounted here"
    return {"seen": seen}


def kernel(*lines: str, start: int = 0) -> dict[str, Any]:
    records = [[start + i, 100.0 + i, line] for i, line in enumerate(lines)]
    return {"seen": {"via": "/dev/kmsg", "last_sequence": 99, "last_time_s": 100.0, "records": records, "lost": False}}


def gpu(index: int, **facts: Any) -> dict[str, Any]:
    from gpualert.probe_gpu_nvml import blank

    one = blank(index)
    one.update(uuid=f"GPU-{index}", name="NVIDIA H100", pci_bus_id=f"0000:{16 + index:02x}:00.0", memory_total_bytes=80)
    one.update(facts)
    return one


def gpus(*cards: dict[str, Any], visible: list[int] | None = None) -> dict[str, Any]:
    chosen = None if visible is None else {"asked": "x", "indices": visible, "why": None}
    return {
        "seen": {"source": "nvml", "driver_version": "550.1", "gpus": list(cards), "visible": chosen, "host_pids": True}
    }


def looks(**after: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    before = {
        "memory": memory(0),
        "kernel": kernel(),
        "gpu": {"not_seen": "no NVIDIA driver on this host", "kind": "no_driver"},
        "who": {"uid": 0, "pid_namespace": INITIAL},
        "limits": {"open_files": 1024},
    }
    rest = {
        "memory": memory(0),
        "kernel": kernel(),
        "host": {"seen": {"disks": []}},
        "gpu": {"not_seen": "no NVIDIA driver on this host", "kind": "no_driver"},
        "scheduler": {"not_seen": "the launch is in no Slurm job", "kind": "no_job"},
        "began_s": 50.0,
        "ended_s": 101.0,
        "samples": {"taken": 3, "age_s": 0.5, "pids": [CHILD], "available_bytes": 500, "total_bytes": 5000},
    }
    return before, {**rest, **after}


def reduce(before: Any, after: Any, signal: int | None = 9, **options: Any) -> dict[str, Any]:
    exit = ExitFacts(signal=signal, code=None if signal else 1)
    return observations.reduce(before, after, exit, CHILD, **options)


def test_a_quiet_host_has_looked_at_everything() -> None:
    found = reduce(*looks())
    assert (found["oom_kills"], found["kernel_lines"]) == (0, [])
    assert found["not_seen"] == {}
    assert sorted(found["does_not_apply"]) == ["gpu_lost", "scheduler_state"]
    assert found["host_memory_percent"] == pytest.approx(90.0)


def test_a_kill_of_the_child() -> None:
    found = reduce(*looks(kernel=kernel(OOM_KILL, KILLED), memory=memory(2)))
    assert found["kernel_lines"] == [KILLED] and found["oom_kills"] == 2
    assert (found["cgroup"], found["memory_limit_bytes"], found["memory_peak_bytes"]) == ("/a", 1000, 990)


def test_a_kill_told_by_the_first_look_counts_too() -> None:
    """What happened between the start and the first look is in that one."""
    before, after = looks()
    before["kernel"] = kernel(KILLED)
    assert reduce(before, after)["kernel_lines"] == [KILLED]


def test_somebody_elses_kill_is_context() -> None:
    other = KILLED.replace(str(CHILD), "77")
    found = reduce(*looks(kernel=kernel(other)))
    assert found["kernel_lines"] == [] and found["kernel_context"] == [other]


def test_a_group_that_the_launch_moved_into() -> None:
    before, after = looks()
    after["samples"]["grown"] = ["/jobs/b", 1]
    found = reduce(before, after)
    assert (found["cgroup"], found["oom_kills"]) == ("/jobs/b", 1)


def test_old_samples_say_nothing_of_the_end() -> None:
    before, after = looks()
    after["samples"].update(age_s=60.0, shm_free_share=0.0)
    found = reduce(before, after)
    assert "host_memory_percent" not in found and not found.get("shm_full")


@pytest.mark.parametrize(
    ("disks", "shm", "disk"),
    [
        ([("shm", 0), ("cwd,tmp", 500)], True, False),
        ([("shm", 500), ("cwd", 0)], False, True),
        ([("shm,cwd", 0)], True, True),
        ([("shm", 500), ("cwd", 500)], False, False),
    ],
)
def test_what_is_full(disks: list[tuple[str, int]], shm: bool, disk: bool) -> None:
    told = [{"what": what, "path": "/" + what, "free_bytes": free, "total_bytes": 1000} for what, free in disks]
    found = reduce(*looks(host={"seen": {"disks": told}}))
    assert bool(found["shm_full"]) is shm
    assert bool(found.get("disks_full")) is disk


def test_shared_memory_that_was_full_until_the_process_died() -> None:
    """Its files vanish with who held them, so the last sample is what counts."""
    before, after = looks(host={"seen": {"disks": [{"what": "shm", "path": "/s", "free_bytes": 9, "total_bytes": 9}]}})
    after["samples"]["shm_free_share"] = 0.001
    assert "0.1 % free at the last sample" in reduce(before, after)["shm_full"]


def test_xids_of_the_gpus_that_the_launch_could_use() -> None:
    lines = kernel(XID.format(16), XID.format(17))
    before, after = looks(kernel=lines, gpu=gpus(gpu(0), gpu(1), visible=[1]))
    before["gpu"] = gpus(gpu(0), gpu(1), visible=[1])
    found = reduce(before, after, signal=None)
    assert found["kernel_lines"] == [XID.format(17)]
    assert found["xids"] == [{"pci": "0000:11:00", "xid": 79, "pid": None}]
    assert found["gpu_lost"] == []


def test_a_gpu_that_was_lost_on_the_way() -> None:
    lost = gpu(1, error={"kind": "gpu_lost", "text": "GPU is lost"})
    before, after = looks(gpu=gpus(gpu(0), lost))
    before["gpu"] = gpus(gpu(0), gpu(1))
    found = reduce(before, after, signal=None)
    assert len(found["gpu_lost"]) == 1 and "GPU 1" in found["gpu_lost"][0]
    before["gpu"] = gpus(gpu(0), lost)
    assert reduce(before, after, signal=None)["gpu_lost"] == []  # it was so before


def test_errors_that_grew_are_told_and_old_ones_are_not() -> None:
    def card(count: int, pending: bool) -> dict[str, Any]:
        rows = {"correctable": 0, "uncorrectable": 0, "pending": pending, "failure": False}
        return gpu(0, ecc={"uncorrected_volatile": count, "uncorrected_aggregate": count + 5}, remapped_rows=rows)

    before, after = looks(gpu=gpus(card(3, True)))
    before["gpu"] = gpus(card(1, True))
    errors = reduce(before, after, signal=None)["gpu_errors"]
    assert len(errors) == 2 and all("ECC" in text for text in errors)


def test_why_nothing_was_seen() -> None:
    refused = {"not_seen": "/dev/kmsg: Permission denied; dmesg: failed"}
    late = {"not_seen": "did not answer within 3 s", "kind": "late"}
    before, after = looks(kernel=refused, memory=memory(None), gpu=late, scheduler={"not_seen": "sacct not installed"})
    before["memory"], before["gpu"] = memory(None), gpus(gpu(0))
    found = reduce(before, after)
    assert found["not_seen"] == {
        "kernel_lines": "the kernel log: /dev/kmsg: Permission denied; dmesg: failed",
        "oom_kills": "the memory cgroup: the memory cgroup /a is not mounted here",
        "scheduler_state": "the scheduler: sacct not installed",
        "gpu_lost": "the GPUs: did not answer within 3 s",
    }
    assert not {"kernel_lines", "oom_kills", "scheduler_state", "gpu_lost"} & set(found)


def test_a_stop_of_our_own_needs_no_other_reason() -> None:
    found = observations.reduce(None, {"samples": {}}, ExitFacts(signal=15, stopped_by="request"), CHILD)
    assert found["not_seen"] == {} and len(found["does_not_apply"]) == len(observations.ANSWERS)


def test_without_any_look_nothing_is_claimed() -> None:
    found = reduce(None, None)
    assert set(found["not_seen"]) == set(observations.ANSWERS)
    assert not set(found) & {"oom_kills", "kernel_lines", "gpu_lost", "shm_full", "host_memory_percent"}


@pytest.mark.parametrize(
    "damaged", [{}, {"memory": None}, {"memory": {"seen": None}, "kernel": {"seen": {}}}, {"gpu": 7}]
)
def test_looks_of_another_shape_are_survived(damaged: dict[str, Any]) -> None:
    found = reduce(damaged, damaged)
    assert found.get("oom_kills") is None
    json.dumps(observations.for_outcome(damaged, damaged, found))


def test_the_outcomes_part_is_small_and_without_noise() -> None:
    cards = [gpu(index, memory_used_bytes=1, name="NVIDIA " + "X" * 60) for index in range(64)]
    before, after = looks(kernel=kernel(*[KILLED] * 50), gpu=gpus(*cards), memory=memory(1))
    before["gpu"] = gpus(*cards)
    disks = [{"what": "cwd", "path": "/" + "p" * 200, "free_bytes": 1, "total_bytes": 2}] * 30
    after["host"] = {"seen": {"disks": disks}}
    found = observations.for_outcome(before, after, reduce(before, after))
    assert len(json.dumps(found).encode()) <= observations.MAX_OUTCOME_BYTES
    assert found["shortened"] is True and found["gpus"]


def test_what_an_outcome_tells() -> None:
    before, after = looks(
        gpu=gpus(gpu(0, memory_used_bytes=9), visible=[0]), scheduler={"seen": {"job": "7", "state": "TIMEOUT"}}
    )
    before["gpu"] = gpus(gpu(0, memory_used_bytes=3), visible=[0])
    found = observations.for_outcome(before, after, reduce(before, after))
    assert found["memory"]["peak_bytes"] == 990 and found["memory"]["host_total_bytes"] == 5000
    (card,) = found["gpus"]
    assert (card["memory_used_before_bytes"], card["memory_used_after_bytes"], card["used"]) == (3, 9, True)
    assert found["driver"] == "550.1"
    assert found["scheduler"] == {"job": "7", "state": "TIMEOUT", "reason": None, "exit_code": None, "max_rss": None}
    assert found["open_files"] == {"limit": 1024, "most": None}

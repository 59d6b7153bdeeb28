"""Slurm again: preemption, a node taken away, the kernel's memory kill, a task that fails among others, no program."""

# ruff: noqa: E501 (the jobs print long lines)
from __future__ import annotations

from slurm_setup import slurm_job

LOOP = """import os, sys, time
rank = int(os.environ.get("SLURM_PROCID", 0))
for step in range(900):
    time.sleep(0.05)
    if rank == 0 and step % 4 == 0:
        print(f"[{time.strftime('%H:%M:%S')}] train | step {step:6d} | loss {2.9 / (1 + step / 90):.4f} | 1.31 steps/s", flush=True)
    TROUBLE
"""

CASES = [
    slurm_job(
        "u-slurm-preempted",
        "printf '#!/bin/bash\\nsleep 2\\n' > u.sbatch; sbatch --parsable -p urgent -w n1 --mem=1900 -o /dev/null u.sbatch > /dev/null",
        LOOP.replace("TROUBLE", "pass"),
        "-w n1 --no-requeue",
        project="/mnt/lustre/proj",
    ),
    slurm_job(
        "u-slurm-node-down",
        "scontrol update nodename=n1 state=down reason=maintenance",
        LOOP.replace("TROUBLE", "pass"),
        "-w n1 --no-requeue",
        project="/mnt/lustre/proj",
    ),
    slurm_job(
        "u-slurm-cgroup-oom",
        ":",
        LOOP.replace("TROUBLE", "keep = globals().setdefault('keep', []); keep.append(bytearray(b'k' * (5 << 20)))"),
        task_plugin="task/cgroup",
        project="/mnt/lustre/proj",
    ),
    slurm_job(
        "u-slurm-task-torn",
        ":",
        LOOP.replace("TROUBLE", "if rank == 1 and step == 60: open('/mnt/lustre/proj/index/part-0001.idx', 'rb')"),
        "-N2 -n2",
        step="srun -l --kill-on-bad-exit=1 /usr/bin/python3 -u train.py",
        project="/mnt/lustre/proj",
    ),
    slurm_job(
        "u-slurm-task-fails",
        ":",
        LOOP.replace("TROUBLE", "if rank == 1 and step == 60: open('/mnt/lustre/proj/index/part-0001.idx', 'rb')"),
        "-N2 -n2",
        step="srun -l --wait=2 /usr/bin/python3 -u train.py",
        project="/mnt/lustre/proj",
    ),
    slurm_job(
        "u-slurm-no-program",
        ":",
        "",
        begun="execve",
        step="srun -n1 horovodrun -np 4 python train.py",
        project="/mnt/lustre/proj",
    ),
]

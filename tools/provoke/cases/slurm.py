"""What Slurm does to jobs that it ends: wall time, cancel, its own memory limit."""

from __future__ import annotations

from slurm_setup import slurm_job

LONG = """import time
for step in range(900):
    time.sleep(0.1)
    if step % 5 == 0:
        print(f"step {step:6d} loss {3.2 / (1 + step / 100):.4f} grad_norm 0.9 tokens/s 10344", flush=True)
"""

MEMORY = """import time
kept = []
for step in range(200):
    kept.append(bytearray(b"m" * (10 << 20)))
    time.sleep(0.1)
    print(f"step {step:6d} loss {3.2 / (1 + step / 100):.4f} host_mem_gb {len(kept) / 100:.2f}", flush=True)
"""

CASES = [
    slurm_job("slurm-time-limit", "scontrol update jobid=$J EndTime=now+2", LONG),
    slurm_job("slurm-scancel", "scancel $J", LONG),
    slurm_job("slurm-over-memory", ":", MEMORY),
    slurm_job("slurm-requeue", "scontrol requeue $J; sleep 3; scancel $J", LONG),
    # The pid namespace keeps pkill inside the sandbox.
    slurm_job(
        "slurm-node-daemon-killed", "kill -9 $(cat $B/slurmd-n1.pid); pkill -9 slurmstepd", LONG, "-w n1 --no-requeue"
    ),
]

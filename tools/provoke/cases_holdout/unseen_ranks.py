"""Several processes: accelerate, mpirun, spawn, restarts, error files; the cause is often far from the end."""

# ruff: noqa: E501 (the jobs print long lines)
from __future__ import annotations

from case import Case

ACCELERATE = """import logging
import time

import torch
from accelerate import Accelerator
from tqdm.auto import tqdm

logging.basicConfig(format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", level=logging.INFO)
log = logging.getLogger("finetune")


def evaluate(model, loader):
    hits, seen = 0, 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
        seen += len(y)
    return hits / seen


accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(32, 4)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, opt = accelerator.prepare(model, opt)
bar = tqdm(range(240), disable=not accelerator.is_local_main_process)
for step in bar:
    x, y = torch.randn(8, 32), torch.randint(0, 4, (8,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    opt.step()
    opt.zero_grad()
    bar.set_postfix(loss=f"{loss.item():.3f}")
    if step % 20 == 0:
        log.info("step %d loss %.4f", step, loss.item())
    time.sleep(0.01)
held_out = []  # the held-out split matched no file
log.info("accuracy %.3f", evaluate(model, held_out))
accelerator.wait_for_everyone()
"""

MPI = """import os, sys, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
for it in range(60):
    if rank == 0:
        print(f"[iter {it:5d}] time/iter 0.05 loss {5.0 - it * 0.03:.3f}", flush=True)
    time.sleep(0.03)
    if rank == 1 and it == 33:
        {fault}
"""

SPAWN = """import os
import torch.multiprocessing as mp


def worker(rank, out):
    path = os.path.join(out, f"rank{rank}", "events.log")
    print(f"worker {rank} writing {path}", flush=True)
    with open(path, "a") as stream:
        stream.write("start\\n")


if __name__ == "__main__":
    mp.spawn(worker, args=("/mnt/results/run12",), nprocs=2)
"""

RECORD = """import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo")
    tags = {"en": 0, "de": 1}
    if dist.get_rank() == 1:
        print(tags["fr"])
    dist.barrier()


main()
"""

RESTARTS = """import os
import numpy as np
import torch.distributed as dist

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"[attempt {attempt}] rank {rank} up", flush=True)
shard = np.memmap("tokens.bin", dtype=np.uint16, mode="r", shape=(1 << 20,))
"""

TERMINATE = """#include <stdexcept>
#include <vector>
extern "C" void build(long n) { std::vector<char> v; v.resize((size_t)n); v[0] = 1; }
"""

TERMINATE_PY = """import ctypes, os
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
lib = ctypes.CDLL("./libindex.so")
for shard in range(6):
    print(f"[rank {rank}] shard {shard} indexed", flush=True)
    dist.barrier()
if rank == 0:
    lib.build(ctypes.c_long(1 << 46))
dist.barrier()
"""

KILLED_OOM = """import os
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
kept = []
for step in range(400):
    if rank == 1:
        kept.append(b"y" * (6 << 20))
    dist.barrier()
    if rank == 0:
        print(f"step {step} tokens/s 10412", flush=True)
"""

OOM_JOB = """torchrun --standalone --nproc-per-node=2 train.py
rc=$?
echo "--- exit $rc; dmesg since start ---"
dmesg --notime | grep "Memory cgroup out of memory" | tail -n 1
exit $rc
"""

C10D = "torchrun --nnodes=2 --node-rank=1 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint={end} --rdzv-id=77 --rdzv-conf={conf} train.py\n"
HELLO = "import torch.distributed as dist\ndist.init_process_group('gloo')\nprint('up')\n"

SCATTERED = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for i in range(300):
    if rank == 0:
        print(f"| epoch 1 | {i:4d}/2000 batches | ms/batch 11.20 | loss {8.1 - i / 100:5.2f} | ppl {3000 - i:8.2f}", flush=True)
    hidden = torch.randn(4, 16 if not (rank == 2 and i == 280) else 17)
    out = torch.cat([hidden, torch.zeros(2, 16)], dim=0)
    dist.all_reduce(out)
"""

INTERRUPTED = """import time
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(2000):
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"global_step {step} elapsed {step * 0.05:.2f}s", flush=True)
    time.sleep(0.05)
"""

WRONG_IP = """import os, datetime
import torch.distributed as dist
os.environ.update(MASTER_ADDR="trainer-0.trainer.default.svc", MASTER_PORT="23456", RANK="3", WORLD_SIZE="8")
print("MASTER_ADDR=" + os.environ["MASTER_ADDR"], flush=True)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
"""

CASES = [
    Case(
        "u-accelerate-empty-eval",
        "accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no finetune.py\n",
        {"finetune.py": ACCELERATE},
        ("accelerate", "tqdm"),
        project="/home/alex/finetune",
    ),
    Case(
        "u-mpirun-segfault",
        "mpirun --allow-run-as-root --oversubscribe -np 2 python train_mpi.py\n",
        {"train_mpi.py": MPI.replace("{fault}", "import ctypes; ctypes.string_at(8)")},
        ("mpirun",),
        project="/mnt/scratch/mpi",
    ),
    Case(
        "u-mpirun-abort-rank",
        "mpirun --allow-run-as-root --oversubscribe -np 2 --tag-output python train_mpi.py\n",
        {"train_mpi.py": MPI.replace("{fault}", 'raise AssertionError("label smoothing must be < 1, got 1.2")')},
        ("mpirun",),
        project="/mnt/scratch/mpi",
    ),
    Case("u-mpirun-no-program", "mpirun --allow-run-as-root -np 2 horovod_train --epochs 3\n", needs=("mpirun",)),
    Case(
        "u-spawn-missing-folder",
        "mkdir -p /mnt/results/run12/rank0\npython main.py\n",
        {"main.py": SPAWN},
        ("torch",),
        project="/home/alex/spawn",
    ),
    Case(
        "u-record-error-file",
        "torchrun --standalone --nproc-per-node=2 --log-dir logs --redirects 3 main.py\n",
        {"main.py": RECORD},
        ("torch",),
    ),
    Case(
        "u-restarts-data-short",
        "head -c 1000 /dev/zero > tokens.bin\ntorchrun --standalone --nproc-per-node=2 --max-restarts=2 pretrain.py\n",
        {"pretrain.py": RESTARTS},
        ("torch", "numpy"),
        project="/srv/pretrain",
    ),
    Case(
        "u-rank-cpp-terminate",
        "g++ -shared -fPIC -o libindex.so index.cpp && torchrun --standalone --nproc-per-node=2 index.py\n",
        {"index.cpp": TERMINATE, "index.py": TERMINATE_PY},
        ("torch", "g++"),
        project="/srv/index",
    ),
    Case("u-rank-oom-killed", OOM_JOB, {"train.py": KILLED_OOM}, ("torch", "dmesg"), memory_mib=900, project="/srv/lm"),
    Case(
        "u-rank-killed-no-word",
        "torchrun --standalone --nproc-per-node=2 train.py\n",
        {"train.py": KILLED_OOM},
        ("torch",),
        memory_mib=900,
        project="/srv/lm",
    ),
    Case(
        "u-c10d-unknown-host",
        C10D.format(end="gpu-a17:29400", conf="join_timeout=8"),
        {"train.py": HELLO},
        ("torch",),
        timeout_s=150,
    ),
    Case(
        "u-c10d-refused",
        C10D.format(end="127.0.0.1:29477", conf="join_timeout=8,read_timeout=4"),
        {"train.py": HELLO},
        ("torch",),
        timeout_s=150,
    ),
    Case("u-master-not-resolvable", "python init.py\n", {"init.py": WRONG_IP}, ("torch",), timeout_s=150),
    Case(
        "u-shape-rank2-late",
        "torchrun --standalone --nproc-per-node=3 lm.py 2>&1\n",
        {"lm.py": SCATTERED},
        ("torch",),
        project="/home/alex/lm",
    ),
    Case(
        "u-torchrun-sigint",
        "exec torchrun --standalone --nproc-per-node=2 t.py\n",
        {"t.py": INTERRUPTED},
        ("torch",),
        signal_when=(r"global_step 40 ", "SIGINT", "leader"),
    ),
    Case(
        "u-torchrun-sigterm",
        "exec nohup torchrun --standalone --nproc-per-node=2 t.py\n",
        {
            "t.py": INTERRUPTED.replace(
                "for step", "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\nfor step"
            )
        },
        ("torch",),
        signal_when=(r"global_step 40 ", "SIGTERM", "leader"),
    ),
]

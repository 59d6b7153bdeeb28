"""torchrun with gloo on the CPU: one rank fails first, or nobody finds the others."""

from __future__ import annotations

from case import Case

# One script, ten ways to die. The failing rank fails alone; what the others print follows from it.
TRAIN_DDP = """import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def load_vocab(rank):
    with open(f"data/vocab.rank{rank}.json") as f:
        return f.read()


def die(kind, x):
    if kind == "exception":
        raise ValueError("unexpected label 37 in batch, dataset has 10 classes")
    if kind == "exit":
        sys.exit(3)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "segv":
        import ctypes
        ctypes.string_at(0)
    if kind == "import":
        import apex.optimizers
    if kind == "file":
        load_vocab(int(os.environ["RANK"]))
    if kind == "shape":
        torch.nn.functional.linear(x, torch.zeros(10, 48))
    if kind == "assert":
        assert x.size(0) % 3 == 0, f"batch size {x.size(0)} is not divisible by the 3 gradient accumulation steps"
    if kind == "nan":
        loss = (x * float("inf") - x * float("inf")).mean()
        if not torch.isfinite(loss):
            raise RuntimeError(f"Loss is {loss.item()}, stopping training")
    if kind == "memory":
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        cache = [bytearray(1 << 30) for _ in range(64)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--fail", default="none")
    p.add_argument("--rank", type=int, default=1)
    p.add_argument("--at", type=int, default=12)
    p.add_argument("--steps", type=int, default=40)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    if rank == 0:
        print(f"world size {world}, {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    for step in range(args.steps):
        x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
        if rank == args.rank and step == args.at:
            die(args.fail, x)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step:4d} loss {loss.item():.4f} lr 0.05", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

TORCHRUN = "torchrun --standalone --nproc-per-node=2 train_ddp.py "


def dying(name: str, kind: str, more: str = "", **extra: object) -> Case:
    return Case(name, TORCHRUN + f"--fail {kind} {more}\n", {"train_ddp.py": TRAIN_DDP}, ("torch",), **extra)  # type: ignore[arg-type]


TIMEOUT_DDP = """import datetime, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
for step in range(20):
    if rank == 1 and step == 9:
        time.sleep(30)  # a slow evaluation
    t = torch.ones(1000) * rank
    dist.all_reduce(t)
    if rank == 0:
        print(f"step {step} grad norm {t.norm():.3f}", flush=True)
"""

BARRIER = """import datetime, time
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
print(f"rank {rank}: preprocessing shard {rank}", flush=True)
if rank == 2:
    time.sleep(40)
dist.monitored_barrier(timeout=datetime.timedelta(seconds=3))
print(f"rank {rank}: ready", flush=True)
"""

DIFFERENT_COLLECTIVES = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    t = torch.ones(4)
    if step == 3 and rank == 1:
        dist.broadcast(t, src=0)
    else:
        dist.all_reduce(t)
    if rank == 0:
        print("step", step, "ok", flush=True)
"""

CLIENT_ONLY = """import datetime, os
import torch.distributed as dist
print("connecting to", os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
"""

BUSY_PORT = """python3 -c "
import socket, time
s = socket.socket(); s.bind(('0.0.0.0', 29500)); s.listen(); time.sleep(60)" &
sleep 1
torchrun --nproc-per-node=2 --master-port 29500 train_ddp.py
rc=$?
kill %1
exit $rc
"""

CASES = [
    dying("ddp-exception", "exception"),
    dying("ddp-exit-3", "exit"),
    dying("ddp-sigkill", "kill"),
    dying("ddp-sigsegv", "segv"),
    dying("ddp-import-error", "import"),
    dying("ddp-file-missing", "file"),
    dying("ddp-shape", "shape", "--rank 0"),
    dying("ddp-assertion", "assert"),
    dying("ddp-nan-guard", "nan", "--at 27"),
    dying("ddp-memory-error", "memory"),
    Case(
        "gloo-collective-timeout", "torchrun --standalone --nproc-per-node=2 t.py\n", {"t.py": TIMEOUT_DDP}, ("torch",)
    ),
    Case("gloo-monitored-barrier", "torchrun --standalone --nproc-per-node=3 b.py\n", {"b.py": BARRIER}, ("torch",)),
    Case(
        "ddp-different-collectives",
        "torchrun --standalone --nproc-per-node=2 d.py\n",
        {"d.py": DIFFERENT_COLLECTIVES},
        ("torch",),
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ),
    Case(
        "rendezvous-nobody-listens",
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=29611 RANK=1 WORLD_SIZE=2 python worker.py\n",
        {"worker.py": CLIENT_ONLY},
        ("torch",),
    ),
    Case("rendezvous-port-in-use", BUSY_PORT, {"train_ddp.py": TRAIN_DDP}, ("torch",)),
]

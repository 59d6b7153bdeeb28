"""Quoted errors before real ones, causes behind wrappers, work that was finished first, other shells, other words."""

# ruff: noqa: E501 (the jobs print long lines)
from __future__ import annotations

from case import Case

NOISE = """import json, os, random, sys, time
random.seed(9)


def train(first, last, every=1):
    for step in range(first, last):
        if step % every == 0:
            print(json.dumps({"step": step, "loss": round(9 / (step + 3) + random.random() / 10, 4), "nan_grads": 0, "oom_retries": 0}), flush=True)


"""

POLICY = (
    NOISE
    + """print("[launcher] restart policy: on 'CUDA out of memory' halve the batch; on 'NCCL error' restart; on 'No space left on device' stop", flush=True)
train(0, 12)
import socket
store = socket.socket()
store.bind(("0.0.0.0", 29500))
store.listen()
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", RANK="0", WORLD_SIZE="2")
print("[launcher] initialising process group, rank 0 of 2", flush=True)
dist.init_process_group("gloo")
"""
)

FINISHED_FIRST = (
    NOISE
    + """train(0, 300)
print("Training complete. Final val_loss 0.0412. Model written to final/", flush=True)
print("pruning old checkpoints", flush=True)
for name in ("step100", "step200"):
    os.rmdir(os.path.join("/mnt/keep", name))
"""
)

CHAINED = (
    NOISE
    + """train(0, 140)


def read_index():
    return open("/mnt/data/val/index.json").read()


def evaluate():
    try:
        return read_index()
    except OSError as error:
        raise RuntimeError("evaluation failed, aborting the run") from error


try:
    evaluate()
finally:
    print("closing writers", flush=True)
"""
)

INNER = (
    NOISE
    + """train(0, 260, 2)
import torch
q = torch.randn(2, 8, 128, 64)
k = torch.randn(2, 8, 96, 32)
torch.matmul(q, k.transpose(-1, -2))
"""
)

OUTER = """import subprocess, sys
command = [sys.executable, "train.py", "--stage", "2"]
print("[pipeline] stage 2:", " ".join(command[1:]), flush=True)
subprocess.run(command, check=True)
"""

POOL = (
    NOISE
    + """import concurrent.futures, signal


def tokenize(part):
    if part == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return part


if __name__ == "__main__":
    train(0, 40)
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for part in pool.map(tokenize, range(20)):
            print("tokenized part", part, flush=True)
"""
)

YAML = """import yaml
print("reading conf/run.yaml", flush=True)
yaml.safe_load(open("conf/run.yaml"))
"""

UNICODE = (
    NOISE
    + """open("corpus-de.txt", "wb").write("Straße und Äpfel\\n".encode() * 2000 + "Größe\\n".encode("latin-1"))
train(0, 60)
with open("corpus-de.txt", encoding="utf-8") as f:
    for n, line in enumerate(f):
        pass
"""
)

STUCK = (
    NOISE
    + """import faulthandler, threading
faulthandler.dump_traceback_later(4, exit=True)
train(0, 110)
done = threading.Event()
print("waiting for the prefetch thread", flush=True)
done.wait()
"""
)

FATAL_BUS = (
    NOISE
    + """import faulthandler, mmap
faulthandler.enable()
train(0, 30)
fd = os.open("/dev/shm/plasma", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 256 << 20)
store = mmap.mmap(fd, 256 << 20)
print("filling object store /dev/shm/plasma (256 MB)", flush=True)
for i in range(0, 256 << 20, 1 << 20):
    store[i:i + (1 << 20)] = b"x" * (1 << 20)
"""
)

MIXED = (
    NOISE
    + """import warnings, logging
import torch
logging.basicConfig(format="%(levelname)s:%(name)s:%(message)s")
warnings.warn("Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang.")
logging.getLogger("wandb").error("Network error (ConnectionError), entering retry loop.")
logging.getLogger("tensorflow").warning("Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory")
train(0, 320, 2)
logging.getLogger("wandb").warning("Retry succeeded, resuming.")
tokens = torch.randint(0, 32000, (4, 2048))
table = torch.nn.Embedding(31999, 8)
tokens[0, 17] = 31999
table(tokens)
"""
)

CALL = (
    NOISE
    + """train(0, 25)


class Scheduler:
    def __init__(self, optimizer, warmup):
        self.warmup = warmup


scheduler = Scheduler(optimizer=None, warmup=100, min_lr=1e-6)
"""
)

INT32 = """import torch
x = torch.randn(4, 10)
target = torch.randint(0, 10, (4,)).float()
print("epoch 1", flush=True)
torch.nn.functional.nll_loss(torch.log_softmax(x, 1), target)
"""

HALF = """import torch
print("eval", flush=True)
a = torch.ones(2, 3, dtype=torch.bfloat16)
torch.nn.Linear(3, 2)(a)
"""

STACK = """import torch
from torch.utils.data import DataLoader
clips = [torch.randn(3, 16, 112, 112), torch.randn(3, 14, 112, 112), torch.randn(3, 16, 112, 112), torch.randn(3, 16, 112, 112)]
for i in range(45):
    print(f"Train: 1 [{i:>4d}/1563 ({i / 15.63:>3.0f}%)]  Loss: {6.9 - i * 0.01:#.3g} (6.91)  Time: 0.381s,  168.02/s  LR: 1.000e-05", flush=True)
for batch in DataLoader(clips, batch_size=2):
    print(batch.shape, flush=True)
"""

EMPTY_LOADER = (
    NOISE
    + """import torch
from torch.utils.data import DataLoader
train(0, 100)
val = DataLoader([], batch_size=4)
total = sum(float(b) for b in val)
print("val loss", total / len(val))
"""
)

RATE = """#!/usr/bin/env python3.4
print("hi")
"""

GOOD_DDP = """import torch, torch.distributed as dist, warnings
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    print("config: on_cuda_oom=halve_batch max_nan_skips=10 nccl_timeout=1800 fail_fast=true", flush=True)
for step in range(150):
    t = torch.ones(4); dist.all_reduce(t)
    if rank == 0 and step % 2 == 0:
        print(f"iteration {step:8d}/     150 | consumed samples: {step * 256:12d} | elapsed time per iteration (ms): 12.4 | lm loss: {10 - step / 30:.6E} | loss scale: 1.0 | grad norm: 0.412 | number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
warnings.warn("resource_tracker: There appear to be 2 leaked semaphore objects to clean up at shutdown")
if rank == 0:
    print("[after training is done] datetime: 2026-11-30", flush=True)
dist.destroy_process_group()
"""

CASES = [
    Case("u-policy-then-port", "python launch.py\n", {"launch.py": POLICY}, ("torch",), project="/srv/launch"),
    Case(
        "u-finished-then-prune",
        "mkdir -p /mnt/keep/step100/opt /mnt/keep/step200 && chmod 755 /mnt/keep && exec setpriv --reuid=65534 --regid=65534 --clear-groups python train.py\n",
        {"train.py": FINISHED_FIRST},
        ("setpriv", "torch"),
    ),
    Case("u-chained-cause", "python train.py\n", {"train.py": CHAINED}, project="/mnt/team/nlp"),
    Case(
        "u-pipeline-wrapper",
        "python pipeline.py\n",
        {"pipeline.py": OUTER, "train.py": INNER},
        ("torch",),
        project="/mnt/team/nlp",
    ),
    Case("u-process-pool-broken", "python tok.py\n", {"tok.py": POOL}),
    Case(
        "u-yaml-config",
        "python run.py\n",
        {"run.py": YAML, "conf/run.yaml": "model:\n  layers: 12\n   heads: 8\n"},
        ("transformers",),
    ),
    Case("u-latin1-corpus", "python train.py\n", {"train.py": UNICODE}, project="/home/alex/mt"),
    Case("u-traceback-later", "python train.py\n", {"train.py": STUCK}),
    Case("u-bus-error-shm-store", "exec python train.py\n", {"train.py": FATAL_BUS}, shm_mib=24),
    Case("u-noise-then-index", "python train.py\n", {"train.py": MIXED}, ("torch",), project="/home/alex/lm2"),
    Case("u-wrong-call", "nohup python train.py\n", {"train.py": CALL}),
    Case("u-target-float", "python train.py\n", {"train.py": INT32}, ("torch",)),
    Case("u-bfloat16-weights", "python eval.py\n", {"eval.py": HALF}, ("torch",)),
    Case("u-collate-clips", "python train.py\n", {"train.py": STACK}, ("torch",), project="/home/alex/video"),
    Case("u-empty-loader", "python train.py\n", {"train.py": EMPTY_LOADER}, ("torch",)),
    Case("u-env-python", "chmod +x train.py\n./train.py --resume\n", {"train.py": RATE}),
    Case(
        "u-zsh-no-launcher",
        "exec zsh -c 'echo job started; export NCCL_DEBUG=WARN; torchrun_hpu --nproc 8 train.py'\n",
        needs=("zsh",),
    ),
    Case(
        "u-tcsh-no-launcher",
        "exec tcsh -f job.csh\n",
        {
            "job.csh": "#!/bin/tcsh\nsetenv OMP_NUM_THREADS 8\necho starting on node01\nhorovodrun -np 8 python train.py\n"
        },
        ("tcsh",),
    ),
    Case(
        "u-module-missing-but-fine",
        "module load cuda/12.4\nsource activate base\npython train.py\n",
        {"train.py": NOISE + "train(0, 200)\nprint('done, checkpoints in out/')\n"},
    ),
    Case("u-ddp-completes", "torchrun --standalone --nproc-per-node=2 train.py\n", {"train.py": GOOD_DDP}, ("torch",)),
    Case(
        "u-timeout-verbose",
        "timeout -v 3 python train.py\n",
        {"train.py": NOISE + "for s in range(100):\n    train(s * 2, s * 2 + 2)\n    time.sleep(0.1)\n"},
        ("timeout",),
    ),
    Case("u-nothing-at-all", "exit 1\n"),
    Case(
        "u-shell-killed",
        'python train.py &\npid=$!\nsleep 3; kill -9 $pid\nwait $pid\nrc=$?\necho "train.py ended with code $rc"\nexit $rc\n',
        {"train.py": NOISE + "for s in range(100):\n    train(s * 2, s * 2 + 2)\n    time.sleep(0.1)\n"},
    ),
]

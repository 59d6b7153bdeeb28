"""Checkpoints that are cut, empty, of another model, or of another device."""

from __future__ import annotations

from case import Case

PREAMBLE = """import sys
import torch
from torch import nn


def net(width):
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 10))


"""

CUT_TAIL = (
    PREAMBLE
    + """torch.save({"model": net(4096).state_dict(), "step": 1200}, "last.ckpt")
data = open("last.ckpt", "rb").read()
open("last.ckpt", "wb").write(data[:-200_000])
print("resuming from last.ckpt", flush=True)
state = torch.load("last.ckpt")
"""
)

UNKNOWN_GLOBAL = (
    PREAMBLE
    + """import collections
torch.save({"model": net(8).state_dict(), "history": collections.deque([1, 2])}, "old.pt")
print("resuming from old.pt", flush=True)
state = torch.load("old.pt")
"""
)

TRUNCATED = (
    PREAMBLE
    + """torch.save({"model": net(64).state_dict(), "step": 1200}, "last.ckpt")
data = open("last.ckpt", "rb").read()
open("last.ckpt", "wb").write(data[: len(data) // 2])
print("resuming from last.ckpt", flush=True)
state = torch.load("last.ckpt")
"""
)

EMPTY = (
    PREAMBLE
    + """open("epoch_07.pt", "wb").close()
print("=> loading checkpoint 'epoch_07.pt'", flush=True)
checkpoint = torch.load("epoch_07.pt", map_location="cpu")
"""
)

MISMATCH = (
    PREAMBLE
    + """torch.save(net(64).state_dict(), "base.pt")
model = net(128)
print("loading pretrained weights from base.pt", flush=True)
model.load_state_dict(torch.load("base.pt"))
"""
)

OTHER_KEYS = (
    PREAMBLE
    + """class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = net(64)


torch.save(Wrapped().state_dict(), "ddp.pt")
model = net(64)
print("loading ddp.pt", flush=True)
model.load_state_dict(torch.load("ddp.pt"))
"""
)

CUDA_TENSOR = (
    PREAMBLE
    + """print("moving model to cuda", flush=True)
model = net(64).to("cuda")
"""
)

CASES = [
    Case("checkpoint-truncated", "python resume.py\n", {"resume.py": TRUNCATED}, ("torch",)),
    Case("checkpoint-cut-tail", "python resume.py\n", {"resume.py": CUT_TAIL}, ("torch",)),
    Case("checkpoint-unknown-global", "python resume.py\n", {"resume.py": UNKNOWN_GLOBAL}, ("torch",)),
    Case("checkpoint-empty", "python resume.py\n", {"resume.py": EMPTY}, ("torch",)),
    Case("checkpoint-size-mismatch", "python finetune.py\n", {"finetune.py": MISMATCH}, ("torch",)),
    Case("checkpoint-other-keys", "python finetune.py\n", {"finetune.py": OTHER_KEYS}, ("torch",)),
    Case("no-cuda-in-this-torch", "python train.py\n", {"train.py": CUDA_TENSOR}, ("torch",)),
]

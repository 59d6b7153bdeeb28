"""Numbers and shapes: NaN, mismatched shapes, types and devices, division by zero."""

from __future__ import annotations

from case import Case

LOOP = """import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.SGD(model.parameters(), lr=LR)
for step in range(STEPS):
    x = torch.randn(32, 20)
    y = x.sum(1, keepdim=True)
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(f"step={step} loss={loss.item():.4g}", flush=True)
"""

ANOMALY = """import torch
torch.autograd.set_detect_anomaly(True)
w = torch.zeros(4, requires_grad=True)
for step in range(3):
    print("step", step, flush=True)
    loss = (torch.sqrt(w) * torch.zeros(4)).sum()
    loss.backward()
    w.grad = None
"""

DIVERGES = (
    LOOP.replace("LR", "4.0").replace("STEPS", "60")
    + """    if not torch.isfinite(loss):
        raise SystemExit(f"non-finite loss at step {step}: {loss.item()}")
"""
)

SHAPE = (
    LOOP.replace("LR", "0.01").replace("STEPS", "31")
    + """
print("validation", flush=True)
with torch.no_grad():
    model(torch.randn(32, 24))
"""
)

DTYPE = """import numpy as np
import torch
features = np.random.rand(8, 16)
model = torch.nn.Linear(16, 2)
print("forward on", features.dtype, flush=True)
model(torch.from_numpy(features))
"""

META = """import torch
with torch.device("meta"):
    head = torch.nn.Linear(16, 4)
body = torch.nn.Linear(8, 16)
print("forward", flush=True)
out = head(body(torch.randn(2, 8)))
"""

TARGET = """import torch
print("epoch 0", flush=True)
logits = torch.randn(4, 5, requires_grad=True)
torch.nn.functional.cross_entropy(logits, torch.tensor([0, 4, 5, 1])).backward()
"""

INPLACE = """import torch
w = torch.ones(3, requires_grad=True)
h = torch.exp(w)
h += 1
print("backward", flush=True)
h.sum().backward()
"""

DIV_ZERO = """correct, total = 0, 0
batches = [b for b in range(0) if b]
print(f"evaluating on {len(batches)} batches", flush=True)
for b in batches:
    total += 1
print(f"accuracy {correct / total:.3f}")
"""

JAX_OOM = """import jax, jax.numpy as jnp
print("devices", jax.devices(), flush=True)
x = jnp.zeros((1 << 20, 1 << 20), dtype=jnp.float32)
print(x.sum())
"""

JAX_SHAPE = """import jax.numpy as jnp
print("init params", flush=True)
w = jnp.ones((32, 10))
x = jnp.ones((4, 31))
print(jnp.dot(x, w).shape)
"""

CASES = [
    Case("nan-anomaly-mode", "python train.py\n", {"train.py": ANOMALY}, ("torch",)),
    Case("nan-own-guard", "exec python train.py\n", {"train.py": DIVERGES}, ("torch",)),
    Case("shape-in-validation", "python train.py\n", {"train.py": SHAPE}, ("torch",)),
    Case("dtype-double-float", "python train.py\n", {"train.py": DTYPE}, ("torch", "numpy")),
    Case("device-meta", "python train.py\n", {"train.py": META}, ("torch",)),
    Case("target-out-of-bounds", "python train.py\n", {"train.py": TARGET}, ("torch",)),
    Case("autograd-in-place", "python train.py\n", {"train.py": INPLACE}, ("torch",)),
    Case("division-by-zero", "python evaluate.py\n", {"evaluate.py": DIV_ZERO}),
    Case("jax-out-of-memory", "python big.py\n", {"big.py": JAX_OOM}, ("jax",)),
    Case("jax-shape", "python fwd.py\n", {"fwd.py": JAX_SHAPE}, ("jax",)),
]

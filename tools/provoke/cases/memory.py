"""Host memory: limits inside the process, and a real kernel that kills."""

from __future__ import annotations

from case import Case

PRELOAD = """import sys, time
print("loading embeddings into memory", flush=True)
table = []
for part in range(400):
    table.append(bytearray(b"x" * (16 << 20)))
    if part % 5 == 0:
        print(f"  part {part:3d}: {len(table) * 16} MiB resident", flush=True)
print("training")
"""

TENSOR = """import torch
print("building relative position table", flush=True)
n = 1 << 16
bias = torch.zeros(n, n, dtype=torch.float16)
print(bias.shape)
"""

NUMPY = """import numpy as np
features = np.random.rand(1000, 300)
print("computing pairwise distances for", 220000, "items", flush=True)
distances = np.zeros((220000, 220000))
"""

OOM_WORKER = """import torch
from torch.utils.data import DataLoader, Dataset


class Videos(Dataset):
    def __init__(self):
        self.cache = []

    def __len__(self):
        return 400

    def __getitem__(self, i):
        self.cache.append(bytearray(b"v" * (8 << 20)))  # "decoded frames"
        return torch.tensor(i)


for step, batch in enumerate(DataLoader(Videos(), batch_size=4, num_workers=2)):
    print(f"iter {step} ids {batch.tolist()}", flush=True)
"""

KERNEL_WORD = """python preload.py
rc=$?
if [ $rc -ne 0 ]; then
  echo "training ended with exit code $rc, last kernel messages:"
  dmesg --notime | grep -E 'oom-kill|Memory cgroup out of memory' | tail -n 2
  echo "memory.oom_control:"; cat /sys/fs/cgroup/memory/job-*/memory.oom_control
fi
exit $rc
"""

CASES = [
    Case("ram-memory-error", "ulimit -v 1500000\nexec python preload.py\n", {"preload.py": PRELOAD}),
    Case("ram-torch-allocator", "ulimit -v 6000000\npython table.py\n", {"table.py": TENSOR}, ("torch",)),
    Case("ram-numpy", "ulimit -v 8000000\npython distances.py\n", {"distances.py": NUMPY}, ("numpy",)),
    Case("oom-kill-silent", "python preload.py\n", {"preload.py": PRELOAD}, memory_mib=300),
    Case("oom-kill-kernel-line", KERNEL_WORD, {"preload.py": PRELOAD}, ("dmesg",), memory_mib=300),
    Case("oom-kill-loader-worker", "python videos.py\n", {"videos.py": OOM_WORKER}, ("torch",), memory_mib=700),
]

"""DataLoader workers that are killed, crash, stall, raise or run out of shared memory and descriptors."""

from __future__ import annotations

from case import Case

TRAIN = """import ctypes, os, signal, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]


class Shards(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        if i == 1300:
            if KIND == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if KIND == "segfault":
                ctypes.string_at(0)
            if KIND == "stall":
                time.sleep(60)
            if KIND == "file":
                np.load(f"data/shards/{i:06d}.npy")
            if KIND == "json":
                import json
                json.loads('{"id": 1300, "text": "cut off in the mid')
        size = 1 << 16 if KIND == "shm" else 64
        return torch.full((size,), float(i)), i % 10


def main():
    loader = DataLoader(Shards(), batch_size=50, num_workers=2, timeout=3 if KIND == "stall" else 0)
    for step, (x, y) in enumerate(loader):
        print(f"[{step:03d}/{len(loader)}] mean {x.mean():.1f}", flush=True)


if __name__ == "__main__":
    main()
"""

DESCRIPTORS = """import torch
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __len__(self):
        return 3000

    def __getitem__(self, i):
        return torch.randn(8), torch.tensor(i % 2)


seen = []
for step, batch in enumerate(DataLoader(Pairs(), batch_size=4, num_workers=2)):
    seen.append(batch)  # keeps every shared-memory descriptor open
    if step % 10 == 0:
        print("step", step, "kept", len(seen), flush=True)
"""


def worker(name: str, kind: str, **extra: object) -> Case:
    return Case(name, f"exec python train.py {kind}\n", {"train.py": TRAIN}, ("torch", "numpy"), **extra)  # type: ignore[arg-type]


CASES = [
    worker("loader-worker-killed", "killed"),
    worker("loader-worker-segfault", "segfault"),
    worker("loader-worker-stalls", "stall"),
    worker("loader-worker-file-missing", "file"),
    worker("loader-worker-bad-json", "json"),
    worker("loader-small-shm", "shm", shm_mib=8),
    Case("loader-descriptors", "ulimit -n 64\nexec python collect.py\n", {"collect.py": DESCRIPTORS}, ("torch",)),
]

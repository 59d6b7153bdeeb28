"""Disks that are full, files that are missing, forbidden or damaged."""

from __future__ import annotations

from case import Case

SAVE = """import os, sys
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
for epoch in range(5):
    print(f"epoch {epoch}: val_acc {0.61 + epoch * 0.04:.3f}", flush=True)
    torch.save({"epoch": epoch, "model": model.state_dict()}, f"/mnt/ckpt/epoch{epoch}.pt")
    print(f"saved /mnt/ckpt/epoch{epoch}.pt", flush=True)
"""

WRITE = """import json
with open("/mnt/scratch/predictions.jsonl", "w") as out:
    for i in range(2_000_000):
        out.write(json.dumps({"id": i, "logits": [0.1] * 12}) + "\\n")
        if i % 5000 == 0:
            print("predicted", i, flush=True)
"""

UNPACK = """set -e
head -c 3000000 /dev/urandom > /tmp/shard-000.bin
tar -C /tmp -cf /tmp/shard-000.tar shard-000.bin
echo "staging data to node-local scratch"
tar -C /mnt/scratch -xvf /tmp/shard-000.tar
python train.py --data /mnt/scratch
"""

COPY = """set -euo pipefail
head -c 5000000 /dev/zero > /srv/project/tokens.bin
echo "[stage] copying tokens.bin"
cp /srv/project/tokens.bin /mnt/scratch/
echo "[train] starting"
"""

NO_CONFIG = """import json, sys
print("starting run 8841", flush=True)
with open("configs/base.json") as f:
    config = json.load(f)
"""

UNPRIVILEGED_WRITE = """mkdir -p /mnt/shared/cache && chmod 755 /mnt/shared/cache && chmod 755 /srv/project
exec setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 train.py
"""

WRITER = """import os
cache = "/mnt/shared/cache"
print("uid", os.getuid(), "using cache", cache, flush=True)
with open(os.path.join(cache, "index.lock"), "w") as lock:
    lock.write(str(os.getpid()))
"""

LOW_PORT = """import http.server
print("serving metrics", flush=True)
http.server.HTTPServer(("127.0.0.1", 443), http.server.SimpleHTTPRequestHandler)
"""

CSV = """import pandas as pd
with open("train.csv", "w") as f:
    f.write("id,text,label\\n")
    for i in range(200):
        f.write(f"{i},sample text {i},{i % 3}\\n")
    f.write("200,broken, row, with, commas,1\\n")
print("reading train.csv", flush=True)
frame = pd.read_csv("train.csv")
"""

PNG = """import io
from PIL import Image
img = Image.new("RGB", (64, 64), (10, 200, 30))
img.save("ok.png")
data = open("ok.png", "rb").read()
open("img_00317.png", "wb").write(b"<html>404</html>" + data[16:])
for name in ("ok.png", "img_00317.png"):
    print("decode", name, flush=True)
    Image.open(name).convert("L").resize((8, 8))
"""

CASES = [
    Case("disk-full-torch-save", "python save.py\n", {"save.py": SAVE}, ("torch",), disks={"/mnt/ckpt": 10}),
    Case("disk-full-python-write", "exec python predict.py\n", {"predict.py": WRITE}, disks={"/mnt/scratch": 3}),
    Case("disk-full-tar", UNPACK, {"train.py": "print('train')\n"}, ("tar",), disks={"/mnt/scratch": 2}),
    Case("disk-full-cp", COPY, disks={"/mnt/scratch": 2}),
    Case("file-missing-config", "python train.py\n", {"train.py": NO_CONFIG}),
    Case("permission-cache", UNPRIVILEGED_WRITE, {"train.py": WRITER}, ("setpriv",)),
    Case(
        "permission-low-port",
        "exec setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 serve.py\n",
        {"serve.py": LOW_PORT},
        ("setpriv",),
    ),
    Case("data-corrupt-csv", "python prepare.py\n", {"prepare.py": CSV}, ("pandas",)),
    Case("data-corrupt-png", "python decode.py\n", {"decode.py": PNG}, ("PIL",)),
]

"""The machine under the job: memory, disks, descriptors, files, programs; told by other tools in other words."""

# ruff: noqa: E501 (the jobs print long lines)
from __future__ import annotations

from case import Case

NOISE = """import logging, random, sys, time
logging.basicConfig(stream=sys.stdout, format="%(asctime)s | %(levelname)-7s | %(name)s:%(lineno)d | %(message)s", level=logging.INFO)
log = logging.getLogger("trainer")
random.seed(4)


def train(first, last, every=1):
    for step in range(first, last):
        if step % every == 0:
            log.info("epoch=%d step=%d loss=%.4f lr=%.2e tok/s=%d", step // 100, step, 9 / (step + 3) + random.random() / 10, 3e-4, 41000 + random.randrange(900))


"""

MMAP = (
    NOISE
    + """import mmap
train(0, 120)
log.info("mapping activation cache (%d GB)", 64)
cache = mmap.mmap(-1, 64 << 30)
train(120, 130)
"""
)

MANY_FILES = (
    NOISE
    + """import os
os.makedirs("shards", exist_ok=True)
for i in range(300):
    open(f"shards/{i:05d}.idx", "wb").close()
train(0, 210)
handles = []
for i in range(300):
    handles.append(open(f"shards/{i:05d}.idx", "rb"))
train(210, 400)
"""
)

SQLITE = (
    NOISE
    + """import sqlite3
db = sqlite3.connect("/mnt/track/mlruns.db")
db.execute("create table metrics (step int, name text, value blob)")
try:
    for step in range(100000):
        train(step, step + 1, 10)
        db.execute("insert into metrics values (?, ?, ?)", (step, "hist", b"h" * 9000))
        db.commit()
finally:
    log.info("closing tracker")
    db.close()
"""
)

NPSAVE = (
    NOISE
    + """import numpy as np
for part in range(30):
    train(part * 20, part * 20 + 20, 4)
    np.save(f"/mnt/feat/part{part:03d}.npy", np.zeros((128, 1024), dtype=np.float32))
    log.info("wrote part %d", part)
"""
)

SHM_FILE = (
    NOISE
    + """train(0, 80)
log.info("staging dataset into /dev/shm/tokens.bin")
with open("/dev/shm/tokens.bin", "wb") as out:
    for block in range(64):
        out.write(b"t" * (1 << 20))
        out.flush()
train(80, 90)
"""
)

SHM_BUS = """import numpy as np
import torch
from multiprocessing import shared_memory
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, i):
        block = shared_memory.SharedMemory(create=True, size=4 << 20)
        view = np.ndarray((4 << 20,), dtype=np.uint8, buffer=block.buf)
        view[:] = i % 255
        return torch.tensor(i)


for step, batch in enumerate(DataLoader(Cached(), batch_size=2, num_workers=1)):
    print(f"Epoch: [0][{step}/320]  Time 0.041 (0.044)  Data 0.002 (0.003)  Acc@1 0.00", flush=True)
"""

DD = """#!/bin/bash
set -euo pipefail
trap 'echo "[$(date +%T)] stage-in failed with code $?" >&2' ERR
head -c 6000000 /dev/urandom | gzip -1 > /tmp/corpus.gz
echo "[stage-in] unpacking corpus.gz to /mnt/nvme"
gzip -dc /tmp/corpus.gz > /mnt/nvme/corpus.bin
python train.py --data /mnt/nvme/corpus.bin
"""

EIO = (
    NOISE
    + """import os
os.makedirs("data", exist_ok=True)
for i in range(20):
    open(f"data/shard-{i:05d}.bin", "wb").write(b"0" * 64)
os.remove("data/shard-00017.bin"); os.symlink("/proc/self/mem", "data/shard-00017.bin")
for i in range(20):
    with open(f"data/shard-{i:05d}.bin", "rb") as f:
        f.read(64)
    train(i * 15, i * 15 + 15)
"""
)

CP_MISSING = """set -e
module() { echo "Loading $2"; }
module load cuda/12.4
mkdir -p run
cp configs/7b.yaml run/config.yaml
python train.py --config run/config.yaml
"""

NVCC = (
    NOISE
    + """import subprocess
train(0, 3)
log.info("building extension fused_adam")
version = subprocess.check_output(["hipcc", "--version"], text=True)
"""
)

OPTIONAL = """try:
    import orjson as json_impl
except ImportError:
    import ujson as json_impl
print(json_impl.dumps({}))
"""

CANNOT_IMPORT = """from torch.utils.data import DataLoader
from numpy import float_ as default_float
"""

EXTENSION = """#define PY_SSIZE_T_CLEAN
#include <Python.h>
extern int flash_fwd_hdim128(void);
static PyObject *fwd(PyObject *s, PyObject *a) { return PyLong_FromLong(flash_fwd_hdim128()); }
static PyMethodDef methods[] = {{"fwd", fwd, METH_NOARGS, ""}, {0}};
static struct PyModuleDef mod = {PyModuleDef_HEAD_INIT, "flashlike_cuda", "", -1, methods};
PyMODINIT_FUNC PyInit_flashlike_cuda(void) { return PyModule_Create(&mod); }
"""

CUDART = """set -e
echo 'int cudaRuntimeGetVersion(void) { return 0; }' > rt.c
gcc -shared -fPIC -Wl,-soname,libcudart.so.12 -o libcudart.so.12 rt.c
echo 'int cudaRuntimeGetVersion(void); int q(void) { return cudaRuntimeGetVersion(); }' > q.c
mkdir -p bnb && gcc -shared -fPIC -o bnb/libquant_cuda.so q.c ./libcudart.so.12 -L. && rm libcudart.so.12
patch() { :; }
python quantize.py
"""

GLIBCXX = """from transformers_like import model
"""

GZIP = (
    NOISE
    + """import gzip, json
with gzip.open("part-0003.jsonl.gz", "wt") as f:
    for i in range(4000):
        f.write(json.dumps({"id": i, "text": "lorem ipsum %d" % (i * 7919 % 10007)}) + "\\n")
data = open("part-0003.jsonl.gz", "rb").read()
open("part-0003.jsonl.gz", "wb").write(data[:-4000])
with gzip.open("part-0003.jsonl.gz", "rt") as f:
    for n, line in enumerate(f):
        if n % 500 == 0:
            train(n // 50, n // 50 + 10)
"""
)

PARQUET = """import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({"x": list(range(1000))}), "train-00000-of-00004.parquet")
data = open("train-00000-of-00004.parquet", "rb").read()
open("train-00000-of-00004.parquet", "wb").write(data[:-50])
print("reading 4 parquet shards", flush=True)
pq.read_table("train-00000-of-00004.parquet")
"""

IMAGE = """import sys, time
import numpy as np
from PIL import Image
from tqdm import tqdm
rng = np.random.default_rng(0)
for i in range(120):
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(f"{i:04d}.jpg")
data = open("0088.jpg", "rb").read()
open("0088.jpg", "wb").write(data[: len(data) // 2])
total = 0.0
for i in tqdm(range(120), desc="Epoch 1/10", mininterval=0):
    total += np.asarray(Image.open(f"{i:04d}.jpg").convert("RGB")).mean()
    time.sleep(0.002)
"""

HFARGS = '''from dataclasses import dataclass
from transformers import HfArgumentParser


@dataclass
class Args:
    """:param lr: learning rate."""
    lr: float = 1e-4
    epochs: int = 3


args, = HfArgumentParser(Args).parse_args_into_dataclasses()
'''

ZIP = """import zipfile
open("weights.zip", "wb").write(b"<!DOCTYPE html><title>Sign in</title>" * 40)
print("extracting annotations", flush=True)
zipfile.ZipFile("weights.zip").extractall("x")
"""

RECURSION = (
    NOISE
    + """sys.setrecursionlimit(90)
train(0, 350)


def flatten(tree):
    return [leaf for part in tree for leaf in flatten([part])]


flatten([[1, 2], [3]])
"""
)

NO_WORD = (
    NOISE
    + """import os
train(0, 90)
os._exit(1)
"""
)

CONFIG_ONLY = """echo "on_oom: halve_batch"
echo "nan_policy: skip"
echo "retry_on: ['CUDA out of memory', 'NCCL error']"
exit 1
"""

HANG = """python train.py > train.log 2>&1 &
pid=$!
last=-1; still=0
while kill -0 $pid 2>/dev/null; do
  sleep 1
  size=$(stat -c %s train.log)
  if [ "$size" = "$last" ]; then still=$((still + 1)); else still=0; fi
  last=$size
  if [ $still -ge 4 ]; then
    cat train.log
    echo "$(date '+%F %T') progress-monitor: no new output from pid $pid for ${still}s, stopping it"
    kill -TERM $pid; wait $pid
    exit 124
  fi
done
"""

HANG_PY = (
    NOISE
    + """import threading
train(0, 160)
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""
)

SLOW = (
    NOISE
    + """import time
baseline = None
for window in range(8):
    start = time.perf_counter()
    for _ in range(20):
        sum(range(20000))
        time.sleep(0.001 if window < 4 else 0.02)  # the loader cannot keep up
    rate = 20 / (time.perf_counter() - start)
    baseline = baseline or rate
    log.info("window %d: %.1f samples/s", window, rate)
    if window > 5 and rate < 0.3 * baseline:
        log.error("throughput %.1f samples/s is %.0f%% of the baseline %.1f samples/s; stopping this slow run", rate, 100 * rate / baseline, baseline)
        sys.exit(1)
"""
)

BUDGET = (
    NOISE
    + """import time
start = time.time()
for step in range(100000):
    train(step, step + 1)
    time.sleep(0.01)
    if time.time() - start > 2.5:
        log.warning("wall-time budget of 2.5 s used up after step %d of 100000, stopping; resume with --resume latest", step)
        break
log.info("wrote checkpoint step-%d", step)
"""
)

LOOKS_BAD = (
    NOISE
    + """import subprocess, urllib.request, warnings
log.info("config: {'on_error': 'abort', 'nccl_timeout': 1800, 'oom_retry': True}")
for attempt in range(3):
    try:
        urllib.request.urlopen("http://127.0.0.1:9/metrics", timeout=1)
    except OSError as error:
        log.warning("push gateway attempt %d/3 failed: %s", attempt + 1, error)
log.error("giving up on the push gateway; metrics are kept in metrics.json")
train(0, 200)
child = subprocess.run([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"])
log.warning("preview renderer crashed (exit %d: segmentation fault), preview skipped", child.returncode)
try:
    open("best.pt")
except FileNotFoundError as error:
    log.info("no earlier checkpoint (%s), starting fresh", error)
train(200, 300)
log.info("early stopping: val_loss did not improve for 5 evaluations. Best 0.3121 at step 240")
log.info("exported model to export/model.onnx, 0 errors, 3 warnings")
"""
)

OR_TRUE = """python evaluate.py || true
echo "pipeline finished"
"""

EVALUATE = """scores = [0.81, 0.79]
print("evaluating", len(scores), "folds", flush=True)
assert len(scores) == 5, f"expected 5 folds, found {len(scores)}"
"""

DENIED = """import os
import torch
print("torch", torch.__version__, "uid", os.getuid(), flush=True)
os.environ.setdefault("TRITON_CACHE_DIR", "/mnt/cache/triton")
os.makedirs("/mnt/cache/triton/ab12", exist_ok=True)
"""

PORT_ALIEN = """from http.server import HTTPServer, SimpleHTTPRequestHandler
import asyncio


async def handle(reader, writer):
    writer.close()


async def main():
    first = await asyncio.start_server(handle, "127.0.0.1", 8265)
    print("dashboard at 127.0.0.1:8265", flush=True)
    await asyncio.start_server(handle, "127.0.0.1", 8265)


asyncio.run(main())
"""

CRLF = "printf '#!/opt/conda/bin/python\\r\\nprint(1)\\r\\n' > run_training.py; chmod +x run_training.py\n./run_training.py --epochs 3\n"

CASES = [
    Case("u-mmap-enomem", "ulimit -v 16000000\npython train.py\n", {"train.py": MMAP}, project="/srv/lm"),
    Case(
        "u-many-shards-open", "ulimit -n 256\nexec python train.py\n", {"train.py": MANY_FILES}, project="/mnt/team/lm"
    ),
    Case("u-sqlite-full", "python train.py\n", {"train.py": SQLITE}, disks={"/mnt/track": 1}),
    Case("u-numpy-save-full", "python features.py\n", {"features.py": NPSAVE}, ("numpy",), disks={"/mnt/feat": 4}),
    Case("u-shm-file-full", "python stage.py\n", {"stage.py": SHM_FILE}, shm_mib=16),
    Case(
        "u-shm-bus-error",
        "python main.py\n",
        {"main.py": SHM_BUS},
        ("torch", "numpy"),
        shm_mib=32,
        project="/home/alex/imagenet",
    ),
    Case(
        "u-gzip-stage-in-full", "bash stage.sh\n", {"stage.sh": DD, "train.py": ""}, ("gzip",), disks={"/mnt/nvme": 2}
    ),
    Case("u-read-eio", "python train.py\n", {"train.py": EIO}, project="/mnt/lustre/lm"),
    Case("u-cp-missing-config", CP_MISSING, {"train.py": ""}),
    Case("u-subprocess-hipcc", "python build.py\n", {"build.py": NVCC}),
    Case("u-optional-import", "python tool.py\n", {"tool.py": OPTIONAL}),
    Case("u-name-not-in-module", "python train.py\n", {"train.py": CANNOT_IMPORT}, ("torch", "numpy")),
    Case(
        "u-extension-symbol",
        "gcc -shared -fPIC $(python -c 'import sysconfig; print(\"-I\" + sysconfig.get_paths()[\"include\"])') -o flashlike_cuda.so ext.c && python -c 'import flashlike_cuda'\n",
        {"ext.c": EXTENSION},
        ("gcc",),
    ),
    Case(
        "u-libcudart-missing",
        CUDART,
        {
            "quantize.py": "import ctypes\nprint('quantize', flush=True)\nctypes.cdll.LoadLibrary('bnb/libquant_cuda.so')\n"
        },
        ("gcc",),
        project="/home/alex/quant",
    ),
    Case("u-gzip-cut", "python train.py\n", {"train.py": GZIP}, project="/home/alex/lm"),
    Case("u-parquet-cut", "python read.py\n", {"read.py": PARQUET}, ("datasets",)),
    Case("u-jpeg-cut-tqdm", "python train.py\n", {"train.py": IMAGE}, ("PIL", "tqdm", "numpy")),
    Case("u-zip-is-html", "python get.py\n", {"get.py": ZIP}),
    Case("u-hf-argument", "python run.py --lr 3e-5 --max_step 200\n", {"run.py": HFARGS}, ("transformers", "torch")),
    Case("u-torchrun-usage", "torchrun --nproc-per-node two train.py\n", {"train.py": ""}, ("torch",)),
    Case("u-recursion", "python prep.py\n", {"prep.py": RECURSION}),
    Case("u-exit-1-no-word", "python train.py\n", {"train.py": NO_WORD}),
    Case("u-config-only", CONFIG_ONLY),
    Case("u-monitor-stops-hang", HANG, {"train.py": HANG_PY}),
    Case("u-throughput-guard", "python train.py\n", {"train.py": SLOW}),
    Case("u-time-budget", "python train.py\n", {"train.py": BUDGET}),
    Case("u-looks-bad", "python train.py\n", {"train.py": LOOKS_BAD}),
    Case("u-or-true", OR_TRUE, {"evaluate.py": EVALUATE}),
    Case(
        "u-denied-as-user",
        "mkdir -p /mnt/cache/triton && chmod 755 /mnt/cache/triton\nexec setpriv --reuid=65534 --regid=65534 --clear-groups python train.py\n",
        {"train.py": DENIED},
        ("torch", "setpriv"),
    ),
    Case("u-asyncio-port", "python dash.py\n", {"dash.py": PORT_ALIEN}),
    Case("u-crlf-shebang", CRLF),
]

"""TensorFlow, Ray and DeepSpeed's launcher again."""

# ruff: noqa: E501 (the jobs print long lines)

from __future__ import annotations

from case import Case

TF_NAN = """import numpy as np
import tensorflow as tf
tf.debugging.enable_check_numerics()
w = tf.Variable(tf.random.normal([8, 1]))
opt = tf.keras.optimizers.SGD(50.0)
for step in range(200):
    x = tf.constant(np.random.rand(16, 8), tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - 1.0) ** 2)
    opt.apply_gradients([(tape.gradient(loss, w), w)])
    if step % 5 == 0:
        tf.print("step", step, "loss", loss)
"""

TF_FILE = """import tensorflow as tf
print("reading tfrecords", flush=True)
for record in tf.data.TFRecordDataset(["/mnt/data/train-00000.tfrecord", "/mnt/data/train-00001.tfrecord"]):
    pass
"""

TF_CORRUPT = """import tensorflow as tf
with tf.io.TFRecordWriter("train.tfrecord") as writer:
    for i in range(200):
        writer.write(b"example %d" % i)
data = bytearray(open("train.tfrecord", "rb").read())
data[3000] ^= 0xFF
open("train.tfrecord", "wb").write(bytes(data))
for n, record in enumerate(tf.data.TFRecordDataset("train.tfrecord")):
    if n % 20 == 0:
        print("batch", n, flush=True)
"""

TF_RESTORE = """import keras
small = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
small.save_weights("small.weights.h5")
big = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(2)])
print("loading small.weights.h5", flush=True)
big.load_weights("small.weights.h5")
"""

RAY_KILLED = """import os, signal, time
import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 1024 * 1024)


@ray.remote(max_restarts=0)
class Trainer:
    def step(self, i):
        time.sleep(0.05)
        if i == 20:
            FAULT
        return {"iteration": i, "episode_reward_mean": i * 1.5}


trainer = Trainer.remote()
for i in range(60):
    result = ray.get(trainer.step.remote(i))
    if i % 4 == 0:
        print(result, flush=True)
"""

DEEPSPEED_TRAIN = """import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--stage", type=int, default=2)
args = parser.parse_args()
import torch, deepspeed
deepspeed.init_distributed("gloo")
rank = torch.distributed.get_rank()
for step in range(30):
    t = torch.ones(3)
    torch.distributed.all_reduce(t)
    if rank == 0:
        print(f"[Rank 0] step={step}, skipped=0, lr=[2e-05], mom=[(0.9, 0.95)] | loss={4 - step * 0.05:.4f} overflow=False", flush=True)
torch.distributed.barrier()
if rank == 0:
    torch.load("/mnt/ckpt/global_step400/mp_rank_00_model_states.pt")
torch.distributed.barrier()
"""

CASES = [
    Case("u-tf-check-numerics", "python train.py\n", {"train.py": TF_NAN}, ("tensorflow",), project="/home/alex/tf"),
    Case("u-tf-missing-records", "python read.py\n", {"read.py": TF_FILE}, ("tensorflow",), project="/home/alex/tf"),
    Case("u-tf-corrupt-record", "python read.py\n", {"read.py": TF_CORRUPT}, ("tensorflow",), project="/home/alex/tf"),
    Case(
        "u-keras-other-weights", "python load.py\n", {"load.py": TF_RESTORE}, ("tensorflow",), project="/home/alex/tf"
    ),
    Case(
        "u-ray-actor-killed",
        "python rl.py\n",
        {"rl.py": RAY_KILLED.replace("FAULT", "os.kill(os.getpid(), signal.SIGKILL)")},
        ("ray",),
        project="/home/alex/rl",
        timeout_s=150,
    ),
    Case(
        "u-ray-actor-segfault",
        "python rl.py\n",
        {"rl.py": RAY_KILLED.replace("FAULT", "import ctypes; ctypes.string_at(0)")},
        ("ray",),
        project="/home/alex/rl",
        timeout_s=150,
    ),
    Case(
        "u-deepspeed-no-checkpoint",
        "export DS_ACCELERATOR=cpu\ndeepspeed --num_accelerators 2 --master_port 29517 train.py --stage 2\n",
        {"train.py": DEEPSPEED_TRAIN},
        ("deepspeed",),
        project="/srv/ds",
        timeout_s=150,
    ),
    Case(
        "u-deepspeed-wrong-flag",
        "export DS_ACCELERATOR=cpu\ndeepspeed --num_accelerators 2 --master_port 29517 train.py --zero_stage 2\n",
        {"train.py": DEEPSPEED_TRAIN},
        ("deepspeed",),
        project="/srv/ds",
        timeout_s=150,
    ),
    Case(
        "u-wget-no-dns", "set -e\nwget -nv https://data.example.org/corpus.tar.zst\npython train.py\n", needs=("wget",)
    ),
    Case(
        "u-import-chain-numpy",
        "python -c 'import sys; sys.modules[\"numpy\"] = None; import pandas'\n",
        needs=("pandas",),
    ),
]

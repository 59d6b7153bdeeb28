"""TensorFlow and Ray on the CPU, and DeepSpeed's launcher."""

from __future__ import annotations

from case import Case

TF_FIT = """import numpy as np
import keras
hidden = keras.layers.Dense(32, activation="relu")
model = keras.Sequential([keras.layers.Input((WIDTH,)), hidden, keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.random.rand(256, 20).astype("float32"), np.random.randint(0, LABELS, 256)
model.fit(x, y, epochs=2, batch_size=64, verbose=2)
print("saved")
"""

TF_MEMORY = """import tensorflow as tf
print("building pairwise features", flush=True)
x = tf.ones([70000, 70000], dtype=tf.float64)
print(tf.reduce_sum(x))
"""

RAY_TASK = """import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 1024 * 1024)


@ray.remote
def tokenize(shard):
    vocab = {"the": 1, "of": 2}
    return [vocab[word] for word in ("the", shard)]


print(ray.get([tokenize.remote(name) for name in ("of", "unseen")]))
"""

DEEPSPEED_TRAIN = """import argparse, os, sys
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
import deepspeed
deepspeed.init_distributed("gloo")
rank = torch.distributed.get_rank()
for step in range(6):
    t = torch.ones(3)
    torch.distributed.all_reduce(t)
    if rank == 0:
        print(f"steps: {step} loss: {5 - step * 0.2:.4f} iter time (s): 0.021 samples/sec: 380.1", flush=True)
    if rank == 1 and step == 4:
        FAULT
"""

DEEPSPEED = "export DS_ACCELERATOR=cpu\ndeepspeed --num_accelerators 2 --master_port 29511 train.py\n"


def keras(name: str, width: str, labels: str) -> Case:
    return Case(
        name, "python fit.py\n", {"fit.py": TF_FIT.replace("WIDTH", width).replace("LABELS", labels)}, ("keras",)
    )


CASES = [
    keras("keras-input-shape", "24", "10"),
    keras("keras-completes", "20", "10"),
    Case("tensorflow-memory", "ulimit -v 20000000\npython pairs.py\n", {"pairs.py": TF_MEMORY}, ("tensorflow",)),
    Case("ray-task-key-error", "python tok.py\n", {"tok.py": RAY_TASK}, ("ray",), timeout_s=150),
    Case(
        "deepspeed-rank-raises",
        DEEPSPEED,
        {"train.py": DEEPSPEED_TRAIN.replace("FAULT", 'raise ValueError("micro batch 3 is larger than the batch 2")')},
        ("deepspeed",),
        timeout_s=150,
    ),
]

"""Trainers with their own manners: HF Trainer, Lightning, JAX, safetensors, compile."""

# ruff: noqa: E501 (the jobs print long lines)
from __future__ import annotations

from case import Case

TRAINER = """import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Toy(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_ids": torch.randint(0, VOCAB, (16,), generator=g), "labels": i % LABELS}


config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=2)
model = BertForSequenceClassification(config)
args = TrainingArguments("out", num_train_epochs=EPOCHS, per_device_train_batch_size=8, logging_steps=5, use_cpu=True, report_to=[], EXTRA)
trainer = Trainer(model=model, args=args, train_dataset=Toy(160), eval_dataset=Toy(16)MORE)
trainer.train()
print("training finished, saving")
trainer.save_model("final")
"""


def trainer(
    vocab: str = "100", labels: str = "2", epochs: str = "3", extra: str = "save_strategy='no'", more: str = ""
) -> dict[str, str]:
    text = TRAINER.replace("VOCAB", vocab).replace("LABELS", labels).replace("EPOCHS", epochs)
    return {"run_glue.py": text.replace("EXTRA", extra).replace("MORE", more)}


METRICS = ", compute_metrics=lambda p: {'f1': {'macro': 1}['micro']}"

SAFETENSORS = """import torch
from safetensors.torch import load_file, save_file
save_file({"w": torch.zeros(400, 400)}, "model.safetensors")
data = open("model.safetensors", "rb").read()
open("model.safetensors", "wb").write(data[:100_000])
print("Loading checkpoint shards: 0/1", flush=True)
load_file("model.safetensors")
"""

TRANSFORMERS_SIZES = """from transformers import BertConfig, BertForSequenceClassification
small = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=2, **small)).save_pretrained("base")
print("loading base with a new label set", flush=True)
BertForSequenceClassification.from_pretrained("base", num_labels=7)
"""

LIGHTNING = """import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 24)
        self.head = nn.Linear(24, 3)

    def training_step(self, batch, i):
        x, y = batch
        return nn.functional.cross_entropy(self.head(self.body(x)), y)

    def validation_step(self, batch, i):
        VALIDATION

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


train = DataLoader(TensorDataset(torch.randn(240, 12), torch.randint(0, 3, (240,))), batch_size=8)
val = DataLoader(TensorDataset(torch.randn(40, 12), torch.randint(0, 3, (40,))), batch_size=8)
trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=CKPT, num_sanity_val_steps=0)
trainer.fit(Net(), train, val)
print("fit done")
"""


def lightning(validation: str, ckpt: str = "False") -> dict[str, str]:
    return {"fit.py": LIGHTNING.replace("VALIDATION", validation).replace("CKPT", ckpt)}


JAX_NAN = """import jax, jax.numpy as jnp
jax.config.update("jax_debug_nans", True)


@jax.jit
def loss(w, x):
    return jnp.mean(jnp.log(x @ w))


w = jnp.ones((8,)) * 0.2
x = jnp.ones((16, 8))
for step in range(60):
    value, grad = jax.value_and_grad(loss)(w, x)
    w = w - 0.02 * grad
    if step % 2 == 0:
        print(f"I1130 train.py:22] step {step} loss {value:.5f}", flush=True)
"""

JAX_COORDINATOR = """import jax
print("joining as process 1 of 2", flush=True)
jax.distributed.initialize(coordinator_address="127.0.0.1:8476", num_processes=2, process_id=1, initialization_timeout=6)
print(jax.devices())
"""

JAX_BIG = """import jax, jax.numpy as jnp
print(jax.devices(), flush=True)
params = [jnp.ones((512, 512)) for _ in range(4)]
print("params ready", flush=True)
scores = jax.jit(lambda a: jnp.exp(jnp.broadcast_to(a, (1 << 15, 512, 512)).astype(jnp.float64) + a).sort(axis=0))(params[0])
scores.block_until_ready()
"""

NAN_TO_THE_END = """import logging, math
import torch
logging.basicConfig(format="[%(asctime)s][%(levelname)s] %(message)s", level=logging.INFO)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.9)
for it in range(1, 301):
    x = torch.randn(64, 16) * 3
    loss = ((model(x) - x.prod(1, keepdim=True)) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if it % 2 == 0:
        logging.info("Iter(train) [%3d/300]  lr: 9.0000e-01  eta: 0:00:%02d  time: 0.0101  loss: %.4f", it, (300 - it) // 10, loss)
torch.save(model.state_dict(), "final.pth")
logging.info("Saving checkpoint at 1 epochs")
"""

SKIPPED_NAN = """import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
skipped = 0
for step in range(200):
    x = torch.randn(4, 8)
    if step in (40, 41, 90):
        x[0, 0] = float("nan")  # a broken sample
    loss = (model(x) ** 2).mean()
    if not torch.isfinite(loss):
        skipped += 1
        print(f"WARNING step {step}: loss is nan, skipping the update ({skipped} so far)", flush=True)
        continue
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 4 == 0:
        print(f"step {step} loss {loss.item():.5f} nan_skipped={skipped}", flush=True)
print("Done. best loss", round(loss.item(), 5))
"""

COMPILE = """import torch


@torch.compile(fullgraph=True)
def gate(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


print("compiling", flush=True)
gate(torch.randn(4))
"""

UNUSED = """import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
    def forward(self, x):
        return self.a(x)
m = DDP(TwoHeads())
for i in range(3):
    m(torch.randn(2, 8)).sum().backward()
    print("iteration", i, flush=True)
"""

CUDA_CHECKPOINT = """import io, zipfile
import torch
buffer = io.BytesIO()
torch.save({"w": torch.zeros(64)}, buffer)
# The same file as a GPU run writes: the storage says where it lived.
with zipfile.ZipFile(buffer) as old, zipfile.ZipFile("gpu.pt", "w") as new:
    for item in old.infolist():
        data = old.read(item)
        if item.filename.endswith("data.pkl"):
            data = data.replace(b"X\\x03\\x00\\x00\\x00cpu", b"X\\x06\\x00\\x00\\x00cuda:0")
        new.writestr(item.filename, data)
print("Resuming from gpu.pt", flush=True)
torch.load("gpu.pt")
"""

CASES = [
    Case(
        "u-trainer-metric-key",
        "python run_glue.py\n",
        trainer(more=METRICS, extra="eval_strategy='epoch', save_strategy='no'"),
        ("transformers", "accelerate"),
        project="/home/alex/glue",
    ),
    Case(
        "u-trainer-token-out-of-range",
        "python run_glue.py\n",
        trainer(vocab="104"),
        ("transformers", "accelerate"),
        project="/home/alex/glue",
    ),
    Case(
        "u-trainer-completes",
        "python run_glue.py\n",
        trainer(),
        ("transformers", "accelerate"),
        project="/home/alex/glue",
    ),
    Case(
        "u-trainer-disk-full",
        "cd /mnt/runs && python /home/alex/glue/run_glue.py\n",
        trainer(extra="save_steps=10"),
        ("transformers", "accelerate"),
        project="/home/alex/glue",
        disks={"/mnt/runs": 1},
    ),
    Case("u-safetensors-cut", "python load.py\n", {"load.py": SAFETENSORS}, ("safetensors", "torch")),
    Case("u-transformers-sizes", "python load.py\n", {"load.py": TRANSFORMERS_SIZES}, ("transformers",)),
    Case(
        "u-lightning-shape",
        "python fit.py\n",
        lightning("return self.head(batch[0])"),
        ("lightning",),
        project="/mnt/team/vision",
    ),
    Case(
        "u-lightning-attribute",
        "python fit.py\n",
        lightning("self.log('val_f1', self.metric(batch[1]))"),
        ("lightning",),
        project="/mnt/team/vision",
    ),
    Case(
        "u-lightning-sigterm",
        "exec python fit.py\n",
        lightning("import time; time.sleep(0.6)"),
        ("lightning",),
        project="/mnt/team/vision",
        signal_when=(r"Total FLOPs", "SIGTERM", "leader"),
    ),
    Case("u-jax-nan", "python train.py\n", {"train.py": JAX_NAN}, ("jax",), project="/srv/jax"),
    Case("u-jax-coordinator", "python join.py\n", {"join.py": JAX_COORDINATOR}, ("jax",), project="/srv/jax"),
    Case("u-jax-rlimit", "ulimit -v 12000000\npython big.py\n", {"big.py": JAX_BIG}, ("jax",), project="/srv/jax"),
    Case(
        "u-nan-to-the-end",
        "python tools/train.py\n",
        {"tools/train.py": NAN_TO_THE_END},
        ("torch",),
        project="/home/alex/det",
    ),
    Case("u-nan-skipped", "python train.py\n", {"train.py": SKIPPED_NAN}, ("torch",)),
    Case("u-compile-fullgraph", "python train.py\n", {"train.py": COMPILE}, ("torch",)),
    Case(
        "u-ddp-unused-parameters",
        "torchrun --standalone --nproc-per-node=2 heads.py\n",
        {"heads.py": UNUSED},
        ("torch",),
    ),
    Case("u-checkpoint-from-gpu", "python resume.py\n", {"resume.py": CUDA_CHECKPOINT}, ("torch",)),
]

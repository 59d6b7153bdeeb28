"""Runs that finish their work while printing frightening words, and failures hidden behind an exit code of 0."""

from __future__ import annotations

from case import Case

RETRY = """import torch
batch = 1 << 18
while True:
    try:
        print("trying batch size", batch, flush=True)
        torch.empty(batch, 1 << 20)
        break
    except RuntimeError as e:
        print(f"batch size {batch} failed: {e}; retrying with half", flush=True)
        batch //= 2
for step in range(30):
    loss = 3.1 - step * 0.02
    print(f"iteration {step} | lm loss: {loss:.4f} | number of skipped iterations: 0 | number of nan iterations: 0 |")
print("training complete")
"""

HIDDEN = """set -e
python train.py 2>&1 | tee train.log
echo "done, see train.log"
"""

WARNINGS = """import warnings, logging, torch
logging.basicConfig(level=logging.INFO)
warnings.warn("CUDA initialization: no NVIDIA driver found, falling back to the CPU")
logging.error("could not reach the metrics server, connection refused; metrics stay local")
x = torch.randn(8, 4, requires_grad=True)
for epoch in range(5):
    ((x ** 2).mean()).backward()
    logging.info("epoch %d: 0 errors, 0 failures, grad norm %.3f", epoch, x.grad.norm())
logging.info("saved model to out/model.pt; finished without errors")
"""

CASES = [
    Case("recovered-memory-error", "ulimit -v 9000000\npython train.py\n", {"train.py": RETRY}, ("torch",)),
    Case("warnings-only", "python train.py\n", {"train.py": WARNINGS}, ("torch",)),
    Case("hidden-behind-tee", HIDDEN, {"train.py": "print('epoch 0')\nvalues = {}\nprint(values['lr'])\n"}, ("tee",)),
]

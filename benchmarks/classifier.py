"""How fast a log is scanned, and in how much memory, beside `grep -cE` for the same words. Prints a table.

    python -m benchmarks.classifier [--megabytes N] [--rounds N]

The log is a training's: lines of changing numbers, a progress bar, now and then a warning, one failure at the end.
Other rows show what is not a training's: lines that never repeat, errors on every line, bytes of no text. All is run
in turn, on one core each; times are CPU times where the load of the machine would show otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SCAN = """
import resource, sys, time
sys.path.insert(0, sys.argv[1])
from gpualert.classify import ExitFacts, classify
from gpualert.scan import Scanner
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scanner = Scanner()
begin, cpu = time.perf_counter(), time.process_time()
with open(sys.argv[2], "rb") as stream:
    while True:
        chunk = stream.read(1 << 18)
        if not chunk:
            break
        scanner.feed(chunk)
end = time.perf_counter()
verdict = classify(ExitFacts(code=1), scanner.finish())
last = time.perf_counter() - end
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(end - begin, time.process_time() - cpu, last, before, after, verdict.failure_class.value)
"""

#: Words of sixty common rules, for grep.
WORDS = (
    "CUDA out of memory|RESOURCE_EXHAUSTED|No space left on device|Disk quota exceeded|Stale file handle|"
    "Input/output error|Too many open files|items of ancdata|Killed process|oom-kill event|OOMKilled|"
    "DUE TO TIME LIMIT|DUE TO PREEMPTION|"
    "DUE TO NODE FAILURE|NODE_FAIL|fallen off the bus|uncorrectable ECC|Xid|device-side assert|illegal memory access|"
    "no kernel image|CUDNN_STATUS|CUBLAS_STATUS|NCCL error|NCCL WARN|Watchdog caught|Connection closed by peer|"
    "Address already in use|client socket has timed out|Connection refused|Temporary failure in name resolution|"
    "No module named|cannot open shared object file|undefined symbol|SyntaxError|unrecognized arguments|"
    "command not found|Permission denied|FileNotFoundError|No such file or directory|ZeroDivisionError|AssertionError|"
    "loss is nan|Segmentation fault|Bus error|MemoryError|bad_alloc|size mismatch|shapes cannot be multiplied|"
    "on the same device|state_dict|PytorchStreamReader|UnpicklingError|cannot identify image|Client Error|gated repo|"
    "Max retries exceeded|KeyboardInterrupt|SIGTERM|exitcode"
)


def training_log(size: int) -> Iterator[bytes]:
    """A log of about so many bytes, in pieces."""
    chance = random.Random(1)
    written = step = 0
    block: list[str] = []
    while written < size:
        step += 1
        block.append(
            f"[2025-10-08 23:{step % 60:02d}:{step * 7 % 60:02d}] step {step:7d}/9000000 | "
            f"loss {chance.random() * 6:.4f} | grad_norm {chance.random() * 2:.3f} | "
            f"lr {chance.random() / 1000:.3e} | tok/s {chance.randint(9000, 13000)}\n"
        )
        if step % 10 == 0:
            block.append(
                f"{{'loss': {chance.random():.4f}, 'grad_norm': {chance.random():.6f}, 'epoch': {step / 9e4:.2f}}}\n"
            )
        if step % 50 == 0:
            block.append(
                f"\r {step % 100}%|#####     | {step}/9000000 [1:02:{step % 60:02d}<9:08:07, {chance.random():.2f}it/s]"
            )
        if step % 5000 == 0:
            block.append("/opt/lib/python3.11/site-packages/torch/utils/checkpoint.py:295: FutureWarning: deprecated\n")
            block.append(f"INFO saving checkpoint to /ckpt/step_{step}; validation loss {chance.random():.3f}\n")
        if len(block) >= 5000:
            data = "".join(block).encode()
            written += len(data)
            yield data
            block = []
    yield b'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n'
    yield b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def odd_logs(size: int) -> dict[str, bytes]:
    """Logs that nothing helps with, each of about so many bytes."""
    chance = random.Random(2)
    words = (ROOT / "docs" / "explanation" / "architecture.md").read_text().split()
    line = " ".join(words[:14])
    return {
        "prose that never repeats": "\n".join(
            " ".join(chance.choice(words) for _ in range(14)) for _ in range(size // len(line))
        ).encode(),
        "hashes on every line": b"\n".join(
            b"%032x loaded from %x in %d ms" % (chance.getrandbits(128), chance.getrandbits(64), i)
            for i in range(size // 70)
        ),
        "an error on every line": b"\n".join(
            b"RuntimeError: CUDA out of memory in %s" % chance.choice(words).encode() for i in range(size // 45)
        ),
        "random bytes": chance.randbytes(size),
        "one line of NULs": b"\0" * size,
        "tracebacks without end": b"Traceback (most recent call last):\n" * (size // 35),
        "one line, no newline": b"loss error nan " * (size // 15),
    }


def scan(path: str) -> tuple[float, float, float, int, int, str]:
    out = subprocess.run(
        [sys.executable, "-c", SCAN, str(ROOT), path], check=True, capture_output=True, text=True
    ).stdout
    wall, cpu, last, before, peak, said = out.split()
    return float(wall), float(cpu), float(last), int(before), int(peak), said


def grep(path: str) -> tuple[float, float]:
    """Wall and CPU seconds of `grep -cE`."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(["grep", "-cE", WORDS, path], stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime


def row(label: str, size: float, path: str) -> str:
    """One line of the table: the scanner on one log."""
    wall, cpu, last, before, peak, said = scan(path)
    memory = f"{before / 1024:.0f} -> {peak / 1024:.0f} MiB"
    return f"{label:28s} {size / cpu:12.1f} {size / wall:8.1f} {memory:>22s} {1000 * last:17.1f} ms  {said}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classifier")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--odd-megabytes", type=int, default=4, help="size of each log that is not a training's")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.log")
        with open(path, "wb") as stream:
            for data in training_log(args.megabytes * 1_000_000):
                stream.write(data)
        size = os.path.getsize(path) / 1e6
        print(f"training log of {size:.0f} MB, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        print(f"{'':28s} {'MB/s of CPU':>12s} {'MB/s':>8s} {'memory':>22s} {'after the last byte':>20s}")
        for _ in range(args.rounds):
            if shutil.which("grep"):
                wall, cpu = grep(path)
                print(f"{'grep -cE, 60 words':28s} {size / cpu:12.0f} {size / wall:8.0f}")
            print(row("scanner and verdict", size, path))
        for name, data in odd_logs(args.odd_megabytes * 1_000_000).items():
            for copies, label in ((1, name), (2, "   twice as much")):
                with open(path, "wb") as stream:
                    stream.write(data * copies)
                print(row(label, os.path.getsize(path) / 1e6, path))
    return 0


if __name__ == "__main__":
    sys.exit(main())

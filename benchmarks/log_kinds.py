"""Logs of many kinds, made up from a seed: what trainings write, and what somebody would write to make a scanner slow.

Each function yields pieces of a log without end; :func:`blob` cuts one off at a size. What varies in a real log varies
here: metrics, hexadecimal ids, file names, times. Nothing is tuned to the rules, except in the hostile kinds, which are
made of the rules' own words.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator

_BLOCK_LINES = 2000
Lines = Iterator[str]
Kind = Callable[[random.Random], Lines]


def trainer_dicts(chance: random.Random) -> Lines:
    """What the HF Trainer prints, with its progress bar between."""
    for step in itertools.count(1):
        yield (
            f"{{'loss': {chance.random() * 4:.4f}, 'grad_norm': {chance.random() * 3:.15f}, "
            f"'learning_rate': {chance.random() / 1e4:.17g}, 'epoch': {step / 9e3:.2f}}}\n"
        )
        if step % 5 == 0:
            yield f"\r {step % 100:2d}%|{'█' * (step % 10)}{' ' * (10 - step % 10)}| {step}/90000 [1:{step % 60:02d}:00"
            yield f"<9:08:07,  {chance.random() * 9:.2f}it/s]"
        if step % 500 == 0:
            yield f"\nSaving model checkpoint to /ckpt/run/checkpoint-{step}\n"
            yield "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:87: UserWarning: use_reentrant\n"


def carriage_returns(chance: random.Random) -> Lines:
    """Lightning's bar: hundreds of segments to a line."""
    for epoch in itertools.count():
        for step in range(0, 1251, 2):
            bar = "█" * (step // 50) + "▏▎▍▌▋▊▉"[step % 7] + " " * (25 - step // 50)
            yield (
                f"\rEpoch {epoch}: {step * 100 // 1251:3d}%|{bar}| {step}/1251 [{step // 600:02d}:{step // 10 % 60:02d}"
                f"<{chance.randint(0, 9):02d}:{step % 60:02d}, {chance.random() * 20:.2f}it/s, v_num={epoch % 7}, "
                f"train_loss_step={chance.random() * 3:.3f}, val_acc={chance.random():.3f}]"
            )
        yield "\n"


def megatron(chance: random.Random) -> Lines:
    """Iteration lines as Megatron-LM prints them, from the last rank."""
    for step in itertools.count(1):
        yield (
            f" [2025-11-0{step % 9 + 1} {step % 24:02d}:{step % 60:02d}:{step * 7 % 60:02d}] iteration {step:8d}/  "
            f"500000 | consumed samples: {step * 512:12d} | elapsed time per iteration (ms): "
            f"{chance.random() * 9000:.1f} | throughput per GPU (TFLOP/s/GPU): {chance.random() * 500:.1f} | "
            f"learning rate: {chance.random():.6E} | "
            f"global batch size:   512 | lm loss: {chance.random() * 5:.6E} | loss scale: {2 ** (step % 17)}.0 | "
            f"grad norm: {chance.random():.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )


def ranks_interleaved(chance: random.Random) -> Lines:
    """Eight ranks under torchrun, each with a time and a logger's name."""
    says = ("train_step", "data_fetch", "forward", "all_reduce", "optimizer.step")
    for step in itertools.count(1):
        for rank in chance.sample(range(8), 8):
            yield (
                f"[rank{rank}]: 2025-11-03T{step % 24:02d}:{step % 60:02d}:{step * 7 % 60:02d}"
                f".{chance.randint(0, 999):03d} INFO trainer.loop {chance.choice(says)} step={step} "
                f"loss={chance.random() * 5:.5f} mem={chance.random() * 80:.2f}GiB dt={chance.random() * 900:.1f}ms\n"
            )


def floats_and_hexadecimals(chance: random.Random) -> Lines:
    """Metrics of random length, and an id in hexadecimal on every line."""
    for step in itertools.count(1):
        yield (
            f"{step} run={chance.getrandbits(64):016x} span={chance.getrandbits(32):x} "
            f"loss {chance.gauss(0, 1):+.{step % 9 + 1}e} acc {chance.random():.{step % 7 + 2}f}"
            f" ptr=0x{chance.getrandbits(48):x} lat {chance.expovariate(1):g}\n"
        )


def json_lines(chance: random.Random) -> Lines:
    """Structured logging: one object a line."""
    for step in itertools.count(1):
        yield (
            json.dumps(
                {
                    "ts": 1762100000 + step / 10,
                    "level": chance.choice(("info", "info", "info", "debug")),
                    "logger": chance.choice(("train", "data.loader", "optim", "checkpoint.async")),
                    "msg": chance.choice(("step done", "batch fetched", "gradients clipped", "metrics flushed")),
                    "step": step,
                    "loss": chance.random() * 4,
                    "trace_id": f"{chance.getrandbits(64):016x}",
                }
            )
            + "\n"
        )


def nccl_info(chance: random.Random) -> Lines:
    """What NCCL_DEBUG=INFO adds, for every channel of every rank."""
    for step in itertools.count(1):
        rank, channel, peer = step % 8, step // 8 % 24, chance.randrange(8)
        head = f"node{step % 4}:{3000 + rank}:{3100 + rank} [{rank}] NCCL INFO "
        yield chance.choice(
            (
                f"{head}Channel {channel:02d}/0 : {rank}[{rank}] -> {peer}[{peer}] via P2P/CUMEM/read\n",
                f"{head}Channel {channel:02d}/0 : {rank}[{rank}] -> {peer}[{peer}] [send] via NET/IB/{peer}/GDRDMA\n",
                f"{head}AllReduce: opCount {step:x} sendbuff 0x{chance.getrandbits(44):x} recvbuff "
                f"0x{chance.getrandbits(44):x} count {step * 512} datatype 9 op 0 root 0 "
                f"comm 0x{chance.getrandbits(44):x} [nranks=32] stream 0x{chance.getrandbits(44):x}\n",
                f"{head}Trees [0] {peer}/-1/-1->{rank}->-1 [1] {peer}/-1/-1->{rank}->{rank + 1}\n",
                f"{head}NET/IB : Using [0]mlx5_{peer}:1/IB [RO]; OOB eth0:10.0.{rank}.{peer}<0>\n",
            )
        )


def unique_words(chance: random.Random) -> Lines:
    """File names and UUIDs: hardly a token stands in the log twice."""
    syllables = "ra ko mi tu ven sal dor pin lex qua bri fo gul nep".split()
    for step in itertools.count(1):
        name = "".join(chance.choice(syllables) for _ in range(5))
        i = f"{chance.getrandbits(128):032x}"
        yield (
            f"INFO loaded /data/{name}/{chance.choice(syllables)}_{i[:8]}-{i[8:12]}-{i[12:16]}-{i[16:20]}-{i[20:]}"
            f".tar -> {name[::-1]} ({step} samples, {chance.random():.3f} s)\n"
        )


def verbose_debug(chance: random.Random) -> Lines:
    """DEBUG of a framework: module names, shapes, timings, now and then a scary word in passing."""
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "norm1", "norm2", "embed", "head")
    for step in itertools.count(1):
        at = f"2025-11-03 {step % 24:02d}:{step % 60:02d}:{step * 7 % 60:02d},{chance.randint(0, 999):03d}"
        layer = f"model.layers.{chance.randrange(80)}.{chance.choice(layers)}"
        yield chance.choice(
            (
                f"{at} DEBUG [torch._dynamo.guards] guard TENSOR_MATCH on L['self'].{layer} size=[4096, {step}]\n",
                f'{at} DEBUG [urllib3.connectionpool] https://api.wandb.ai:443 "POST /files/x HTTP/1.1" 200 {step}\n',
                f"{at} DEBUG [fsdp] all_gather {layer} shape=({step % 99}, 4096) took {chance.random():.5f} s\n",
                f"{at} DEBUG [filelock] Attempting to release lock {chance.getrandbits(47)} on /cache/x.lock\n",
                f"{at} DEBUG [retry] attempt {step % 3} of 5, no error so far, timeout {step % 60}s\n",
                f"{at} DEBUG [dataloader] worker {step % 16} fetched batch {step} in {chance.random() * 9:.2f} ms\n",
            )
        )


def quiet_prose(chance: random.Random) -> Lines:
    """A program that samples text from its model: sentences that never repeat."""
    words = (
        "the model of a river and its many small stones was found near house where light falls on water "
        "while people walk along old streets talking about music weather food history mountains numbers letters "
        "children learn to read write sing paint build count because teachers help them every morning"
    ).split()
    while True:
        yield " ".join(chance.choice(words) for _ in range(chance.randint(8, 24))) + ".\n"


#: What trainings write: the promise of speed is about each of these.
ORDINARY: dict[str, Kind] = {
    "HF Trainer's dictionaries and bar": trainer_dicts,
    "Lightning's bar, carriage returns": carriage_returns,
    "Megatron's iterations": megatron,
    "8 ranks interleaved, with times": ranks_interleaved,
    "random floats and hex ids": floats_and_hexadecimals,
    "JSON lines": json_lines,
    "NCCL_DEBUG=INFO": nccl_info,
    "file names and UUIDs": unique_words,
    "a framework's DEBUG": verbose_debug,
    "sampled prose": quiet_prose,
}


def _rule_words() -> list[str]:
    from gpualert.signatures import TABLE

    return sorted({word for row in TABLE for word in row.words})


def words_of_rules(chance: random.Random) -> Lines:
    """Lines that never repeat, made of the rules' words."""
    words = _rule_words()
    while True:
        yield " ".join(chance.choice(words) for _ in range(8)) + "\n"


def one_rule_word_a_line(chance: random.Random) -> Lines:
    """Lines that never repeat, each with one rule's word among random letters."""
    words = _rule_words()
    while True:
        noise = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=60))
        yield f"{noise[:30]} {chance.choice(words)} {noise[30:]}\n"


def errors_with_numbers(chance: random.Random) -> Lines:
    """A true error on every line, never with the same words."""
    while True:
        yield f"RuntimeError: CUDA out of memory in {chance.choice('abcdefgh')}{chance.getrandbits(60):x}\n"


def headers_without_end(chance: random.Random) -> Lines:
    """Tracebacks begin and never state an exception."""
    while True:
        yield "Traceback (most recent call last):\n"


def tracebacks_that_repeat(chance: random.Random) -> Lines:
    """Whole tracebacks, of another place and message each time."""
    for step in itertools.count(1):
        yield "Traceback (most recent call last):\n"
        yield f'  File "/w/train_{chance.choice("abcdef")}.py", line {step % 900}, in step\n    loss.backward()\n'
        yield f"ValueError: bad value {chance.getrandbits(40):x}\n"


HOSTILE: dict[str, Kind] = {
    "words of the rules": words_of_rules,
    "one rule's word a line": one_rule_word_a_line,
    "an error on every line": errors_with_numbers,
    "headers of tracebacks": headers_without_end,
    "tracebacks that repeat": tracebacks_that_repeat,
}


def blob(kind: Kind, size: int, seed: int = 1, unit: int = 4_000_000) -> Iterator[bytes]:
    """
    A log of ``size`` bytes in pieces; about ``unit`` bytes are made up at a time.

    Making up a line costs more than scanning it, so beyond 32 MB the made-up part comes again: more than a scanner
    whose memory is flat can remember.
    """
    lines = kind(random.Random(seed))
    fresh: list[bytes] = []
    left, made = size, 0
    while left > 0 and made < 32_000_000:
        data = b""
        parts: list[str] = []
        count = 0
        while count < unit:
            block = list(itertools.islice(lines, _BLOCK_LINES))
            parts += block
            count += sum(map(len, block))
        data = "".join(parts).encode()[:left]
        fresh.append(data)
        made += len(data)
        left -= len(data)
        yield data
    for data in itertools.cycle(fresh):
        if left <= 0:
            return
        yield data[:left]
        left -= len(data)


def one_line(size: int) -> bytes:
    """A line without end, of ordinary words and a rule's here and there."""
    text = b"".join(b"weight %d value %d loss error nan cuda " % (i, i * 7) for i in range(4000))
    return (text * (size // len(text) + 1))[:size]

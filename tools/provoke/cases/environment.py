"""The environment of the job: modules, libraries, programs, command lines, source that does not parse, ports."""

from __future__ import annotations

from case import Case

PLUGIN_C = """int cuda_ops_forward_v2(int);
int forward(int x) { return cuda_ops_forward_v2(x); }
"""

UNDEFINED = """set -e
gcc -shared -fPIC -o fused_ops.so plugin.c
exec python train.py
"""

LOAD_SO = """import ctypes
print("loading fused kernels", flush=True)
ops = ctypes.CDLL("./fused_ops.so", mode=ctypes.RTLD_GLOBAL | 2)
"""

MISSING_SO = """set -e
echo 'int helper(void) { return 1; }' > helper.c
echo 'int helper(void); int main(void) { return helper() - 1; }' > main.c
gcc -shared -fPIC -o libtrainhelper.so.2 -Wl,-soname,libtrainhelper.so.2 helper.c
gcc -o trainer main.c ./libtrainhelper.so.2 && rm libtrainhelper.so.2
echo "starting trainer"
exec ./trainer
"""

ARGPARSE = """import argparse
p = argparse.ArgumentParser(description="fine-tune a model")
p.add_argument("--lr", type=float, default=1e-4)
p.add_argument("--epochs", type=int, required=True)
p.add_argument("--on-error", choices=["abort", "skip"])
args = p.parse_args()
"""

CLICK = """import click


@click.command()
@click.option("--batch-size", type=click.IntRange(1, 1024), required=True)
@click.argument("config", type=click.Path(exists=True))
def main(batch_size, config):
    print(batch_size, config)


main()
"""

PARSE = """import torch

def train(epochs):
    for epoch in range(epochs)
        print(epoch)

train(3)
"""

TABS = "def step(x):\n    y = x + 1\n\treturn y\n"

PORT = """import socket, socketserver
first = socket.socket()
first.bind(("127.0.0.1", 6006))
first.listen()
print("starting metrics endpoint on 6006", flush=True)
socketserver.TCPServer(("127.0.0.1", 6006), socketserver.BaseRequestHandler)
"""

# An ELF header for another processor (machine 0xB7, AArch64), as when an image was built elsewhere.
FOREIGN = r"""printf '\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xb7\0\x01\0\0\0' > trainer
head -c 4000 /dev/zero >> trainer && chmod +x trainer
./trainer --epochs 3
"""

CASES = [
    Case(
        "module-missing",
        "python train.py\n",
        {"train.py": "import numpy as np\nprint('numpy', np.__version__)\nimport flash_attn\n"},
        ("numpy",),
    ),
    Case("module-missing-dash-m", "python -m fairseq_cli.train data-bin\n"),
    Case("symbol-undefined", UNDEFINED, {"plugin.c": PLUGIN_C, "train.py": LOAD_SO}, ("gcc",)),
    Case("library-missing", MISSING_SO, needs=("gcc",)),
    Case("usage-argparse", "python finetune.py --lr fast --epochs 3\n", {"finetune.py": ARGPARSE}),
    Case("usage-click", "python cli.py --batch-size 0 conf.yaml\n", {"cli.py": CLICK}, ("click",)),
    Case("syntax-colon", "python train.py\n", {"train.py": PARSE}),
    Case("syntax-tabs", "python step.py\n", {"step.py": TABS}),
    Case("command-not-found", "source_env=1\necho preparing\ncolossalai run --nproc_per_node 8 train.py\n"),
    Case(
        "not-executable", "chmod 644 launch.sh\necho launching\n./launch.sh\n", {"launch.sh": "#!/bin/bash\necho hi\n"}
    ),
    Case("not-executable-format", FOREIGN),
    Case("port-in-use", "python serve.py\n", {"serve.py": PORT}),
]

"""Hubs again: rate limits, missing files, weights by URL, offline mode set by the user; and clean ends by signal."""

# ruff: noqa: E501 (the jobs print long lines)
from __future__ import annotations

from case import Case

SERVER = """import http.server, sys
code = int(sys.argv[1])


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(code)
        if code == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        if code == 401:
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("X-Error-Message", "Access to model acme/coder-13b is restricted. You must have access to it and be authenticated to access it. Please log in.")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", 8088), Answer).serve_forever()
"""

TOKENIZER = """import logging
from transformers import AutoTokenizer
logging.basicConfig(level=logging.INFO)
logging.info("loading tokenizer of acme/coder-13b")
tokenizer = AutoTokenizer.from_pretrained("acme/coder-13b")
"""

SNAPSHOT = """from huggingface_hub import snapshot_download
print("prefetching acme/coder-13b", flush=True)
snapshot_download("acme/coder-13b", max_workers=2)
"""

FILE = """from huggingface_hub import hf_hub_download
print("fetching", flush=True)
hf_hub_download("acme/coder-13b", "adapter_config.json")
"""

URL = """import torch
print("Downloading backbone weights", flush=True)
torch.hub.load_state_dict_from_url("https://download.pytorch.org/models/resnet50-11ad3fa6.pth", progress=False)
"""

FORBIDDEN_URL = """import urllib.request
print("downloading annotations", flush=True)
urllib.request.urlretrieve("http://127.0.0.1:8088/annotations/instances.json", "instances.json")
"""

PARALLEL = """import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"[rank {rank}] building model", flush=True)
if rank == 1:
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    from huggingface_hub import hf_hub_download
    hf_hub_download("acme/coder-13b", "config.json")
dist.barrier()
"""


def answering(name: str, code: int, script: str, *needs: str) -> Case:
    command = f"/usr/bin/python3 server.py {code} &\nsleep 1\npython get.py\nrc=$?\nkill %1\nexit $rc\n"
    files = {"server.py": SERVER, "get.py": script}
    return Case(name, command, files, needs, env={"HF_ENDPOINT": "http://127.0.0.1:8088"}, project="/home/alex/serve")


CASES = [
    answering("u-hub-429", 429, SNAPSHOT, "hub"),
    answering("u-hub-401-tokenizer", 401, TOKENIZER, "transformers"),
    answering("u-hub-404-entry", 404, FILE, "hub"),
    answering("u-url-403", 403, FORBIDDEN_URL),
    Case("u-url-no-dns", "python get.py\n", {"get.py": URL}, ("torch",)),
    Case("u-offline-by-user", "python get.py\n", {"get.py": TOKENIZER}, ("transformers",), env={"HF_HUB_OFFLINE": "1"}),
    Case(
        "u-hub-one-rank",
        "torchrun --standalone --nproc-per-node=2 build.py\n",
        {"build.py": PARALLEL},
        ("torch", "hub"),
    ),
]

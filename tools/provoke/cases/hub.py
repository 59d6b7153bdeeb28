"""Model and data hubs that refuse, limit or cannot be reached: a local server, a closed port, no network at all."""

from __future__ import annotations

from case import Case

SERVER = """import http.server, sys
code = int(sys.argv[1])
ERRORS = {401: "RepoNotFound", 403: "GatedRepo", 404: "EntryNotFound"}


class Refuse(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(code)
        if code in ERRORS:
            self.send_header("X-Error-Code", ERRORS[code])
        if code == 403:
            message = "Access to model acme/llm-7b is restricted and you are not in the authorized list."
            self.send_header("X-Error-Message", message)
        if code == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


http.server.HTTPServer(("127.0.0.1", 8080), Refuse).serve_forever()
"""

DOWNLOAD = """from huggingface_hub import hf_hub_download
print("fetching config", flush=True)
path = hf_hub_download("acme/llm-7b", "config.json", revision="main")
print(path)
"""

TRANSFORMERS = """from transformers import AutoConfig
print("loading acme/llm-7b", flush=True)
config = AutoConfig.from_pretrained("acme/llm-7b")
"""

DATASET = """from datasets import load_dataset
print("loading data", flush=True)
train = load_dataset("acme/reviews", split="train")
"""


def answering(name: str, code: int, script: str, *needs: str) -> Case:
    command = f"/usr/bin/python3 server.py {code} &\nsleep 1\npython fetch.py\nrc=$?\nkill %1\nexit $rc\n"
    return Case(
        name, command, {"server.py": SERVER, "fetch.py": script}, needs, env={"HF_ENDPOINT": "http://127.0.0.1:8080"}
    )


CASES = [
    answering("hub-401", 401, DOWNLOAD, "hub"),
    answering("hub-403-gated", 403, DOWNLOAD, "hub"),
    answering("hub-503", 503, DOWNLOAD, "hub"),
    Case("hub-no-network", "python fetch.py\n", {"fetch.py": TRANSFORMERS}, ("transformers",)),
    Case(
        "hub-closed-port",
        "python fetch.py\n",
        {"fetch.py": DOWNLOAD},
        ("hub",),
        env={"HF_ENDPOINT": "http://127.0.0.1:9"},
    ),
    Case(
        "hub-datasets-offline", "python fetch.py\n", {"fetch.py": DATASET}, ("datasets",), env={"HF_HUB_OFFLINE": "1"}
    ),
]

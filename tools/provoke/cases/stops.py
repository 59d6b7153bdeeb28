"""Jobs that somebody or something ends from outside."""

from __future__ import annotations

from case import Case

LONG = """import time
for step in range(600):
    time.sleep(0.1)
    if step % 2 == 0:
        print(f"it {step} loss {2.0 / (step + 1):.4f}", flush=True)
"""

TIMEOUT = "timeout --signal=TERM 3 python train.py\n"

CASES = [
    Case("ctrl-c", "exec python train.py\n", {"train.py": LONG}, signal_when=(r"it 24 ", "SIGINT", "group")),
    Case("sigterm-bare", "exec python train.py\n", {"train.py": LONG}, signal_when=(r"it 16 ", "SIGTERM", "leader")),
    Case("sighup-bare", "exec python train.py\n", {"train.py": LONG}, signal_when=(r"it 16 ", "SIGHUP", "group")),
    Case("sigkill-bare", "exec python train.py\n", {"train.py": LONG}, signal_when=(r"it 16 ", "SIGKILL", "leader")),
    Case("timeout-command", TIMEOUT, {"train.py": LONG}, ("timeout",)),
]

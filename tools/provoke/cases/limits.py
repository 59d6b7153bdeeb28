"""Limits and errors of the kernel that are rarer: time, threads, read-only and stale files, quotas, plain downloads."""

from __future__ import annotations

from case import Case

BUSY = """print("fitting", flush=True)
i = 0
while True:
    i += 1
    if i % 5_000_000 == 0:
        print("iteration", i, flush=True)
"""

THREADS = """import threading, time
print("starting 64 decoder threads", flush=True)
for n in range(64):
    threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
    print("decoder", n, flush=True)
"""

# open_by_handle_at(2) on the handle of a file that is gone: the kernel's own ESTALE, as from a network filesystem.
STALE = """import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


path = b"/mnt/data/shard-0003.bin"
open(path, "wb").write(b"0" * 100)
handle, mount_id = Handle(128, 0), ctypes.c_int()
assert libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount_id), 0) == 0
os.remove(path)
folder = os.open("/mnt/data", os.O_RDONLY)
print("reading shard 3", flush=True)
if libc.open_by_handle_at(folder, ctypes.byref(handle), os.O_RDONLY) < 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path.decode())
"""

READ_ONLY = """mount -o remount,ro /mnt/runs
python train.py
"""

DD = """set -e
ln -s /proc/self/mem shard.bin
echo "[stage] hashing inputs"
dd if=shard.bin of=/tmp/copy.bin bs=4k count=1 2>&1
"""

WATCHDOG = """import os, threading, time
last = time.monotonic()


def watch():
    while True:
        time.sleep(0.2)
        if time.monotonic() - last > 3:
            print("[watchdog] no heartbeat from the training loop for 3 s, dumping and aborting", flush=True)
            os._exit(70)


threading.Thread(target=watch, daemon=True).start()
for step in range(50):
    last = time.monotonic()
    print("step", step, flush=True)
    if step == 30:
        threading.Event().wait()
"""

CASES = [
    Case("cpu-time-limit", "ulimit -S -t 2\npython fit.py\n", {"fit.py": BUSY}),
    Case(
        "thread-limit",
        "ulimit -u 24\nexec setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 decode.py\n",
        {"decode.py": THREADS},
        ("setpriv",),
    ),
    Case("file-stale", "python read.py\n", {"read.py": STALE}, disks={"/mnt/data": 4}),
    Case(
        "file-read-only",
        READ_ONLY,
        {"train.py": "print('run 12', flush=True)\nopen('/mnt/runs/log.csv', 'a').write('x')\n"},
        disks={"/mnt/runs": 4},
    ),
    Case("file-eio-dd", DD, needs=("dd",)),
    Case("download-curl-no-dns", "set -e\ncurl -fsSL -o w.bin https://models.example.org/w.bin\n", needs=("curl",)),
    Case("hang-own-watchdog", "exec python train.py\n", {"train.py": WATCHDOG}),
]

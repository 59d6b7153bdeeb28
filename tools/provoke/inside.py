"""The first process of the sandbox: private mounts, hostname and loopback, then the job, then one line of status.

Started by run.py through unshare(1); reads its orders as JSON on stdin, writes the status to descriptor 3. The job gets
descriptors 1 and 2 (the log). What it changes vanishes with its namespaces; the memory cgroup is removed by run.py.
"""

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

NODE_ADDRESS = "10.20.0.11"
LIBC = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_REC = 0x1000, 0x4000


def mount(*args):
    subprocess.run(["mount", *args], check=True, stdin=subprocess.DEVNULL)


def raise_loopback():
    """
    Set IFF_UP on lo and give it a second address (netdevice(7)), so that no ip(8) is needed.

    Where 127.0.0.1 is the only address, the resolver finds nothing for those who ask with AI_ADDRCONFIG (Slurm does).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x8 | 0x40))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(NODE_ADDRESS))
        fcntl.ioctl(probe, 0x8916, struct.pack("16s16s", b"lo:0", address))


def move_scripts(venv):
    """Let the environment's scripts (torchrun, accelerate) name the interpreter by the place the job sees."""
    old = (f"#!{venv}/bin/").encode()
    kept = []
    for name in os.listdir("/opt/conda/bin"):
        path = os.path.join("/opt/conda/bin", name)
        if os.path.islink(path):
            kept.append((name, os.readlink(path), None))
        else:
            with open(path, "rb") as stream:
                kept.append((name, None, stream.read().replace(old, b"#!/opt/conda/bin/", 1)))
    mount("-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs", "/opt/conda/bin")
    for name, target, data in kept:
        path = os.path.join("/opt/conda/bin", name)
        if data is None:
            os.symlink(target, path)
        else:
            with open(path, "wb") as stream:
                stream.write(data)
            os.chmod(path, 0o755)


def show(folder, target):
    """Bind the folder behind an open descriptor, which can still be reached when a new mount has covered its path."""
    os.makedirs(target, exist_ok=True)
    if LIBC.mount(f"/proc/self/fd/{folder}".encode(), target.encode(), None, MS_BIND | MS_REC, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def prepare(orders):
    name = orders["hostname"].encode()
    LIBC.sethostname(name, len(name))
    raise_loopback()
    mount("-t", "tmpfs", "-o", f"size={orders['shm_mib']}m", "tmpfs", "/dev/shm")
    kept = {path: os.open(path, os.O_RDONLY) for path in (orders["venv"], orders["python_home"]) if path}
    for folder in ("/opt", "/srv", "/mnt", "/home", "/root"):
        os.makedirs(folder, exist_ok=True)
        mount("-t", "tmpfs", "-o", "size=512m,mode=755", "tmpfs", folder)
    if orders["venv"]:
        show(kept[orders["venv"]], "/opt/conda")
        move_scripts(orders["venv"])
        if not os.path.exists(orders["python_home"]):
            show(kept[orders["python_home"]], orders["python_home"])
    mount("-t", "tmpfs", "-o", "size=512m,mode=1777", "tmpfs", "/tmp")
    with open("/tmp/.hosts", "w") as hosts:
        hosts.write(f"127.0.0.1 localhost\n{NODE_ADDRESS} {orders['hostname']}\n")
    mount("--bind", "/tmp/.hosts", "/etc/hosts")
    project = orders["project"]
    os.makedirs(project)
    for path, size in orders["disks"].items():
        os.makedirs(path, exist_ok=True)
        mount("-t", "tmpfs", "-o", f"size={size}m", "tmpfs", path)
    for path, text in orders["files"].items():
        path = os.path.join(project, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as stream:
            stream.write(text)
    with open(os.path.join(project, "job.sh"), "w") as stream:
        stream.write(orders["command"])


def child_setup(orders):
    def setup():
        os.setsid()
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # a background start may have told us to ignore them
        os.nice(10)
        os.chdir(orders["project"])
        if orders["cgroup"]:
            with open(os.path.join(orders["cgroup"], "cgroup.procs"), "w") as procs:
                procs.write(str(os.getpid()))

    return setup


def main():
    orders = json.load(sys.stdin)
    prepare(orders)
    job = subprocess.Popen(
        ["bash", "job.sh"], env=orders["env"], stdin=subprocess.DEVNULL, preexec_fn=child_setup(orders), close_fds=True
    )
    deadline = time.monotonic() + orders["timeout_s"]
    pending = orders["signal_when"]
    timed_out = False
    while job.poll() is None:
        if pending and re.search(pending[0].encode(), os.pread(1, 1 << 20, 0)):
            number = getattr(signal, pending[1])
            os.killpg(job.pid, number) if pending[2] == "group" else os.kill(job.pid, number)
            pending = None
        if time.monotonic() > deadline:
            timed_out = True
            os.killpg(job.pid, signal.SIGKILL)
        time.sleep(0.05)
    time.sleep(0.3)  # late words of reaped children
    status = {
        "returncode": job.returncode,
        "timed_out": timed_out,
        "signal_sent": bool(orders["signal_when"]) and not pending,
    }
    os.write(3, json.dumps(status).encode())


main()

"""Provoke real failures and keep what they print.

    python tools/provoke/run.py --list
    python tools/provoke/run.py NAME [NAME ...] --out DIR [--venv VENV]
    python tools/provoke/run.py --all --out DIR

Each case runs in namespaces of its own (mounts, pids, network, hostname), one at a time and niced. For each, DIR gets
NAME.log (the bytes of the job) and one line in runs.jsonl (exit code, signal, lines). Labels are written by a reader.
Root and unshare(1) are needed; a case whose other needs are missing is named and left out, and the exit code is 3.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from case import Case, load_cases

MODULES = {
    "torch": "torch",
    "jax": "jax",
    "transformers": "transformers",
    "datasets": "datasets",
    "hub": "huggingface_hub",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "ray": "ray",
    "deepspeed": "deepspeed",
}
MODULES.update(
    {name: name for name in ("accelerate", "click", "pandas", "PIL", "tqdm", "safetensors", "numpy", "lightning")}
)
CGROUP_V1_MEMORY = Path("/sys/fs/cgroup/memory")
HOSTNAME = "node01"
JOB_PATH = "/opt/conda/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
INSIDE = str(Path(__file__).resolve().parent / "inside.py")
UNSHARE = "unshare --fork --kill-child --mount --propagation private --uts --ipc --net --pid --mount-proc".split()


def missing_needs(case: Case, venv: Path | None) -> list[str]:
    """:return: what this machine lacks for the case, in words; empty when it can run."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root (for unshare and mount)")
    if shutil.which("unshare") is None:
        lacks.append("unshare (package util-linux)")
    for need in case.needs:
        if need in MODULES:
            if venv is None or not list(venv.glob(f"lib/python3*/site-packages/{MODULES[need]}*")):
                lacks.append(f"module {MODULES[need]} in the environment given by --venv")
        elif shutil.which(need) is None:
            lacks.append(f"program {need}")
    if venv is None and "python " in case.command and shutil.which("python", path=JOB_PATH) is None:
        lacks.append("a program called python, or --venv")
    if case.memory_mib is not None and not (CGROUP_V1_MEMORY / "memory.limit_in_bytes").exists():
        lacks.append(f"a memory cgroup, version 1, at {CGROUP_V1_MEMORY}")
    return lacks


def run_case(case: Case, out: Path, venv: Path | None) -> dict[str, object]:
    """
    Run one case to its end and leave its log in ``out``.

    :return: reproduce, exit_code (128+N for signal N), signal (name or None), n_lines.
    :raises RuntimeError: the sandbox itself failed, the case ran past its time limit, or its signal had no occasion.
    """
    log_path = out / f"{case.name}.log"
    cgroup = make_cgroup(case)
    try:
        status = run_sandbox(case, log_path, venv, cgroup)
    finally:
        if cgroup is not None:
            remove_cgroup(cgroup)
    if status["timed_out"]:
        raise RuntimeError(f"still running after {case.timeout_s} s")
    if case.signal_when and not status["signal_sent"]:
        raise RuntimeError(f"the output never matched {case.signal_when[0]!r}, so no signal was sent")
    clean_log(log_path, venv)
    code = status["returncode"]
    name = signal.Signals(-code).name if code < 0 else None
    n_lines = count_lines(log_path.read_bytes())
    return {"reproduce": case.name, "exit_code": 128 - code if code < 0 else code, "signal": name, "n_lines": n_lines}


def run_sandbox(case: Case, log_path: Path, venv: Path | None, cgroup: Path | None) -> dict:
    """:return: what inside.py says about the job: returncode as of subprocess, timed_out, signal_sent."""
    orders = {
        "hostname": HOSTNAME,
        "venv": str(venv) if venv else "",
        "python_home": str(python_home(venv)) if venv else "",
        "env": job_environment(case),
        "cgroup": str(cgroup) if cgroup else "",
    }
    for key in ("command", "files", "project", "timeout_s", "shm_mib", "disks", "signal_when"):
        orders[key] = getattr(case, key)
    status_read, status_write = os.pipe()
    with (
        open(status_read, "rb") as status,
        open(log_path, "w+b", buffering=0) as log,
        tempfile.TemporaryFile() as orders_file,
    ):
        # Several writers share the log; without O_APPEND a program that reopens it would overwrite the others.
        fcntl.fcntl(log.fileno(), fcntl.F_SETFL, fcntl.fcntl(log.fileno(), fcntl.F_GETFL) | os.O_APPEND)
        orders_file.write(json.dumps(orders).encode())
        orders_file.seek(0)
        # The sandbox writes to descriptor 3, whatever number the pipe got (bash: dash knows one digit only).
        command = [
            "bash",
            "-c",
            f'exec 3>&{status_write}; exec "$@"',
            "bash",
            *UNSHARE,
            sys.executable,
            "-I",
            "-S",
            INSIDE,
        ]
        try:
            subprocess.run(
                command,
                stdin=orders_file,
                stdout=log,
                stderr=log,
                pass_fds=(status_write,),
                timeout=case.timeout_s + 60,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError("the sandbox did not end; it was killed") from None
        finally:
            os.close(status_write)
        raw = status.read()
    if not raw:
        raise RuntimeError(f"the sandbox failed:\n{log_path.read_text(errors='replace')[-2000:]}")
    return json.loads(raw)


def count_lines(data: bytes) -> int:
    r"""Lines ended by "\n", and an unfinished last one."""
    return data.count(b"\n") + (0 if data.endswith(b"\n") or not data else 1)


def job_environment(case: Case) -> dict[str, str]:
    env = {
        "PATH": JOB_PATH,
        "HOME": "/home/alex",
        "LANG": "C.UTF-8",
        "USER": "alex",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env.update(case.env)
    return {key: value for key, value in env.items() if value != ""}


def make_cgroup(case: Case) -> Path | None:
    if case.memory_mib is None:
        return None
    folder = CGROUP_V1_MEMORY / f"job-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(case.memory_mib << 20))
    return folder


def remove_cgroup(folder: Path) -> None:
    """The kernel lets go of a cgroup a moment after its last process has gone."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def python_home(venv: Path) -> Path:
    """:return: the installation that the environment was made from; its standard library appears in tracebacks."""
    return (venv / "bin" / "python").resolve().parent.parent


def clean_log(path: Path, venv: Path | None) -> None:
    """Name the interpreter's own library as if it belonged to the environment; no other byte is touched."""
    data = path.read_bytes()
    if venv is not None:
        base = python_home(venv)
        if base != Path("/usr"):
            data = data.replace(bytes(base), b"/opt/conda")
    path.write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description="Provoke real failures and keep what they print.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name every case and what this machine lacks for it")
    parser.add_argument("--all", action="store_true", help="run every case that can run here")
    parser.add_argument("--out", type=Path, help="folder for the logs and runs.jsonl")
    parser.add_argument(
        "--venv", type=Path, default=os.environ.get("PROVOKE_VENV"), help="environment with torch and the rest"
    )
    parser.add_argument(
        "--cases", type=Path, default=None, help="folder of case modules, instead of the two beside this file"
    )
    options = parser.parse_args()
    cases = load_cases((options.cases,)) if options.cases else load_cases()
    venv = Path(options.venv).resolve() if options.venv else None
    if options.list:
        for case in cases.values():
            lacks = missing_needs(case, venv)
            print(case.name + (f"   (missing: {'; '.join(lacks)})" if lacks else ""))
        return 0
    unknown = [name for name in options.names if name not in cases]
    if unknown or not (options.names or options.all) or options.out is None:
        parser.error(
            f"no such case: {', '.join(unknown)}"
            if unknown
            else "give --list, or names or --all together with --out DIR"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    left_out = 0
    for name in options.names or cases:
        lacks = missing_needs(cases[name], venv)
        if lacks:
            print(f"{name}: left out, missing: {'; '.join(lacks)}", flush=True)
            left_out += 1
            continue
        try:
            run = run_case(cases[name], options.out, venv)
        except RuntimeError as error:
            print(f"{name}: FAILED TO PROVOKE: {error}", flush=True)
            left_out += 1
            continue
        with open(options.out / "runs.jsonl", "a") as stream:
            stream.write(json.dumps(run) + "\n")
        print(f"{name}: exit {run['exit_code']} {run['signal'] or ''} {run['n_lines']} lines", flush=True)
    return 3 if left_out else 0


if __name__ == "__main__":
    raise SystemExit(main())

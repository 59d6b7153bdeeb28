"""Make the project's environment: `python3 tools/make_environment.py .venv`.

Runs under the Python that is there, with the standard library alone. Versions come from requirements/constraints.txt,
so that two machines get the same Airflow. uv does the work when pip can install it (seconds, not minutes); else pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
OLDEST, NEWEST = (3, 10), (3, 13)


def main(arguments: list[str]) -> int:
    """Make or renew the environment named by the one argument; the last step writes the stamp that make looks at."""
    venv = Path(arguments[0] if arguments else ".venv").absolute()
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return _explain(
            f"Airflow 3.3 runs on Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}; {sys.executable} is "
            f"{sys.version.split()[0]}. Name another one: make setup PYTHON=/path/to/python3.11"
        )
    python = venv / "bin" / "python"
    if not _works(python):
        shutil.rmtree(venv, ignore_errors=True)
        print(f"Making {venv.name} with Python {sys.version.split()[0]}", flush=True)
        if not _create(venv):
            return 1
    started_with_uv = _install_uv(python)
    print(f"Installing Airflow and the project's tools with {'uv' if started_with_uv else 'pip'}", flush=True)
    target = ["-c", str(CONSTRAINTS), "-e", f"{ROOT}[dev]"]
    if started_with_uv:
        # uv compiles only when told to; uncompiled, every Airflow process spends its first seconds compiling.
        command = [
            str(python),
            "-m",
            "uv",
            "pip",
            "install",
            "-q",
            "--compile-bytecode",
            "--python",
            str(python),
            *target,
        ]
        if subprocess.run(command, cwd=ROOT).returncode == 0:
            return _stamp(venv)
        print("uv did not succeed (its reason is above); the same again with pip", flush=True)
    if subprocess.run([str(python), "-m", "pip", "install", "-q", *target], cwd=ROOT).returncode != 0:
        return _explain(
            "The packages could not be installed; pip's reason is above. `make setup` starts again where it stopped."
        )
    return _stamp(venv)


def _works(python: Path) -> bool:
    return (
        python.exists() and subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0
    )


def _create(venv: Path) -> bool:
    done = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True)
    if done.returncode == 0:
        return True
    shutil.rmtree(venv, ignore_errors=True)
    # Debian's python3 brings venv without ensurepip; the package python3-venv adds it.
    if "ensurepip" in done.stdout + done.stderr and os.geteuid() == 0 and shutil.which("apt-get"):
        print("Installing python3-venv with apt-get", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for step in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", "python3-venv"],
        ):
            subprocess.run(step, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
        done = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True)
        if done.returncode == 0:
            return True
    _explain(f"{sys.executable} -m venv did not work: {(done.stdout + done.stderr).strip()}")
    return False


def _install_uv(python: Path) -> bool:
    command = [str(python), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), "uv"]
    return subprocess.run(command, capture_output=True).returncode == 0


def _stamp(venv: Path) -> int:
    # Left by the build. With the project's folder on the path it would announce provider and plugin a second time.
    shutil.rmtree(ROOT / "airflow_provider_gpualert.egg-info", ignore_errors=True)
    (venv / ".installed").touch()
    return 0


def _explain(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

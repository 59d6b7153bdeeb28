"""What a test needs of the machine. Where it is missing the test is skipped, and the reason says what was missing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SBIN = ":/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str) -> str:
    """The program's absolute path; without it the test is skipped."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + SBIN)
    if found is None:
        pytest.skip(f"needs the program {name}, which is not installed here (see requirements/debian.txt)")
    return found


def root() -> None:
    """Skip unless we are root: other accounts, mounts and network namespaces need it."""
    if os.geteuid() != 0:
        pytest.skip("needs root (other accounts, mounts or network namespaces)")


def mount_namespaces() -> None:
    """Skip unless a mount namespace can be made and mounted in (containers often forbid it)."""
    root()
    reason = _refusal("--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    if reason:
        pytest.skip(f"needs mount namespaces, which this machine refuses: {reason}")


def network_namespaces() -> None:
    """Skip unless whole machines can be made: pid, network and mount namespaces, a veth pair and nft in them."""
    mount_namespaces()
    program("ip")
    program("nft")
    reason = _refusal(
        "--net", "--pid", "--fork", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"
    )
    if reason:
        pytest.skip(f"needs network namespaces with veth pairs, which this machine refuses: {reason}")


@functools.cache
def _refusal(*arguments: str) -> str:
    """Why `unshare ARGUMENTS` does not work; empty when it does."""
    command = [program("unshare"), *arguments]
    path = os.environ.get("PATH", "") + SBIN
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit status {done.returncode}")


def interpreter(version: str) -> str:
    """
    Path of a CPython of this version ("3.8"); skipped when there is none.

    Looked for on PATH, beside the interpreter that runs the tests, and where pyenv and uv keep theirs.
    """
    found = interpreters().get(version)
    if found is None:
        pytest.skip(f"CPython {version} is not installed here, so this version was not tried")
    return found


@functools.cache
def interpreters() -> dict[str, str]:
    """Version ("3.8") to path, for every CPython found here from 3.6 on: real interpreters, not shims."""
    homes = [
        Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions",
        Path.home() / ".local/share/uv/python",
    ]
    candidates: list[str] = [sys.executable]
    for minor in range(6, 15):
        candidates += [found for found in (shutil.which(f"python3.{minor}"),) if found]
    for home in homes:
        candidates += [str(path) for path in sorted(home.glob("*/bin/python3"))]
    candidates += [path for path in ("/usr/bin/python3",) if os.path.exists(path)]
    known: dict[str, str] = {}
    probe = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2], sys.executable)"
    for candidate in candidates:
        done = subprocess.run([candidate, "-I", "-S", "-c", probe], capture_output=True, text=True)
        name, _, rest = done.stdout.strip().partition(" ")
        version, _, executable = rest.partition(" ")
        if done.returncode == 0 and name == "cpython":
            known.setdefault(version, executable)
    return known

"""GPUAlert 0.1.6, the tool that people have now, in an environment of its own, since it installs our import name.

The environment is made once, outside the tree, in the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

VERSION = "0.1.6"
NAME = f"GPUAlert {VERSION}"


class PeerMissing(RuntimeError):
    """It cannot be installed here; the message says why, in a few words."""


@cache
def environment() -> Path:
    """
    The folder with its programs (``gpualert``, ``python``), with bytecode.

    :raises PeerMissing: no network, no venv, or a package that does not install.
    """
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_folder / "gpualert-benchmarks" / f"gpualert-{VERSION}"
    programs = folder / "bin"
    if (folder / "complete").exists() and (programs / "gpualert").exists():
        return programs
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Installing {NAME} into an environment of its own: {folder}", file=sys.stderr, flush=True)
    without = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    steps = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(programs / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"gpualert=={VERSION}"],
    ]
    for step in steps:
        try:
            done = subprocess.run(step, env=without, capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PeerMissing(f"could not be installed: {error}") from error
        if done.returncode:
            last = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), done.stderr)
            raise PeerMissing(f"could not be installed: {last.strip()[-160:]}")
    (folder / "complete").touch()
    return programs


def run_command(*words: str) -> list[str]:
    """argv that runs ``words`` under it, without a notification. :raises PeerMissing:"""
    return [str(environment() / "gpualert"), "run", "--no-notify", "--", *words]


def clean_environment(home: Path) -> dict[str, str]:
    """In which it finds no configuration but its own new one, and keeps its logs below ``home``."""
    dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "GPUALERT_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "HOME": str(home)}

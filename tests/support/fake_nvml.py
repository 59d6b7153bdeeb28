"""NVIDIA drivers that are not there: a libnvidia-ml.so.1 from ``fake_nvml.c``, and an nvidia-smi that is a script."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support import needs

SOURCE = Path(__file__).with_name("fake_nvml.c")
#: Where the library is on hosts: by this name the module pynvml loads it.
LIBRARY = "libnvidia-ml.so.1"


@functools.cache
def _built() -> bytes:
    """The library; built once per test process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LIBRARY
        command = [needs.program("cc"), "-shared", "-fPIC", "-Wall", "-o", str(path), str(SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.fail(f"{' '.join(command)}: {done.stderr}")
        return path.read_bytes()


class FakeNvml:
    """
    :param folder: gets the library and its script; put it into LD_LIBRARY_PATH.

    Every GPU is a H100 in good order until the script says otherwise; see ``fake_nvml.c`` for its words.
    """

    HEALTHY = (
        "util 97\ntemp 61\nthrottle 0\necc_ce 0\necc_ue 0\necc_ce_life 2\necc_ue_life 0\n"
        "rows_ce 0\nrows_ue 0\nmig 0\npersistence 1\nmem_used 1073741824\nmem_reserved 536870912\n"
    )

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LIBRARY).write_bytes(_built())
        self.folder = folder
        self.says("")

    def says(self, script: str) -> None:
        """From now on; in place of what an earlier script said."""
        temporary = self.folder / "script.new"
        temporary.write_text(self.HEALTHY + script)
        os.rename(temporary, self.folder / "script")


def fake_smi(folder: Path, script: str) -> Path:
    """An ``nvidia-smi`` in ``folder``, which is what a shell makes of ``script``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path

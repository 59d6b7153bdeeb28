"""The core runs on CPython 3.8 to 3.13 with nothing installed. Real interpreters say so; an absent one is reported."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import needs

ROOT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import sys, os
root = sys.argv[1]
sys.path.insert(0, root)
sys.dont_write_bytecode = True
folder = os.path.join(root, "gpualert")
names = [n for n in sorted(os.listdir(folder)) if n.endswith(".py") and n != "__main__.py"]
for name in names:
    with open(os.path.join(folder, name), "rb") as source:
        compile(source.read(), name, "exec", dont_inherit=True)
for name in names:
    __import__("gpualert" if name == "__init__.py" else "gpualert." + name[:-3])
print(len(names))
"""


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"])
def test_every_core_module_compiles_and_imports(version: str) -> None:
    """-I -S is how it is started on a host: no site-packages, no user's settings, warnings are errors."""
    interpreter = needs.interpreter(version)

    done = subprocess.run(
        [interpreter, "-I", "-S", "-W", "error", "-c", IMPORT_ALL, str(ROOT)], capture_output=True, text=True
    )

    assert done.returncode == 0, f"CPython {version}: {done.stderr}"
    assert int(done.stdout) > 1

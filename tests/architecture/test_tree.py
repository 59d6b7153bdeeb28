"""What holds for the whole tree: one idea per file, metadata that is true, and nothing of one machine."""

from __future__ import annotations

import ast
import configparser
import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 600

# Written in pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile(
    "|".join(
        [r"/(wor" + r"k|far" + r"m)/(main|steering|shared|in|\.\w)", r"\.pyenv/vers" + r"ions/\d", "/opt/whe" + "els"]
    )
)
REGISTRIES = re.compile(
    r"\b(py" + r"pi\.org|files\.python" + r"hosted\.org|registry\.npm" + r"js\.org|deb\.deb" + r"ian\.org)\b"
)
# Samples of real logs say what they say; the lock file is generated.
EXCEPTED = ("tests/corpus/", "requirements/constraints.txt")


def tracked(*suffixes: str) -> list[Path]:
    """Files that git knows; outside a clone, all files that are not ignored by name."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        found = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        hidden = {".git", ".venv", ".cache", ".demo", "build"}
        found = [p for p in ROOT.rglob("*") if p.is_file() and not hidden & set(p.relative_to(ROOT).parts)]
    return [p for p in found if p.is_file() and (not suffixes or p.suffix in suffixes)]


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def declared() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return parser


def test_no_file_holds_more_than_one_idea() -> None:
    """A Python file that outgrows the limit has a second idea in it."""
    long = {str(p.relative_to(ROOT)): len(lines_of(p)) for p in tracked(".py")}

    assert not {name: count for name, count in long.items() if count > LONGEST}


def test_no_module_is_called_utils() -> None:
    """A helper lives beside its user, or its idea gets a name."""
    assert not [str(p) for p in tracked(".py") if p.stem in ("utils", "util", "helpers", "common", "misc")]


@pytest.mark.parametrize(
    ("what", "pattern"), [("a path of one machine", MACHINE_PATHS), ("a registry's host", REGISTRIES)]
)
def test_the_tree_speaks_of_the_project_alone(what: str, pattern: re.Pattern[str]) -> None:
    """A clone elsewhere finds nothing that was true on one machine only."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if not str(path.relative_to(ROOT)).startswith(EXCEPTED) and path.stat().st_size < 1_000_000
        for number, line in enumerate(lines_of(path), 1)
        if pattern.search(line)
    ]

    assert not found, f"{what}: {found}"


def test_the_core_postpones_annotations() -> None:
    """Without it `int | None` is an error on the oldest Pythons that GPU hosts still have."""
    late = [p for p in (ROOT / "gpualert").glob("*.py") if len(ast.parse(p.read_text()).body) > 3]

    assert not [p.name for p in late if "from __future__ import annotations" not in p.read_text()]


def test_every_package_is_declared() -> None:
    """A folder that setup.cfg does not name would be missing after an installation."""
    packages = set(declared()["options"]["packages"].split())
    core = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "gpualert").rglob("*.py")}
    provider = {".".join(p.parent.relative_to(ROOT / "provider").parts) for p in (ROOT / "provider").rglob("*.py")}

    assert packages == core | provider


def test_every_entry_point_can_be_imported() -> None:
    """Airflow and the shell find us through these names alone."""
    missing = []
    for group, text in declared()["options.entry_points"].items():
        for line in text.strip().splitlines():
            name, _, target = (part.strip() for part in line.partition("="))
            module, _, attribute = target.partition(":")
            try:
                getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                missing.append(f"{group} {name}: {error}")

    assert not missing


def test_there_is_one_version() -> None:
    """setup.cfg, core and provider are released together."""
    versions = {
        "setup.cfg": declared()["metadata"]["version"],
        "gpualert": importlib.import_module("gpualert").__version__,
        "gpualert_provider": importlib.import_module("gpualert_provider").__version__,
    }

    assert len(set(versions.values())) == 1, versions


def test_ci_can_be_started() -> None:
    """CI runs the file itself."""
    assert os.access(ROOT / ".ci" / "run", os.X_OK)

"""Who may import whom. When a test here stops you, the code usually belongs in another module."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "gpualert"
PROVIDER = ROOT / "provider" / "gpualert_provider"

# docs/explanation/architecture.md: the names by which the provider enters the core.
FRONT_DOOR = {"archive", "errors", "key", "outcome", "protocol", "records", "spec", "taxonomy", "userrules"}

# The one exception to "standard library only": may lie in the shipped archive, and is imported lazily.
OPTIONAL = {"pynvml"}

# Each costs 6 to 48 ms before the child's first instruction (docs/explanation/architecture.md).
SLOW = set("dataclasses typing enum json argparse subprocess threading tempfile pathlib shutil".split())
FAST_ROOMS = ("procfs", "rundir", "child", "supervisor", "guard", "launch")

core_files = pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
provider_files = pytest.mark.parametrize(
    "path", sorted(PROVIDER.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)


def imported(path: Path, *, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line, absolute module name) of every import; ``from a import b`` counts as a.b as well as a."""
    tree = ast.parse(path.read_text())
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


@core_files
def test_the_core_imports_the_standard_library_and_itself(path: Path) -> None:
    """It is copied to machines where nothing is installed, and it does not know that Airflow exists."""
    allowed = set(sys.stdlib_module_names) | {"gpualert"} | OPTIONAL
    foreign = [f"line {line}: {name}" for line, name in imported(path) if name.split(".")[0] not in allowed]

    assert not foreign, f"{path.name} imports {foreign}"


@core_files
def test_optional_modules_are_imported_late(path: Path) -> None:
    """A missing pynvml must not keep anything from starting."""
    early = [name for _, name in imported(path, top_level_only=True) if name.split(".")[0] in OPTIONAL]

    assert not early, f"{path.name} imports {early} at its top level"


def test_the_core_has_no_import_cycles() -> None:
    """The rooms lie above one another: a module is understood from those below it."""
    modules = {path.stem: path for path in CORE.glob("*.py") if not path.stem.startswith("__")}
    below: dict[str, set[str]] = {}
    for name, path in modules.items():
        parts = [found.split(".") for _, found in imported(path, top_level_only=True)]
        below[name] = {p[1] for p in parts if p[0] == "gpualert" and len(p) > 1 and p[1] in modules} - {name}
    while True:
        leaves = [name for name, needs in below.items() if not needs & below.keys()]
        if not leaves:
            break
        for name in leaves:
            del below[name]

    assert not below, (
        f"these import each other in a circle: { {n: sorted(b & below.keys()) for n, b in below.items()} }"
    )


@pytest.mark.parametrize("room", FAST_ROOMS)
def test_the_way_to_the_childs_start_is_free_of_slow_imports(room: str) -> None:
    """What a launch imports is what its child waits for."""
    if not (CORE / f"{room}.py").exists():
        pytest.fail(f"gpualert/{room}.py does not exist; architecture.md names it")
    path = f"sys.path.insert(0, {str(ROOT)!r})"
    plain = subprocess.run([sys.executable, "-I", "-S", "-c", "import sys; print(*sys.modules)"], capture_output=True)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; {path}; import gpualert.{room}; print(*sys.modules)"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    slow = (set(done.stdout.split()) - set(plain.stdout.decode().split())) & SLOW
    assert not slow, f"importing gpualert.{room} also imports {sorted(slow)}"


@provider_files
def test_the_provider_enters_the_core_by_its_front_door(path: Path) -> None:
    """So the core can be rebuilt behind it."""
    entered = {(line, name.split(".")[1]) for line, name in imported(path) if name.startswith("gpualert.")}
    rooms = {p.stem for p in CORE.glob("*.py")}
    elsewhere = sorted(f"line {line}: gpualert.{room}" for line, room in entered if room in rooms - FRONT_DOOR)

    assert not elsewhere, f"{path.name} enters by {elsewhere}; the front door is {sorted(FRONT_DOOR)}"


def test_importing_the_core_does_not_import_airflow() -> None:
    """Not even by accident, through something that is installed beside it."""
    names = [path.stem for path in CORE.glob("*.py") if not path.stem.startswith("__")]
    code = (
        f"import sys, json, importlib; sys.path.insert(0, {str(ROOT)!r}); "
        f"[importlib.import_module('gpualert.' + n) for n in {names!r}]; "
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert not {"airflow", "asyncssh", "paramiko", "jinja2", "pendulum", "pynvml"} & set(json.loads(done.stdout))

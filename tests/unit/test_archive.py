"""The archive is the same everywhere, and holds what it should."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpualert import archive
from gpualert.errors import GpuAlertError

PACKAGE = Path(archive.__file__).parent
PRINT_DIGEST = "from gpualert import archive; print(archive.build().digest)"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """build() is made once per process; each test wants its own."""
    archive._build.cache_clear()
    yield
    archive._build.cache_clear()


def copy_of_package(folder: Path) -> Path:
    shutil.copytree(PACKAGE, folder / "gpualert", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def digest_seen_from(path: Path, *, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_digest_names_the_bytes() -> None:
    """Anybody can check it with sha256sum."""
    built = archive.build()
    assert built.digest == hashlib.sha256(built.data).hexdigest()


def test_it_holds_the_package_and_nothing_else() -> None:
    """Source only: no caches, no tests, nothing of Airflow."""
    names = zipfile.ZipFile(io.BytesIO(archive.build().data)).namelist()
    inside = [name for name in names if name.startswith("gpualert/")]
    assert set(names) - set(inside) == {"MANIFEST", "__main__.py"}
    assert {"gpualert/__init__.py", "gpualert/serve.py", "gpualert/receiver.py"} <= set(inside)
    assert all(name.endswith(".py") for name in inside)


def test_every_place_gives_the_same_digest(tmp_path: Path) -> None:
    """From a checkout, a copy with other times, modes and caches, the packed archive, and the unpacked one."""
    one = copy_of_package(tmp_path / "one")
    for path in (one / "gpualert").rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    other = copy_of_package(tmp_path / "other")
    (other / "gpualert" / "__pycache__").mkdir()
    (other / "gpualert" / "__pycache__" / "spec.cpython-38.pyc").write_bytes(b"old")
    (other / "gpualert" / ".spec.py.swp").write_bytes(b"an editor's")
    (other / "gpualert" / "notes.txt").write_text("no source")
    expected = digest_seen_from(one, cwd=tmp_path)
    assert digest_seen_from(other, cwd=tmp_path) == expected

    make = "import sys; from gpualert import archive; sys.stdout.buffer.write(archive.build().data)"
    packed = tmp_path / "packed.pyz"
    packed.write_bytes(
        subprocess.run(
            [sys.executable, "-c", make], env={**os.environ, "PYTHONPATH": str(one)}, capture_output=True, check=True
        ).stdout
    )
    assert digest_seen_from(packed, cwd=tmp_path) == expected
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(packed).extractall(unpacked)
    assert digest_seen_from(unpacked, cwd=tmp_path) == expected


def test_another_source_is_another_archive(tmp_path: Path) -> None:
    """One changed byte, or one file more, changes the name."""
    digests = set()
    for number, change in enumerate([lambda p: None, change_a_byte, add_a_file]):
        folder = copy_of_package(tmp_path / str(number))
        change(folder / "gpualert")
        digests.add(digest_seen_from(folder, cwd=tmp_path))
    assert len(digests) == 3


def change_a_byte(package: Path) -> None:
    with open(package / "spec.py", "ab") as handle:
        handle.write(b"#")


def add_a_file(package: Path) -> None:
    (package / "more.py").write_text("")


def test_the_manifest_lists_every_other_member() -> None:
    """The host checks its unpacked copy with it."""
    packed = zipfile.ZipFile(io.BytesIO(archive.build().data))
    *lines, last = packed.read("MANIFEST").decode().splitlines()
    assert last == f"end {len(lines)}"
    listed = {}
    for line in lines:
        digest, size, name = line.split(" ", 2)
        listed[name] = (digest, int(size))
    assert listed == {
        name: (hashlib.sha256(packed.read(name)).hexdigest(), len(packed.read(name)))
        for name in packed.namelist()
        if name != "MANIFEST"
    }


def test_pynvml_may_be_placed_inside() -> None:
    """As one file beside the package, and under another digest."""
    plain, with_it = archive.build(), archive.build(with_pynvml=True)
    assert plain.digest != with_it.digest
    assert b"nvmlInit" in zipfile.ZipFile(io.BytesIO(with_it.data)).read("pynvml.py")


def test_pynvml_is_placed_inside_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the provider asks for: a worker without nvidia-ml-py sends the archive without it."""
    assert archive.build(with_pynvml=None).digest == archive.build(with_pynvml=True).digest
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert archive.build(with_pynvml=None).digest == archive.build(with_pynvml=False).digest


def test_an_older_package_of_that_name_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of modules is not what is imported on hosts."""
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert archive.build(with_pynvml=None).digest == archive.build(with_pynvml=False).digest


def test_a_missing_pynvml_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for and not there: an error that says which package brings it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(GpuAlertError, match="nvidia-ml-py"):
        archive.build(with_pynvml=True)

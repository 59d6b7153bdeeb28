"""What the host becomes first knows by itself what the package knows, for it runs before the package is there."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from gpualert import archive, receiver, rundir

SOURCE = Path(receiver.__file__).read_text()


@pytest.mark.parametrize("configured", [None, "/data/gpualert/", "~/runs", "/var/tmp/x/../y"])
@pytest.mark.parametrize("from_environment", [None, "/from/environment"])
def test_it_looks_where_the_package_looks(
    configured: str | None, from_environment: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of roots is written down twice; this holds the two together."""
    if from_environment:
        monkeypatch.setenv("GPUALERT_ROOT", from_environment)
    assert receiver.root_paths(configured) == rundir.candidate_roots(configured, os.environ)


def test_it_needs_nothing_but_the_standard_library() -> None:
    """It is sent as text to a place where nothing of ours is. The package is imported only once it is unpacked."""
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(SOURCE))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - {"gpualert"} <= set(sys.stdlib_module_names)
    places = [
        node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Import) and "gpualert" in ast.dump(node)
    ]
    (become,) = [n for n in ast.parse(SOURCE).body if isinstance(n, ast.FunctionDef) and n.name == "become"]
    assert places and all(become.lineno <= node.lineno <= (become.end_lineno or 0) for node in places)


def test_it_is_small() -> None:
    """It crosses the wire at every connection."""
    assert len(SOURCE) < 16_000


def test_a_packed_archive_is_intact_when_placed(tmp_path: Path) -> None:
    """Packing and checking agree on the manifest; a placed copy is found intact, an empty folder is not."""
    built = archive.build()
    placed = receiver.place(str(tmp_path), built.digest, built.data)
    assert receiver.intact(placed)
    assert not receiver.intact(str(tmp_path))
    assert sorted(os.listdir(tmp_path / "archives")) == [built.digest]


def test_placing_again_is_harmless(tmp_path: Path) -> None:
    """Another client was faster: its copy is used."""
    built = archive.build()
    first = receiver.place(str(tmp_path), built.digest, built.data)
    inode = os.stat(first).st_ino
    assert receiver.place(str(tmp_path), built.digest, built.data) == first
    assert os.stat(first).st_ino == inode


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an archive is taken away again."""
    put, count = receiver.put, iter(range(100))

    def put_some(path: str, data: bytes) -> None:
        if next(count) == 5:
            raise OSError(28, "No space left on device")
        put(path, data)

    monkeypatch.setattr(receiver, "put", put_some)
    built = archive.build()
    with pytest.raises(OSError, match="No space"):
        receiver.place(str(tmp_path), built.digest, built.data)
    assert os.listdir(tmp_path / "archives") == []


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_root_open_to_others_is_unfit(mode: int, tmp_path: Path) -> None:
    """What lies there is code that we are going to run."""
    tmp_path.chmod(mode)
    assert "0700" in str(receiver.why_unfit(str(tmp_path)))
    assert "0700" in str(receiver.make_root(str(tmp_path)))
    tmp_path.chmod(0o700)
    assert receiver.why_unfit(str(tmp_path)) is None

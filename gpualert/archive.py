"""The archive that runs on GPU hosts: this package's own source, as one zip that is the same everywhere.

The same source must give the same digest on every machine and under every interpreter, or each worker would place its
own copy on each host. So nothing that varies goes in: names are sorted, times and modes are fixed, members are stored
(what deflate makes depends on the zlib at hand), and only files that are source are taken. It is compressed on its way
to the host, where compression pays and does not touch the digest.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache

from gpualert.errors import GpuAlertError

PACKAGE = "gpualert"
#: Lists every other member: ``<sha256> <size> <name>``, sorted, then ``end <count>``. The host holds its unpacked copy
#: against it at every start.
MANIFEST = "MANIFEST"
#: Makes the archive runnable by itself: ``python3 gpualert.pyz doctor``.
_MAIN = b"import sys\n\nfrom gpualert.__main__ import main\n\nsys.exit(main())\n"
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Archive:
    """
    :param data: the zip's bytes.
    :param digest: SHA-256 of ``data``, 64 hexadecimal digits; the archive's name on every host.
    """

    data: bytes
    digest: str


def build(with_pynvml: bool | None = False) -> Archive:
    """
    The archive of the package that is running, from a checkout, an installed wheel, or an archive itself. Made once
    per process.

    :param with_pynvml: put the module ``pynvml`` (of ``nvidia-ml-py``) beside the package; None: if it is installed
        here, for without it a host is still asked through its ``nvidia-smi``.
    :raises GpuAlertError: the package's own source cannot be read, or ``pynvml`` is asked for and not installed here.
    """
    return _build(_pynvml_path() is not None if with_pynvml is None else with_pynvml)


@lru_cache(maxsize=2)
def _build(with_pynvml: bool) -> Archive:
    members = {f"{PACKAGE}/{name}": data for name, data in package_source().items()}
    members["__main__.py"] = _MAIN
    if with_pynvml:
        members["pynvml.py"] = _pynvml_source()
    data = pack(members)
    return Archive(data, hashlib.sha256(data).hexdigest())


def package_source() -> dict[str, bytes]:
    """
    The package's own ``.py`` files: path inside the package, with ``/``, to content.

    :raises GpuAlertError: there are none to be read (a frozen or bytecode-only installation).
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    found = _from_folder(folder) if os.path.isdir(folder) else _from_zip(folder)
    if "archive.py" not in found:
        raise GpuAlertError(f"archive: expected the source of {PACKAGE} in {folder}, found no archive.py there")
    return found


def source(name: str) -> bytes:
    """
    One file of the package, as text to be sent.

    :raises GpuAlertError: there is none of that name.
    """
    try:
        return package_source()[name]
    except KeyError:
        raise GpuAlertError(f"archive: {PACKAGE}/{name} is missing from this installation") from None


def pack(members: dict[str, bytes]) -> bytes:
    """A stored zip of ``members`` and their manifest, the same bytes for the same members."""
    lines = [f"{hashlib.sha256(members[name]).hexdigest()} {len(members[name])} {name}\n" for name in sorted(members)]
    manifest = "".join(lines) + f"end {len(lines)}\n"
    import io
    import zipfile  # late: 20 ms, and the host's end never packs

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as out:
        for name, data in [(MANIFEST, manifest.encode()), *sorted(members.items())]:
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system = 3  # else the packing machine's own system would stand here
            info.external_attr = 0o100600 << 16
            out.writestr(info, data)
    return buffer.getvalue()


def _from_folder(folder: str) -> dict[str, bytes]:
    found = {}
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
        for name in names:
            if name.endswith(".py") and not name.startswith("."):
                path = os.path.join(where, name)
                with open(path, "rb") as handle:
                    found[os.path.relpath(path, folder).replace(os.sep, "/")] = handle.read()
    return found


def _from_zip(folder: str) -> dict[str, bytes]:
    """``folder`` is ``…/name.pyz/gpualert``: the package runs from inside an archive."""
    import zipfile

    path, prefix = os.path.dirname(folder), os.path.basename(folder) + "/"
    try:
        with zipfile.ZipFile(path) as packed:
            return {
                name[len(prefix) :]: packed.read(name)
                for name in packed.namelist()
                if name.startswith(prefix) and name.endswith(".py")
            }
    except (OSError, zipfile.BadZipFile) as error:
        raise GpuAlertError(f"archive: expected a folder or a zip at {path}, found neither: {error}") from error


def _pynvml_path() -> str | None:
    """None unless it is installed as a file of its own; an older package of that name is a folder."""
    from importlib.util import find_spec

    try:
        spec = find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    path = None if spec is None else spec.origin
    return path if path is not None and os.path.basename(path) == "pynvml.py" and os.path.isfile(path) else None


def _pynvml_source() -> bytes:
    path = _pynvml_path()
    if path is None:
        raise GpuAlertError("archive: expected the single-file module pynvml (package nvidia-ml-py), found none")
    with open(path, "rb") as handle:
        return handle.read()

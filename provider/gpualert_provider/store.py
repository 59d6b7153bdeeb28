"""Where files go that have to outlive the GPU host: a folder, or anything that Airflow's ``ObjectStoragePath`` reaches.

A file of the final name is whole or not there. Object stores show an object when all of it has come; everywhere else
the bytes go under another name first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpualert.errors import GpuAlertError, InvalidSpec

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

#: Stores in which an object appears when its upload is complete.
_APPEARS_WHOLE = frozenset("s3 s3a gs gcs abfs abfss az adl wasb wasbs oss oci".split())
_UNFINISHED = ".part"
#: Of bytes, for one part of a path: file systems take 255, and the unfinished file's name is longer.
_MAX_PART_BYTES = 200
_PLAIN = "-_.~+=,@"


class StoreError(GpuAlertError):
    """A file could not be put into the store; ``str()`` says where and why."""

    kind = "store"


def check(name: str, where: Any) -> None:
    """
    What can be said about a destination without a look at it.

    :param name: of the argument, for the error.
    :raises InvalidSpec: it is neither an absolute folder nor a URL.
    """
    if isinstance(where, os.PathLike):
        where = os.fspath(where)
    if not isinstance(where, str) or not (os.path.isabs(where) or "://" in where):
        raise InvalidSpec(
            f"{name}: expected an absolute folder or a URL such as s3://connection@bucket/folder, found {where!r}"
        )
    if "://" in where and urllib.parse.urlsplit(where).password is not None:
        # Not shown: the password is in it.
        raise InvalidSpec(
            f"{name}: expected a URL that names an Airflow connection (s3://connection@bucket/folder), found a password"
        )


def safe_part(text: str) -> str:
    """
    ``text`` as one part of a path, the same for the same text and other for any other: %-escaped, and cut with a hash
    when it is long. Ids of Airflow may be 250 characters of anything.
    """
    quoted = urllib.parse.quote(text.encode("utf-8", "surrogatepass"), safe=_PLAIN)
    if not quoted.strip("."):  # "", "." and ".." lead elsewhere
        quoted = quoted.replace(".", "%2E") or "%"
    if len(quoted) > _MAX_PART_BYTES:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        quoted = f"{quoted[: _MAX_PART_BYTES - 17]}-{digest}"
    return quoted


@dataclass(frozen=True)
class Destination:
    """
    A folder that files are put into. Made by :meth:`of`.

    :param root: as Airflow sees it; the connection, where it names one, is Airflow's own.
    """

    root: ObjectStoragePath

    @classmethod
    def of(cls, where: str | os.PathLike[str]) -> Destination:
        """
        :param where: an absolute folder on this machine, or a URL that ``ObjectStoragePath`` takes.
        :raises InvalidSpec: see :func:`check`.
        :raises StoreError: nothing here speaks to such a store.
        """
        from airflow.sdk import ObjectStoragePath

        check("destination", where)
        text = os.fspath(where)
        url = text if "://" in text else f"file://{text}"
        try:
            root = ObjectStoragePath(url)
            root.fs  # noqa: B018 - the connection is resolved here, not in a thread
        except Exception as error:
            raise StoreError(f"{text}: cannot be used as a store: {_said(error)}") from error
        return cls(root)

    def put(self, source: Path, parts: tuple[str, ...]) -> str:
        """
        Copy a file into the store, over one of the same name.

        :param parts: the name, folder by folder; each is made :func:`safe <safe_part>`.
        :return: where it lies now, as a URL without any credentials, or as a path on this machine.
        :raises StoreError: it does not lie there.
        """
        target = self.root.joinpath(*(safe_part(part) for part in parts))
        shown = _shown(target)
        size = source.stat().st_size
        try:
            self._copy(source, target)
            found = self.root.fs.info(target.path)["size"]
        except Exception as error:
            raise StoreError(f"{shown}: {_said(error)}") from error
        if found is not None and found != size:
            raise StoreError(f"{shown}: expected {size} bytes after the copy, found {found}")
        return shown

    def _copy(self, source: Path, target: ObjectStoragePath) -> None:
        fs = self.root.fs
        if target.protocol in _APPEARS_WHOLE:
            fs.put_file(str(source), target.path)
            return
        if target.protocol in ("file", "local"):
            _copy_here(source, Path(target.path))
            return
        unfinished = target.path + _UNFINISHED
        fs.makedirs(os.path.dirname(target.path), exist_ok=True)
        try:
            fs.put_file(str(source), unfinished)
            fs.mv(unfinished, target.path)
        except BaseException:
            with contextlib.suppress(Exception):
                fs.rm_file(unfinished)
            raise


def _copy_here(source: Path, target: Path) -> None:
    """Readable by its owner alone, and on the disk before it has its name."""
    import shutil

    made = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    for folder in reversed(made):
        folder.mkdir(mode=0o700, exist_ok=True)
    unfinished = target.with_name(target.name + _UNFINISHED)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as out, open(source, "rb") as bytes_in:
            shutil.copyfileobj(bytes_in, out, 1024 * 1024)
            out.flush()
            os.fsync(out.fileno())
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _shown(target: ObjectStoragePath) -> str:
    if target.protocol in ("file", "local"):
        return str(target.path)
    return f"{target.protocol}://{target.path.lstrip('/')}"


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

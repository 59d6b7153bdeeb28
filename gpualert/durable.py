"""Files that appear complete or not at all, and stay once they are there.

On the way to the child's start: no import beyond os and errno (json is read late, by readers).
"""

from __future__ import annotations

import errno
import os

from gpualert.errors import NewerFormat, RunDirectoryError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Of every JSON file of ours. A reader that finds a greater one raises :class:`NewerFormat`.
FORMAT_VERSION = 1

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def encode_json(value: Any) -> bytes:
    """
    What ``json.dumps(value, allow_nan=False)`` gives, as ASCII bytes, without importing json (10 ms).

    :raises ValueError: a NaN or an infinity, which JSON cannot hold.
    :raises TypeError: not one of JSON's types.
    """
    return _encode(value).encode("ascii")


def _encode(value: Any) -> str:
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _encode_text(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"a JSON number must be finite, found {value!r}")
        return float.__repr__(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([_encode(item) for item in value]) + "]"
    if hasattr(value, "items"):
        pairs = []
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"a JSON name must be text, found {name!r}")
            pairs.append(_encode_text(name) + ": " + _encode(item))
        return "{" + ", ".join(pairs) + "}"
    raise TypeError(f"expected one of JSON's types, found {type(value).__name__}")


_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def _encode_text(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"' + text + '"'
    out = []
    for character in text:
        code = ord(character)
        if character in _SHORT:
            out.append(_SHORT[character])
        elif 32 <= code < 127:
            out.append(character)
        elif code > 0xFFFF:
            code -= 0x10000
            out.append(f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}")
        else:
            out.append(f"\\u{code:04x}")
    return '"' + "".join(out) + '"'


def read_bytes(path: str) -> bytes | None:
    """
    :return: the whole file; None when there is none.
    :raises RunDirectoryError: it is there and cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise trouble(path, "read", error) from error
    try:
        pieces: list[bytes] = []
        while True:
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    except OSError as error:
        raise trouble(path, "read", error) from error
    finally:
        os.close(descriptor)


def read_json(path: str) -> dict[str, Any] | None:
    """
    :return: the object in the file; None when there is no such file, or an empty one.
    :raises NewerFormat: its ``format_version`` is greater than we know.
    :raises RunDirectoryError: it cannot be read, or is not a JSON object (files appear complete, so this is damage).
    """
    data = read_bytes(path)
    if not data:
        return None  # an empty one is what a loss of power leaves of a file that was not durable yet
    import json

    try:
        value = json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise RunDirectoryError(
            f"{path}: expected a JSON object, found {len(data)} bytes that are none ({error})"
        ) from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path}: expected a JSON object, found {type(value).__name__}")
    version = value.get("format_version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise NewerFormat(
            f"{path}: expected format_version {FORMAT_VERSION}, found {version!r} (written by a newer gpualert)"
        )
    return value


_serial = 0


def _temporary(path: str) -> str:
    global _serial
    _serial += 1
    folder, _, name = path.rpartition("/")
    # The start of our pid's life is not needed: leftovers of a dead writer are replaced, never linked.
    return f"{folder}/.{name}.{os.getpid()}.{_serial}.tmp"


def write_file(path: str, data: bytes) -> None:
    """
    A new file of mode 0600, or the old one emptied and filled; for what nobody looks at before another file exists.

    :raises RunDirectoryError: the disk would not.
    """
    try:
        _write(path, data)
    except OSError as error:
        raise trouble(path, "write", error) from error


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def write_once(path: str, data: bytes, durable: bool = True, reserve: str | None = None) -> bool:
    """
    Make a file appear, complete, unless it is there already.

    It is visible first and durable when this returns: one commit of the file system's journal instead of two. If the
    machine loses power in between, the file may be there and empty, and readers take an empty file for none.

    :param durable: False leaves fsync to a later :func:`make_durable`.
    :param reserve: a file of ours with space already given to it, whose space is used (and which vanishes), so that a
        full disk cannot prevent it.
    :return: True when this call made it; False when it was there before.
    :raises RunDirectoryError: the disk would not.

    Source: link(2) (over NFS the reply may be lost, hence the look at the link count), fsync(2).
    """
    temporary = _temporary(path)
    try:
        if reserve is None or not _fill_reserve(reserve, temporary, data):
            _write(temporary, data)
        made = _link(temporary, path)
    except OSError as error:
        raise trouble(path, "write", error) from error
    finally:
        remove(temporary)
    if made and durable:
        make_durable([path, os.path.dirname(path)])
    return made


def _fill_reserve(reserve: str, temporary: str, data: bytes) -> bool:
    try:
        os.rename(reserve, temporary)
    except OSError:
        return False
    descriptor = os.open(temporary, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _write_all(descriptor, data)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)
    return True


def _link(source: str, target: str) -> bool:
    try:
        os.link(source, target)
        return True
    except FileExistsError:
        return os.lstat(source).st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
    # A file system without hard links: an exclusive marker decides, and the rename shows the file complete.
    marker = source[: source.rfind("/")] + "/." + target.rpartition("/")[2] + ".taken"
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    os.rename(source, target)
    return True


def replace(path: str, data: bytes, durable: bool = False) -> None:
    """
    Put a new complete version of a file in place of the old one.

    :raises RunDirectoryError: the disk would not; the old version is still there.
    """
    temporary = _temporary(path)
    try:
        _write(temporary, data)
        os.rename(temporary, path)
    except OSError as error:
        remove(temporary)
        raise trouble(path, "write", error) from error
    if durable:
        make_durable([path, os.path.dirname(path)])


def make_durable(paths: list[str]) -> None:
    """
    fsync of files and folders that are there; done together it costs little more than one.

    :raises RunDirectoryError: the disk would not.
    """
    opened: list[tuple[str, int]] = []
    try:
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise trouble(path, "open", error) from error
            opened.append((path, descriptor))
            try:
                # Starts writing, which gives the file its blocks: then the first fsync commits the blocks of all.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError:
                pass
        for path, descriptor in opened:
            try:
                os.fsync(descriptor)
            except OSError as error:
                # Some network and FUSE file systems have no fsync of a folder.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                    raise trouble(path, "write", error) from error
    finally:
        for _, descriptor in opened:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def remove(path: str) -> None:
    """Unlink, if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass


def trouble(path: str, verb: str, error: OSError) -> RunDirectoryError:
    """The error to raise for a failed system call on a path."""
    if error.errno in _FULL:
        return RunDirectoryError(f"{path}: the disk is full ({error.strerror})")
    return RunDirectoryError(f"{path}: cannot {verb}: {error.strerror or error}")

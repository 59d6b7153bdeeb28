"""What the host becomes first: it finds or receives the archive, and then steps aside for ``gpualert.serve``.

Sent as text at every connection and run before anything of the package is there, so it imports from the standard
library alone. After the start marker only frames go to the client; our stdout is kept out of everybody else's reach,
since a stray ``print`` would break the stream.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ARCHIVES = "archives"
MANIFEST = "MANIFEST"
_MAX_FRAME_BYTES = 64 * 1024 * 1024


class Told(Exception):
    """An error that the client is told in so many words, with a kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main(raw_settings: bytes) -> None:
    """
    Never returns.

    :param raw_settings: JSON: ``nonce``; ``digest`` and ``size`` (bytes) of the archive; ``root``, the configured
        root or null; ``protocol``, the versions that the client speaks.
    """
    stdin, stdout = private_streams()
    settings = json.loads(raw_settings)
    write(stdout, f"\ngpualert-{settings['nonce']} start\n".encode())
    try:
        if not sys.platform.startswith("linux"):
            raise Told("unsupported_os", f"the host: expected Linux, found {sys.platform}")
        folder, early, placed = obtain(settings, stdin, stdout)
        serve = become(folder)
    except Told as told:
        send(stdout, {"type": "error", "kind": told.kind, "message": str(told), "details": {}})
        os._exit(1)
    except BaseException:
        import traceback

        text = traceback.format_exc()[-4000:]
        send(stdout, {"type": "error", "kind": "internal", "message": text, "details": {"where": "receiver"}})
        os._exit(1)
    passed = [name for name in (sys.argv[1] if len(sys.argv) > 1 else "").split(", ") if name]
    facts = {"digest": settings["digest"], "placed": placed, "archive": folder, "pythons_passed_over": passed}
    sys.exit(serve.main(stdin, stdout, early=early, facts=facts, settings=settings))


def private_streams() -> tuple[int, int]:
    """Our own stdin and stdout, moved out of the way; 0 then reads nothing and 1 goes where 2 goes."""
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    os.close(nothing)
    return stdin, stdout


def obtain(settings: dict[str, Any], stdin: int, stdout: int) -> tuple[str, bytes, bool]:
    """
    The folder of the unpacked archive; frames that the client sent before it knew that the archive was missing;
    whether it was missing.

    :raises Told: ``no_root``, or ``archive`` when what came is not what was asked for.
    """
    roots = root_paths(settings.get("root"))
    digest = settings["digest"]
    for root in roots:
        folder = os.path.join(root, ARCHIVES, digest)
        if why_unfit(root) is None and intact(folder):
            return folder, b"", False
    send(stdout, {"type": "need", "digest": digest, "size": settings["size"]})
    data, early = receive(stdin, digest, settings["size"])
    why = []
    for root in roots:
        reason = make_root(root)
        if reason is None:
            try:
                return place(root, digest, data), early, True
            except OSError as error:
                reason = f"the archive cannot be written: {error.strerror}"
        why.append(f"{root}: {reason}")
    raise Told("no_root", "no folder on the host can hold our files; name one that can as root. " + "; ".join(why))


def root_paths(configured: str | None) -> list[str]:
    """Where our files may live: the order of ``rundir.candidate_roots``, which is not here yet."""
    home = os.path.expanduser("~")
    chosen = configured or os.environ.get("GPUALERT_ROOT")
    paths = [os.path.expanduser(chosen)] if chosen else []
    if os.path.isabs(home):
        paths.append(os.path.join(home, ".local", "state", "gpualert"))
    paths.append(f"/var/tmp/gpualert-{os.getuid()}")
    return list(dict.fromkeys(os.path.normpath(path) for path in paths))


def why_unfit(path: str) -> str | None:
    """
    None when ``path`` is a folder that only we can have written to: what lies in it is code that we are going to run.
    """
    try:
        found = os.lstat(path)
    except OSError as error:
        return str(error.strerror)
    if not stat.S_ISDIR(found.st_mode):
        return "expected a folder, found something else (a symbolic link is not followed)"
    if found.st_uid != os.getuid():
        return f"expected a folder of user {os.getuid()}, found one of user {found.st_uid}"
    if found.st_mode & 0o077:
        return f"expected mode 0700, found {found.st_mode & 0o7777:04o}"
    return None


def make_root(path: str) -> str | None:
    """None when ``path`` is there and fit now, else the reason why it cannot be."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    reason = why_unfit(path)
    if reason is None and not os.access(path, os.W_OK | os.X_OK):
        return "cannot be written to"
    return reason


def intact(folder: str) -> bool:
    """Whether every member listed in the folder's manifest is there with the content that it had when packed (3 ms)."""
    import hashlib

    try:
        lines = read(os.path.join(folder, MANIFEST)).decode().splitlines()
        if not lines or lines[-1] != f"end {len(lines) - 1}":
            return False
        for line in lines[:-1]:
            digest, size, name = line.split(" ", 2)
            data = read(os.path.join(folder, name))
            if len(data) != int(size) or hashlib.sha256(data).hexdigest() != digest:
                return False
    except (OSError, ValueError):
        return False
    return True


def receive(stdin: int, digest: str, size: int) -> tuple[bytes, bytes]:
    """The archive's bytes, and all frames that came before it, as they came."""
    import hashlib
    import zlib

    early = b""
    while True:
        head = take(stdin, 8)
        json_size, payload_size = struct.unpack("!II", head)
        if json_size + payload_size > _MAX_FRAME_BYTES:
            raise Told("protocol", f"expected a frame below {_MAX_FRAME_BYTES} bytes, found {json_size + payload_size}")
        text, payload = take(stdin, json_size), take(stdin, payload_size)
        if json.loads(text).get("type") == "archive":
            break
        early += head + text + payload
    try:
        data = zlib.decompressobj().decompress(payload, size + 1)
    except zlib.error:
        data = b""
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise Told("archive", f"expected an archive of {size} bytes with digest {digest}, found other content")
    return data, early


def place(root: str, digest: str, data: bytes) -> str:
    """
    Unpack the archive beside its final place and move it there, so that it is there whole or not at all.

    Unpacked, because a zip cannot hold a bytecode cache: 9 ms instead of 35 ms to import (measured).
    """
    import io
    import shutil
    import zipfile

    shelf = os.path.join(root, ARCHIVES)
    if not os.path.isdir(shelf):
        try:
            os.mkdir(shelf, 0o700)
        except FileExistsError:
            pass
    target = os.path.join(shelf, digest)
    mine = f"{target}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.mkdir(mine, 0o700)
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            for name in packed.namelist():
                put(os.path.join(mine, name), packed.read(name))
        sync(mine)
        if os.path.lexists(target) and not intact(target):
            os.rename(target, mine + ".damaged")
        try:
            os.rename(mine, target)
        except OSError:
            if not intact(target):
                raise
            # Another client placed the same archive meanwhile: theirs is as good.
        sync(shelf)
    finally:
        for path in (mine, mine + ".damaged", *abandoned(shelf)):
            shutil.rmtree(path, ignore_errors=True)
            if os.path.lexists(path):
                os.unlink(path)
    return target


def abandoned(shelf: str) -> list[str]:
    """Half-unpacked copies whose makers were killed, an hour ago or more."""
    found = []
    for name in os.listdir(shelf):
        path = os.path.join(shelf, name)
        if "." in name and time.time() - os.lstat(path).st_mtime > 3600:
            found.append(path)
    return found


def become(folder: str) -> Any:
    """The module ``gpualert.serve`` from ``folder``."""
    sys.path.insert(0, folder)
    hold(folder)
    try:
        import gpualert.serve

        return gpualert.serve
    except ImportError as error:
        if not (error.name or "gpualert").startswith("gpualert"):
            raise Told(
                "python_incomplete",
                f"{sys.executable} {sys.version.split()[0]}: the standard library's module {error.name!r} is missing;"
                " install the full Python (python3-minimal is not enough)",
            ) from error
        raise
    except (EOFError, ValueError):
        # A disk that filled up while bytecode was written leaves a cut cache file. The source is intact: leave the
        # cache alone.
        for name in [name for name in sys.modules if name.split(".")[0] == "gpualert"]:
            del sys.modules[name]
        sys.dont_write_bytecode = True
        sys.pycache_prefix = os.path.join(folder, "no-cache")
        import gpualert.serve

        return gpualert.serve


def hold(folder: str) -> None:
    """
    Show that the archive is in use: by the time of its manifest, and by keeping that open as long as we live, since
    modules are imported late. Whoever cleans the host looks for both.
    """
    path = os.path.join(folder, MANIFEST)
    try:
        os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.utime(path)
    except OSError:
        pass  # a disk that is read-only now; the age alone has to do


def put(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str) -> bytes:
    with open(path, "rb") as handle:
        return handle.read()


def sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take(handle: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(handle, min(size - len(data), 1 << 20))
        if not piece:
            os._exit(0)  # the client is gone; there is nobody to tell
        data += piece
    return bytes(data)


def send(handle: int, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    write(handle, struct.pack("!II", len(text), 0) + text)


def write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]

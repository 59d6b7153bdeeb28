"""The on-disk format of a launch. No other module knows a file name.

Readers run while the writer runs, on this machine or on another that shares the disk, so each file appears complete or
not at all, and most are written once: which file exists *is* the state. Roots are checked with lstat, since /var/tmp is
everybody's: a root of ours is a folder, owned by us, closed to others.

On the way to the child's start: no import beyond os and errno (json is read late, by readers).
"""

from __future__ import annotations

import errno
import os

from gpualert.errors import NewerFormat, RunDirectoryError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from gpualert.key import Attempt

#: Of every JSON file here. A reader that finds a greater one raises :class:`NewerFormat`.
FORMAT_VERSION = 1
#: Bytes put aside at launch so that the end can still be written when the disk is full.
RESERVE_BYTES = 16384
#: How often the supervisor touches ``heartbeat``, and from which age a reader elsewhere calls the launch unreachable;
#: seconds.
HEARTBEAT_S = 15.0
HEARTBEAT_STALE_S = 60.0

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_FULL = (errno.ENOSPC, errno.EDQUOT)


# ---- bytes


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
            raise ValueError("a JSON number must be finite, found %r" % value)
        return float.__repr__(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([_encode(item) for item in value]) + "]"
    if hasattr(value, "items"):
        pairs = []
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError("a JSON name must be text, found %r" % (name,))
            pairs.append(_encode_text(name) + ": " + _encode(item))
        return "{" + ", ".join(pairs) + "}"
    raise TypeError("expected one of JSON's types, found %s" % type(value).__name__)


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
            out.append("\\u%04x\\u%04x" % (0xD800 | code >> 10, 0xDC00 | code & 0x3FF))
        else:
            out.append("\\u%04x" % code)
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
        raise _trouble(path, "read", error) from error
    try:
        pieces: list[bytes] = []
        while True:
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    except OSError as error:
        raise _trouble(path, "read", error) from error
    finally:
        os.close(descriptor)


def read_json(path: str) -> dict[str, Any] | None:
    """
    :return: the object in the file; None when there is no such file.
    :raises NewerFormat: its ``format_version`` is greater than we know.
    :raises RunDirectoryError: it cannot be read, or is not a JSON object (files appear complete, so this is damage).
    """
    data = read_bytes(path)
    if data is None:
        return None
    import json

    try:
        value = json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise RunDirectoryError(
            "%s: expected a JSON object, found %d bytes that are none (%s)" % (path, len(data), error)
        ) from error
    if not isinstance(value, dict):
        raise RunDirectoryError("%s: expected a JSON object, found %s" % (path, type(value).__name__))
    version = value.get("format_version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise NewerFormat(
            "%s: expected format_version %d, found %r (written by a newer gpualert)" % (path, FORMAT_VERSION, version)
        )
    return value


_serial = 0


def _temporary(path: str) -> str:
    global _serial
    _serial += 1
    folder, _, name = path.rpartition("/")
    # The start of our pid's life is not needed: leftovers of a dead writer are replaced, never linked.
    return "%s/.%s.%d.%d.tmp" % (folder, name, os.getpid(), _serial)


def write_file(path: str, data: bytes, durable: bool = True) -> None:
    """
    A new file of mode 0600, or the old one emptied and filled. For files that nobody looks at before another file
    exists.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _trouble(path, "write", error) from error


def write_once(path: str, data: bytes, durable: bool = True, reserve: str | None = None) -> bool:
    """
    Make a file appear, complete, unless it is there already.

    :param durable: False leaves fsync to a later :func:`make_durable`.
    :param reserve: a file of ours with space already given to it, whose space is used (and which vanishes), so that a
        full disk cannot prevent it.
    :return: True when this call made it; False when it was there before.
    :raises RunDirectoryError: the disk would not.

    Source: link(2) (over NFS the reply may be lost, hence the look at the link count), fsync(2).
    """
    temporary = _temporary(path)
    try:
        if reserve is None or not _fill_reserve(reserve, temporary, data, durable):
            write_file(temporary, data, durable)
        made = _link(temporary, path)
        if made and durable:
            sync_directory(os.path.dirname(path))
        return made
    except OSError as error:
        raise _trouble(path, "write", error) from error
    finally:
        _remove(temporary)


def _fill_reserve(reserve: str, temporary: str, data: bytes, durable: bool) -> bool:
    try:
        os.rename(reserve, temporary)
    except OSError:
        return False
    descriptor = os.open(temporary, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _write_all(descriptor, data)
        os.ftruncate(descriptor, len(data))
        if durable:
            os.fsync(descriptor)
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
        write_file(temporary, data, durable)
        os.rename(temporary, path)
        if durable:
            sync_directory(os.path.dirname(path))
    except OSError as error:
        _remove(temporary)
        raise _trouble(path, "write", error) from error
    except RunDirectoryError:
        _remove(temporary)
        raise


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems have no fsync of a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def make_durable(paths: list[str]) -> None:
    """fsync of files and folders. Done together it costs little more than one."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _trouble(path, "open", error) from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                raise _trouble(path, "write", error) from error
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _trouble(path: str, verb: str, error: OSError) -> RunDirectoryError:
    if error.errno in _FULL:
        return RunDirectoryError("%s: the disk is full (%s)" % (path, error.strerror))
    return RunDirectoryError("%s: cannot %s: %s" % (path, verb, error.strerror or error))


# ---- roots


class Root:
    """
    One place where launches may live, as found by lstat.

    :param usable: launches can be made here (it is there and ours, or can be created).
    :param readable: launches that may lie here can be seen; True also when it does not exist.
    :param exists: there is a folder of ours.
    :param why: what is wrong with it, in words; None when nothing is.
    """

    __slots__ = ("exists", "path", "readable", "usable", "why")

    def __init__(self, path: str, usable: bool, readable: bool, exists: bool, why: str | None) -> None:
        self.path = path
        self.usable = usable
        self.readable = readable
        self.exists = exists
        self.why = why

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("path", "usable", "readable", "exists", "why")}

    def __repr__(self) -> str:
        return "Root(%s)" % ", ".join("%s=%r" % item for item in self.to_json().items())

    @property
    def launches(self) -> str:
        return self.path + "/launches"


def home(environ: Mapping[str, str]) -> str | None:
    """The user's home; None when neither $HOME nor the password file knows."""
    if environ.get("HOME", "").startswith("/"):
        return environ["HOME"]
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir or None
    except (ImportError, KeyError):
        return None


def expand_home(path: str, environ: Mapping[str, str]) -> str:
    """``~`` and ``~/…`` made absolute. :raises RunDirectoryError: there is no home."""
    if path != "~" and not path.startswith("~/"):
        return path
    there = home(environ)
    if there is None:
        raise RunDirectoryError("%s: expected a home directory, found none ($HOME is not set)" % path, "no_root")
    return there.rstrip("/") + path[1:]


def candidate_roots(configured: str | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The configured root, ``~/.local/state/gpualert``, ``/var/tmp/gpualert-<uid>``; in that order, without doubles."""
    paths = []
    chosen = configured or environ.get("GPUALERT_ROOT")
    if chosen:
        paths.append(expand_home(chosen, environ))
    there = home(environ)
    if there is not None:
        paths.append(there.rstrip("/") + "/.local/state/gpualert")
    paths.append("/var/tmp/gpualert-%d" % os.getuid())
    return list(dict.fromkeys(os.path.normpath(path) for path in paths))


def examine_root(path: str) -> Root:
    """Look at one root, changing nothing."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        above = os.path.dirname(path)
        while not os.path.lexists(above) and above != "/":
            above = os.path.dirname(above)
        if os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK):
            return Root(path, True, True, False, None)
        return Root(path, False, True, False, "cannot be created: %s is not a folder that we may write" % above)
    except OSError as error:
        return Root(path, False, False, True, "cannot be looked at: %s" % error.strerror)
    kind = found.st_mode & 0o170000
    if kind != 0o040000:
        what = "a symbolic link" if kind == 0o120000 else "no folder"
        return Root(path, False, True, False, "expected a folder, found %s" % what)
    if found.st_uid != os.getuid():
        # A stranger's folder holds no launch of ours, and must not be able to refuse ours.
        return Root(path, False, True, False, "expected owner %d, found %d" % (os.getuid(), found.st_uid))
    try:
        os.listdir(path)
        launches = path + "/launches"
        if os.path.lexists(launches):
            os.listdir(launches)
    except OSError as error:
        return Root(path, False, False, True, "cannot be read: %s" % error.strerror)
    if found.st_mode & 0o077:
        return Root(path, False, True, True, "expected mode 0700, found %04o" % (found.st_mode & 0o7777))
    if not os.access(path, os.W_OK | os.X_OK):
        return Root(path, False, True, True, "cannot be written")
    return Root(path, True, True, True, None)


def find_roots(configured: str | None = None, environ: Mapping[str, str] = os.environ) -> list[Root]:
    """Every candidate root, in order of preference, as it is now. Nothing is created."""
    return [examine_root(path) for path in candidate_roots(configured, environ)]


def create_root(root: Root) -> None:
    """
    Make the root and its ``launches`` folder, closed to others.

    :raises RunDirectoryError: it cannot be made, or somebody else made something else there meanwhile.
    """
    try:
        if not root.exists:
            os.makedirs(os.path.dirname(root.path), 0o755, exist_ok=True)
            try:
                os.mkdir(root.path, 0o700)
                os.chmod(root.path, 0o700)  # an inherited ACL or a setgid parent may have opened it
            except FileExistsError:
                pass
        try:
            os.mkdir(root.launches, 0o700)
        except FileExistsError:
            pass
    except OSError as error:
        raise _trouble(root.path, "create", error) from error
    again = examine_root(root.path)
    if not again.exists or not again.usable:
        raise RunDirectoryError("%s: %s" % (root.path, again.why or "vanished while it was made"))
    root.exists = True


def choose_root(configured: str | None = None, environ: Mapping[str, str] = os.environ) -> tuple[Root, list[Root]]:
    """
    The first root that can be used, created if need be; and all of them, with what was wrong with those passed over.

    :raises RunDirectoryError: kind ``no_root``: none; the message says why, for each.
    """
    roots = find_roots(configured, environ)
    return choose_among(roots), roots


def choose_among(roots: list[Root]) -> Root:
    """The first usable of these; see :func:`choose_root`."""
    for root in roots:
        if root.usable:
            try:
                create_root(root)
                return root
            except RunDirectoryError as error:
                root.usable = False
                root.why = str(error)
    raise RunDirectoryError(
        "no place for run directories: " + "; ".join("%s: %s" % (root.path, root.why) for root in roots), "no_root"
    )


# ---- one launch


class RunDirectory:
    """
    The files of one launch. Attributes ending in ``_path`` are names; the rest read or write.

    :param path: ``ROOT/launches/<slug>-<hash>/<number, four digits>``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.spec_path = path + "/spec.json"
        self.command_path = path + "/command.sh"
        self.setup_path = path + "/setup.sh"
        self.log_path = path + "/log"
        self.started_path = path + "/started.json"
        self.exit_path = path + "/exit.json"
        self.stop_path = path + "/stop.json"
        self.stopping_path = path + "/stopping.json"
        self.tree_path = path + "/tree.json"
        self.setup_failed_path = path + "/setup_failed"
        self.heartbeat_path = path + "/heartbeat"
        self.ack_path = path + "/ack.json"
        self.abandoned_path = path + "/abandoned.json"
        self.exit_reserve_path = path + "/.reserve-exit"
        self.stop_reserve_path = path + "/.reserve-stop"
        self.tree_reserve_path = path + "/.reserve-tree"
        self.stop_command_log_path = path + "/stop_command.log"
        self.observer_path = path + "/observer"
        self.index_path = path + "/observer/index"
        self.scan_path = path + "/observer/scan.json"
        self.verdict_path = path + "/observer/verdict.json"
        self.git_path = path + "/observer/git.json"

    @property
    def number(self) -> int:
        return int(os.path.basename(self.path))

    @property
    def key_directory(self) -> KeyDirectory:
        return KeyDirectory(os.path.dirname(self.path))

    @property
    def launch_id(self) -> str:
        return "%s.%d" % (os.path.basename(os.path.dirname(self.path)), self.number)

    def create(self) -> None:
        """
        The folder with its log and its reserves. The caller makes them durable.

        :raises RunDirectoryError: the disk would not.
        """
        try:
            os.mkdir(self.path, 0o700)
            os.mkdir(self.observer_path, 0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(self.log_path, flags, 0o600))
            for reserve in (self.exit_reserve_path, self.stop_reserve_path, self.tree_reserve_path):
                descriptor = os.open(reserve, flags, 0o600)
                try:
                    os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
                finally:
                    os.close(descriptor)
            os.close(os.open(self.heartbeat_path, flags, 0o600))
        except OSError as error:
            raise _trouble(self.path, "create", error) from error

    def read_spec(self) -> dict[str, Any] | None:
        return read_json(self.spec_path)

    def read_started(self) -> dict[str, Any] | None:
        return read_json(self.started_path)

    def read_exit(self) -> dict[str, Any] | None:
        return read_json(self.exit_path)

    def read_stop(self) -> dict[str, Any] | None:
        return read_json(self.stop_path)

    def read_stopping(self) -> dict[str, Any] | None:
        return read_json(self.stopping_path)

    def read_tree(self) -> dict[str, Any] | None:
        return read_json(self.tree_path)

    def read_scan(self) -> dict[str, Any] | None:
        """The scanner's saved state; None when no observer has saved one yet."""
        return read_json(self.scan_path)

    def read_verdict(self) -> dict[str, Any] | None:
        return read_json(self.verdict_path)

    def read_git(self) -> dict[str, Any] | None:
        """{git: {commit, dirty} or null, warning: text or null}; None when git has not been asked."""
        return read_json(self.git_path)

    def read_ack(self) -> dict[str, Any] | None:
        """
        {generation, offset, ended} of what a follower has safely delivered; None when nobody has delivered anything.
        """
        return read_json(self.ack_path)

    def write_ack(self, generation: int, offset: int, ended: bool = False) -> None:
        """:param ended: the outcome, too, has been delivered: the launch is *reported* and may be cleaned."""
        replace(self.ack_path, encode_json({"generation": generation, "offset": offset, "ended": ended}))

    def read_claim(self) -> dict[str, Any] | None:
        return self.key_directory.read_claim(self.number)

    def read_abandoned(self) -> dict[str, Any] | None:
        return read_json(self.abandoned_path)

    def write_started(self, value: dict[str, Any]) -> None:
        self._write(self.started_path, value)

    def write_exit(self, value: dict[str, Any]) -> bool:
        """:return: False when somebody wrote it before."""
        return self._write(self.exit_path, value, self.exit_reserve_path)

    def write_stop(self, value: dict[str, Any]) -> bool:
        """:return: False when a stop was requested before; that one stands."""
        return self._write(self.stop_path, value, self.stop_reserve_path)

    def write_stopping(self, value: dict[str, Any]) -> bool:
        return self._write(self.stopping_path, value)

    def write_tree(self, value: dict[str, Any]) -> bool:
        return self._write(self.tree_path, value, self.tree_reserve_path)

    def write_abandoned(self, value: dict[str, Any]) -> bool:
        return self._write(self.abandoned_path, value)

    def _write(self, path: str, value: dict[str, Any], reserve: str | None = None) -> bool:
        data = encode_json(dict(value, format_version=FORMAT_VERSION)) + b"\n"
        if reserve is not None and len(data) > RESERVE_BYTES:
            reserve = None
        if reserve is not None and os.path.lexists(path):
            return False  # before the reserve is spent
        return write_once(path, data, reserve=reserve)

    def release_reserves(self) -> None:
        """All is written: give the space back."""
        for path in (self.exit_reserve_path, self.stop_reserve_path, self.tree_reserve_path):
            _remove(path)

    def stop_requested(self) -> bool:
        return os.path.exists(self.stop_path)

    def has_ended(self) -> bool:
        return os.path.exists(self.exit_path)

    def setup_failed(self) -> bool:
        return os.path.exists(self.setup_failed_path)

    def touch_heartbeat(self) -> None:
        os.utime(self.heartbeat_path)

    def heartbeat_at(self) -> float | None:
        """When the supervisor last touched it, by the disk's clock; None when there is none."""
        try:
            return os.stat(self.heartbeat_path).st_mtime
        except OSError:
            return None

    def epoch(self) -> int:
        """The highest epoch; 0 when nobody has attached."""
        return max(_numbers(self.path, "epoch-", ""), default=0)

    def take_epoch(self, number: int, who: str) -> bool:
        """:return: False when somebody has that number."""
        return write_once("%s/epoch-%08d" % (self.path, number), who.encode("utf-8", "replace"))


class KeyDirectory:
    """What is known of one launch key in one root: ``ROOT/launches/<slug>-<hash>``."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def root(self) -> str:
        return os.path.dirname(os.path.dirname(self.path))

    @property
    def key_path(self) -> str:
        return self.path + "/key.json"

    def claim_path(self, number: int) -> str:
        return "%s/%04d.claim" % (self.path, number)

    def run_directory(self, number: int) -> RunDirectory:
        return RunDirectory("%s/%04d" % (self.path, number))

    def create(self, key_json: dict[str, Any]) -> None:
        """:raises RunDirectoryError: the disk would not."""
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise _trouble(self.path, "create", error) from error
        if not os.path.lexists(self.key_path):
            write_once(self.key_path, encode_json(dict(key_json, format_version=FORMAT_VERSION)) + b"\n", durable=False)

    def read_key(self) -> dict[str, Any] | None:
        return read_json(self.key_path)

    def claims(self) -> list[int]:
        """Numbers claimed here, in order. :raises RunDirectoryError: the folder is there and cannot be read."""
        return sorted(_numbers(self.path, "", ".claim"))

    def read_claim(self, number: int) -> dict[str, Any] | None:
        return read_json(self.claim_path(number))

    def claim(self, number: int, value: dict[str, Any], durable: bool) -> bool:
        """:return: False when the number is taken."""
        data = encode_json(dict(value, format_version=FORMAT_VERSION)) + b"\n"
        return write_once(self.claim_path(number), data, durable)

    def withdraw_claim(self, number: int) -> None:
        """Take back a claim of one's own that led to nothing."""
        _remove(self.claim_path(number))

    def attempts(self) -> list[int]:
        """Numbers of the attempts seen here."""
        found = []
        for name in _list(self.path):
            if name.startswith("attempt-"):
                number = name[len("attempt-") :].partition("-")[0]
                if number.isdigit():
                    found.append(int(number))
        return found

    def mark_attempt(self, attempt: Attempt) -> str:
        """Leave the fence marker. :return: its path."""
        kept = "".join(c for c in attempt.id if c.isascii() and c.isalnum())[:8] or "x"
        path = "%s/attempt-%08d-%s" % (self.path, attempt.number, kept)
        _touch(path)
        return path

    def tombstone(self) -> int:
        """The highest attempt refused by a stop that came before its launch; 0 for none."""
        return max(_numbers(self.path, "tombstone-", ""), default=0)

    def write_tombstone(self, number: int, value: dict[str, Any]) -> None:
        write_once("%s/tombstone-%08d" % (self.path, number), encode_json(dict(value, format_version=FORMAT_VERSION)))


def key_directories(root: str) -> list[KeyDirectory]:
    """Every launch key that has something in this root. :raises RunDirectoryError: it cannot be read."""
    launches = root + "/launches"
    return [KeyDirectory(launches + "/" + name) for name in sorted(_list(launches)) if not name.startswith(".")]


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _trouble(path, "read", error) from error


def _numbers(path: str, prefix: str, suffix: str) -> list[int]:
    found = []
    for name in _list(path):
        if name.startswith(prefix) and name.endswith(suffix):
            middle = name[len(prefix) : len(name) - len(suffix)]
            if middle.isdigit():
                found.append(int(middle))
    return found


def _touch(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _trouble(path, "create", error) from error

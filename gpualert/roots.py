"""
Where launches may live. /var/tmp is everybody's, so each place is looked at with lstat: a folder, ours, closed to
others, no link.
"""

from __future__ import annotations

import os

from gpualert.durable import trouble
from gpualert.errors import RunDirectoryError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


#: For homes that cannot be written. Not /tmp and not /run/user, which are emptied under a running training.
LAST_RESORT = "/var/tmp/gpualert-{uid}"


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
        return "Root({})".format(", ".join("{}={!r}".format(*item) for item in self.to_json().items()))

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
        raise RunDirectoryError(f"{path}: expected a home directory, found none ($HOME is not set)", "no_root")
    return there.rstrip("/") + path[1:]


def default_roots(environ: Mapping[str, str] = os.environ) -> list[str]:
    """``~/.local/state/gpualert`` and ``/var/tmp/gpualert-<uid>``: what all launches of one user have in common."""
    there = home(environ)
    paths = [] if there is None else [there.rstrip("/") + "/.local/state/gpualert"]
    return [os.path.normpath(path) for path in [*paths, LAST_RESORT.format(uid=os.getuid())]]


def candidate_roots(configured: str | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The configured root (else $GPUALERT_ROOT), then the default ones; in that order, without doubles."""
    chosen = configured or environ.get("GPUALERT_ROOT")
    # Absolute from here on: the keepers' working directory is /.
    first = [os.path.abspath(expand_home(chosen, environ))] if chosen else []
    return list(dict.fromkeys([*first, *default_roots(environ)]))


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
        return Root(path, False, True, False, f"cannot be created: {above} is not a folder that we may write")
    except OSError as error:
        return Root(path, False, False, True, f"cannot be looked at: {error.strerror}")
    kind = found.st_mode & 0o170000
    if kind != 0o040000:
        what = "a symbolic link" if kind == 0o120000 else "no folder"
        return Root(path, False, True, False, f"expected a folder, found {what}")
    if found.st_uid != os.getuid():
        # A stranger's folder holds no launch of ours, and must not be able to refuse ours.
        return Root(path, False, True, False, f"expected owner {os.getuid()}, found {found.st_uid}")
    try:
        os.listdir(path)
        launches = path + "/launches"
        if os.path.lexists(launches):
            os.listdir(launches)
    except OSError as error:
        return Root(path, False, False, True, f"cannot be read: {error.strerror}")
    if found.st_mode & 0o077:
        return Root(path, False, True, True, f"expected mode 0700, found {found.st_mode & 0o7777:04o}")
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
        raise trouble(root.path, "create", error) from error
    again = examine_root(root.path)
    if not again.exists or not again.usable:
        raise RunDirectoryError("{}: {}".format(root.path, again.why or "vanished while it was made"))
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
        "no place for run directories: " + "; ".join(f"{root.path}: {root.why}" for root in roots), "no_root"
    )


def meeting_place(roots: list[Root], environ: Mapping[str, str] = os.environ) -> Root | None:
    """
    The first usable default root, created if need be: there launchers meet whose configured roots differ.

    :return: None when none can be used.
    """
    defaults = default_roots(environ)
    for root in roots:
        if root.usable and root.path in defaults:
            try:
                create_root(root)
                return root
            except RunDirectoryError as error:
                root.usable = False
                root.why = str(error)
    return None

"""The on-disk format of a launch. No other module knows a file name.

Readers run while the writer runs, on this machine or on another that shares the disk, so each file appears complete or
not at all, and most are written once: which file exists *is* the state.

On the way to the child's start: no import beyond os and errno (json is read late, by readers).
"""

from __future__ import annotations

import os

from gpualert.durable import (
    FORMAT_VERSION,
    encode_json,
    make_durable,
    read_bytes,
    read_json,
    remove,
    replace,
    trouble,
    write_file,
    write_once,
)
from gpualert.errors import RunDirectoryError
from gpualert.roots import (
    Root,
    candidate_roots,
    choose_among,
    choose_root,
    create_root,
    default_roots,
    examine_root,
    expand_home,
    find_roots,
    home,
    meeting_place,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpualert.key import Attempt

#: Bytes put aside at launch so that the end can still be written when the disk is full.
RESERVE_BYTES = 16384
#: In a root beside ``launches``: unpacked archives by digest, each with its list of members. The receiver, which runs
#: before any of them is there, knows these names, too.
ARCHIVES = "archives"
MANIFEST = "MANIFEST"
#: How often the supervisor touches ``heartbeat``, and from which age a reader elsewhere calls the launch unreachable;
#: seconds.
HEARTBEAT_S = 15.0
HEARTBEAT_STALE_S = 60.0

__all__ = [
    "ARCHIVES",
    "FORMAT_VERSION",
    "HEARTBEAT_S",
    "HEARTBEAT_STALE_S",
    "MANIFEST",
    "RESERVE_BYTES",
    "KeyDirectory",
    "Root",
    "RunDirectory",
    "candidate_roots",
    "choose_among",
    "choose_root",
    "create_root",
    "default_roots",
    "encode_json",
    "examine_root",
    "expand_home",
    "find_roots",
    "home",
    "key_directories",
    "make_durable",
    "meeting_place",
    "read_bytes",
    "read_json",
    "remove",
    "replace",
    "write_file",
    "write_once",
]


class RunDirectory:
    """
    The files of one launch. Attributes ending in ``_path`` are names; the rest read or write.

    :param path: ``ROOT/launches/<slug>-<hash>/<number, four digits>``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.spec_path = path + "/spec.json"
        self.rules_path = path + "/rules.json"
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
        self.keeper_log_path = path + "/keeper.log"
        self.observer_path = path + "/observer"
        self.index_path = path + "/observer/index"
        self.scan_path = path + "/observer/scan.json"
        self.verdict_path = path + "/observer/verdict.json"
        self.git_path = path + "/observer/git.json"
        self.before_path = path + "/observer/before.json"
        self.after_path = path + "/observer/after.json"

    @property
    def number(self) -> int:
        return int(os.path.basename(self.path))

    @property
    def key_directory(self) -> KeyDirectory:
        return KeyDirectory(os.path.dirname(self.path))

    @property
    def launch_id(self) -> str:
        return f"{os.path.basename(os.path.dirname(self.path))}.{self.number}"

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
            raise trouble(self.path, "create", error) from error

    def read_spec(self) -> dict[str, Any] | None:
        return read_json(self.spec_path)

    def read_rules(self) -> dict[str, Any] | None:
        """The user's rules in their compiled form; None when the launch came without any."""
        return read_json(self.rules_path)

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

    def read_before(self) -> dict[str, Any] | None:
        """What probes saw near the start; None when they have not looked (yet)."""
        return read_json(self.before_path)

    def read_after(self) -> dict[str, Any] | None:
        """What was sampled on the way, and what probes saw at the end; None when they have not looked (yet)."""
        return read_json(self.after_path)

    def read_ack(self) -> dict[str, Any] | None:
        """
        {generation, offset, ended} of what a follower has safely delivered; None when nobody has delivered anything.
        """
        return read_json(self.ack_path)

    def write_ack(self, generation: int, offset: int, ended: bool = False) -> None:
        """:param ended: the outcome, too, has been delivered: the launch is *reported* and may be cleaned."""
        replace(self.ack_path, encode_json({"generation": generation, "offset": offset, "ended": ended}))

    def read_claim(self) -> dict[str, Any] | None:
        """The claim beside us; if that is gone with our whole folder, the one in a default root that names us."""
        folder = self.key_directory
        claim = folder.read_claim(self.number)
        if claim is None:
            for root in default_roots():
                other = KeyDirectory(f"{root}/launches/{folder.name}").read_claim(self.number)
                if other is not None and other.get("root") == folder.root:
                    return other
        return claim

    def read_abandoned(self) -> dict[str, Any] | None:
        return read_json(self.abandoned_path)

    def write_started(self, value: dict[str, Any]) -> None:
        """
        Say who runs it, and make durable, all at once, what was written at launch. The gate opens after this.

        :raises RunDirectoryError: the disk would not.
        """
        folder = self.key_directory
        write_once(self.started_path, self._encode(value), durable=False)
        make_durable(
            [
                *(self.started_path, self.spec_path, self.command_path, self.setup_path),
                *(self.rules_path, self.log_path),
                *(folder.claim_path(self.number), folder.key_path),
                *(self.path, folder.path, os.path.dirname(folder.path)),
            ]
        )

    def write_exit(self, value: dict[str, Any]) -> bool:
        """
        The caller makes it durable.

        :return: False when somebody wrote it before.
        """
        return self._write(self.exit_path, value, self.exit_reserve_path, durable=False)

    def make_exit_durable(self) -> None:
        """It stays after a loss of power, too; where the disk refuses, it does not."""
        try:
            make_durable([self.exit_path, self.path])
        except RunDirectoryError:
            pass

    def write_stop(self, value: dict[str, Any]) -> bool:
        """:return: False when a stop was requested before; that one stands."""
        return self._write(self.stop_path, value, self.stop_reserve_path)

    def write_stopping(self, value: dict[str, Any]) -> None:
        replace(self.stopping_path, self._encode(value), durable=True)

    def write_tree(self, value: dict[str, Any]) -> None:
        """Again when a survivor has died after all."""
        if not self._write(self.tree_path, value, self.tree_reserve_path):
            replace(self.tree_path, self._encode(value), durable=True)

    def write_abandoned(self, value: dict[str, Any]) -> bool:
        return self._write(self.abandoned_path, value)

    @staticmethod
    def _encode(value: dict[str, Any]) -> bytes:
        return encode_json(dict(value, format_version=FORMAT_VERSION)) + b"\n"

    def _write(self, path: str, value: dict[str, Any], reserve: str | None = None, durable: bool = True) -> bool:
        data = self._encode(value)
        if reserve is not None and len(data) > RESERVE_BYTES:
            reserve = None
        if reserve is not None and os.path.lexists(path):
            return False  # before the reserve is spent
        return write_once(path, data, durable, reserve)

    def release_reserves(self) -> None:
        """All is written: give the space back."""
        for path in (self.exit_reserve_path, self.stop_reserve_path, self.tree_reserve_path):
            remove(path)

    def stop_requested(self) -> bool:
        return os.path.exists(self.stop_path)

    def has_started(self) -> bool:
        return os.path.exists(self.started_path)

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
        return write_once(f"{self.path}/epoch-{number:08d}", who.encode("utf-8", "replace"))


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
        return f"{self.path}/{number:04d}.claim"

    def run_directory(self, number: int) -> RunDirectory:
        return RunDirectory(f"{self.path}/{number:04d}")

    def create(self, key_json: dict[str, Any]) -> None:
        """:raises RunDirectoryError: the disk would not."""
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise trouble(self.path, "create", error) from error
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
        remove(self.claim_path(number))

    def discard(self, number: int) -> None:
        """Take back a claim and, if that was all there is, the folder: for a key that nobody else knows."""
        self.withdraw_claim(number)
        if not self.claims():
            for name in _list(self.path):
                remove(self.path + "/" + name)
            try:
                os.rmdir(self.path)
            except OSError:
                pass

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
        path = f"{self.path}/attempt-{attempt.number:08d}-{kept}"
        _touch(path)
        return path

    def tombstone(self) -> int:
        """The highest attempt refused by a stop that came before its launch; 0 for none."""
        return max(_numbers(self.path, "tombstone-", ""), default=0)

    def write_tombstone(self, number: int, value: dict[str, Any]) -> None:
        write_once(f"{self.path}/tombstone-{number:08d}", encode_json(dict(value, format_version=FORMAT_VERSION)))


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
        raise trouble(path, "read", error) from error


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
        raise trouble(path, "create", error) from error

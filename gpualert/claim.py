"""Who may launch: the fence of attempts, the claim, tombstones.

The claim of number n is a file made by link(2), which one caller alone can make, also over NFS; no lock has to be held,
so nobody's death leaves one behind. A launch of a key may lie in any root (a home that was full yesterday), so every
root is looked at, and the claim is linked in every one that exists, in the same order by everybody: whoever loses the
first has lost. Each side leaves its mark first and looks second (a launcher its claim, a stop its tombstone, a newer
attempt its marker), so two that meet cannot both miss the other.
"""

from __future__ import annotations

import os

from gpualert.errors import Refused, RunDirectoryError
from gpualert.rundir import KeyDirectory, Root, RunDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from gpualert.key import Attempt, LaunchKey


class Seen:
    """What the roots hold of one key."""

    __slots__ = ("attempt", "latest", "tombstone")

    def __init__(self, attempt: int, latest: int, tombstone: int) -> None:
        self.attempt = attempt
        self.latest = latest
        self.tombstone = tombstone


def check_readable(roots: list[Root]) -> None:
    """
    :raises Refused: kind ``root_unreadable``: a root exists and cannot be read, so another launch may live in it.
    """
    for root in roots:
        if not root.readable:
            raise Refused(
                f"{root.path}: {root.why}; another launch may live there, so nothing happens until it can be read",
                "root_unreadable",
            )


def look(roots: list[Root], key_name: str) -> Seen:
    """
    :return: the highest attempt seen, launch number claimed and tombstone, over all roots; 0 each for none.
    :raises Refused: kind ``root_unreadable``: a root exists and cannot be read, so another launch may live in it.
    """
    check_readable(roots)
    seen = Seen(0, 0, 0)
    for root in roots:
        if not _may_hold(root):
            continue
        folder = KeyDirectory(root.launches + "/" + key_name)
        seen.attempt = max([seen.attempt, *folder.attempts()])
        seen.latest = max([seen.latest, *folder.claims()])
        seen.tombstone = max(seen.tombstone, folder.tombstone())
    return seen


def locate(roots: list[Root], key_name: str, number: int) -> RunDirectory | None:
    """The run directory of a claimed launch, in whichever root it lies; None when no root knows that number."""
    for root in roots:
        if not _may_hold(root):
            continue
        folder = KeyDirectory(root.launches + "/" + key_name)
        found = folder.run_directory(number)
        if os.path.isdir(found.path):
            return found
        claim = folder.read_claim(number)
        if claim is not None:
            home = claim.get("root")
            return KeyDirectory(home + "/launches/" + key_name).run_directory(number) if home else found
    return None


def check_fence(seen: Seen, attempt: Attempt) -> None:
    """
    :raises Refused: kind ``tombstoned`` or ``superseded``.
    """
    if seen.tombstone >= attempt.number:
        raise Refused(
            f"attempt {attempt.number}: a stop for attempts up to {seen.tombstone} came first, so it is not launched",
            "tombstoned",
        )
    if seen.attempt > attempt.number:
        raise Refused(
            f"attempt {attempt.number}: attempt {seen.attempt} of this task was here; an older one launches nothing",
            "superseded",
        )


def folders(roots: list[Root], chosen: Root, key_name: str) -> list[KeyDirectory]:
    """
    Where the claim is linked, in order: the roots that everybody has come first, the chosen one is always among them.
    """
    return [
        KeyDirectory(r.launches + "/" + key_name)
        for r in reversed(roots)
        if (r.usable and os.path.isdir(r.path)) or r is chosen
    ]


def decide(
    roots: list[Root],
    chosen: Root,
    key: LaunchKey,
    attempt: Attempt,
    after: int,
    settled: Callable[[RunDirectory], bool],
) -> tuple[int, RunDirectory | None]:
    """
    Apply the fence, leave our marker, and say whether a launch is due.

    :param after: the last launch the caller knows of; a later one is reported to it, not replaced.
    :param settled: whether a launch has ended (so that another may follow).
    :return: (number, None): claim that number next; or (number, run directory) of the launch that exists.
    :raises Refused: kinds ``root_unreadable``, ``tombstoned``, ``superseded``.
    """
    name = key.directory_name
    check_fence(look(roots, name), attempt)
    for folder in folders(roots, chosen, name):
        _make(folder, key)
        folder.mark_attempt(attempt)
    seen = look(roots, name)
    check_fence(seen, attempt)
    # Above what the caller knows, too: a number is never used again, even when the old launches were cleaned away.
    due = max(seen.latest, after) + 1
    run = locate(roots, name, seen.latest) if seen.latest else None
    if run is None:
        return due, None
    if seen.latest > after or not settled(run) or claimed_by(roots, name, seen.latest) == attempt:
        return seen.latest, run
    return due, None


def claimed_by(roots: list[Root], key_name: str, number: int) -> Attempt | None:
    """The attempt that claimed a launch; None when no claim can be found."""
    from gpualert.key import Attempt

    for root in roots:
        if _may_hold(root):
            claim = KeyDirectory(root.launches + "/" + key_name).read_claim(number)
            if claim is not None:
                return Attempt.from_json(claim["attempt"])
    return None


def take(roots: list[Root], chosen: Root, key: LaunchKey, attempt: Attempt, number: int, value: dict[str, Any]) -> bool:
    """
    Claim a number in every root.

    :return: False when somebody else has it; then nothing of ours is left.
    :raises Refused: a stop or a newer attempt came meanwhile; then, too.
    """
    name = key.directory_name
    taken: list[KeyDirectory] = []
    try:
        for folder in folders(roots, chosen, name):
            if not folder.claim(number, value, durable=False):
                withdraw(taken, number)
                return False
            taken.append(folder)
        check_fence(look(roots, name), attempt)
        if _contested(roots, name, number, value):
            withdraw(taken, number)
            return False
    except BaseException:
        withdraw(taken, number)
        raise
    return True


def _contested(roots: list[Root], key_name: str, number: int, value: dict[str, Any]) -> bool:
    """Whether another has claimed the same number in a root that did not exist when one of us listed them."""
    for root in roots:
        if _may_hold(root):
            other = KeyDirectory(root.launches + "/" + key_name).read_claim(number)
            if other is not None and other.get("guard") != value["guard"]:
                return True
    return False


def _may_hold(root: Root) -> bool:
    """A folder of ours; or one that did not exist when it was looked at, and may by now."""
    return root.readable and (root.exists or root.usable)


def withdraw(taken: list[KeyDirectory], number: int) -> None:
    """Take our claims back, the last one first, so that the deciding one goes last."""
    for folder in reversed(taken):
        folder.withdraw_claim(number)


def _make(folder: KeyDirectory, key: LaunchKey) -> None:
    launches = os.path.dirname(folder.path)
    try:
        os.mkdir(launches, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise RunDirectoryError(f"{launches}: cannot create: {error.strerror}") from error
    folder.create(key.to_json())

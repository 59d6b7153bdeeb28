"""Who a launch belongs to, and in which order attempts count.

A directory name is a short ASCII slug plus a hash, because Airflow's ids may be 250 characters of anything; the full
ids stand only inside JSON.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

HASH_LENGTH = 12
SLUG_LENGTH = 40
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")


class LaunchKey:
    """
    Which task a launch is for.

    :param parts: the ids that make the key, in a fixed order; Airflow's are (deployment, dag id, run id, task id, map
        index). The hash is over all of them.
    :param slug: a word for people; any text, cut to 40 characters of [a-z0-9-]. It is part of the name, so it must be
        derived from ``parts`` alone.
    """

    __slots__ = ("parts", "slug")

    def __init__(self, parts: Sequence[str], slug: str) -> None:
        self.parts = tuple(str(part) for part in parts)
        self.slug = _slug(slug)

    @property
    def directory_name(self) -> str:
        """``<slug>-<hash12>``: at most 53 ASCII characters."""
        joined = b"".join(
            b"%d:%s" % (len(part), part) for part in (p.encode("utf-8", "surrogatepass") for p in self.parts)
        )
        return self.slug + "-" + _sha256(joined)[:HASH_LENGTH]

    def launch_id(self, number: int) -> str:
        """``<slug>-<hash12>.<number>``."""
        return f"{self.directory_name}.{number}"

    def to_json(self) -> dict[str, Any]:
        return {"parts": list(self.parts), "slug": self.slug}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LaunchKey:
        return cls(value["parts"], value["slug"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaunchKey) and (self.parts, self.slug) == (other.parts, other.slug)

    def __hash__(self) -> int:
        return hash((self.parts, self.slug))

    def __repr__(self) -> str:
        return f"LaunchKey({self.parts!r}, {self.slug!r})"


class Attempt:
    """
    One try of the task. Attempts are ordered by number; the id tells two tries of the same number apart.

    :param number: Airflow's try number, 1 or more.
    :param id: the task instance's id (a UUID that rotates per try), or a random word outside Airflow.
    """

    __slots__ = ("id", "number")

    def __init__(self, number: int, id: str) -> None:
        self.number = number
        self.id = id

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "id": self.id}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Attempt:
        return cls(int(value["number"]), str(value["id"]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attempt) and (self.number, self.id) == (other.number, other.id)

    def __hash__(self) -> int:
        return hash((self.number, self.id))

    def __repr__(self) -> str:
        return f"Attempt({self.number}, {self.id!r})"


def split_launch_id(launch_id: str) -> tuple[str, int]:
    """
    The key directory's name and the launch number of a launch id.

    :raises ValueError: it is not of the form ``<slug>-<hash12>.<number>``.
    """
    name, dot, number = launch_id.rpartition(".")
    if not dot or not number.isdigit() or "/" in name or name in ("", ".", ".."):
        raise ValueError(f"launch id: expected <slug>-<hash>.<number>, found {launch_id!r}")
    return name, int(number)


def _sha256(data: bytes) -> str:
    # The interpreter's own, where it has one under the name of its version: hashlib loads OpenSSL first, 5 to 10 ms.
    own = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
    for name in (own, "hashlib"):
        try:
            found = __import__(name)
        except ImportError:
            continue
        digest: str = found.sha256(data).hexdigest()
        return digest
    raise ImportError("expected hashlib in the standard library, found none")


def _slug(text: str) -> str:
    kept = [c if c in _SAFE else "-" for c in text.lower()]
    slug = "-".join(piece for piece in "".join(kept).split("-") if piece)
    return slug[:SLUG_LENGTH].strip("-") or "launch"

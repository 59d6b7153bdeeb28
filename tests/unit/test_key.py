"""Keys make names that are short, safe and the same everywhere."""

from __future__ import annotations

import hashlib

import pytest

from gpualert.key import Attempt, LaunchKey, split_launch_id


def test_the_name_is_slug_and_hash_of_all_parts() -> None:
    """Each part with its length, so that no two lists of parts are written alike. Frozen: hosts hold such names."""
    key = LaunchKey(("d", "dag", "run", "task", "-1"), "My Task!")
    expected = hashlib.sha256(b"1:d3:dag3:run4:task2:-1").hexdigest()[:12]
    assert key.directory_name == f"my-task-{expected}"
    assert key.launch_id(3) == f"my-task-{expected}.3"
    assert LaunchKey(("ab", "c"), "x").directory_name != LaunchKey(("a", "bc"), "x").directory_name


@pytest.mark.parametrize("slug", ["", "ü" * 300, "../../etc", "a" * 300, "-", "A B", "\0\n/"])
def test_any_slug_makes_a_file_name(slug: str) -> None:
    name = LaunchKey(("x" * 250, "\ud800"), slug).directory_name
    assert len(name) <= 53 and name.isascii() and "/" not in name and not name.startswith((".", "-"))


def test_values_survive_json() -> None:
    key, attempt = LaunchKey(("a", "b"), "s"), Attempt(2, "id")
    assert LaunchKey.from_json(key.to_json()) == key and hash(LaunchKey.from_json(key.to_json())) == hash(key)
    assert Attempt.from_json(attempt.to_json()) == attempt


@pytest.mark.parametrize("text", ["", "x", "x.", ".1", "a/b.1", "..1", "x.-1", "x.1a"])
def test_what_is_no_launch_id(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        split_launch_id(text)


def test_a_launch_id_is_taken_apart() -> None:
    assert split_launch_id("train-3f2a9c0d1e4b.12") == ("train-3f2a9c0d1e4b", 12)

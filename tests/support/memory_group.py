"""A memory cgroup with a small limit, in which the kernel kills for real."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.waiting import wait_until

LIMIT_BYTES = 48 * 1024 * 1024


def make() -> Path:
    """Its folder; skipped, with what the machine said, where none can be made."""
    needs.root()
    name = "gpualert-test-" + uuid.uuid4().hex[:8]
    reasons = []
    for parent, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(parent) / name
        try:
            folder.mkdir()
            (folder / limit).write_text(str(LIMIT_BYTES))
            if limit == "memory.max" and (folder / "memory.swap.max").exists():
                (folder / "memory.swap.max").write_text("0")
            return folder
        except OSError as error:
            reasons.append(f"{folder / limit}: {error.strerror}")
            if folder.is_dir():
                folder.rmdir()
    pytest.skip("needs a memory cgroup with a limit (v1 or v2), which this machine refuses: " + "; ".join(reasons))


@pytest.fixture
def memory_group() -> Iterator[Path]:
    folder = make()
    yield folder
    for pid in (folder / "cgroup.procs").read_text().split():
        os.kill(int(pid), 9)
    wait_until(lambda: not (folder / "cgroup.procs").read_text().strip(), 20, f"{folder} to be empty")
    wait_until(lambda: _removed(folder), 20, f"{folder} to be removed")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True

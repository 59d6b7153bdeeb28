"""Whole machines for tests that need a boot id, a power cut or a cable.

``machine_with``    a function that starts machines: ``machine_with(username=account.name)``; needs root, else skipped
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support import needs
from tests.support.accounts import Account
from tools.rig.machine import LabUnavailable, Machine
from tools.rig.sshd import SshdMissing

__all__ = ["Machine"]


@pytest.fixture
def machine_with(account_with: Callable[..., Account]) -> Iterator[Callable[..., Machine]]:
    """Start machines that are powered off at the end; without ``username`` each gets an account of its own."""
    needs.network_namespaces()
    with ExitStack() as stack:

        def make(**how: Any) -> Machine:
            how.setdefault("username", None)
            how["username"] = how["username"] or account_with().name
            try:
                return stack.enter_context(Machine(**how))
            except (LabUnavailable, SshdMissing) as reason:
                pytest.skip(str(reason))

        yield make

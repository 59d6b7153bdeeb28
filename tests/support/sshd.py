"""Fixtures for SSH hosts on loopback.

``ssh_host``            a started host whose user is a throwaway account with bash (root) or ourselves (anyone else)
``ssh_host_with``       a function that starts further hosts: other shells, options, mounts, addresses
``account_with``        a function that makes accounts
``shell_account``       parametrised: one account for each login shell, with noisy start-up files
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support import accounts, needs
from tests.support.accounts import LOGIN_SHELLS, NOISE, Account
from tools.rig.sshd import SshdMissing, SshHost, find_sshd

__all__ = ["LOGIN_SHELLS", "NOISE", "Account", "SshHost"]


@pytest.fixture(scope="session")
def plain_account() -> Iterator[Account | None]:
    """One account with bash for the whole run, where root can make one; None means: log in as ourselves."""
    if os.geteuid() != 0:
        yield None
        return
    account = accounts.create("bash")
    yield account
    accounts.remove(account)


@pytest.fixture
def account_with() -> Iterator[Callable[..., Account]]:
    """Make accounts that are removed at the end: ``account_with("zsh", noisy=True)``. Root only, else skipped."""
    with ExitStack() as stack:

        def make(shell: str = "bash", *, noisy: bool = False) -> Account:
            account = accounts.create(shell, noisy=noisy)
            stack.callback(accounts.remove, account)
            return account

        yield make


@pytest.fixture
def ssh_host_with(account_with: Callable[..., Account]) -> Iterator[Callable[..., SshHost]]:
    """
    Start hosts that are stopped at the end.

    ``ssh_host_with(username=…, options=["MaxStartups 1:100:1"], mounts=mounts.read_only(home), address="127.0.0.2")``.
    Depends on ``account_with`` so that a host is stopped before its accounts are removed.
    """
    with ExitStack() as stack:

        def make(**how: Any) -> SshHost:
            try:
                find_sshd()
            except SshdMissing as missing:
                pytest.skip(str(missing))
            if how.get("mounts"):
                needs.mount_namespaces()
            return stack.enter_context(SshHost(**how))

        yield make


@pytest.fixture
def ssh_host(ssh_host_with: Callable[..., SshHost], plain_account: Account | None) -> SshHost:
    """A started host on loopback; ``ssh_host.airflow_connection_json()`` is its Airflow connection."""
    return ssh_host_with(username=plain_account.name if plain_account else None)


@pytest.fixture(params=LOGIN_SHELLS)
def shell_account(request: pytest.FixtureRequest, account_with: Callable[..., Account]) -> Account:
    """An account for each login shell in turn; its start-up files print :data:`NOISE` where the shell reads any."""
    return account_with(request.param, noisy=True)

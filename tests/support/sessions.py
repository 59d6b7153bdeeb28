"""Both SSH libraries behind one call, for promises that must hold for the blocking and the streaming session alike."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gpualert import protocol
from gpualert.key import Attempt, LaunchKey
from gpualert.spec import LaunchSpec
from gpualert_provider.hooks.blocking import open_session
from gpualert_provider.hooks.streaming import StreamingSession
from gpualert_provider.hooks.target import LocalTarget, SshTarget
from tests.support.sshd import SshHost

KINDS = ("blocking", "streaming")


def target_of(host: Any, *, login: str | None = None, password: str | None = None, **extra_changes: Any) -> SshTarget:
    """The target of a host of the rig; ``extra_changes`` as of ``SshHost.connection_extra``."""
    connection = SimpleNamespace(
        conn_id="gpu_box",
        conn_type="ssh",
        host=host.address,
        port=host.port,
        login=login or host.username,
        password=password,
    )
    # The keys of whoever runs the tests have no part in them.
    extra_changes.setdefault("look_for_keys", False)
    return SshTarget.from_fields(connection, host.connection_extra(**extra_changes))


def greet(kind: str, target: SshTarget, **how: Any) -> Mapping[str, Any]:
    """Open a session of this kind, and close it: what the host said of itself."""
    if kind == "blocking":
        with open_session(target, tries=1, **how) as session:
            return session.hello

    async def streaming() -> Mapping[str, Any]:
        async with await StreamingSession.open(target, **how) as session:
            return session.hello

    return asyncio.run(streaming())


def launch_request(command: str, task: str = "train", **spec: Any) -> dict[str, Any]:
    """A first try of a task of its own."""
    key = LaunchKey(["test", "dag", secrets.token_hex(8), task, "-1"], task)
    return protocol.launch_request(key, Attempt(1, "try-1"), LaunchSpec(command=command, **spec))


def started(target: SshTarget | LocalTarget, command: str, task: str = "train", **how: Any) -> str:
    """Launch, and return the launch id. ``how`` as of ``open_session``."""
    with open_session(target, **how) as session:
        reply = session.call(launch_request(command, task, root=how.get("root")))
    assert reply["type"] == "launched"
    return str(reply["record"]["launch_id"])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which of the two libraries; a test that uses it runs once for each."""
    return request.param


__all__ = ["KINDS", "SshHost", "greet", "kind", "launch_request", "started", "target_of"]

"""``gpualert doctor CONN``: how far this machine gets towards a host, step by step, and then what the host says of
itself.

Run it where workers run and where triggerers run: each needs its own keys, known hosts and way through the network.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from gpualert import protocol
from gpualert.errors import GpuAlertError
from gpualert.protocol import HostError
from gpualert_provider.hooks.blocking import BlockingSession, open_session
from gpualert_provider.hooks.errors import InvalidConnection, TransportError
from gpualert_provider.hooks.streaming import StreamingSession
from gpualert_provider.hooks.target import SshTarget

#: The steps from here to a running program there, in order.
STEPS = ("connection", "dns", "tcp", "host_key", "authentication", "shell", "python")
_STEP_OF_KIND = {
    "dns": "dns",
    "refused": "tcp",
    "timeout": "tcp",
    "unreachable": "tcp",
    "banner": "tcp",
    "dropped": "tcp",
    "host_key": "host_key",
    "authentication": "authentication",
    "channel": "shell",
    "shell": "shell",
    "python": "python",
    "protocol": "python",
}


def examine_connection(conn_id: str) -> list[dict[str, Any]]:
    """
    Findings, each with ``name status found advice``; ``status`` is ``ok``, ``warning``, ``problem`` or ``unknown``.

    The steps come first, up to the first that fails; then, if the host could be reached, its own findings.

    :param conn_id: an Airflow ``ssh`` connection.
    """
    try:
        target = resolve(conn_id)
    except InvalidConnection as error:
        return [_finding("connection", "problem", str(error)), *_not_reached("connection")]
    findings = [_finding("connection", "ok", f"{target.peer}; offers {_offers(target)}")]
    findings += [_finding("connection", "warning", warning) for warning in target.warnings]
    try:
        addresses = _addresses(target)
        with open_session(target) as session:
            findings += _all_steps_passed(target, session, addresses)
            findings.append(_streaming(target, session))
            reply = session.call(protocol.doctor_request())
            findings += [dict(item) for item in reply["findings"]]
    except TransportError as error:
        step = _step(error)
        findings += [_finding(name, "ok", "passed") for name in _before(step)]
        findings += [_finding(step, "problem", str(error)), *_not_reached(step)]
    except HostError as error:
        findings += [_finding(name, "ok", "passed") for name in STEPS[1:]]
        findings.append(_finding("host", "problem", f"{error.kind}: {error}"))
    return findings


def resolve(conn_id: str) -> SshTarget:
    try:
        return SshTarget.from_connection(conn_id)
    except InvalidConnection as error:
        # Outside a task the SDK sees no metadata database; the command line may.
        found = _from_metadata_database(conn_id)
        if found is None:
            raise error
        return SshTarget.from_connection(found)


def _from_metadata_database(conn_id: str) -> Any:
    try:
        from airflow.models.connection import Connection

        return Connection.get_connection_from_secrets(conn_id)
    except Exception:  # no database here, or no such connection: the first error says it better
        return None


def _addresses(target: SshTarget) -> str:
    if target.proxy_command is not None:
        return "left to the proxy command"
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError:
        return ""  # opening the session meets the same, and has the words for it
    return ", ".join(dict.fromkeys(str(address[0]) for *_, address in found))


def _all_steps_passed(target: SshTarget, session: BlockingSession, addresses: str) -> list[dict[str, Any]]:
    hello = session.hello
    python = hello.get("python") or {}
    key = (
        f"one of {target.host_key_source}"
        if target.trusted_host_keys
        else "accepted without a check (see the connection's extra)"
    )
    return [
        _finding("dns", "ok", f"{target.host} is {addresses}" if addresses else target.host),
        _finding("tcp", "ok", f"port {target.port} answers as an SSH server"),
        _finding("host_key", "ok" if target.trusted_host_keys else "warning", key),
        _finding("authentication", "ok", f"logged in as {hello.get('user')}"),
        _finding("shell", "ok", "the login shell runs our command unchanged"),
        _finding("python", "ok", f"{python.get('executable')} {python.get('version')} on {hello.get('hostname')}"),
        *[_finding("host", "warning", str(warning)) for warning in hello.get("warnings") or ()],
    ]


def _streaming(target: SshTarget, session: BlockingSession) -> dict[str, Any]:
    """The triggerer follows through another SSH library: does it get in too, and to the same machine?"""

    async def greet() -> Any:
        async with await StreamingSession.open(target) as other:
            return other.hello

    try:
        hello = asyncio.run(greet())
    except GpuAlertError as error:
        return _finding("streaming", "problem", f"launching works, following does not: {error}")
    if hello.get("machine_id") != session.hello.get("machine_id"):
        return _finding(
            "streaming",
            "problem",
            f"two logins led to two machines ({session.hello.get('hostname')}, {hello.get('hostname')})",
            "Name one machine in the connection: a training lives on the machine that it was launched on.",
        )
    return _finding("streaming", "ok", "the triggerer's SSH library reaches the same machine")


def _step(error: TransportError) -> str:
    step = _STEP_OF_KIND[error.kind]
    # The same kind of silence may come at a later step; the message's own words tell which.
    if error.kind in ("timeout", "dropped") and "logged in" in str(error):
        return "shell"
    return step


def _before(step: str) -> tuple[str, ...]:
    return STEPS[1 : STEPS.index(step)]


def _not_reached(step: str) -> list[dict[str, Any]]:
    return [_finding(name, "unknown", f"not reached: {step} failed") for name in STEPS[STEPS.index(step) + 1 :]]


def _offers(target: SshTarget) -> str:
    offers = [identity.source for identity in target.identities]
    if target.use_agent:
        offers.append("the agent's keys, if one runs")
    if target.password is not None:
        offers.append("a password")
    return ", ".join(offers)


def _finding(name: str, status: str, found: str, advice: str | None = None) -> dict[str, Any]:
    return {"name": name, "status": status, "found": found, "advice": advice}

"""`gpualert doctor CONN`: how far one gets to the host of an Airflow connection, then what that host finds itself.

Registered under the entry point ``gpualert.doctor``, since the core does not know that Airflow exists.
"""

from __future__ import annotations

import time
from typing import Any

from gpualert import protocol
from gpualert.doctor import OK, PROBLEM, WARNING, Finding
from gpualert.protocol import HostError
from gpualert_provider.hooks.blocking import BlockingSession, open_session
from gpualert_provider.hooks.errors import InvalidConnection, TransportError
from gpualert_provider.hooks.target import SshTarget
from gpualert_provider.redaction import redact


def examine_connection(conn_id: str) -> list[Finding]:
    """
    Findings about the connection and its host, the connection first.

    A host that cannot be reached, or that can run nothing of ours, is a finding like any other: its text names the step
    that failed and what to do.

    :raises LookupError: Airflow knows no such connection, or it cannot be used as it is written.
    """
    target = _resolve(conn_id)
    began = time.monotonic()
    try:
        with open_session(target, first=protocol.doctor_request()) as session:
            took_s = time.monotonic() - began
            findings = [_connection(target, session, took_s)]
            findings += [Finding("connection", WARNING, redact(text)) for text in target.warnings]
            findings += [Finding("host", WARNING, str(text)) for text in session.hello.get("warnings") or ()]
            return findings + [Finding(**item) for item in session.first_reply()["findings"]]
    except TransportError as error:
        return [Finding("connection", PROBLEM, f"{error.kind}: {redact(str(error))}")]
    except HostError as error:
        return [
            Finding("connection", OK, f"{target.peer} lets us in"),
            Finding("host", PROBLEM, f"{error.kind}: {redact(str(error))}"),
        ]


def _resolve(conn_id: str) -> SshTarget:
    try:
        return SshTarget.from_connection(conn_id)
    except InvalidConnection as error:
        # Outside a task the SDK looks into the environment alone; on a machine with Airflow's database that knows more.
        stored = _stored(conn_id)
        if stored is None:
            raise LookupError(str(error)) from error
    try:
        return SshTarget.from_connection(stored)
    except InvalidConnection as error:
        raise LookupError(str(error)) from error


def _stored(conn_id: str) -> Any:
    """The connection as Airflow's own process would find it, or None: not there, or no database here."""
    try:
        from airflow.models.connection import Connection

        return Connection.get_connection_from_secrets(conn_id)
    except Exception:
        return None


def _connection(target: SshTarget, session: BlockingSession, took_s: float) -> Finding:
    hello = session.hello
    who = f"{hello.get('user')} on {hello.get('hostname')}"
    return Finding("connection", OK, f"{target.peer}: {who}; connected and greeted in {took_s:.1f} s")

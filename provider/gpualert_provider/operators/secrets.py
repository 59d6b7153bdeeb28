"""Where the values of ``secret_env`` come from: Airflow's connections and variables, fetched when the task runs.

The DAG file, the rendered fields and the trigger's row hold ids only; values go from here to the host on stdin.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gpualert_provider.exceptions import InvalidRequest

log = logging.getLogger(__name__)


def resolve(secret_env: Mapping[str, str]) -> dict[str, str]:
    """
    The values, by environment variable; each is also told to Airflow's masker.

    The rule for an id: ``conn:ID`` is the connection's password; ``conn:ID#FIELD`` its ``login``, ``host`` or a field
    of its extra; ``var:ID`` is the variable. A bare ``ID`` is the connection of that id, and the variable where there
    is no such connection.

    :raises InvalidRequest: there is nothing of that id, or it holds no value.
    """
    values = {}
    for name, reference in secret_env.items():
        value = _value(name, reference)
        _mask(value)
        values[name] = value
    return values


def resolve_what_is_there(secret_env: Mapping[str, str]) -> dict[str, str]:
    """
    The same for redaction alone, after the launch: what cannot be fetched any more is left out, and a warning says so.
    """
    values = {}
    for name, reference in secret_env.items():
        try:
            values.update(resolve({name: reference}))
        except Exception as error:
            log.warning("secret_env[%r]: %s; its value cannot be masked here", name, error)
    return values


def _value(name: str, reference: str) -> str:
    kind, colon, rest = reference.partition(":")
    if colon and kind == "conn":
        conn_id, _, field = rest.partition("#")
        found = _from_connection(name, conn_id, field)
        if found is None:
            raise InvalidRequest(f"secret_env[{name!r}]: there is no connection {conn_id!r}")
        return found
    if colon and kind == "var":
        found = _variable(rest)
        if found is None:
            raise InvalidRequest(f"secret_env[{name!r}]: there is no variable {rest!r}")
        return found
    found = _from_connection(name, reference, "")
    if found is None:
        found = _variable(reference)
    if found is None:
        raise InvalidRequest(f"secret_env[{name!r}]: there is neither a connection nor a variable {reference!r}")
    return found


def _from_connection(name: str, conn_id: str, field: str) -> str | None:
    """None: no such connection."""
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        return None
    if not field or field == "password":
        value, what = connection.password, "password"
    elif field in ("login", "host"):
        value, what = getattr(connection, field), field
    else:
        value, what = connection.extra_dejson.get(field), f"extra field {field!r}"
    if value is None or value == "":
        raise InvalidRequest(f"secret_env[{name!r}]: connection {conn_id!r} has no {what}")
    return str(value)


def _variable(key: str) -> str | None:
    from airflow.sdk import Variable

    value = Variable.get(key, default=None)
    return None if value is None else str(value)


def _mask(value: str) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret(value)

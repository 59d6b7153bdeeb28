"""Where values of ``secret_env`` come from: the documented rule, and nothing of a value in any message."""

from __future__ import annotations

from types import SimpleNamespace

import airflow.sdk
import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from gpualert_provider.exceptions import InvalidRequest
from gpualert_provider.operators import deployment, secrets

CONNECTIONS = {
    "hub": SimpleNamespace(password="pw-of-hub", login="me", host="hub.example", extra_dejson={"token": "tok-of-hub"}),
    "empty": SimpleNamespace(password=None, login=None, host=None, extra_dejson={}),
    "both": SimpleNamespace(password="from-connection", login=None, host=None, extra_dejson={}),
}
VARIABLES = {"key": "value-of-key", "both": "from-variable"}


@pytest.fixture(autouse=True)
def stores(monkeypatch):
    masked = []

    def get(conn_id):
        if conn_id not in CONNECTIONS:
            raise AirflowNotFoundException(conn_id)
        return CONNECTIONS[conn_id]

    monkeypatch.setattr(airflow.sdk, "Connection", SimpleNamespace(get=get))
    monkeypatch.setattr(
        airflow.sdk, "Variable", SimpleNamespace(get=lambda key, default=None: VARIABLES.get(key, default))
    )
    monkeypatch.setattr(secrets, "_mask", masked.append)
    return masked


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("hub", "pw-of-hub"),
        ("conn:hub", "pw-of-hub"),
        ("conn:hub#token", "tok-of-hub"),
        ("conn:hub#login", "me"),
        ("conn:hub#host", "hub.example"),
        ("key", "value-of-key"),
        ("var:key", "value-of-key"),
        ("both", "from-connection"),
        ("var:both", "from-variable"),
    ],
)
def test_the_rule(reference, value, stores):
    """
    A bare id is the connection, and the variable where there is no such connection. Every value is told to the masker.
    """
    assert secrets.resolve({"TOKEN": reference}) == {"TOKEN": value}
    assert stores == [value]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nothing", "neither a connection nor a variable 'nothing'"),
        ("conn:nothing", "no connection 'nothing'"),
        ("var:nothing", "no variable 'nothing'"),
        ("empty", "connection 'empty' has no password"),
        ("conn:hub#missing", "no extra field 'missing'"),
    ],
)
def test_what_is_missing_is_named(reference, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        secrets.resolve({"TOKEN": reference})
    assert "secret_env['TOKEN']" in str(caught.value)


def test_for_masking_alone_what_is_gone_is_left_out(caplog):
    """The training has ended: a connection that was deleted meanwhile changes nothing about that."""
    assert secrets.resolve_what_is_there({"A": "hub", "B": "nothing"}) == {"A": "pw-of-hub"}
    assert "secret_env['B']" in caplog.text


def test_the_deployments_id_is_made_once(monkeypatch):
    """
    The first task makes it; if two do at once, both read the one that stayed or keep what they used in their ledgers.
    """
    kept = {}
    store = SimpleNamespace(
        get=lambda key, default=None: kept.get(key, default),
        set=lambda key, value, description: kept.setdefault(key, value),
    )
    monkeypatch.setattr(airflow.sdk, "Variable", store)

    first = deployment.deployment_id()

    assert len(first) == 32
    assert deployment.deployment_id() == first


def test_a_deployment_without_an_id_launches_nothing(monkeypatch):
    from gpualert_provider.exceptions import LedgerError

    def refuse(*args, **kwargs):
        raise PermissionError("not allowed")

    monkeypatch.setattr(airflow.sdk, "Variable", SimpleNamespace(get=lambda key, default=None: default, set=refuse))

    with pytest.raises(LedgerError, match="Create it by hand"):
        deployment.deployment_id()

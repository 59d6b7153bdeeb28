"""One task in one Airflow with one host in memory, for tests of the operator and of a try's conduct."""

from __future__ import annotations

from types import SimpleNamespace

from gpualert_provider import conduct
from gpualert_provider import ledger as ledgers
from gpualert_provider.operators import deployment, secrets, training
from gpualert_provider.operators.training import GPUTrainingOperator
from tests.unit.provider.fake_host import FakeHost, FakeTarget
from tests.unit.provider.test_ledger import Store


class World:
    """One task in one Airflow with one host: its store outlives tries, as Airflow's does."""

    def __init__(self, monkeypatch):
        self.host = FakeHost()
        self.hosts = {"gpu": self.host}
        self.store = Store()
        self.pushed = {}
        self.lines = []
        self.secrets = {}
        monkeypatch.setattr(
            training, "resolve_target", lambda conn_id: FakeTarget(conn_id, f"{conn_id or 'localhost'}.example")
        )
        monkeypatch.setattr(deployment, "deployment_id", lambda: "deployment-1")
        monkeypatch.setattr(secrets, "_value", lambda name, reference: self.secrets[reference])
        monkeypatch.setattr(conduct, "_RECONNECT_S", (0.0,))
        real = conduct.TrainingTry.__init__

        def with_fake_transport(try_, **kwargs):
            real(try_, **{**kwargs, "open_session": self.open_session})

        monkeypatch.setattr(conduct.TrainingTry, "__init__", with_fake_transport)

    def open_session(self, target, **kwargs):
        return self.hosts[target.conn_id or "gpu"].open_session(target, **kwargs)

    def context(self, try_number=1, max_tries=2):
        ti = SimpleNamespace(
            dag_id="dag",
            task_id="train",
            run_id="run",
            map_index=-1,
            try_number=try_number,
            max_tries=max_tries,
            id=f"ti-{try_number}",
            xcom_push=lambda key, value: self.pushed.__setitem__(key, value),
        )
        return {"ti": ti, "task_state_store": self.store}

    def operator(self, **arguments):
        values = {
            "task_id": "train",
            "ssh_conn_id": "gpu",
            "command": "python train.py",
            "early_window": 0.2,
            **arguments,
        }
        logger = SimpleNamespace(**dict.fromkeys(("info", "warning", "error", "debug"), self._log))
        return type("Operator", (GPUTrainingOperator,), {"log": logger})(**values)

    def _log(self, text, *arguments, **_):
        self.lines.append(text % arguments if arguments else text)

    def run(self, try_number=1, max_tries=2, **arguments):
        return self.operator(**arguments).execute(self.context(try_number, max_tries))

    @property
    def ledger(self):
        return ledgers.load(self.store)

    @property
    def launched(self):
        return [r for r in self.host.requests if r["type"] == "launch"]

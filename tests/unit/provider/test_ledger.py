"""What Airflow remembers about launches: bounded, readable by the next try, and never mistaken for nothing."""

from __future__ import annotations

import json

import pytest

from gpualert.key import Attempt
from gpualert.outcome import Outcome
from gpualert.records import RunRecord, RunState
from gpualert_provider import ledger as ledgers
from gpualert_provider.exceptions import LedgerError
from gpualert_provider.ledger import EntryStatus, Ledger, LedgerEntry


class Store(dict):
    """``task_state_store`` of one task; values go through JSON as they do in Airflow."""

    def get(self, key, default=None):
        return json.loads(super().get(key)) if key in self else default

    def set(self, key, value, *, retention=None):
        self[key] = json.dumps(value, allow_nan=False)
        self.retention = retention


class DeadStore:
    def get(self, key, default=None):
        raise RuntimeError("task instance not found")

    def set(self, key, value, *, retention=None):
        raise RuntimeError("task instance not found")


def entry(number: int = 1, **changes) -> LedgerEntry:
    return LedgerEntry(number=number, attempts=(Attempt(number, f"id-{number}"),), **changes)


def test_what_is_saved_is_what_the_next_try_loads():
    store = Store()
    saved = Ledger(
        "dep",
        (
            entry(1, status=EntryStatus.REPORTED, outcome={"state": "FAILED", "duration_s": 1.5}),
            entry(2, conn_id="gpu", max_tries=3, stop_asked=True),
        ),
    )

    ledgers.save(store, saved)

    assert ledgers.load(store) == saved


def test_it_does_not_expire():
    """Airflow forgets state after 30 days by default; a run paused for longer must still find its launch."""
    from airflow.sdk import NEVER_EXPIRE

    store = Store()
    ledgers.save(store, Ledger("dep"))

    assert store.retention is NEVER_EXPIRE


def test_no_ledger_is_none_and_an_unreadable_one_is_an_error():
    """Taking "could not read" for "nothing launched" would launch a second training."""
    assert ledgers.load(Store()) is None
    with pytest.raises(LedgerError, match="cannot read"):
        ledgers.load(DeadStore())
    with pytest.raises(LedgerError, match="cannot write"):
        ledgers.save(DeadStore(), Ledger("dep"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "expected a ledger"),
        ({"format_version": 2, "deployment_id": "d", "entries": []}, "newer gpualert"),
        ({"format_version": 1, "deployment_id": "d", "entries": [{"number": 1}]}, "damaged"),
    ],
)
def test_what_is_no_ledger_is_an_error(value, message):
    store = Store()
    store.set(ledgers.STORE_KEY, value)

    with pytest.raises(LedgerError, match=message):
        ledgers.load(store)


def test_it_stays_small_and_keeps_the_newest():
    """
    The state store takes 64 KiB; ours stays under 16 KiB whatever happened, and the last launch is never given up.
    """
    big = Ledger("dep", tuple(entry(n, outcome={"state": "FAILED", "failure_class": "x" * 3000}) for n in range(1, 60)))

    kept = Ledger.from_json(json.loads(json.dumps(big.to_json())))

    assert len(json.dumps(big.to_json())) <= ledgers.MAX_BYTES
    assert kept.last == big.last
    assert len(kept.entries) < 59


def test_many_small_entries_are_bounded_too():
    kept = Ledger.from_json(Ledger("dep", tuple(entry(n) for n in range(1, 100))).to_json())

    assert [e.number for e in kept.entries] == list(range(80, 100))


def test_a_record_is_ours_only_by_number_and_try():
    """The same number under another try's id is somebody else's launch (a run deleted and made again)."""
    ledger = Ledger("dep", (entry(1),))

    def record(number, attempt_id):
        return RunRecord(f"a.{number}", number, Attempt(1, attempt_id), RunState.RUNNING, "/r", "/r/log", 1.0)

    assert ledger.entry_for(record(1, "id-1")) == ledger.last
    assert ledger.entry_for(record(1, "id-9")) is None
    assert ledger.entry_for(record(2, "id-1")) is None


def test_unreachable_is_not_an_end():
    assert not entry(1, status=EntryStatus.REPORTED, outcome={"state": "UNREACHABLE"}).ended
    assert entry(1, status=EntryStatus.REPORTED, outcome={"state": "FAILED"}).ended
    assert not entry(1, status=EntryStatus.LAUNCHED, outcome={"state": "FAILED"}).ended


def test_the_summary_holds_facts_for_a_policy_and_no_log_text():
    outcome = Outcome(
        state=RunState.FAILED, failure_class="nccl", domain="network",
        retry_outlook={"same_host": "once", "other_host": "yes"},
        exit_code=1, evidence=({"text": "secret line"},),
    )  # fmt: skip

    kept = ledgers.summary(outcome)

    assert kept["failure_class"] == "nccl"
    assert kept["retry_outlook"] == {"same_host": "once", "other_host": "yes"}
    assert "secret line" not in json.dumps(kept)

"""The rule about earlier launches, as a table: ledger + host's answer + Airflow's facts → what this try does."""
# ruff: noqa: E501 (a table is read by row)

from __future__ import annotations

import dataclasses

import pytest

from gpualert.key import Attempt
from gpualert.records import ExitStatus, RunRecord, RunState
from gpualert_provider.decide import (
    Adopt,
    Launch,
    RefuseForeign,
    RefuseUnfenced,
    Report,
    Sighting,
    StopAndRelaunch,
    TryFacts,
    decide,
)
from gpualert_provider.ledger import EntryStatus, Ledger, LedgerEntry

TRY_1 = Attempt(1, "id-of-try-1")
TRY_2 = Attempt(2, "id-of-try-2")
TRY_3 = Attempt(3, "id-of-try-3")
RETRIED = TryFacts(TRY_2, max_tries=2)
CLEARED = TryFacts(TRY_2, max_tries=3)
LAUNCHED = LedgerEntry(
    number=1, attempts=(TRY_1,), status=EntryStatus.LAUNCHED, launch_id="train-000000000000.1", conn_id="gpu",
    machine_id="m1", boot_id="b1", max_tries=2,
)  # fmt: skip
MAYBE = dataclasses.replace(LAUNCHED, status=EntryStatus.MAYBE_LAUNCHED, launch_id=None, machine_id=None, boot_id=None)


def reported(state: str) -> LedgerEntry:
    return dataclasses.replace(LAUNCHED, status=EntryStatus.REPORTED, outcome={"state": state})


def record(state: RunState, **changes) -> RunRecord:
    values = {
        "launch_id": "train-000000000000.1", "number": 1, "attempt": TRY_1, "state": state, "run_directory": "/r/0001", "log_path": "/r/0001/log",
        "created_at": 1.0, "machine_id": "m1", "boot_id": "b1",
    }  # fmt: skip
    if state is RunState.SUCCEEDED:
        values["exit"] = ExitStatus(code=0)
    return RunRecord(**{**values, **changes})


def answer(found: RunRecord | None, machine_id: str = "m1", boot_id: str = "b1") -> Sighting:
    return Sighting(True, found, machine_id, boot_id)


SILENT = Sighting(False)
RUNNING = record(RunState.RUNNING)
LOST_BY_REBOOT = record(RunState.LOST, lost_reason="rebooted")

TABLE = [
    # what, ledger's entries, sighting, facts, expected type, expected `after` of a Launch
    ("nothing anywhere", (), answer(None), RETRIED, Launch, 0),
    ("no ledger, host silent", (), SILENT, RETRIED, Launch, 0),
    ("no ledger, but one runs", (), answer(RUNNING), RETRIED, RefuseForeign, None),
    ("no ledger, an ended one lies there", (), answer(record(RunState.FAILED)), RETRIED, Launch, 1),
    ("recorded, never made", (MAYBE,), answer(None), RETRIED, Launch, 0),
    ("recorded, made, reply lost: runs", (MAYBE,), answer(RUNNING), RETRIED, Adopt, None),
    ("recorded, made, reply lost: ended", (MAYBE,), answer(record(RunState.FAILED)), RETRIED, Report, None),
    ("runs, Airflow retries", (LAUNCHED,), answer(RUNNING), RETRIED, Adopt, None),
    ("launching, Airflow retries", (LAUNCHED,), answer(record(RunState.LAUNCHING)), RETRIED, Adopt, None),
    ("runs without its keepers, Airflow retries", (LAUNCHED,), answer(record(RunState.RUNNING, supervised=False)), RETRIED, Adopt, None),
    ("runs, user cleared", (LAUNCHED,), answer(RUNNING), CLEARED, StopAndRelaunch, None),
    ("runs, was asked to stop on the host", (LAUNCHED,), answer(record(RunState.RUNNING, stop_requested=True)), RETRIED, StopAndRelaunch, None),
    ("runs, ledger says we asked to stop it", (dataclasses.replace(LAUNCHED, stop_asked=True),), answer(RUNNING), RETRIED, StopAndRelaunch, None),
    ("runs, launched by this very try", (LAUNCHED,), answer(RUNNING), TryFacts(TRY_1, 2), Adopt, None),
    ("succeeded, unreported", (LAUNCHED,), answer(record(RunState.SUCCEEDED)), RETRIED, Report, None),
    ("succeeded, reported, but Airflow retries: it never heard", (reported("SUCCEEDED"),), answer(record(RunState.SUCCEEDED)), RETRIED, Report, None),
    ("succeeded, unreported, cleared after a failure of Airflow's", (LAUNCHED,), answer(record(RunState.SUCCEEDED)), CLEARED, Report, None),
    ("succeeded, reported, user cleared", (reported("SUCCEEDED"),), answer(record(RunState.SUCCEEDED)), CLEARED, Launch, 1),
    ("failed, unreported", (LAUNCHED,), answer(record(RunState.FAILED)), RETRIED, Report, None),
    ("failed, reported", (reported("FAILED"),), answer(record(RunState.FAILED)), RETRIED, Launch, 1),
    ("failed, unreported, user cleared", (LAUNCHED,), answer(record(RunState.FAILED)), CLEARED, Launch, 1),
    ("timed out, unreported", (LAUNCHED,), answer(record(RunState.TIMED_OUT)), RETRIED, Report, None),
    ("stopped on request", (LAUNCHED,), answer(record(RunState.STOPPED, stop_requested=True)), RETRIED, Launch, 1),
    ("vanished, unreported", (LAUNCHED,), answer(record(RunState.LOST, lost_reason="vanished")), RETRIED, Report, None),
    ("rebooted, unreported", (LAUNCHED,), answer(LOST_BY_REBOOT), RETRIED, Report, None),
    ("command never ran", (LAUNCHED,), answer(record(RunState.LOST, lost_reason="never_started")), RETRIED, Launch, 1),
    ("was unreachable, proven gone by reboot", (reported("UNREACHABLE"),), answer(LOST_BY_REBOOT), RETRIED, Launch, 1),
    ("was unreachable, runs after all", (reported("UNREACHABLE"),), answer(RUNNING), RETRIED, Adopt, None),
    ("was unreachable, failed meanwhile", (reported("UNREACHABLE"),), answer(record(RunState.FAILED)), RETRIED, Report, None),
    ("was unreachable, succeeded meanwhile", (reported("UNREACHABLE"),), answer(record(RunState.SUCCEEDED)), RETRIED, Report, None),
    ("seen from another machine only", (LAUNCHED,), answer(record(RunState.UNREACHABLE)), RETRIED, RefuseUnfenced, None),
    ("its host is silent", (LAUNCHED,), SILENT, RETRIED, RefuseUnfenced, None),
    ("its host is silent, user cleared", (LAUNCHED,), SILENT, CLEARED, RefuseUnfenced, None),
    ("recorded only, its host is silent", (MAYBE,), SILENT, RETRIED, RefuseUnfenced, None),
    ("ended and reported, its host is silent", (reported("FAILED"),), SILENT, RETRIED, Launch, 1),
    ("reported unreachable, its host is still silent", (reported("UNREACHABLE"),), SILENT, RETRIED, RefuseUnfenced, None),
    ("run directory gone, same boot", (LAUNCHED,), answer(None), RETRIED, RefuseUnfenced, None),
    ("run directory gone, rebooted", (LAUNCHED,), answer(None, boot_id="b2"), RETRIED, Launch, 1),
    ("run directory gone, ended before", (reported("FAILED"),), answer(None), RETRIED, Launch, 1),
    ("another machine answers", (LAUNCHED,), answer(None, machine_id="m2", boot_id="b9"), RETRIED, RefuseUnfenced, None),
    ("a launch of somebody else's runs", (LAUNCHED,), answer(record(RunState.RUNNING, attempt=Attempt(1, "stranger"))), RETRIED, RefuseForeign, None),
    ("a later launch of somebody else's runs", (LAUNCHED,), answer(record(RunState.RUNNING, number=2, attempt=Attempt(1, "stranger"))), RETRIED, RefuseForeign, None),
    ("a later launch of somebody else's has ended", (LAUNCHED,), answer(record(RunState.FAILED, number=2, attempt=Attempt(1, "stranger"))), RETRIED, Launch, 2),
    (
        "we are the zombie: a newer try's launch runs",
        (LAUNCHED, dataclasses.replace(LAUNCHED, number=2, attempts=(TRY_3,))), answer(record(RunState.RUNNING, number=2, attempt=TRY_3)), RETRIED, RefuseForeign, None,
    ),
    (
        "the second launch was recorded and never made",
        (reported("FAILED"), dataclasses.replace(MAYBE, number=2, attempts=(TRY_2,))), answer(record(RunState.FAILED)), TryFacts(TRY_3, 2), Launch, 1,
    ),
    (
        "the second launch was made, and only the first one's directory is left",
        (reported("FAILED"), dataclasses.replace(LAUNCHED, number=2, attempts=(TRY_2,))), answer(record(RunState.FAILED)), TryFacts(TRY_3, 2), RefuseUnfenced, None,
    ),
    (
        "adopted by try 2, try 3 comes",
        (dataclasses.replace(LAUNCHED, attempts=(TRY_1, TRY_2)),), answer(RUNNING), TryFacts(TRY_3, 2), Adopt, None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "seen", "facts", "expected", "after"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_decision(entries, seen, facts, expected, after):
    """Exactly the rule of the design; every row is one sentence of it."""
    decision = decide(Ledger("d", entries), seen, facts)

    assert type(decision) is expected, decision
    if after is not None:
        assert decision.after == after
    assert decision.reason


def test_no_ledger_at_all_is_an_empty_one():
    assert decide(None, answer(None), RETRIED) == Launch(0, "first launch")


@pytest.mark.parametrize(
    ("what", "entry", "seen"),
    [
        ("silent", LAUNCHED, SILENT),
        ("other machine", LAUNCHED, answer(None, machine_id="m2")),
        ("directory gone", LAUNCHED, answer(None)),
        ("seen from elsewhere", LAUNCHED, answer(record(RunState.UNREACHABLE))),
    ],
)
def test_only_the_users_word_launches_beside_what_cannot_be_proven_dead(what, entry, seen):
    """An unreachable launch may still hold its GPU: relaunch only with allow_unfenced_retry."""
    ledger = Ledger("d", (entry,))

    assert type(decide(ledger, seen, RETRIED)) is RefuseUnfenced
    assert decide(ledger, seen, RETRIED, allow_unfenced_retry=True) == Launch(
        1, decide(ledger, seen, RETRIED, allow_unfenced_retry=True).reason
    )


def test_a_running_launch_is_never_launched_beside_even_with_the_users_word():
    """allow_unfenced_retry is about what we cannot see, not about what we see running."""
    for facts in (RETRIED, CLEARED):
        for state in (RunState.RUNNING, RunState.LAUNCHING):
            for ledger in (None, Ledger("d", (LAUNCHED,))):
                decision = decide(ledger, answer(record(state)), facts, allow_unfenced_retry=True)
                assert not isinstance(decision, Launch), (ledger, facts, state)


def test_superseded_is_told_apart_from_foreign():
    ledger = Ledger("d", (dataclasses.replace(LAUNCHED, attempts=(TRY_3,)),))

    decision = decide(ledger, answer(record(RunState.RUNNING, attempt=TRY_3)), RETRIED)

    assert isinstance(decision, RefuseForeign)
    assert decision.kind == "superseded"

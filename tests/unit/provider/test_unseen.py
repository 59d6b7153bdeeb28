"""Outcomes of launches whose host could not tell them."""

from __future__ import annotations

import pytest

from gpualert.outcome import Outcome
from gpualert.records import RunState
from gpualert_provider.unseen import unseen_outcome

HOST = {"name": "gpu1", "machine_id": "m", "boot_id": "b"}


def test_a_rebooted_host_is_a_failed_node():
    """The training did nothing wrong, and another host may do better: the class says so, with the proof beside it."""
    outcome = unseen_outcome(RunState.LOST, "rebooted", "it was rebooted", launch_id="t-0123456789ab.2", host=HOST)

    assert (outcome.failure_class, outcome.domain) == ("node_failure", "host")
    assert outcome.retry_outlook == {"same_host": "no", "other_host": "yes"}
    assert outcome.evidence[0]["text"] == "it was rebooted"
    assert outcome.launch_number == 2


@pytest.mark.parametrize("reason", ["other_machine", "run_directory_gone"])
def test_an_end_that_nobody_saw_has_no_known_cause(reason):
    outcome = unseen_outcome(RunState.LOST, reason, "gone", launch_id="t-0123456789ab.1", host=HOST)

    assert outcome.failure_class == "unknown"
    assert outcome.exit_code is None and outcome.signal is None


def test_not_reaching_a_host_says_nothing_about_the_training():
    outcome = unseen_outcome(RunState.UNREACHABLE, "unreachable", "silence", launch_id="t-0123456789ab.1", host=HOST)

    assert outcome.failure_class is None and outcome.evidence == ()
    assert Outcome.from_json(outcome.to_json()) == outcome

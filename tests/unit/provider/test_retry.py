"""Retries follow the cause: the rules, their precedence, their counting, and what becomes of the reason."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction

from gpualert.key import Attempt
from gpualert.outcome import Outcome
from gpualert.records import RunState
from gpualert.taxonomy import CLASS_FACTS, FailureClass, FailureDomain, RetryOutlook
from gpualert_provider import ledger as ledgers
from gpualert_provider.exceptions import GpuTrainingFailed, InvalidRequest, LaunchRefused
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.ledger import EntryStatus, Ledger, LedgerEntry
from gpualert_provider.retry import OUTLOOK_RULES, FailureClassRetryPolicy, Retry, Stop
from tests.unit.provider.test_ledger import DeadStore, Store


class Ti:
    def __init__(self):
        self.pushed = {}

    def xcom_push(self, key, value):
        self.pushed[key] = value


def failure(name: str = "nccl") -> GpuTrainingFailed:
    facts = CLASS_FACTS[FailureClass(name)]
    return GpuTrainingFailed(
        Outcome(
            state=RunState.FAILED,
            exit_code=1,
            failure_class=name,
            domain=facts.domain.value,
            retry_outlook={"same_host": facts.same_host.value, "other_host": facts.other_host.value},
        )
    )


def context_after(*failures: GpuTrainingFailed, max_tries: int = 3) -> dict:
    """The context of a task whose ledger holds these failures, the present one last."""
    store = Store()
    entries = tuple(
        LedgerEntry(
            n, (Attempt(n, f"id{n}"),), EntryStatus.REPORTED, max_tries=max_tries, outcome=ledgers.summary(f.outcome)
        )
        for n, f in enumerate(failures, 1)
    )
    ledgers.save(store, Ledger("dep", entries))
    return {"task_state_store": store, "ti": Ti()}


def decide(policy, exception, context=None, try_number=1, max_tries=3):
    return policy.evaluate(exception, try_number, max_tries, context)


@pytest.mark.parametrize("failure_class", [c for c in FailureClass if c is not FailureClass.SUCCESS])
def test_without_rules_the_outlook_of_the_same_host_decides(failure_class):
    """The next try runs on the same host, so a "yes elsewhere" is no reason to repeat it here."""
    rule = OUTLOOK_RULES[CLASS_FACTS[failure_class].same_host]
    expected = {Stop: RetryAction.FAIL, Retry: RetryAction.RETRY}.get(type(rule), RetryAction.DEFAULT)

    assert decide(FailureClassRetryPolicy(), failure(failure_class.value)).action is expected


def test_class_wins_over_domain_wins_over_outlook():
    nccl = failure("nccl")  # domain network, outlook once
    rules = {"once": "stop", "network": timedelta(seconds=7), "nccl": Retry(after=timedelta(seconds=3))}

    assert decide(FailureClassRetryPolicy(rules), nccl).retry_delay == timedelta(seconds=3)
    del rules["nccl"]
    assert decide(FailureClassRetryPolicy(rules), nccl).retry_delay == timedelta(seconds=7)
    del rules["network"]
    assert decide(FailureClassRetryPolicy(rules), nccl).action is RetryAction.FAIL


def test_a_rule_overrides_the_outlook():
    assert decide(FailureClassRetryPolicy({"cuda_oom": "retry"}), failure("cuda_oom")).action is RetryAction.RETRY
    assert decide(FailureClassRetryPolicy({"hub_network": "stop"}), failure("hub_network")).action is RetryAction.FAIL
    assert decide(FailureClassRetryPolicy({"nccl": "default"}), failure("nccl")).action is RetryAction.DEFAULT
    assert decide(FailureClassRetryPolicy({}, default="stop"), failure("hub_network")).action is RetryAction.FAIL


def test_once_is_counted_from_the_tasks_history():
    """A second failure of the same kind is not chance; one of another kind in between does not count."""
    policy = FailureClassRetryPolicy()
    nccl = failure("nccl")

    assert decide(policy, nccl, context_after(nccl)).action is RetryAction.RETRY
    assert decide(policy, nccl, context_after(failure("hub_network"), nccl), try_number=2).action is RetryAction.RETRY
    again = decide(policy, nccl, context_after(nccl, nccl), try_number=2)
    assert again.action is RetryAction.FAIL
    assert "2 such failures" in again.reason


def test_times_counts_what_the_rule_matches():
    policy = FailureClassRetryPolicy({"network": Retry(times=2)})
    a, b = failure("nccl"), failure("rendezvous")

    assert decide(policy, b, context_after(a, b)).action is RetryAction.RETRY
    assert decide(policy, b, context_after(a, b, b)).action is RetryAction.FAIL


def test_a_users_clear_starts_the_count_anew():
    nccl = failure("nccl")
    context = context_after(nccl, nccl)
    ledger = ledgers.load(context["task_state_store"])
    ledgers.save(context["task_state_store"], ledger.with_changed(ledger.last, max_tries=5))

    assert decide(FailureClassRetryPolicy(), nccl, context).action is RetryAction.RETRY


@pytest.mark.parametrize(
    ("rules", "near"),
    [
        ({"cuda_omm": "stop"}, "cuda_oom"),
        ({"missing_modul": "stop"}, "missing_module"),
        ({"netwrok": "retry"}, "network"),
        ({"class:network": "retry"}, "network"),
        ({"success": "retry"}, None),
        ({17: "retry"}, None),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_near_ones(rules, near):
    """At parse time: a rule that silently never matches is worse than none."""
    with pytest.raises(ValueError, match="no failure class, domain or retry outlook") as caught:
        FailureClassRetryPolicy(rules)
    if near:
        assert near in str(caught.value)


@pytest.mark.parametrize("rule", ["again", 3, None, "retry 3 times", True])
def test_what_is_no_rule_is_an_error(rule):
    with pytest.raises(ValueError, match="expected 'stop'"):
        FailureClassRetryPolicy({"nccl": rule})


@pytest.mark.parametrize(
    "arguments", [{"after": 3}, {"after": timedelta(-1)}, {"times": -1}, {"times": 1.5}, {"times": True}]
)
def test_a_retry_rule_that_cannot_be_is_an_error(arguments):
    with pytest.raises(ValueError, match="expected"):
        Retry(**arguments)


def test_names_may_be_the_vocabularys_own_members_and_prefixed():
    policy = FailureClassRetryPolicy(
        {FailureDomain.HOST: "stop", RetryOutlook.ONCE: "stop", "domain:unknown": "stop", FailureClass.NCCL: "retry"}
    )

    assert set(policy.rules) == {("domain", "host"), ("outlook", "once"), ("domain", "unknown"), ("class", "nccl")}


def test_unknown_alone_means_the_class():
    assert set(FailureClassRetryPolicy({"unknown": "stop"}).rules) == {("class", "unknown")}


def test_what_is_no_training_failure():
    """
    A host that cannot be reached says nothing about the training; arguments that cannot work will not work next time
    either.
    """
    policy = FailureClassRetryPolicy({"nccl": "stop"}, default="stop")

    for kind in ("dns", "refused", "timeout", "authentication", "dropped"):
        assert decide(policy, TransportError(kind, "x")).action is RetryAction.RETRY
    assert decide(policy, InvalidRequest("cwd: expected an absolute path")).action is RetryAction.FAIL
    assert decide(policy, LaunchRefused("disk full", "disk")).action is RetryAction.DEFAULT
    assert decide(policy, ValueError("x")).action is RetryAction.DEFAULT


def test_unreachable_has_no_class_and_airflows_retries_decide():
    gone = GpuTrainingFailed(Outcome(state=RunState.UNREACHABLE))

    assert decide(FailureClassRetryPolicy(), gone).action is RetryAction.DEFAULT


def test_decision_and_reason_go_to_log_xcom_and_ledger(caplog):
    """Airflow only logs the reason when it stops, so we publish it ourselves."""
    nccl = failure("nccl")
    context = context_after(nccl)

    with caplog.at_level("INFO"):
        decision = decide(FailureClassRetryPolicy({"nccl": Retry(after=timedelta(minutes=2))}), nccl, context)

    pushed = context["ti"].pushed["retry_decision"]
    assert pushed == ledgers.load(context["task_state_store"]).last.retry
    assert pushed["action"] == "retry"
    assert pushed["delay_s"] == 120
    assert pushed["failure_class"] == "nccl"
    assert "nccl" in pushed["reason"]
    assert "Retry decision: retry" in caplog.text
    assert decision.reason == pushed["reason"]


def test_the_reason_fits_airflows_column():
    long = GpuTrainingFailed(Outcome(state=RunState.FAILED, failure_class="x" * 2000, domain="user_code"))

    assert len(decide(FailureClassRetryPolicy(), long).reason) <= 500


def test_a_broken_store_or_xcom_changes_no_decision():
    class DeafTi:
        def xcom_push(self, key, value):
            raise RuntimeError("API server is gone")

    context = {"task_state_store": DeadStore(), "ti": DeafTi()}

    assert decide(FailureClassRetryPolicy(), failure("missing_module"), context).action is RetryAction.FAIL

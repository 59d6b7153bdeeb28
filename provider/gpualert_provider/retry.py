"""A retry policy that follows the cause: from failure class, domain or retry outlook to stop or retry.

It runs in the task's own process after a failure, so it cannot see what kills that process: a worker that is killed or
loses its heartbeat follows Airflow's ``retries`` alone (and the new try then adopts or reports the training). It can
end a task before its ``retries`` are used up, never grant more of them.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from gpualert.taxonomy import OUTLOOK_SENTENCES, FailureClass, FailureDomain, RetryOutlook
from gpualert_provider import ledger as ledgers
from gpualert_provider.exceptions import GpuTrainingFailed, InvalidRequest, LaunchRefused, one_line
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.ledger import Ledger, LedgerEntry
from gpualert_provider.xcoms import RETRY_DECISION_KEY, push_one

#: Airflow stores at most this many characters of a reason.
MAX_REASON_CHARS = 500

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stop:
    """Do not try again: fail the task now, whatever ``retries`` says."""


@dataclass(frozen=True)
class Retry:
    """
    Try again while ``retries`` last.

    :param after: wait so long instead of the task's ``retry_delay`` and backoff; None leaves those.
    :param times: at most so many retries for failures that this rule matches, counted over the task's history since a
        user last cleared it; None for no limit of ours.
    """

    after: timedelta | None = None
    times: int | None = None

    def __post_init__(self) -> None:
        if self.after is not None and (not isinstance(self.after, timedelta) or self.after < timedelta(0)):
            raise ValueError(f"Retry(after=…): expected a timedelta of 0 or more, found {self.after!r}")
        if self.times is not None and (
            isinstance(self.times, bool) or not isinstance(self.times, int) or self.times < 0
        ):
            raise ValueError(f"Retry(times=…): expected a whole number of 0 or more, found {self.times!r}")


@dataclass(frozen=True)
class Default:
    """No opinion: Airflow's own ``retries`` and ``retry_delay`` decide."""


Rule = Stop | Retry | Default

#: Words that may stand for a rule.
RULE_WORDS: Mapping[str, Rule] = {"stop": Stop(), "retry": Retry(), "once": Retry(times=1), "default": Default()}

#: What an outlook means where nothing else was said. The next try runs on the same host, so that is the outlook that
#: counts.
OUTLOOK_RULES: Mapping[RetryOutlook, Rule] = {
    RetryOutlook.NO: Stop(),
    RetryOutlook.ONCE: Retry(times=1),
    RetryOutlook.YES: Retry(),
    RetryOutlook.RARELY: Retry(times=1),
    # Whether the training resumes from a checkpoint is the author's knowledge, and `retries` is how they say it.
    RetryOutlook.WITH_RESUME: Default(),
    RetryOutlook.AFTER_CLEANING: Stop(),
    RetryOutlook.IF_WANTED: Stop(),
    RetryOutlook.BIGGER_MEMORY_HOST: Stop(),
    RetryOutlook.OTHER_GPU_MODEL: Stop(),
    RetryOutlook.IF_NODE_LOCAL: Stop(),
    RetryOutlook.NOT_APPLICABLE: Default(),
}

_VOCABULARIES: Mapping[str, tuple[str, ...]] = {
    "class": tuple(member.value for member in FailureClass if member is not FailureClass.SUCCESS),
    "domain": tuple(member.value for member in FailureDomain),
    "outlook": tuple(member.value for member in RetryOutlook if member is not RetryOutlook.NOT_APPLICABLE),
}
#: The order in which rules are looked for: the most specific answer first.
PRECEDENCE = ("class", "domain", "outlook")


class FailureClassRetryPolicy(RetryPolicy):
    """
    Decide about a retry from what the training failed of.

    :param rules: from a failure class (``"cuda_oom"``), a domain (``"host"``) or a retry outlook (``"yes"``) to
        ``"stop"``, ``"retry"``, ``"once"``, ``"default"``, a
        :class:`datetime.timedelta` (retry after it), :class:`Stop`, :class:`Retry` or :class:`Default`. A class rule
        wins over a domain rule, which wins over an outlook rule. ``unknown`` is both a class and a domain and means the
        class here; write ``"domain:unknown"`` for the other (``class:``, ``domain:`` and ``outlook:`` work with every
        name).
    :param default: what holds where no rule matches: ``"outlook"`` (:data:`OUTLOOK_RULES`), or a rule.
    :raises ValueError: a name that is in no vocabulary (with the nearest ones), or something that is no rule. At parse
        time, so the DAG shows it as an import error.
    """

    def __init__(self, rules: Mapping[str, Any] | None = None, default: Any = "outlook") -> None:
        self.rules = {_resolve_name(name): _resolve_rule(name, rule) for name, rule in (rules or {}).items()}
        self.default: Rule | None = None if default == "outlook" else _resolve_rule("default", default)

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """
        Airflow's question after a failure. The answer and its reason also go to the XCom ``retry_decision`` and to the
        ledger, because Airflow drops the reason when it stops.
        """
        ledger = _ledger_of(context)
        decision = self._decide(exception, ledger)
        left = max(0, max_tries - try_number + 1)
        decision = RetryDecision(
            decision.action, decision.retry_delay, _bounded(f"{decision.reason} ({left} retries left)")
        )
        _publish(decision, exception, ledger, context, try_number, left)
        return decision

    def _decide(self, exception: BaseException, ledger: Ledger | None) -> RetryDecision:
        if isinstance(exception, GpuTrainingFailed):
            return self._decide_training(exception, ledger)
        if isinstance(exception, InvalidRequest):
            return RetryDecision.fail(f"{exception}: the same arguments fail in the same way")
        if isinstance(exception, LaunchRefused):
            return _default(f"nothing was launched ({exception.kind}); Airflow's retries decide")
        if isinstance(exception, TransportError):
            return RetryDecision.retry(
                reason=f"the host could not be reached ({exception.kind}), which says nothing about the training"
            )
        return _default(f"{type(exception).__name__} is no training failure; Airflow's retries decide")

    def _decide_training(self, failure: GpuTrainingFailed, ledger: Ledger | None) -> RetryDecision:
        names = {
            "class": failure.failure_class,
            "domain": failure.domain,
            "outlook": (failure.retry_outlook or {}).get("same_host"),
        }
        what = f"{failure.failure_class or failure.outcome.state} ({failure.domain or 'domain unknown'})"
        for kind in PRECEDENCE:
            name = names[kind]
            rule = None if name is None else self.rules.get((kind, name))
            if rule is not None:
                return _apply(rule, what, f"rule for {kind} {name}", _matching(ledger, kind, name))
        if self.default is not None:
            return _apply(self.default, what, "this policy's default", _matching(ledger, "class", names["class"]))
        if names["outlook"] is None:
            return _default(f"{what}: no outlook is known; Airflow's retries decide")
        outlook = RetryOutlook(names["outlook"])
        why = f"outlook {outlook.value}: {OUTLOOK_SENTENCES[outlook]}"
        return _apply(OUTLOOK_RULES[outlook], what, why, _matching(ledger, "class", names["class"]))


def _apply(rule: Rule, what: str, why: str, failures: int) -> RetryDecision:
    """
    :param failures: matching failures so far, this one included.
    """
    if isinstance(rule, Stop):
        return RetryDecision.fail(f"{what}: stop, {why}")
    if isinstance(rule, Default):
        return _default(f"{what}: Airflow's retries decide, {why}")
    if rule.times is not None and failures > rule.times:
        return RetryDecision.fail(f"{what}: stop after {failures} such failures (at most {rule.times} retries), {why}")
    delay = "" if rule.after is None else f" after {rule.after}"
    return RetryDecision.retry(rule.after, f"{what}: retry{delay}, {why}")


def _default(reason: str) -> RetryDecision:
    return RetryDecision(reason=reason)


def _matching(ledger: Ledger | None, kind: str, name: str | None) -> int:
    """
    How many failures of that name the ledger holds since a user last cleared the task; at least 1, the present one.
    """
    return max(1, sum(_name_of(entry, kind) == name for entry in _since_clear(ledger)))


def _since_clear(ledger: Ledger | None) -> Iterable[LedgerEntry]:
    if ledger is None or ledger.last is None:
        return ()
    # A clear makes max_tries grow; entries with an older value belong to what the user discarded.
    return (
        entry
        for entry in ledger.entries
        if entry.outcome is not None and entry.max_tries == ledger.entries[-1].max_tries
    )


def _name_of(entry: LedgerEntry, kind: str) -> str | None:
    outcome = entry.outcome or {}
    if kind == "outlook":
        return (outcome.get("retry_outlook") or {}).get("same_host")
    return outcome.get("failure_class" if kind == "class" else kind)


def _ledger_of(context: Any) -> Ledger | None:
    store = (context or {}).get("task_state_store")
    if store is None:
        return None
    try:
        return ledgers.load(store)
    except Exception as error:
        log.warning("The ledger could not be read, so earlier failures are not counted: %s", error)
        return None


def _publish(
    decision: RetryDecision, exception: BaseException, ledger: Ledger | None, context: Any, try_number: int, left: int
) -> None:
    """Where people look: task log, XCom, ledger. Nothing here may change the decision."""
    reason = one_line(decision.reason or "")
    value = {
        "action": decision.action.value,
        "reason": reason,
        "delay_s": None if decision.retry_delay is None else decision.retry_delay.total_seconds(),
        "try_number": try_number,
        "retries_left": left,
        "failure_class": getattr(exception, "failure_class", None),
    }
    log.info("Retry decision: %s. %s", decision.action.value, reason)
    ti = (context or {}).get("ti")
    if ti is not None:
        push_one(ti.xcom_push, RETRY_DECISION_KEY, value)
    if ledger is not None and ledger.last is not None:
        try:
            ledgers.save(context["task_state_store"], ledger.with_changed(ledger.last, retry=value))
        except Exception as error:
            log.warning("The retry decision could not be kept in the state store: %s", error)


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 2] + " …"


def _resolve_name(name: object) -> tuple[str, str]:
    text = getattr(name, "value", name)
    if isinstance(text, str):
        for kind, enum in (("class", FailureClass), ("domain", FailureDomain), ("outlook", RetryOutlook)):
            if isinstance(name, enum) and text in _VOCABULARIES[kind]:
                return kind, text
        prefix, colon, rest = text.partition(":")
        if colon and prefix in _VOCABULARIES and rest in _VOCABULARIES[prefix]:
            return prefix, rest
        for kind in PRECEDENCE:
            if text in _VOCABULARIES[kind]:
                return kind, text
    known = sorted({word for words in _VOCABULARIES.values() for word in words})
    near = difflib.get_close_matches(str(text).partition(":")[2] or str(text), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"
    raise ValueError(f"FailureClassRetryPolicy: {name!r} is no failure class, domain or retry outlook; {hint}")


def _resolve_rule(name: object, rule: object) -> Rule:
    if isinstance(rule, (Stop, Retry, Default)):
        return rule
    if isinstance(rule, timedelta):
        return Retry(after=rule)
    if isinstance(rule, str) and rule in RULE_WORDS:
        return RULE_WORDS[rule]
    raise ValueError(
        f"FailureClassRetryPolicy: {name!r}: expected {', '.join(map(repr, RULE_WORDS))}, a timedelta, Stop(), "
        f"Retry(…) or Default(), found {rule!r}"
    )

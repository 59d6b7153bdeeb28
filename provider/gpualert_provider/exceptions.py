"""What the provider raises. A training that fails is one exception with the outcome inside, so that a retry policy
decides from facts.

The message is one short line, because Airflow prints it in the task log, in mails and in its own traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException

from gpualert.outcome import Outcome
from gpualert_provider.redaction import redact

#: Longest message of :class:`GpuTrainingFailed`, in characters.
MAX_HEADLINE_CHARS = 300


class GpuTrainingFailed(AirflowException):
    """
    The training did not succeed; ``outcome`` says everything that is known about why.

    Raised for a failed, stopped, timed-out or lost training, and for one that could not be reached for longer than the
    operator's patience (state UNREACHABLE).

    :param outcome: an :class:`~gpualert.outcome.Outcome`, or its JSON form.
    """

    def __init__(self, outcome: Outcome | Mapping[str, Any]) -> None:
        self.outcome = outcome if isinstance(outcome, Outcome) else Outcome.from_json(outcome)
        super().__init__(one_line(self.outcome.headline))

    @property
    def failure_class(self) -> str | None:
        """A name of :class:`gpualert.taxonomy.FailureClass`, or None while nothing can be said."""
        return self.outcome.failure_class

    @property
    def domain(self) -> str | None:
        """Whose the failure is: a name of :class:`gpualert.taxonomy.FailureDomain`, or None."""
        return self.outcome.domain

    @property
    def retry_outlook(self) -> Mapping[str, str] | None:
        """
        What another try can do: ``{"same_host": …, "other_host": …}`` in names of
        :class:`gpualert.taxonomy.RetryOutlook`, or None.
        """
        return self.outcome.retry_outlook

    def serialize(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        cls = type(self)
        return f"{cls.__module__}.{cls.__name__}", (self.outcome.to_json(),), {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.outcome.to_json(),)


class LaunchRefused(AirflowException):
    """
    Nothing was launched, because it would not be safe or cannot work as asked.

    :param kind: a stable word: ``foreign`` (a launch that our ledger does not name is alive), ``unfenced`` (an earlier
        launch cannot be proven dead), ``superseded`` (a newer try owns the task), ``tombstoned`` and ``stopped`` (a
        stop came before the launch), ``survivors`` (a stopped launch left processes that could not be killed), or the
        host's own word, such as ``cwd_missing`` or ``disk``.
    """

    def __init__(self, message: str, kind: str = "refused") -> None:
        super().__init__(one_line(message))
        self.kind = kind

    def serialize(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        cls = type(self)
        return f"{cls.__module__}.{cls.__name__}", (str(self), self.kind), {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.kind)


class InvalidRequest(LaunchRefused):
    """
    The operator's arguments, once rendered, do not make something that can be run. Another try with the same arguments
    fails in the same way.
    """

    def __init__(self, message: str, kind: str = "invalid_spec") -> None:
        super().__init__(message, kind)


class LedgerError(AirflowException):
    """
    The task's state store could not be read or written. Without the ledger nothing is launched, adopted or stopped.
    """


def one_line(text: str) -> str:
    """Redacted, on one line, in at most :data:`MAX_HEADLINE_CHARS` characters."""
    line = " ".join(redact(text).split())
    return line if len(line) <= MAX_HEADLINE_CHARS else line[: MAX_HEADLINE_CHARS - 2] + " …"

"""Waiting ends at the condition or at the deadline, and says which."""

from __future__ import annotations

import pytest

from tests.support.waiting import DidNotHappen, wait_until


def test_it_returns_the_first_true_answer() -> None:
    """The answer itself is what callers go on with."""
    answers = iter([None, "", "ready", "later"])

    assert wait_until(lambda: next(answers), 30, "it is ready", interval_s=0) == "ready"


def test_a_missed_deadline_tells_what_did_not_happen() -> None:
    """A red test should not need a second run to be understood."""
    with pytest.raises(DidNotHappen, match=r"not within 0 s: the door opens \(2 locks\); last seen: \[\]"):
        wait_until(list, 0, lambda: "the door opens (2 locks)", interval_s=0)


def test_the_condition_is_asked_once_more_after_the_deadline() -> None:
    """A machine that stood still for the whole wait is no reason to fail."""
    assert wait_until(lambda: "true by now", -1, "it is true") == "true by now"


def test_only_named_exceptions_mean_not_yet() -> None:
    """A mistake in the test must not look like a slow server."""
    with pytest.raises(KeyError):
        wait_until(lambda: {}["x"], 30, "x is there", ignore=(ConnectionError,))

    def refused() -> None:
        raise ConnectionError("refused")

    with pytest.raises(DidNotHappen, match="refused"):
        wait_until(refused, 0, "the server answers", interval_s=0, ignore=(ConnectionError,))

"""The rule that derives a launch's state, as a table."""

from __future__ import annotations

import pytest

from gpualert.records import ExitStatus, Facts, Liveness, RunState, derive_state

HERE = Liveness()
ELSEWHERE = Liveness(None)
REBOOTED = Liveness(False)
STARTED = Facts(has_started=True, heartbeat_age_s=5.0, heartbeat_since_boot=True)
OLD = Facts(has_started=True, heartbeat_age_s=500.0, heartbeat_since_boot=False)


@pytest.mark.parametrize(
    ("facts", "liveness", "state", "reason"),
    [
        (Facts(has_exit=True, exit_code=0), HERE, RunState.SUCCEEDED, None),
        (Facts(has_exit=True, exit_code=1), HERE, RunState.FAILED, None),
        (Facts(has_exit=True, exit_code=None), HERE, RunState.FAILED, None),
        (Facts(has_exit=True, exit_code=0, stopped_by="request"), HERE, RunState.STOPPED, None),
        (Facts(has_exit=True, exit_code=0, stopped_by="deadline"), HERE, RunState.TIMED_OUT, None),
        (Facts(), Liveness(True, False, True), RunState.LAUNCHING, None),
        (Facts(), HERE, RunState.LOST, "never_started"),
        (Facts(), REBOOTED, RunState.LOST, "never_started"),
        (Facts(folder_is_gone=True), HERE, RunState.LOST, "vanished"),
        (Facts(folder_is_gone=True), REBOOTED, RunState.LOST, "rebooted"),
        (Facts(folder_is_gone=True), Liveness(True, False, True), RunState.LAUNCHING, None),
        (Facts(abandoned=True), Liveness(True, False, True), RunState.LOST, "never_started"),
        (STARTED, Liveness(True, True, False), RunState.RUNNING, None),
        (STARTED, Liveness(True, False, True), RunState.RUNNING, None),
        (STARTED, HERE, RunState.LOST, "vanished"),
        (OLD, REBOOTED, RunState.LOST, "rebooted"),
        (STARTED, REBOOTED, RunState.RUNNING, None),
        (STARTED, ELSEWHERE, RunState.RUNNING, None),
        (OLD, ELSEWHERE, RunState.UNREACHABLE, None),
        (Facts(has_started=True), ELSEWHERE, RunState.UNREACHABLE, None),
        (Facts(heartbeat_age_s=1.0), ELSEWHERE, RunState.LAUNCHING, None),
        (Facts(heartbeat_age_s=100.0), ELSEWHERE, RunState.UNREACHABLE, None),
    ],
)
def test_the_table(facts: Facts, liveness: Liveness, state: RunState, reason: str | None) -> None:
    assert derive_state(facts, liveness)[:2] == (state, reason)


@pytest.mark.parametrize(("facts", "liveness"), [(STARTED, REBOOTED), (STARTED, ELSEWHERE), (OLD, ELSEWHERE)])
def test_what_is_seen_from_elsewhere_says_so(facts: Facts, liveness: Liveness) -> None:
    note = derive_state(facts, liveness)[2]
    assert note is not None and "another machine" in note


def test_ended_means_that_nothing_more_happens() -> None:
    assert {state for state in RunState if not state.ended} == {
        RunState.LAUNCHING,
        RunState.RUNNING,
        RunState.UNREACHABLE,
    }


@pytest.mark.parametrize(
    ("status", "text", "shell"),
    [
        (ExitStatus(3, None, False), "exit 3", 3),
        (ExitStatus(None, 11, True), "SIGSEGV (core dumped)", 139),
        (ExitStatus(None, 9, False), "SIGKILL", 137),
        (ExitStatus(None, 60, False), "SIG60", 188),
        (ExitStatus(), "nobody saw the end", None),
    ],
)
def test_an_exit_status_in_words(status: ExitStatus, text: str, shell: int | None) -> None:
    assert (status.text, status.shell_code) == (text, shell)

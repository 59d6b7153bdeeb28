"""The outcome of a launch whose host could not, or can no longer, tell it: made on Airflow's side, from what we know.

Not being able to look is no failure of the training, so UNREACHABLE carries no class. LOST is an end that nobody saw:
it has a class where the reason itself proves one (a rebooted host), else ``unknown``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpualert.key import Attempt, split_launch_id
from gpualert.outcome import Outcome
from gpualert.records import RunState
from gpualert.taxonomy import CLASS_FACTS, FailureClass, coarse_class, default_outlook

_CLASSES: Mapping[str, FailureClass] = {"rebooted": FailureClass.NODE_FAILURE}


def unseen_outcome(
    state: RunState,
    reason: str,
    detail: str,
    *,
    launch_id: str,
    host: Mapping[str, Any],
    attempt: Attempt | None = None,
    run_directory: str | None = None,
    log_path: str | None = None,
) -> Outcome:
    """
    :param state: LOST or UNREACHABLE.
    :param reason: a short stable word: ``rebooted``, ``other_machine``, ``run_directory_gone``, ``unreachable``.
    :param detail: the same for people; becomes the evidence of a LOST launch and a warning.
    :param host: {name, machine_id, boot_id} as of the launch.
    """
    try:
        number: int | None = split_launch_id(launch_id)[1]
    except ValueError:
        number = None
    return Outcome(
        state=state,
        launch_id=launch_id,
        launch_number=number,
        attempt=attempt,
        host=host,
        lost_reason=reason,
        run_directory=run_directory,
        log_path=log_path,
        warnings=(detail,),
        **(_opinion(reason, detail) if state is RunState.LOST else {}),
    )


def _opinion(reason: str, detail: str) -> dict[str, Any]:
    failure_class = _CLASSES.get(reason, FailureClass.UNKNOWN)
    same_host, other_host = default_outlook(failure_class)
    return {
        "failure_class": failure_class.value,
        "coarse_class": coarse_class(failure_class),
        "domain": CLASS_FACTS[failure_class].domain.value,
        "retry_outlook": {"same_host": same_host.value, "other_host": other_host.value},
        "evidence": (
            {"source": "host", "line": None, "offset": None, "rank": None, "text": detail, "rule": f"host.{reason}"},
        ),
        "not_seen": ("the child's exit status", "the log's last lines, unless the host still has them"),
    }

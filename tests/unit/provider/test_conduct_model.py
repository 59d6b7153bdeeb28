"""
Any order of deaths, retries, clears and ends: never two trainings at once, and no success is trained again unasked.
"""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import TaskDeferred
from hypothesis import given, settings
from hypothesis import strategies as st

from gpualert.records import ExitStatus, RunState
from gpualert_provider.exceptions import GpuTrainingFailed, LaunchRefused
from tests.unit.provider.world import World


class Killed(BaseException):
    """SIGKILL: no handler runs."""


#: At which request of the try, before or after the host acted, the worker is killed; None: it lives.
deaths = st.none() | st.tuples(st.integers(0, 4), st.booleans())
events = st.one_of(
    st.tuples(st.just("retry"), deaths),
    st.tuples(st.just("clear"), deaths),
    st.tuples(st.just("ends"), st.sampled_from([RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])),
    st.tuples(st.just("asked to stop"), st.none()),
)


def attempt(world: World, try_number: int, max_tries: int, death: tuple[int, bool] | None) -> str:
    """One try; what Airflow sees of it."""
    count = 0
    answer = type(world.host).answer

    def mortal(request):
        nonlocal count
        mine, count = count, count + 1
        if death == (mine, False):
            raise Killed
        reply = answer(world.host, request)
        if death == (mine, True):
            raise Killed
        return reply

    world.host.answer = mortal
    try:
        world.run(try_number=try_number, max_tries=max_tries, early_window=0)
    except TaskDeferred:
        return "deferred"
    except GpuTrainingFailed:
        return "failed"
    except LaunchRefused as refusal:
        return refusal.kind
    except Killed:
        return "killed"
    return "success"


@settings(max_examples=150, deadline=None)
@given(st.lists(events, min_size=2, max_size=12))
def test_never_two_at_once_and_no_success_twice(steps):
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch)
        world.host.end = None
        try_number, max_tries = 0, 2
        cleared_since_success = True
        for kind, detail in steps:
            before = dict(world.host.launches)
            if kind in ("retry", "clear"):
                try_number += 1
                if kind == "clear":
                    max_tries += 1
                    cleared_since_success = True
                seen = attempt(world, try_number, max_tries, detail)
                assert seen in ("deferred", "failed", "success", "killed"), seen
                new = set(world.host.launches) - set(before)
                assert len(new) <= 1
                if any(r.state is RunState.SUCCEEDED for r in before.values()) and not cleared_since_success:
                    assert not new, "a success was trained again, and nobody had asked for it"
            else:
                for launch_id in world.host.alive():
                    if kind == "ends":
                        code = 0 if detail is RunState.SUCCEEDED else 1
                        world.host.change(launch_id, state=detail, exit=ExitStatus(code=code), survivors=())
                        cleared_since_success = cleared_since_success and detail is not RunState.SUCCEEDED
                    else:
                        world.host.change(launch_id, stop_requested=True)
            assert len(world.host.alive()) <= 1
            # Each launch began after the one before it had ended: the host's numbers have no gap and no twin.
            assert sorted(r.number for r in world.host.launches.values()) == list(
                range(1, len(world.host.launches) + 1)
            )

"""The benchmarks' table says what was measured, and nothing else."""

from __future__ import annotations

import pytest

from benchmarks.measure import Row, Statistic, Target, as_markdown


def test_a_missed_target_says_no() -> None:
    """Nothing is rounded into a success."""
    assert Row("x", "ms", (3.01,), target=Target(3)).cells()[-1] == "NO"
    assert Row("x", "ms", (3.0,), target=Target(3)).cells()[-1] == "yes"
    assert Row("x", "MB/s", (19.9,), target=Target(20, at_least=True)).cells()[-1] == "NO"


def test_what_was_not_measured_has_no_figure() -> None:
    """A peer that cannot be installed here, or a subject that failed, gives its reason instead."""
    without_peer = Row("x", "ms", (1.0,), "peer", target=Target(1, of_ratio=True), why_no_peer="no network")

    assert without_peer.cells() == ["x", "1 ms (n=1)", "peer: no network", "–", "≤ 1 times", "not measured"]
    assert Row("x", "ms", target=Target(1), why_not="no sshd").cells()[1:] == [
        "not measured: no sshd",
        "–",
        "–",
        "≤ 1 ms",
        "not measured",
    ]


@pytest.mark.parametrize(("count", "p95"), [(1, 1), (10, 10), (20, 19), (100, 95)])
def test_p95_is_the_nearest_rank(count: int, p95: int) -> None:
    """No interpolation: the figure is one that was seen."""
    assert Statistic.P95.of(tuple(float(n) for n in range(count, 0, -1))) == p95


def test_figures_tell_their_spread_and_number() -> None:
    """A median alone says nothing about a shared machine."""
    row = Row("x", "s", (3.0, 1.0, 2.0), "peer", (4.0, 4.0, 5.0))

    assert row.cells()[1:4] == ["2 s (1–3, n=3)", "peer: 4 s (4–5, n=3)", "0.5"]
    assert as_markdown([row]).count("\n") == 2

"""What the test command makes of failures: none is hidden, and none that lasts is forgiven."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import HalfResult


def half(passed: int = 3, failed: tuple[str, ...] = (), status: int | None = None) -> HalfResult:
    return HalfResult("fast", bool(failed) if status is None else status, 1.0, Path("r"), passed, list(failed))


def run(monkeypatch: pytest.MonkeyPatch, *results: HalfResult) -> tuple[HalfResult, int]:
    """The half's result when pytest gives these one after the other, and how often pytest was asked."""
    waiting = list(results)
    monkeypatch.setattr(run_tests, "_pytest", lambda *arguments: waiting.pop(0))
    return run_tests._run("fast", []), len(results) - len(waiting)


def test_a_test_that_fails_twice_fails_the_run(monkeypatch, capsys):
    """The second run is no way out."""
    result, asked = run(monkeypatch, half(failed=("a", "b")), half(passed=1, failed=("b",)))

    assert (result.failed, result.unsteady, asked) == (["b"], ["a"], 2)
    monkeypatch.setattr(run_tests, "ROOT", Path("."))
    assert run_tests._close([result]) == 1
    assert "failed: b" in capsys.readouterr().out


def test_a_test_that_passes_only_the_second_time_is_named(monkeypatch, capsys):
    """The run is green, and says which test it should not trust."""
    result, _ = run(monkeypatch, half(failed=("a",)), half(passed=1))

    monkeypatch.setattr(run_tests, "ROOT", Path("."))
    assert run_tests._close([result]) == 0
    out = capsys.readouterr().out
    assert "unsteady: a" in out and "4 passed, 0 failed" in out


@pytest.mark.parametrize(
    "first",
    [half(), half(failed=tuple("abcdefghijk")), half(failed=("a",), status=2)],
    ids=["all passed", "too many failed", "pytest itself broke"],
)
def test_pytest_is_asked_once_where_a_second_run_would_tell_nothing(monkeypatch, first):
    result, asked = run(monkeypatch, first)

    assert asked == 1 and result is first


def test_a_second_run_that_finds_nothing_forgives_nothing(monkeypatch):
    """A failure at collection may leave nothing to run again."""
    result, _ = run(monkeypatch, half(failed=("a",)), half(passed=0, status=5))

    assert result.failed == ["a"] and result.status == 1

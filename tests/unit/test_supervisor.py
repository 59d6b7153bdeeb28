"""Parts of the loop that need no process: the log's generations, and what supervisor tells guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpualert.supervisor import Ending, LogWatch, Settings


def test_growth_is_no_truncation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    watch = LogWatch(str(path))
    with open(path, "ab", buffering=0) as file:
        for number in range(50):
            file.write(b"%d\n" % number * (number % 7))
            assert watch.look() is False
    assert (watch.generation, watch.size) == (0, path.stat().st_size)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"abc", b""),
        (b"abc", b"xyz"),
        (b"abc", b"xyzxyzxyz"),
        (b"same start " * 20 + b"end one", b"same start " * 20 + b"end two, and longer"),
        (b"one" + b"x" * 500, b"two" + b"x" * 900),
    ],
)
def test_truncation_is_seen_by_size_or_by_content(tmp_path: Path, first: bytes, then: bytes) -> None:
    """Also when the new content is as long as the old or longer."""
    path = tmp_path / "log"
    path.write_bytes(first)
    watch = LogWatch(str(path))
    watch.look()
    path.write_bytes(then)
    assert watch.look() is True
    assert watch.look() is False
    assert watch.generation == 1


def test_a_log_that_is_gone_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert LogWatch(str(tmp_path / "none")).look() is False


@pytest.mark.parametrize(
    ("code", "signal", "core", "number"),
    [
        (0, None, False, None),
        (255, None, False, None),
        (None, 9, False, None),
        (127, None, False, 2),
        (None, 11, True, None),
    ],
)
def test_an_end_survives_the_pipe_to_the_guard(
    code: int | None, signal: int | None, core: bool, number: int | None
) -> None:
    ending = Ending(code, signal, core)
    ending.exec_errno = number
    back = Ending.from_line(ending.to_line().strip())
    assert (back.code, back.signal, back.core_dumped, back.exec_errno) == (code, signal, core, number)


def test_settings_are_the_specs_and_have_its_defaults() -> None:
    settings = Settings.from_spec({"deadline_s": 5, "stop_signal": "SIGINT", "grace_period_s": 0})
    assert (settings.deadline_s, settings.stop_signal, settings.grace_period_s) == (5, 2, 0)
    assert (settings.leftovers, settings.stop_command) == ("kill", None)
    assert Settings.from_spec({}).grace_period_s == Settings().grace_period_s == 30.0

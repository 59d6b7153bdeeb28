"""The demo's table says what is known, and a dash where nothing is."""

from __future__ import annotations

from tools.demo.table import Row, render

ROW = Row("train", "failed", "missing_module", "line 4: ModuleNotFoundError: No module named 'flash_attn_3'", "run/log")


def test_it_fits_the_terminal_by_wrapping_the_evidence_alone() -> None:
    """No word of the evidence is lost, and no path is broken."""
    lines = render([ROW], 80).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["task", "state", "class", "evidence", "log"]
    assert all(word in "".join(lines) for word in ("ModuleNotFoundError:", "'flash_attn_3'", "run/log"))
    assert len(lines) > 3


def test_unknown_is_a_dash() -> None:
    """Nothing is filled in."""
    assert render([Row("train", None, None, None, None)], 80).splitlines()[-1].split() == ["train", "-", "-", "-", "-"]

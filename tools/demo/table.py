"""The demo's table: pure text from what Airflow says about the tasks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_HEAD = ("task", "state", "class", "evidence", "log")


@dataclass(frozen=True)
class Row:
    """One task, as Airflow's API tells it; None where it tells nothing."""

    task: str
    state: str | None
    failure_class: str | None
    evidence: str | None
    log: str | None

    def cells(self) -> tuple[str, ...]:
        return (self.task, self.state or "-", self.failure_class or "-", self.evidence or "-", self.log or "-")


def render(rows: Sequence[Row], width: int) -> str:
    """A table of at most ``width`` columns where that is possible; the evidence is wrapped, nothing is cut off."""
    cells = [row.cells() for row in rows]
    widths = [max(len(head), *(len(line[i]) for line in cells)) for i, head in enumerate(_HEAD)]
    others = sum(widths) - widths[3] + 2 * (len(_HEAD) - 1)
    widths[3] = max(24, min(widths[3], width - others))
    lines = [_line(_HEAD, widths), _line(tuple("-" * w for w in widths), widths)]
    for cell in cells:
        wrapped = textwrap.wrap(cell[3], widths[3]) or [""]
        lines.append(_line((*cell[:3], wrapped[0], cell[4]), widths))
        lines += [_line(("", "", "", more, ""), widths) for more in wrapped[1:]]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

"""What a benchmark hands back: samples of ours, samples of what stands beside it, and what was promised.

Every figure in a printed table comes from samples in the same run. What was not measured says why, and has no figure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

Samples = tuple[float, ...]


class Statistic(Enum):
    """What of several samples is compared."""

    MEDIAN = "median"
    P95 = "p95"
    HIGHEST = "highest"

    def of(self, samples: Samples) -> float:
        if self is Statistic.MEDIAN:
            return statistics.median(samples)
        if self is Statistic.HIGHEST:
            return max(samples)
        return sorted(samples)[math.ceil(0.95 * len(samples)) - 1]  # nearest rank: below 20 samples, the highest


@dataclass(frozen=True)
class Target:
    """What was promised: a limit for our figure, or for the ratio of ours to the one beside it."""

    limit: float
    of_ratio: bool = False
    at_least: bool = False

    def met(self, ours: float, ratio: float | None) -> bool | None:
        """None when the ratio that was promised could not be measured."""
        value = ratio if self.of_ratio else ours
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit

    def text(self, unit: str) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.limit:g} times" if self.of_ratio else f"{sign} {self.limit:g} {unit}"


@dataclass(frozen=True)
class Row:
    """
    One line of the table.

    :param what: what was measured, in words that need no other page.
    :param unit: of ours and theirs.
    :param ours: samples; empty when nothing could be measured, and then ``why_not`` says why.
    :param beside: what stands beside it; empty when nothing does the same.
    :param theirs: its samples; empty when it could not be measured, and then ``why_no_peer`` says why.
    """

    what: str
    unit: str
    ours: Samples = ()
    beside: str = ""
    theirs: Samples = ()
    statistic: Statistic = Statistic.MEDIAN
    target: Target | None = None
    why_not: str = ""
    why_no_peer: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours divided by theirs."""
        if not self.ours or not self.theirs:
            return None
        theirs = self.statistic.of(self.theirs)
        return self.statistic.of(self.ours) / theirs if theirs else None

    @property
    def met(self) -> bool | None:
        """None: nothing was promised, or what was promised could not be measured."""
        if self.target is None or not self.ours:
            return None
        return self.target.met(self.statistic.of(self.ours), self.ratio)

    def cells(self) -> list[str]:
        """What, ours, theirs, ratio, target, whether it was met."""
        statistic = "" if self.statistic is Statistic.MEDIAN else f", {self.statistic.value}"
        ours = self._figure(self.ours) or f"not measured: {self.why_not}"
        theirs = f"{self.beside}: {self._figure(self.theirs) or self.why_no_peer}" if self.beside else "–"
        ratio = "–" if self.ratio is None else f"{self.ratio:.3g}"
        target = "–" if self.target is None else self.target.text(self.unit)
        if self.target is None:
            met = "–"
        else:
            met = {True: "yes", False: "NO", None: "not measured"}[self.met]
        return [self.what + statistic, ours, theirs, ratio, target, met]

    def _figure(self, samples: Samples) -> str:
        if not samples:
            return ""
        figure = f"{_short(self.statistic.of(samples))} {self.unit}".rstrip()
        if len(samples) == 1:
            return f"{figure} (n=1)"
        return f"{figure} ({_short(min(samples))}–{_short(max(samples))}, n={len(samples)})"


@dataclass(frozen=True)
class Benchmark:
    """
    One subject, measured by one function.

    :param module: imported only when the benchmark runs: each needs other things.
    :param seconds: about how long it takes on a quiet machine.
    """

    name: str
    module: str
    about: str
    seconds: int


HEADER = ("what", "ours", "beside it", "ours / theirs", "target", "met")
Measure = Callable[["Effort"], Sequence[Row]]


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    quick: bool = False

    def rounds(self, usual: int, quick: int) -> int:
        return quick if self.quick else usual


def as_text(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    lines = [list(HEADER), *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    laid = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([laid[0], "  ".join("-" * width for width in widths), *laid[1:]])


def as_markdown(rows: Sequence[Row]) -> str:
    lines = [list(HEADER), ["---"] * len(HEADER), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def in_milliseconds(samples: Mapping[str, Sequence[float]]) -> dict[str, Samples]:
    return {name: tuple(1000 * value for value in values) for name, values in samples.items()}


def _short(value: float) -> str:
    """Three figures; whole numbers from 100 on."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}"

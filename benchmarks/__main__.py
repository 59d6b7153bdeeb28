"""Measure what the design promises, each beside a peer in the same run, and print one table.

A missed target is a row that says NO, not an error: the exit status is 0 when everything could be measured, 1 when some
benchmark failed itself.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "provider") not in sys.path:  # in a clone that is not installed
    sys.path.append(str(ROOT / "provider"))

from benchmarks.measure import Benchmark, Effort, Row, as_markdown, as_text  # noqa: E402

#: In the order in which they run: the longest, which needs Airflow, comes last.
BENCHMARKS = (
    Benchmark("fidelity", "fidelity", "log before the child, exit codes and signals exact", 40),
    Benchmark("cost", "cost", "wrapper cost and launch overhead", 35),
    Benchmark("memory", "keepers", "guard and supervisor beside a 1 GiB log", 40),
    Benchmark("watching", "watching", "the observer's CPU, quiet and flooding; the verdict's delay", 45),
    Benchmark("scanning", "scanning", "classifier speed on a training log", 30),
    Benchmark("kinds", "scanning_kinds", "classifier speed on ordinary and hostile logs of many kinds", 300),
    Benchmark("growing", "growing", "the verdict on a gigabyte that was scanned while it grew", 45),
    Benchmark("fetch", "fetch", "log fetched over SSH on loopback", 30),
    Benchmark("many", "many", "one triggerer with 1,000 jobs on 20 hosts", 240),
    Benchmark("remote", "remote_jobs", "remote exit to task end in a real Airflow; SSH connections per job", 290),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (default: all; see --list)")
    parser.add_argument("--list", action="store_true", help="say which there are, and about how long each takes")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works, not to quote")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table there, as Markdown")
    options = parser.parse_args(argv)
    there = {one.name: one for one in BENCHMARKS if importlib.util.find_spec(f"benchmarks.{one.module}")}
    unknown = [name for name in options.names if name not in there]
    if unknown:
        parser.error(f"expected names among {', '.join(there)}; found {', '.join(unknown)}")
    chosen = [one for one in there.values() if not options.names or one.name in options.names]
    if options.list:
        for one in chosen:
            print(f"{one.name:10} about {one.seconds:3} s  {one.about}")
        return 0

    # Bytecode is cached where people run this; without it every start would compile our modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    effort = Effort(options.quick)
    report = Report(effort)
    for one in chosen:
        print(f"{one.name}: {one.about} …", file=sys.stderr, flush=True)
        report.run(one)
    print(report.text())
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(report.markdown())
        print(f"\nWritten: {options.write}")
    return 1 if report.failed else 0


class Report:
    """Rows of all benchmarks, and under what circumstances each was measured."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.began_at = datetime.now(timezone.utc)
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.loads: list[str] = []

    def run(self, one: Benchmark) -> None:
        before, began_at = os.getloadavg()[0], time.monotonic()
        try:
            self.rows += importlib.import_module(f"benchmarks.{one.module}").measure(self.effort)
        except Exception as error:  # the others are still worth having
            traceback.print_exc()
            said = str(error).strip().splitlines() or [type(error).__name__]
            self.failed[one.name] = said[0][:200]
            self.rows.append(Row(one.about, "", why_not=f"{type(error).__name__}: {said[0][:80]}"))
        after, taken = os.getloadavg()[0], time.monotonic() - began_at
        self.loads.append(f"{one.name} {before:.1f} → {after:.1f} ({taken:.0f} s)")

    def circumstances(self) -> list[str]:
        """What a reader must know to judge the figures."""
        cores = os.cpu_count() or 1
        few = " Few samples (--quick): not to be quoted." if self.effort.quick else ""
        return [
            f"{self.began_at:%Y-%m-%d %H:%M} UTC; {platform.system()} {platform.release()}, {cores} cores, "
            f"Python {platform.python_version()}.{few}",
            f"Load average of the last minute before and after each ({cores} is a machine that is just full): "
            f"{'; '.join(self.loads)}.",
            "A figure is the median (lowest–highest, number of samples) unless the row names another statistic; p95 is "
            "the nearest rank, with fewer than 20 samples the highest. What stands in a row was measured in turns in "
            "this one run. A ratio below 1 means that ours is the smaller figure.",
        ]

    def summary(self) -> str:
        judged = [row for row in self.rows if row.target is not None]
        met = sum(row.met is True for row in judged)
        missed = sum(row.met is False for row in judged)
        open_ = len(judged) - met - missed
        return f"{len(judged)} targets: {met} met, {missed} missed, {open_} not measured."

    def text(self) -> str:
        return "\n".join(["", as_text(self.rows), "", *self.circumstances(), self.summary()])

    def markdown(self) -> str:
        lines = [
            "# Benchmarks",
            "Written by `python -m benchmarks --write docs/reference/benchmarks.md`; `make bench` prints the same "
            "table. Every figure comes from one run.",
            as_markdown(self.rows),
            self.summary(),
            *self.circumstances(),
        ]
        return "\n\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

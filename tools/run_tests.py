"""Run all tests, fast ones first, and say plainly what ran.

    python -m tools.run_tests [--only fast|slow] [pytest arguments]

Both halves run whatever the first one's result is: one red unit test must not hide what the real Airflow does.
Tests here wait for real processes under deadlines, so a busy machine can fail one: what failed runs once more, alone.
What passes only then does not fail the run, but is named at the end as unsteady, since it is a defect all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".cache" / "reports"

# pytest's exit statuses: 0 all passed, 1 some failed, 5 nothing collected; any other: pytest itself could not work.
NOTHING_COLLECTED = 5
#: More failures than this are no accident of a busy machine.
MOST_RUN_AGAIN = 10
_TWO = ["-n", "2", "--dist", "loadfile"]
# The slow half mostly waits for Airflow; its files start servers of their own, so two of them get on side by side.
HALVES = {"fast": ("not slow", _TWO), "slow": ("slow", _TWO)}


@dataclass
class HalfResult:
    """What one run of pytest did, read from its JUnit report; counts are tests."""

    name: str
    status: int
    duration_s: float
    report: Path
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)  # failed first, passed when run once more
    skipped: Counter[str] = field(default_factory=Counter)  # reason -> tests

    @property
    def total(self) -> int:
        return self.passed + len(self.failed) + sum(self.skipped.values())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="run_tests", description="Run all tests, fast ones first, and say plainly what ran."
    )
    parser.add_argument("--only", choices=list(HALVES), help="run one half")
    options, rest = parser.parse_known_args(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    results = [_run(half, rest) for half in HALVES if options.only in (None, half)]
    return _close(results)


def _run(name: str, extra: list[str]) -> HalfResult:
    print(f"\n== {name} tests", flush=True)
    result = _pytest(name, HALVES[name][1], extra)
    if result.status != 1 or not 0 < len(result.failed) <= MOST_RUN_AGAIN:
        return result
    print(f"\n== {len(result.failed)} of them once more, alone", flush=True)
    again = _pytest(f"{name}-again", ["--last-failed", "--last-failed-no-failures=none"], extra, name)
    if again.status not in (0, 1) or again.total == 0:
        return result
    result.unsteady = sorted(set(result.failed) - set(again.failed))
    result.failed = again.failed
    result.passed += len(result.unsteady)
    result.status = again.status
    result.duration_s += again.duration_s
    return result


def _pytest(report_name: str, how: list[str], extra: list[str], half: str | None = None) -> HalfResult:
    half = half or report_name
    report = REPORTS / f"{report_name}.xml"
    report.unlink(missing_ok=True)
    # sbin holds sshd, nft and useradd, and is not on every root's path.
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--durations=10",
        "--durations-min=5",
        "-m",
        HALVES[half][0],
        f"--junitxml={report}",
        *how,
        *extra,
    ]
    # One file that cannot be imported must not keep the others from telling what they know.
    command.append("--continue-on-collection-errors")
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    return _read(HalfResult(half, status, time.monotonic() - began, report))


def _read(result: HalfResult) -> HalfResult:
    if not result.report.exists():
        return result
    for case in ElementTree.parse(result.report).iter("testcase"):
        # A case is listed twice when its teardown fails after it passed; either way it failed.
        outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if outcome is None:
            result.passed += 1
        elif outcome.tag == "skipped":
            result.skipped[outcome.get("message") or "no reason given"] += 1
        else:
            result.failed.append(f"{case.get('classname')}::{case.get('name')}")
    return result


def _close(results: list[HalfResult]) -> int:
    print("\n== what ran")
    for result in results:
        skipped = sum(result.skipped.values())
        counts = f"{result.passed} passed, {len(result.failed)} failed, {skipped} skipped"
        print(f"{result.name}: {counts} in {result.duration_s:.0f} s; report: {result.report.relative_to(ROOT)}")
        for reason, count in result.skipped.most_common():
            print(f"    skipped {count}: {reason}")
        for test in result.failed:
            print(f"    failed: {test}")
        for test in result.unsteady:
            print(f"    unsteady: {test} passed only when it was run once more; that is a defect, if a rare one")
        if result.status not in (0, 1, NOTHING_COLLECTED):
            print(f"    pytest stopped before the end of this half (exit status {result.status}); its words are above")
    passed = sum(result.passed for result in results)
    failed = sum(len(result.failed) for result in results)
    skipped = sum(sum(result.skipped.values()) for result in results)
    broken = [result.name for result in results if result.status not in (0, NOTHING_COLLECTED)]
    if passed + failed == 0:
        print("No test ran at all, so nothing is known.")
    elif not broken:
        print("All tests that ran passed.")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if broken or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

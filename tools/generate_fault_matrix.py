"""Write docs/reference/fault-matrix.md from what the fault tests found: ``python -m tools.generate_fault_matrix``.

They leave their findings in .cache/reports/faults. A fault that was not run, or not found as it is expected, is no row:
then nothing is written.
"""

# ruff: noqa: E501 (the page's own lines)
from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "fault-matrix.md"
REPORTS = ROOT / ".cache" / "reports" / "faults"
LIVES = ("tests/e2e/test_lifecycle.py", "tests/e2e/test_airflow_dies.py", "tests/e2e/test_race.py")

HEAD = """\
# Faults, and what becomes of a training

<!-- Written by tools/generate_fault_matrix.py from a run of tests/faults; change it there. -->

Each fault meets four trainings on a machine of its own (processes, network, mounts, boot id and sshd of its own), one in each phase of its life: while it is
launched, while it runs in silence, while it writes, and while it ends. Each would end with exit status 3 by itself. The cells say what was **found**, in that
run: the state and the class that the task got, and the log against what the child wrote, by hash. Unless a cell says otherwise, there was one launch, and no
process of the training was left. (Our own observer stays for up to a minute after its keepers were killed.)

`whole`: byte for byte. `up to the fault`: as far as the child itself came, or could write. `from the cut on`: the log was cut from outside, and has what was
written since. Where nothing was launched, the try was told so, with this kind of error, and tries again by its retries.

"""
ELSEWHERE = """
## Through a real Airflow

Scheduler, triggerer, API server, DAG processor and workers are real. Every row is a test that runs in CI; each asserts the task's state, that one training ran,
and that none was left.

| what happens | what is true afterwards |
|---|---|
"""
REST = """
## Seen in other ways

| fault | how it is tested |
|---|---|
| the wall clock jumps a day forward or back | on real processes whose clock is moved: neither deadline nor duration follows (`tests/contract/test_supervision.py`) |
| a pid is used again | a record that names another process of that pid: alive only with the same start time and boot (`tests/contract/test_supervision.py`) |
| keepers killed at any moment of a launch | random moments, seeded (`tests/contract/test_launch_chaos.py`) |
| another machine answers to the name | `tests/contract/test_trigger.py`: LOST, `other_machine`; nothing of it is printed |
| a log cut by its own child | `tests/contract/test_supervision.py`, `test_observer.py`, `test_log_budget.py`: a new generation, told in the task log |
| no inode, no byte, no write right where the log should begin | `tests/contract/test_shells.py`, `test_log_before_launch.py`: the next root is used, and nothing is launched without a log |
| an older follower's late stop | `tests/contract/test_stop.py`, `test_trigger.py`: refused by its epoch |
| stale NFS | on the error that the kernel gives (`tests/unit/test_roots.py`, `test_rundir.py`): a refusal, never "not there" |
| `KillUserProcesses`, `RemoveIPC` | on logind's answers (`tests/unit/test_survival.py`) |
| links cut, sshds restarted, triggerers killed at random | 200 trainings, seeded (`tests/faults/test_random.py`) |
"""


def page() -> str:
    """
    :raises SystemExit: a fault was not run, or not found as expected.
    """
    from tests.faults.matrix import MATRIX
    from tests.faults.world import PHASES

    found = {}
    for path in REPORTS.glob("*.json"):
        value = json.loads(path.read_text())
        found[value["fault"]] = value["found"]
    wrong = [
        name
        for name, row in MATRIX.items()
        if found.get(name) != {phase: expected.words() for phase, expected in row.expected.items()}
    ]
    if wrong:
        raise SystemExit(f"not run, or not found as expected: {', '.join(wrong)}; run pytest tests/faults first")
    lines = [f"| fault | {' | '.join(PHASES)} |", "|---" * (len(PHASES) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(found[name][phase] for phase in PHASES)} |" for name in MATRIX]
    lives = [f"| {what} | {then} |" for what, then in _lives()]
    return HEAD + "\n".join(lines) + "\n" + ELSEWHERE + "\n".join(lives) + "\n" + REST


def _lives() -> Iterator[tuple[str, str]]:
    for name in LIVES:
        for node in ast.parse((ROOT / name).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                what = node.name.removeprefix("test_").replace("_", " ")
                yield what, re.sub(r"\s+", " ", ast.get_docstring(node) or "").replace("|", "\\|")


def main() -> int:
    TARGET.write_text(page())
    print(f"Written: {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The table of faults in the docs is the one that the tests assert: no row too many, none missing."""

from __future__ import annotations

from tests.architecture.test_tree import ROOT
from tests.faults.matrix import MATRIX
from tests.faults.world import PHASES
from tools import generate_fault_matrix


def test_the_page_has_the_rows_that_are_tested() -> None:
    """It is written from a run; what is expected today must be what was found then."""
    page = (ROOT / "docs" / "reference" / "fault-matrix.md").read_text()
    table = page.split("## Through a real Airflow", 1)[0].splitlines()
    rows = [line for line in table if line.startswith("| ") and not line.startswith("| fault ")]
    expected = [
        f"| {name} | {' | '.join(row.expected[phase].words() for phase in PHASES)} |" for name, row in MATRIX.items()
    ]

    assert rows == expected, "run pytest tests/faults, then python -m tools.generate_fault_matrix"


def test_the_page_has_the_lives_that_are_tested() -> None:
    page = (ROOT / "docs" / "reference" / "fault-matrix.md").read_text()

    assert all(f"| {what} | {then} |" in page for what, then in generate_fault_matrix._lives())

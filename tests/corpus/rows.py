"""What the linter sees in the table: `python -m tests.corpus.rows`. Faults first, then overlaps, which are none by themselves."""

from __future__ import annotations

import sys

from gpualert.signature import default_rules
from gpualert.signature_lint import Coverage, faults_of_table, slow_line, unfound
from gpualert.signatures import TABLE
from tests.corpus.lines import SILENCES, all_lines


def main() -> int:
    rules = default_rules()
    coverage = Coverage(rules, all_lines())
    faults = list(faults_of_table(TABLE))
    faults += [f"{name}: no line of the corpora matches it" for name in coverage.without_sample()]
    for name, by in coverage.unreachable().items():
        if name not in SILENCES:
            faults.append(f"{name}: all lines that it matches are taken by {by}")
    faults += unfound(rules)
    for row in TABLE:
        line = slow_line(row.pattern)
        if line is not None:
            faults.append(f"{row.name}: slow on {line[:60]!r}…")
    print(f"{len(TABLE)} rows, {len(faults)} faults")
    for fault in faults:
        print("  " + fault)
    overlaps = coverage.overlaps()
    print(f"\n{len(overlaps)} pairs of rows claim one line for different classes; the first of each wins")
    for first, second, line in overlaps:
        named = [rules[name].failure_class for name in (first, second)]
        classes = " over ".join("none" if one is None else one.value for one in named)
        print(f"  {first} > {second}  ({classes})\n      {line.where}: {line.text[:140]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

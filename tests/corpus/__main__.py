"""Score the classifier on every corpus here (`make evaluate`), or on those that are named."""

from __future__ import annotations

import sys
from pathlib import Path

from gpualert.evaluate import main

HERE = Path(__file__).parent


def run(names: list[str]) -> int:
    corpora = [HERE / name for name in names] or sorted(path.parent for path in HERE.glob("*/labels.jsonl"))
    for corpus in corpora:
        print(f"== {corpus.name}")
        main([str(corpus / "labels.jsonl"), str(corpus / "logs")])
        print()
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

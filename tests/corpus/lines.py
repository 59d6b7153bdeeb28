"""Every line of the corpora, as the rules see it, and where it stands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gpualert.logprefix import clean
from gpualert.signature import fold_word
from gpualert.signature_lint import Line

HERE = Path(__file__).parent
_SEEN_BYTES = 4096
_ALIKE = 4

#: A row that silences the others on its line instead of outweighing them: not hidden, whatever the linter counts.
SILENCES = {"echo.supposed"}


def row_samples() -> list[dict[str, str]]:
    """Lines that were written down for one row each: ``rule``, ``line``, and ``source``, who prints such a line."""
    return [json.loads(line) for line in (HERE / "row_samples.jsonl").read_text().splitlines()]


def all_lines() -> Iterator[Line]:
    """Lines of all labelled logs, of the messages and of the rows' samples; a few of those that differ in numbers only."""
    seen: set[str] = set()
    forms: Counter[bytes] = Counter()
    for where, text in _all():
        if text and text not in seen:
            seen.add(text)
            form = fold_word(text)
            forms[form] += 1
            if forms[form] <= _ALIKE:
                yield Line(where, text)


def _all() -> Iterator[tuple[str, str]]:
    for number, sample in enumerate(row_samples(), 1):
        yield f"row_samples.jsonl:{number}", clean(sample["line"].encode())
    for number, line in enumerate((HERE / "messages.txt").read_text().splitlines(), 1):
        if "|" in line:
            yield f"messages.txt:{number}", clean(line.split("|", 1)[1].encode())
    for path in sorted(HERE.glob("*/logs/*.log")):
        for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
            for part in raw.split(b"\r"):
                yield f"{path.relative_to(HERE)}:{number}", clean(part[:_SEEN_BYTES])

"""Check that a corpus folder hangs together: ``python tools/provoke/check_labels.py DIR [DIR ...]``.

Each line of labels.jsonl has its log, the right number of lines, root lines that both ways of counting find with the
same text; and no log shows the machine it was made on.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FIELDS = (
    "id class alternates coarse coarse_alternates exit_code signal domain cascade trap n_lines root_lines root_lines_cr"
    " why reproduce"
).split()
# What a sandbox hides; in a log it would mean that the sandbox leaks.
TRACES = re.compile(rb"/root/|\.pyenv|provoke-venv|tools/provoke")
MAX_BYTES = 60_000


def complaints(folder: Path) -> list[str]:
    """:return: what is wrong in the folder, one sentence each; empty when nothing is."""
    found = []
    labels = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    ids = [label["id"] for label in labels]
    found += [f"{id_}: labelled twice" for id_ in sorted({id_ for id_ in ids if ids.count(id_) > 1})]
    logs = {path.stem for path in (folder / "logs").glob("*.log")}
    found += [f"{id_}: no log" for id_ in sorted(set(ids) - logs)] + [
        f"{id_}: no label" for id_ in sorted(logs - set(ids))
    ]
    for label in labels:
        if label["id"] in logs:
            found += [f"{label['id']}: {text}" for text in complaints_of(label, folder)]
    return found


def complaints_of(label: dict, folder: Path) -> list[str]:
    found = []
    if sorted(label) != sorted(FIELDS):
        return [f"expected the fields {sorted(FIELDS)}, found {sorted(label)}"]
    data = (folder / "logs" / f"{label['id']}.log").read_bytes()
    by_lf = data.split(b"\n")
    by_cr = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    n_lines = len(by_lf) - (by_lf[-1] == b"")
    if label["n_lines"] != n_lines:
        found.append(f"n_lines: expected {n_lines}, found {label['n_lines']}")
    if len(label["root_lines"]) != len(label["root_lines_cr"]):
        found.append("root_lines and root_lines_cr differ in length")
    for lf, cr in zip(label["root_lines"], label["root_lines_cr"], strict=False):
        if not (1 <= lf <= len(by_lf) and 1 <= cr <= len(by_cr)) or by_cr[cr - 1] not in by_lf[lf - 1]:
            found.append(f"root line {lf} and line {cr} counted with carriage returns are not the same text")
    if len(data) > MAX_BYTES:
        found.append(f"log of {len(data)} bytes, at most {MAX_BYTES} wanted")
    trace = TRACES.search(data)
    if trace:
        found.append(f"log shows {trace.group().decode()!r} of the machine it was made on")
    return found


def main() -> int:
    folders = [Path(name) for name in sys.argv[1:]]
    if not folders:
        print(__doc__)
        return 2
    found = [f"{folder}: {text}" for folder in folders for text in complaints(folder)]
    print("\n".join(found) if found else f"{len(folders)} folders hang together")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())

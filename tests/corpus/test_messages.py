"""The last line of an exception, in the words of the software that raises it, is enough to name the class."""

from __future__ import annotations

from pathlib import Path

from gpualert.classify import ExitFacts, classify
from gpualert.scan import Scanner

MESSAGES = [
    line.split("|", 1) for line in (Path(__file__).parent / "messages.txt").read_text().splitlines() if line.strip()
]
STEPS = "".join(f"step {number}/100 | loss {3 - number / 50:.2f}\n" for number in range(20))
ALONE = """Traceback (most recent call last):
  File "/w/t.py", line 3, in main
    f()
  File "/opt/conda/lib/python3.10/site-packages/torch/x.py", line 3, in g
    h()
{message}
"""
ON_A_RANK = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/t.py", line 3, in main
[rank3]:     f()
[rank3]: {message}
[rank0]:[E0301 15:20:49.348 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)
"""


def misses(frame: str) -> list[str]:
    found = []
    for expected, message in MESSAGES:
        scanner = Scanner()
        scanner.feed((STEPS + frame.format(message=message)).encode())
        said = classify(ExitFacts(code=1), scanner.finish()).failure_class.value
        if said != expected:
            found.append(f"{expected} -> {said}: {message}")
    return found


def test_messages_name_their_class_in_one_process() -> None:
    """Three hundred messages of some fifty libraries."""
    assert len(MESSAGES) > 300
    assert not misses(ALONE)


def test_messages_name_their_class_on_one_rank_of_several() -> None:
    """The other ranks' watchdogs do not hide it."""
    assert not misses(ON_A_RANK)

"""The scanner: what it finds depends on the bytes alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpualert.scan import WINDOW_BYTES, Scanner, ScanResult

PIECES = [
    b"step 10/100 | loss 2.31 | lr 1e-4\n",
    b" 10%|#  | 1/10 [00:01<00:09, 1.0it/s]\r",
    b"\x1b[31mRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\x1b[0m\n",
    b"[rank3]: Traceback (most recent call last):\n",
    b'[rank3]:   File "/w/train.py", line 3, in main\n',
    b"[rank3]: ValueError: bad\n",
    b"Traceback (most recent call last):\n",
    b'  File "/w/a.py", line 1, in <module>\n',
    b"KeyError: 'x'\n",
    b"\n",
    b"\r\n",
    b"During handling of the above exception, another exception occurred:\n",
    b"\x00\x00\xff\xfe",
    b"slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
    b"loss: nan\n",
    b"x" * 5000,
]
logs = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=60)), max_size=40).map(b"".join)


def scan(data: bytes, cuts: list[int]) -> ScanResult:
    scanner = Scanner()
    start = 0
    for cut in sorted(min(cut, len(data)) for cut in cuts):
        scanner.feed(data[start:cut])
        start = cut
    scanner.feed(data[start:])
    return scanner.finish()


def facts(result: ScanResult) -> tuple[object, ...]:
    return (
        result.events,
        dict(result.counts),
        [dict(trace) for trace in result.traces],
        result.progress,
        result.last_progress,
        result.tail,
        result.size_bytes,
        result.lines,
    )


@given(logs, st.lists(st.integers(0, 3000), max_size=6))
@settings(deadline=None, max_examples=150)
def test_chunks_do_not_matter(data: bytes, cuts: list[int]) -> None:
    """However a log arrives, the same is found in it."""
    assert facts(scan(data, cuts)) == facts(scan(data, []))


@given(logs, st.integers(0, 3000))
@settings(deadline=None, max_examples=150)
def test_a_scan_goes_on_in_another_process(data: bytes, cut: int) -> None:
    """State is JSON; the new scanner is fed from the offset that the old one names."""
    first = Scanner()
    first.feed(data[:cut])
    state = json.loads(json.dumps(first.to_state()))
    second = Scanner.from_state(state)
    assert second.offset_bytes == first.offset_bytes <= len(data[:cut])
    second.feed(data[second.offset_bytes :])

    assert facts(second.finish()) == facts(scan(data, []))


@given(st.binary(max_size=4000))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_a_log(data: bytes) -> None:
    """Binary output, cut UTF-8 and lone carriage returns crash nothing, and lines are counted as grep -n does."""
    assert scan(data, []).lines == data.count(b"\n")


def test_windows_do_not_matter_either() -> None:
    """A log of several windows, with lines across their borders and a line longer than one."""
    long_line = b"y" * (WINDOW_BYTES + 77)
    data = b"".join(
        b"step %d/9000 | loss %d.5\n" % (i, i % 7) + (long_line + b"\n" if i == 4000 else b"") for i in range(9000)
    )
    data += b"RuntimeError: CUDA out of memory. Tried\n"
    assert facts(scan(data, [1, 300_000, 300_001, 500_000])) == facts(scan(data, []))
    event = scan(data, []).events[-1]
    assert (event.line, event.offset) == (data.count(b"\n"), data.rindex(b"RuntimeError"))


def test_an_offset_finds_the_line_again() -> None:
    """Evidence can be cut out of the log by its offset, behind carriage returns too."""
    data = b" 1%|  | 1/99 [00:01<1:00, 1.0it/s]\r 2%|  | 2/99 [00:02<1:00, 1.0it/s]\rRuntimeError: CUDA out of memory\n"
    event = scan(data, []).events[0]
    assert (event.line, data[event.offset :].split(b"\n")[0]) == (1, b"RuntimeError: CUDA out of memory")


def test_progress_is_counted() -> None:
    """Lines that advance are counted, whatever logger wrote them; nan is no progress."""
    data = (
        b"{'loss': 2.4, 'epoch': 0.1}\nEpoch: [0][ 1/10] loss: 1.0\nloss: nan\n 5%|5 | 5/100 [00:01<00:20, 4.6it/s]\n"
    )
    assert scan(data, []).progress == 3


def test_memory_of_a_flood_is_bounded() -> None:
    """A rule that matches a hundred thousand times keeps its first and last lines and the count."""
    result = scan(b"RuntimeError: CUDA out of memory\n" * 100_000, [])
    assert result.counts["cuda_oom.torch"] == 100_000
    assert len(result.events) < 40
    assert result.events[-1].line == 100_000


def test_a_foreign_state_is_refused() -> None:
    """A state of another version or other rules says so, instead of giving a wrong count."""
    state = Scanner().to_state()
    with pytest.raises(ValueError, match="version"):
        Scanner.from_state({**state, "version": 99})
    with pytest.raises(ValueError, match="rules"):
        Scanner.from_state({**state, "rules": "0"})


def test_interleaved_ranks_keep_their_own_tracebacks() -> None:
    """Lines of two ranks torn into each other are still two exceptions."""
    data = (
        b"[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
        b'[rank0]:   File "/w/a.py", line 1, in f\n[rank1]:   File "/w/b.py", line 2, in g\n'
        b"[rank1]:     y()\n[rank0]:     x()\n[rank1]: ValueError: one\n[rank0]: KeyError: 'zero'\n"
    )
    found = {trace["rank"]: (trace["type"], trace["user_frame"]) for trace in scan(data, []).traces}
    assert found == {0: ("KeyError", "/w/a.py:1 in f"), 1: ("ValueError", "/w/b.py:2 in g")}


@pytest.mark.parametrize("name", ["012", "077", "127", "190"])
def test_chunks_do_not_matter_on_real_logs(name: str) -> None:
    """The same on logs of the corpus, in chunks of 997 bytes."""
    data = (Path(__file__).parents[1] / "corpus" / "reference" / "logs" / f"{name}.log").read_bytes()
    assert facts(scan(data, list(range(0, len(data), 997)))) == facts(scan(data, []))

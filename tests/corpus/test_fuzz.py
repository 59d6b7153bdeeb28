"""Whatever the bytes: a verdict, the same one however they arrive, small and printable.

`GPUALERT_FUZZ_EXAMPLES=5000 pytest tests/corpus/test_fuzz.py` looks further than the few examples of every day.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpualert.classify import ExitFacts, classify
from gpualert.durable import encode_json
from gpualert.scan import Scanner, ScanResult

HERE = Path(__file__).parent
#: A verdict travels in one frame and one XCom.
MOST_BYTES = 24 * 1024
EXAMPLES = int(os.environ.get("GPUALERT_FUZZ_EXAMPLES", "40"))
_LARGEST = 60_000

LOGS = sorted(path for path in HERE.glob("*/logs/*.log") if path.stat().st_size <= _LARGEST) + sorted(
    (HERE / "foreign").glob("*.txt")
)

often = settings(
    deadline=None,
    max_examples=EXAMPLES,
    derandomize=EXAMPLES <= 40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
exits = st.sampled_from(
    [ExitFacts(), *(ExitFacts(code=code) for code in (0, 1, 2, 124, 126, 127, 134, 137, 139, 143, 255))]
    + [ExitFacts(signal=number) for number in (1, 2, 6, 7, 9, 11, 15)]
)
seeds = st.integers(0, 2**32)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A log of the corpora, after a few accidents with another one."""
    data = draw(st.sampled_from(LOGS)).read_bytes()
    for _ in range(draw(st.integers(0, 4))):
        other = draw(st.sampled_from(LOGS)).read_bytes()
        data = _accident(draw(st.sampled_from(ACCIDENTS)), data, other, random.Random(draw(seeds)))[: 4 * _LARGEST]
    return data


ACCIDENTS = ("splice", "repeat", "truncate", "interleave", "ranks", "noise", "returns", "one line", "shuffle", "crlf")


def _accident(kind: str, data: bytes, other: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    if kind == "splice":
        return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]
    if kind == "repeat":
        start = chance.randrange(len(lines))
        block = lines[start : start + chance.randrange(1, 9)]
        return b"\n".join(lines[:start] + block * chance.randrange(2, 60) + lines[start:])
    if kind == "truncate":
        return data[chance.randrange(len(data) + 1) :][: chance.randrange(len(data) + 1)]
    if kind in ("interleave", "ranks"):
        streams = [list(lines), other.split(b"\n")]
        if kind == "ranks":
            streams = [[b"[rank%d]: " % rank + line for line in stream] for rank, stream in enumerate(streams)]
        woven = []
        while streams[0] or streams[1]:
            stream = chance.choice([stream for stream in streams if stream])
            woven.append(stream.pop(0))
        return b"\n".join(woven)
    if kind == "noise":
        noisy = bytearray(data)
        for _ in range(min(len(noisy), 200)):
            noisy[chance.randrange(len(noisy))] = chance.choice(b"\0\xff\x1b\n\r\x80 \xed\xa0")
        return bytes(noisy)
    if kind == "returns":
        return b"".join(line + chance.choice((b"\n", b"\r", b"\r\n")) for line in lines)
    if kind == "one line":
        return data.replace(b"\n", b" ")
    if kind == "shuffle":
        chance.shuffle(lines)
        return b"\n".join(lines)
    return data.replace(b"\n", b"\r\n")


def whole(data: bytes) -> ScanResult:
    scanner = Scanner()
    scanner.feed(data)
    return scanner.finish()


def in_pieces(data: bytes, chance: random.Random) -> ScanResult:
    """In pieces of sizes that change, and now and then carried over to another process."""
    scanner = Scanner()
    largest = chance.choice((1 + len(data) // 200, 1000, 70_000))
    at = 0
    carried = 0
    while at < len(data):
        size = chance.randrange(1, largest + 1)
        scanner.feed(data[at : at + size])
        at += size
        # A state is taken at the end of a line: with lines longer than the pieces, the next process starts far back.
        if carried < 6 and chance.random() < 0.1:
            carried += 1
            state = json.loads(json.dumps(scanner.to_state()))
            if chance.random() < 0.7:
                at = scanner.offset_bytes
                scanner = Scanner.from_state(state)
    return scanner.finish()


def judged(facts: ExitFacts, scan: ScanResult) -> bytes:
    told = classify(facts, scan).to_json()
    # Other readers write it as UTF-8, which has no place for half a character.
    json.dumps(told, ensure_ascii=False, allow_nan=False).encode("utf-8")
    verdict = encode_json(told)
    assert len(verdict) < MOST_BYTES, f"{len(verdict)} bytes"
    assert json.loads(verdict) == told
    return verdict


@given(st.one_of(st.binary(max_size=4000), mutated()), exits, seeds)
@often
def test_a_verdict_is_a_function_of_the_bytes(data: bytes, facts: ExitFacts, seed: int) -> None:
    """No bytes break it; chunks, stops and other processes change nothing; it is small, and valid UTF-8."""
    first = judged(facts, whole(data))

    assert judged(facts, in_pieces(data, random.Random(seed))) == first


@given(st.lists(st.sampled_from(LOGS), min_size=2, max_size=2), exits)
@settings(often, max_examples=max(4, EXAMPLES // 10))
def test_floods_do_not_make_a_verdict_large(paths: list[Path], facts: ExitFacts) -> None:
    """Two failures told over and over, with lines as long as any: bounded all the same."""
    flood = b"".join(path.read_bytes() for path in paths) * 10
    longest = max(paths[0].read_bytes().split(b"\n"), key=len) * 3000

    judged(facts, whole(flood[:700_000] + longest[:600_000]))

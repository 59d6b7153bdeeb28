"""Verdicts about logs that were not ours: files, gzip files, stdin, one or several ranks' files together."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any, Union

from gpualert.classify import ExitFacts, classify
from gpualert.errors import GpuAlertError
from gpualert.scan import Scanner, ScanResult
from gpualert.signature import RuleSet
from gpualert.taxonomy import FailureClass
from gpualert.verdict import Alternative, Classification

_CHUNK_BYTES = 1 << 20

#: A path, ``-`` for stdin, or an open binary stream.
Source = Union[str, IO[bytes]]


class LogUnreadable(GpuAlertError):
    """A log file cannot be opened or read."""

    kind = "log_unreadable"


def read_chunks(source: Source) -> Iterator[bytes]:
    """
    The bytes of a log; gzip is recognised by its first two bytes, whatever the name.

    A gzip file that is cut gives what could be unpacked.

    :raises LogUnreadable: it cannot be opened or read.
    """
    if not isinstance(source, str):
        yield from _plain_or_gzip(source, getattr(source, "name", "stream"))
        return
    if source == "-":
        if sys.stdin is None:
            raise LogUnreadable("-: expected a log on standard input, found it closed")
        yield from _plain_or_gzip(sys.stdin.buffer, "stdin")
        return
    try:
        stream = open(source, "rb")
    except OSError as error:
        raise LogUnreadable(f"{source}: expected a readable log, found: {error.strerror}") from error
    with stream:
        yield from _plain_or_gzip(stream, source)


def _plain_or_gzip(stream: IO[bytes], name: Any) -> Iterator[bytes]:
    try:
        first = stream.read(_CHUNK_BYTES)
        if first[:2] != b"\x1f\x8b":
            while first:
                yield first
                first = stream.read(_CHUNK_BYTES)
            return
    except OSError as error:
        raise LogUnreadable(f"{name}: expected a readable log, found: {error.strerror}") from error
    unpacked = gzip.GzipFile(fileobj=_Joined(first, stream))  # type: ignore[call-overload]
    while True:
        try:
            data = unpacked.read1(_CHUNK_BYTES)
        except (EOFError, OSError, zlib.error):
            return
        if not data:
            return
        yield data


class _Joined:
    """A stream that gives back what was read to look at it."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        self._first = first
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        if self._first:
            if size < 0:
                data, self._first = self._first, b""
                return data + self._rest.read()
            data, self._first = self._first[:size], self._first[size:]
            return data
        return self._rest.read(size)


def scan_source(source: Source, rules: RuleSet | None = None) -> ScanResult:
    """Scan one log to its end."""
    scanner = Scanner(rules)
    for chunk in read_chunks(source):
        scanner.feed(chunk)
    return scanner.finish()


def classify_file(
    source: Source, code: int | None = None, signal: int | None = None, rules: RuleSet | None = None
) -> Classification:
    """
    The verdict on one log.

    :param source: path (plain or gzip), ``-`` for stdin, or an open binary stream.
    :param code: exit code, if known. :param signal: number of the signal that ended it, if known.
    :raises LogUnreadable: it cannot be opened or read.
    """
    return classify(ExitFacts(code=code, signal=signal), scan_source(source, rules))


def classify_together(
    sources: Sequence[str], code: int | None = None, signal: int | None = None, rules: RuleSet | None = None
) -> Classification:
    """
    One verdict on several files of one job, such as its ranks' own logs.

    Each file is judged by itself; the first independent cause among them wins: by the time that its line carries where
    all of them carry one, else in the order given. A file that only echoes another rank's end is never the root.
    """
    exit_facts = ExitFacts(code=code, signal=signal)
    judged = []
    for source in sources:
        verdict = classify(exit_facts, scan_source(source, rules))
        judged.append((source, verdict.with_source(source)))
    causes = [item for item in judged if not _is_echo(item[1])]
    pool = causes or [item for item in judged if item[1].failure_class is not FailureClass.UNKNOWN] or judged
    pool = [item for item in pool if item[1].failure_class is not FailureClass.SUCCESS] or pool
    times = [_time_of(verdict) for _, verdict in pool]
    if all(time is not None for time in times):
        pool = [item for _, item in sorted(zip(times, pool), key=lambda pair: str(pair[0]))]
    chosen_source, chosen = pool[0]
    others = tuple(
        Alternative(verdict.failure_class, f"in {source}, which is not where it began", verdict.root)
        for source, verdict in judged
        if source != chosen_source and verdict.failure_class is not chosen.failure_class
    )
    echoes = tuple(verdict.root for source, verdict in judged if source != chosen_source and verdict.root is not None)
    return replace(chosen, alternatives=(others + chosen.alternatives)[:6], cascade=(chosen.cascade + echoes)[:6])


def _is_echo(verdict: Classification) -> bool:
    if verdict.failure_class in (FailureClass.UNKNOWN, FailureClass.SUCCESS, FailureClass.NCCL):
        return True
    return verdict.root is None or verdict.root.source == "exit"


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T _](\d\d:\d\d:\d\d(?:[.,]\d+)?)|\[?[EWIF](\d{4} \d\d:\d\d:\d\d\.\d+)")


def _time_of(verdict: Classification) -> str | None:
    if verdict.root is None:
        return None
    found = _TIME.search(verdict.root.text)
    if found is None:
        return None
    return f"{found.group(1)} {found.group(2)}" if found.group(1) else found.group(3)

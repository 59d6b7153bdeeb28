"""Verdicts about logs that were not ours: files, gzip files, stdin, one or several ranks' files together."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, Union

from gpualert.classify import ExitFacts, classify
from gpualert.errors import GpuAlertError
from gpualert.rank_files import traceback_of
from gpualert.scan import Scanner, ScanResult
from gpualert.several import first_cause, time_of
from gpualert.signature import RuleSet
from gpualert.verdict import Classification

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
    """
    Scan one log to its end. A rank's error file, as ``torch.distributed.elastic`` writes it, is read for the traceback
    that it holds; lines are then counted in that.
    """
    scanner = Scanner(rules)
    first = True
    for chunk in read_chunks(source):
        scanner.feed((traceback_of(chunk) or chunk) if first and len(chunk) < _CHUNK_BYTES else chunk)
        first = False
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
    judged = [(source, classify(exit_facts, scan_source(source, rules)).with_source(source)) for source in sources]
    return first_cause([(source, verdict, time_of(verdict)) for source, verdict in judged])

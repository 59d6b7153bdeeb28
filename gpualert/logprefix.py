"""What stands before the message in a log line: colours, ranks, pods, timestamps, log levels.

Every launcher and logger puts something of its own there, several at a time, so the parts are peeled off one by one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]+")

# Each alternative is one kind of prefix; at most eight are peeled. Group 1..n: a rank, where the prefix names one.
_PEEL = re.compile(
    r"\s*(?:"
    r"\[(?:rank|default|trainer|worker|node)[ _-]?(\d+)\]:[ ]?"  # torchrun --tee, torch >= 2.3
    r"|\[(\d+)\]:[ ]"  # older torchrun
    r"|(\d{1,5}):[ ](?!\d)"  # srun --label
    r"|\[\d+,(\d+)\](?:<std(?:out|err)>)?:"  # mpirun --tag-output
    r"|\((?:[A-Za-z_][\w.]{0,60}\s?)?(?:(?:rank|TP|PP)\s?=?\s?(\d+)\s?)?[^()]{0,40}pid=\d+[^()]{0,60}\)\s?"  # ray, vllm
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\s\d\d-\d\d\s\d\d:\d\d:\d\d(?:\.\d+)?\s\[[^\]]{1,80}\]\s?"  # vllm
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ ](?:std(?:out|err)\s[FP]\s)?"
    r"|[A-Z][a-z]{2}\s[ \d]\d\s\d\d:\d\d:\d\d\s[\w.-]{1,60}\s(?=[\w.\[])"  # syslog
    r"|(?:worker|node|host|gpu|rank|pod|ip)[-_]?\d[\w.-]{0,60}:[ ](?=\S)"  # pdsh
    r")"
)
_RANK_ANYWHERE = re.compile(
    r"\[[Rr]ank[: ]{0,2}(\d{1,6})\]|\brank[ =:](\d{1,6})\b|\(rank(\d{1,6})\)|\[default(\d{1,5})\]"
    r"|local_rank: (\d{1,4})\b"
)
_LEVEL = re.compile(
    r"(?:^|[\s\[|(:])(TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)\b"
    r"|^\[?([IWEF])\d{4} \d\d:\d\d"
    r"|\d\.\d+: ([IWEF]) \w"
    r"|^\[([IWEF]) \w+\.cpp"
    r"|\]:\[([IWEF])\d{3,4} "
)
_QUIET = {"TRACE", "DEBUG", "INFO", "NOTICE", "I"}
_WARN = {"WARNING", "WARN", "W"}


class Line(NamedTuple):
    """A line without colours: whole, and without what stands before its message."""

    text: str
    body: str
    #: the peeled parts without times: lines with the same stream belong to one process, as far as one can tell
    stream: str
    rank: int | None


def clean(raw: bytes) -> str:
    """The line as text: invalid UTF-8 replaced, colours and control characters removed."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text).rstrip()


_DIGITS = re.compile(r"\d+")


def split(text: str) -> Line:
    """Peel the prefixes off a clean line."""
    position = 0
    rank: int | None = None
    stream = ""
    for _ in range(8):
        match = _PEEL.match(text, position)
        if match is None or match.end() == position:
            break
        part = match.group(0)
        named = next((group for group in match.groups() if group is not None), None)
        if named is not None:
            rank = int(named)
            stream += part.strip()
        elif "pid=" in part:
            stream += part.strip()
        elif not part.strip()[:1].isdigit() and not part.lstrip().startswith(("[1", "[2")):
            stream += _DIGITS.sub("", part.strip())
        position = match.end()
    return Line(text, text[position:], stream[:80], rank)


def rank_of(line: Line) -> int | None:
    """The rank that the line names, in its prefix or elsewhere; None if it names none."""
    if line.rank is not None:
        return line.rank
    match = _RANK_ANYWHERE.search(line.text)
    if match is None:
        return None
    return int(next(group for group in match.groups() if group is not None))


def level_of(text: str) -> str | None:
    """``quiet`` (info and below), ``warning``, ``error``, or None when the line names no level."""
    match = _LEVEL.search(text[:160])
    if match is None:
        return None
    word = next(group for group in match.groups() if group is not None)
    if word in _QUIET:
        return "quiet"
    return "warning" if word in _WARN else "error"

"""One verdict from the verdicts on several logs of one job: where did it begin?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional, Tuple

from gpualert.classify import ExitFacts, classify
from gpualert.rank_files import RankFile
from gpualert.scan import Scanner
from gpualert.signature import RuleSet
from gpualert.taxonomy import FailureClass
from gpualert.verdict import Alternative, Classification, Evidence

#: Source's name, verdict on it, and when it happened, in any form that sorts; None where nothing says.
JudgedLog = Tuple[str, Classification, Optional[str]]

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T _](\d\d:\d\d:\d\d(?:[.,]\d+)?)|\[?[EWIF](\d{4} \d\d:\d\d:\d\d\.\d+)")


def first_cause(judged: Sequence[JudgedLog]) -> Classification:
    """
    The verdict on the log that holds the first independent cause, with what the others say beside it.

    The first is the earliest where all that name a cause have a time, else the first in the order given. A log that
    only echoes another rank's end is never the root.
    """
    causes = [item for item in judged if not only_echoes(item[1])]
    pool = causes or [item for item in judged if item[1].failure_class is not FailureClass.UNKNOWN] or list(judged)
    pool = [item for item in pool if item[1].failure_class is not FailureClass.SUCCESS] or pool
    if all(item[2] is not None for item in pool):
        pool = sorted(pool, key=lambda item: str(item[2]))
    chosen_source, chosen, _ = pool[0]
    others = tuple(
        Alternative(verdict.failure_class, f"in {source}, which is not where it began", verdict.root)
        for source, verdict, _ in judged
        if source != chosen_source and verdict.failure_class is not chosen.failure_class
    )
    echoes = tuple(
        verdict.root for source, verdict, _ in judged if source != chosen_source and verdict.root is not None
    )
    return replace(chosen, alternatives=(others + chosen.alternatives)[:6], cascade=(chosen.cascade + echoes)[:6])


def with_rank_files(
    verdict: Classification,
    files: Sequence[RankFile],
    exit: ExitFacts,
    rules: RuleSet | None = None,
    observations: Mapping[str, Any] | None = None,
) -> Classification:
    """
    The verdict on a job's log, or on a rank's own file where only that holds the cause.

    :param observations: as for :func:`gpualert.classify.classify`.
    :param files: earliest first. Their evidence has the file's path as its source; where the file is no log, no lines.
    """
    judged: list[JudgedLog] = []
    for file in files:
        scanner = Scanner(rules)
        scanner.feed(file.text)
        found = classify(exit, scanner.finish(), observations)
        if not only_echoes(found):
            judged.append((file.path, _as_rank(found, file), "%020.6f" % file.written_at))
    if not judged:
        return verdict
    chosen = first_cause(judged)
    seen = tuple(item for item in verdict.evidence + verdict.cascade if item.source == "log")
    return replace(
        chosen,
        cascade=(chosen.cascade + seen)[:6],
        not_seen=tuple(dict.fromkeys(chosen.not_seen + verdict.not_seen)),
        warnings=tuple(dict.fromkeys(verdict.warnings + chosen.warnings)),
    )


def _as_rank(verdict: Classification, file: RankFile) -> Classification:
    """Its evidence, with the file as source and the rank that the path names."""
    is_log = file.path.endswith(".log")

    def moved(item: Evidence) -> Evidence:
        if item.source != "log":
            return item
        rank = item.rank if item.rank is not None else file.rank
        # The end of a long log was read, or what a JSON file holds: neither has lines to be looked up.
        return replace(
            item, source=file.path, rank=rank, line=item.line if is_log and file.whole else None, offset=None
        )

    return replace(
        verdict,
        evidence=tuple(moved(item) for item in verdict.evidence),
        cascade=tuple(moved(item) for item in verdict.cascade),
        alternatives=(),
    )


def only_echoes(verdict: Classification) -> bool:
    """Whether a verdict names no cause of its log's own: nothing, a collective's complaint, the exit status alone."""
    if verdict.failure_class in (FailureClass.UNKNOWN, FailureClass.SUCCESS, FailureClass.NCCL):
        return True
    return verdict.root is None or verdict.root.source == "exit"


def time_of(verdict: Classification) -> str | None:
    """The time that a verdict's root line carries; None when it carries none."""
    found = None if verdict.root is None else _TIME.search(verdict.root.text)
    if found is None:
        return None
    return f"{found.group(1)} {found.group(2)}" if found.group(1) else found.group(3)

"""What Slurm says of the job that a launch runs in, or that it started.

Source: sacct(1), scontrol(1) of Slurm 20 to 24; states in slurm/slurm.h.
"""

from __future__ import annotations

import re
import time
from typing import Any, Mapping, Sequence

from gpualert.probe_program import output_of

MAX_BYTES = 256 * 1024
_FIELDS = "JobID,State,ExitCode,DerivedExitCode,Reason,MaxRSS,End"
#: Older versions have no Reason.
_OLD_FIELDS = "JobID,State,ExitCode,DerivedExitCode,MaxRSS,End"
#: A state that says who ended it, the most telling first.
TELLING = ("OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "TIMEOUT", "DEADLINE", "REVOKED")
_JOB = re.compile(r"^[0-9]{1,10}(?:_[0-9]{1,7})?(?:\+[0-9]{1,5})?$")
_IN_LOG = re.compile(
    r"\bsrun: (?:error: )?[Jj]ob (\d{1,10})\b|^Submitted batch job (\d{1,10})\b"
    r"|\b(?:srun|salloc): (?:Granted|Pending) job allocation (\d{1,10})\b"
    r"|\b(?:srun|salloc): job (\d{1,10}) (?:queued|has been allocated)"
)


def job_of(environment: Mapping[str, str] | None, lines: Sequence[str] = ()) -> str | None:
    """
    The job to ask about.

    :param environment: of the child. A job that the log names comes before it: the launch started that one.
    :param lines: of the log, that name jobs.
    """
    for line in lines:
        named = _IN_LOG.search(line)
        if named is not None:
            return next(group for group in named.groups() if group)
    job = str((environment or {}).get("SLURM_JOB_ID") or (environment or {}).get("SLURM_JOBID") or "")
    return job if _JOB.match(job) else None


def look(job: str, began_at: float | None, bound_s: float) -> dict[str, Any]:
    """
    :param began_at: seconds since the epoch; steps that ended before belong to others in the same job.
    :return: {"seen": {job, state, reason, exit_code, max_rss, said}} with what sacct and scontrol say, or
        {"not_seen": why}.
    """
    if not _JOB.match(job):
        return {"not_seen": f"expected a job id, found {job[:40]!r}"}
    until = time.monotonic() + bound_s
    reasons, rows, facts = [], [], {}
    try:
        facts = parse_scontrol(output_of(["scontrol", "show", "job", job], time.monotonic() + bound_s / 2, MAX_BYTES))
    except OSError as error:
        reasons.append(f"scontrol: {error.strerror}")
    words = ["sacct", "-n", "-P", "-j", job, "-o"]
    try:
        try:
            text = output_of([*words, _FIELDS], until, MAX_BYTES, {"SLURM_TIME_FORMAT": "%s"})
            rows = parse_sacct(text, _FIELDS)
        except OSError as error:
            if "nvalid field" not in str(error.strerror):
                raise
            text = output_of([*words, _OLD_FIELDS], until, MAX_BYTES, {"SLURM_TIME_FORMAT": "%s"})
            rows = parse_sacct(text, _OLD_FIELDS)
    except OSError as error:
        reasons.append(f"sacct: {error.strerror}")
    seen = judge(job, rows, facts, began_at)
    if seen["state"] is None:
        return {"not_seen": "; ".join(reasons) or f"neither sacct nor scontrol knows job {job}"}
    return {"seen": seen}


def parse_sacct(text: str, fields: str = _FIELDS) -> list[dict[str, str]]:
    """Rows of ``sacct -n -P``; lines of another shape (warnings, messages) are left out."""
    names = fields.split(",")
    found = []
    for line in text.splitlines()[:1000]:
        words = line.split("|")
        if len(words) == len(names) and re.match(r"^[0-9]", words[0]) and re.match(r"^[A-Z_]+", words[1]):
            found.append({name: word.strip()[:100] for name, word in zip(names, words)})
    return found


def parse_scontrol(text: str) -> dict[str, str]:
    """``Name=Value`` of the first job of ``scontrol show job``."""
    found: dict[str, str] = {}
    for word in text[:65536].split():
        name, mark, value = word.partition("=")
        if mark and name.isidentifier():
            if name == "JobId" and "JobId" in found:
                break
            found.setdefault(name, value[:100])
    return found


def judge(
    job: str, rows: Sequence[Mapping[str, str]], facts: Mapping[str, str], began_at: float | None
) -> dict[str, Any]:
    """The state that tells most, of the job and of those of its steps that had not ended before the launch began."""
    seen: dict[str, Any] = {"job": job, "state": None, "reason": None, "exit_code": None, "max_rss": None, "said": None}
    candidates: list[tuple[int, str, Mapping[str, str], str]] = []
    for row in rows:
        end = row.get("End", "")
        if began_at is not None and end.isdigit() and int(end) < began_at - 2:
            continue
        candidates.append((_rank(row["State"]), row["State"], row, f"sacct: {row['JobID']} {row['State']}"))
    state = facts.get("JobState")
    if state:
        row = {"ExitCode": facts.get("ExitCode", ""), "Reason": facts.get("Reason", "")}
        candidates.append((_rank(state), state, row, f"scontrol: {facts.get('JobId', job)} {state}"))
    if candidates:
        _, state, row, said = min(candidates, key=lambda one: one[0])
        reason = row.get("Reason") or facts.get("Reason") or None
        seen.update(
            state=state,
            reason=None if reason in (None, "None", "(null)") else reason,
            exit_code=row.get("ExitCode") or None,
            max_rss=row.get("MaxRSS") or None,
            said=said,
        )
    return seen


def _rank(state: str) -> int:
    state = state.upper()
    for place, name in enumerate(TELLING):
        if state.startswith(name[:9]):
            return place
    if state.startswith("CANCELLED"):
        return 20 if " BY " in state else 21
    return 30 if state.startswith(("FAILED", "COMPLETED")) else 40

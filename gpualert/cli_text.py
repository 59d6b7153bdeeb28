"""What people read: one block per verdict, one line per launch, one line per finding. Nothing here decides anything."""

from __future__ import annotations

import time
from typing import Any, Iterable, Mapping, Sequence

from gpualert.doctor import Finding
from gpualert.outcome import Outcome
from gpualert.records import RunRecord


def verdict_block(outcome: Outcome) -> str:
    """A few lines about an end that people want to know more of; empty for a plain success without warnings."""
    lines = []
    if not outcome.succeeded or outcome.failure_class not in (None, "success"):
        head = f"{outcome.state}: {outcome.exit_text}"
        if outcome.failure_class is not None:
            head += f", class {outcome.failure_class}, domain {outcome.domain}"
        lines.append(head)
        # What the exit status alone says stands in the first line already.
        for item in [item for item in outcome.evidence if item.get("source") != "exit"][:1]:
            lines.append(f"{_where(item)}: {item.get('text')}")
        if outcome.advice:
            lines.append(f"advice: {outcome.advice}")
    lines.extend(f"warning: {warning}" for warning in outcome.warnings)
    if outcome.survivors:
        lines.append(f"warning: {len(outcome.survivors)} process(es) outlived the stop: {_pids(outcome)}")
    if not lines:
        return ""
    lines.append(f"run directory: {outcome.run_directory}")
    return "".join(f"gpualert: {printable(line)}\n" for line in lines)


def verdict_lines(outcome: Outcome) -> str:
    """What ``status`` says of the cause, below the facts."""
    outlook = outcome.retry_outlook or {}
    shown: list[tuple[str, object]] = [
        ("class", outcome.failure_class),
        ("domain", outcome.domain),
        ("another try", f"same host: {outlook.get('same_host')}, other host: {outlook.get('other_host')}"),
        *(("evidence", f"{_where(item)}: {item.get('text')}") for item in outcome.evidence),
        *(("not seen", item) for item in outcome.not_seen),
        ("advice", outcome.advice or None),
        *(("warning", warning) for warning in outcome.warnings),
    ]
    return _table(shown)


def _table(shown: Sequence[tuple[str, object]]) -> str:
    return "\n".join(f"{name + ':':<16}{printable(str(value))}" for name, value in shown if value is not None)


def _where(item: Mapping[str, Any]) -> str:
    line = item.get("line")
    return f"{item.get('source')}{'' if line is None else f' line {line}'}"


def _pids(outcome: Outcome) -> str:
    return ", ".join(f"{one.get('pid')} {one.get('command') or ''}".strip() for one in outcome.survivors or ())


def record_line(record: RunRecord, now: float | None = None) -> str:
    """``LAUNCH-ID  STATE  HOW  DURATION  LABEL``, for a list."""
    how = "" if record.exit is None else record.exit.text
    if record.lost_reason:
        how = record.lost_reason
    words = [
        f"{record.launch_id:<40}",
        f"{record.state:<11}",
        f"{how:<22}",
        f"{duration(record, time.time() if now is None else now):>9}",
        record.label or "",
    ]
    return printable("  ".join(words).rstrip())


def damage_line(item: Mapping[str, Any]) -> str:
    """``LAUNCH-ID  DAMAGED  WHY``, for a list; ``NEWER`` for what another version wrote."""
    word = "NEWER" if item["newer"] else "DAMAGED"
    return printable(f"{item['launch_id'] or item['run_directory']:<40}  {word:<11}  {item['why']}")


def record_lines(record: RunRecord) -> str:
    """All that ``status`` says of one launch, a line for each thing known."""
    shown: list[tuple[str, object]] = [
        ("launch", record.launch_id),
        ("state", f"{record.state}{'' if record.lost_reason is None else f' ({record.lost_reason})'}"),
        ("ended", None if record.exit is None else record.exit.text),
        ("stopped by", record.stopped_by),
        ("stop requested", record.stop_reason if record.stop_requested else None),
        ("created", _when(record.created_at)),
        ("started", _when(record.started_at)),
        ("ended at", _when(record.ended_at)),
        ("ran for", duration(record, time.time()) or None),
        ("label", record.label),
        ("attempt", record.attempt.number),
        ("pid", record.child_pid if not record.state.ended else None),
        ("supervised", "no: its keepers are gone" if record.supervised is False else None),
        ("log", f"{record.log_path} ({'size unknown' if record.log_size_bytes is None else _bytes(record)})"),
        ("survivors", ", ".join(str(one.get("pid")) for one in record.survivors) if record.survivors else None),
        ("run directory", record.run_directory),
        ("note", record.note),
        *(("warning", warning) for warning in record.warnings),
    ]
    return _table(shown)


def _bytes(record: RunRecord) -> str:
    return f"{record.log_size_bytes} bytes{', truncated by the command' if record.log_truncated else ''}"


def duration(record: RunRecord, now: float) -> str:
    """``1:02:03``, from the start to the end or until now; empty when it has not started."""
    seconds = record.elapsed_s
    if seconds is None:
        if record.started_at is None or record.state.ended:
            return ""
        seconds = max(0.0, now - record.started_at)
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _when(unix_time: float | None) -> str | None:
    return None if unix_time is None else time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(unix_time))


def finding_lines(findings: Sequence[Finding]) -> str:
    """One line per finding, and its advice below it."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<8} {finding.name:<8} {printable(finding.found)}")
        if finding.advice:
            lines.append(f"{'':<17} → {printable(finding.advice)}")
    return "\n".join(lines)


def printable(text: str) -> str:
    """The text with control characters shown as U+FFFD, so that a log line cannot drive the reader's terminal."""
    return "".join(_shown(text))


def _shown(text: str) -> Iterable[str]:
    for character in text:
        yield character if character == "\t" or character.isprintable() else "\ufffd"

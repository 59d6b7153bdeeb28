"""The process that has an opinion: it reads the growing log, scans it, and classifies when the child has ended.

It only ever reads what the child and its keepers write, and only ever writes below ``observer/``. It may be killed,
stopped or crash at any time: only a report waits for it, and can do the same work itself from the state saved here.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any

from gpualert import gitfacts, procfs, records
from gpualert.errors import GpuAlertError
from gpualert.launch_rules import rules_of_launch
from gpualert.logfile import LogReader, TimeIndex
from gpualert.rundir import FORMAT_VERSION, RunDirectory, encode_json, replace, write_once

if TYPE_CHECKING:
    from gpualert.exit_facts import ExitFacts
    from gpualert.probes import Looks
    from gpualert.rank_files import RankFile
    from gpualert.scan import ScanResult
    from gpualert.signature import RuleSet
    from gpualert.verdict import Classification, Evidence

#: Bytes of the log read and scanned together.
READ_BYTES = 1024 * 1024
SAVE_EVERY_S = 5.0
#: Longest sleep while nothing happens. With a pidfd the child's end wakes us; without one we have to look more often.
QUIET_S = 0.5
QUIET_WITHOUT_PIDFD_S = 0.04
#: Between looks for exit.json once the child is known to be gone.
CLOSING_S = 0.005
#: How long to wait for exit.json after the child's end before concluding that nobody is left to write it.
KEEPERS_GONE_S = 60.0
_NICE = 10
#: Source of evidence that was seen in the log before the command cut it.
CUT_LOG = "log before it was cut"


class ScanProgress:
    """
    A scanner and where it stands in the log; what the observer saves and a report goes on from.

    A log that was cut begins a new generation, scanned from its start. What the one before it held is kept
    in :attr:`before_cut` as long as this process lives.

    :param rules: None: the built-in ones with those that the launch brought.
    """

    def __init__(
        self, directory: RunDirectory, saved: dict[str, Any] | None = None, rules: RuleSet | None = None
    ) -> None:
        from gpualert.scan import Scanner

        self._rules, self._warning = (rules, None) if rules is not None else rules_of_launch(directory)
        self.scanner = Scanner(self._rules)
        self.before_cut: ScanResult | None = None
        generation, offset, fingerprint = 0, 0, None
        if saved is not None:
            try:
                scanner = Scanner.from_state(saved["scanner"], self._rules)
                generation, offset = int(saved["generation"]), int(saved["offset"])
                fingerprint = bytes.fromhex(saved["fingerprint"])
                self.scanner = scanner
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                # Another version's, or damaged: scan from the start.
                generation, offset, fingerprint = 0, 0, None
        self.reader = LogReader(directory.log_path, generation, offset, fingerprint)

    def advance(self, max_bytes: int = READ_BYTES) -> int:
        """Read and scan once. :return: bytes scanned; 0 at the end of the log."""
        generation = self.reader.position[0]
        scanned = 0
        for chunk in self.reader.read(max_bytes):
            if chunk.generation != generation:
                generation = chunk.generation
                self._start_again()
            self.scanner.feed(chunk.data)
            scanned += len(chunk.data)
        return scanned

    def _start_again(self) -> None:
        from gpualert.scan import Scanner

        found = self.scanner.finish()
        if found.events or found.traces:  # a cut that follows at once must not hide the one before it
            self.before_cut = found
        self.scanner = Scanner(self._rules)

    def judge(self, directory: RunDirectory, looks: Looks | None = None) -> Classification:
        """:func:`judge` of all that was scanned, and by which rules where that is not clear. The scanner ends here."""
        from dataclasses import replace as changed

        verdict = judge(directory, self.scanner.finish(), self.before_cut, looks)
        return verdict if self._warning is None else changed(verdict, warnings=(*verdict.warnings, self._warning))

    def to_json(self) -> dict[str, Any]:
        state = self.scanner.to_state()
        offset = self.scanner.offset_bytes
        generation, read_until = self.reader.position
        # The scanner keeps back an unfinished line, which is read again: the fingerprint is of what lies before it.
        before = self.reader.bytes_before(offset) if offset != read_until else self.reader.fingerprint
        return {"generation": generation, "offset": offset, "fingerprint": before.hex(), "scanner": state}


def main(run_directory: str) -> None:
    """Observe one launch to its end, and return. Goes on where an earlier observer of it stopped."""
    _be_nice()
    Observer(RunDirectory(run_directory)).run()


class Observer:
    """:param directory: of a launch whose child runs, will run, or has ended."""

    def __init__(self, directory: RunDirectory) -> None:
        from gpualert.probes import Looks  # late: a report imports this module, and rarely needs that one

        self._directory = directory
        self._progress = ScanProgress(directory, load_scan(directory))
        self._index = TimeIndex(directory.index_path)
        self._child: procfs.ProcessIdentity | None = None
        self._pidfd: int | None = None
        self._child_ended_at: float | None = None
        self._saved_at = float("-inf")
        self._saved_position: tuple[int, int] | None = None
        self._pause_s = CLOSING_S
        self._began_at = time.monotonic()
        self._git: threading.Thread | None = None
        self._looks: Looks | None = Looks(directory)

    def run(self) -> None:
        """Until the verdict is written, or nobody is left who could write how the child ended."""
        try:
            self._run()
        finally:
            if self._git is not None:
                self._git.join(gitfacts.BOUND_S + 1.0)

    def _run(self) -> None:
        scan_until: tuple[int, int] | None = None
        while not os.path.exists(self._directory.verdict_path):
            if scan_until is None and self._directory.has_ended():
                # What a command leaves running behind it may write for ever; the verdict is about the child.
                scan_until = (self._progress.reader.position[0], self._progress.reader.size() or 0)
            scanned = self._scan_some()
            if scan_until is not None and (not scanned or self._progress.reader.position >= scan_until):
                self._conclude()
                return
            self._save_sometimes()
            self._look_beside()
            if scanned:
                self._pause_s = CLOSING_S
                continue
            if self._nobody_left():
                self._save()
                return
            self._ask_git_once()
            _warm_up()
            self._pause()

    def _scan_some(self) -> bool:
        reader = self._progress.reader
        generation, offset = reader.position
        size = reader.size()
        if size is not None and size > offset:
            # Before the bytes are scanned: scanning may lag behind a flood, and the index is about the writer's time.
            self._note_time(generation, size)
        return self._progress.advance() > 0

    def _conclude(self) -> None:
        generation, offset = self._progress.reader.position
        classification = self._progress.judge(self._directory, self._looks)
        verdict = dict(classification.to_json(), format_version=FORMAT_VERSION, generation=generation, offset=offset)
        write_once(self._directory.verdict_path, encode_json(verdict) + b"\n")
        self._note_time(generation, offset, force=True)

    def _note_time(self, generation: int, offset: int, force: bool = False) -> None:
        try:
            self._index.append(generation, offset, time.time(), force)
        except OSError:  # the disk is full: the verdict matters more than the times
            pass

    def _look_beside(self) -> None:
        """Whatever is due beside the scan. A defect there costs what would have been seen, and nothing else."""
        child = self._find_child()
        if self._looks is None or child is None or self._child_ended_at is not None:
            return
        try:
            self._looks.step(child)
        except Exception:
            self._looks = None

    # -- waiting

    def _find_child(self) -> procfs.ProcessIdentity | None:
        if self._child is None:
            started = self._directory.read_started()
            if started is not None:
                self._child = procfs.ProcessIdentity.from_json(started["child"])
                self._open_pidfd(self._child)
        return self._child

    def _open_pidfd(self, child: procfs.ProcessIdentity) -> None:
        opener = getattr(os, "pidfd_open", None)  # Python 3.9, Linux 5.3
        if opener is None:
            return
        try:
            self._pidfd = opener(child.pid)
        except OSError:
            return
        if procfs.alive(child) is False:  # the pid is somebody else's by now
            os.close(self._pidfd)
            self._pidfd = None

    def _pause(self) -> None:
        """Wait, longer and longer while nothing happens; the child's end cuts it short."""
        child = self._find_child()
        if self._child_ended_at is None and child is not None and procfs.alive(child) is False:
            self._child_ended_at = time.monotonic()
        if self._child_ended_at is not None:
            since = time.monotonic() - self._child_ended_at
            time.sleep(CLOSING_S if since < 2.0 else QUIET_WITHOUT_PIDFD_S)
            return
        if self._pidfd is None:
            time.sleep(min(self._pause_s, QUIET_WITHOUT_PIDFD_S))
        elif select.select([self._pidfd], [], [], self._pause_s)[0]:
            self._child_ended_at = time.monotonic()
        self._pause_s = min(self._pause_s * 2, QUIET_S)

    def _nobody_left(self) -> bool:
        """The child is gone (or never came), and its keepers had their time to say how it ended."""
        since = self._began_at if self._find_child() is None else self._child_ended_at
        return since is not None and time.monotonic() - since > KEEPERS_GONE_S

    # -- state

    def _save_sometimes(self) -> None:
        if time.monotonic() - self._saved_at >= SAVE_EVERY_S and self._progress.reader.position != self._saved_position:
            self._save()

    def _save(self) -> None:
        me = procfs.identify(os.getpid())
        state = dict(
            self._progress.to_json(), format_version=FORMAT_VERSION, observer=None if me is None else me.to_json()
        )
        try:
            replace(self._directory.scan_path, encode_json(state))
        except GpuAlertError:  # the disk is full: a successor would have to scan from the start
            pass
        self._saved_at = time.monotonic()
        self._saved_position = self._progress.reader.position

    def _ask_git_once(self) -> None:
        """Near the start, for later the checkout may be another one; beside the scan, which must not wait for it."""
        if self._git is None and self._find_child() is not None:
            self._git = threading.Thread(target=record_git, args=(self._directory,), daemon=True)
            self._git.start()


def judge(
    directory: RunDirectory, scan: ScanResult, before_cut: ScanResult | None = None, looks: Looks | None = None
) -> Classification:
    """
    The verdict about a launch that has ended, from its log, what its keepers wrote down, and what was seen of the host.

    :param before_cut: what the log held before the command cut it; it decides only where the rest does not, and its
        evidence says where it comes from.
    :param looks: of the observer that saw the launch run; None: what one of them wrote down counts.
    :raises RunDirectoryError: the facts cannot be read.
    """
    from gpualert.classify import ExitFacts, classify
    from gpualert.several import only_echoes, with_rank_files
    from gpualert.taxonomy import FailureClass

    record = records.read(directory.path)
    end = record.exit or records.ExitStatus()
    facts = ExitFacts(
        code=end.code,
        signal=end.signal,
        stopped_by=record.stopped_by,
        setup_failed=record.setup_failed,
        lost=record.lost_reason,
        exec_errno=record.exec_errno,
    )
    beside = _beside_the_log(directory, record, facts, scan, looks)
    verdict = classify(facts, scan, beside)
    if not facts.succeeded and only_echoes(verdict):
        verdict = with_rank_files(verdict, _rank_files(directory, record, scan), facts, scan.rules, beside)
    if before_cut is None or verdict.failure_class is not FailureClass.UNKNOWN:
        return verdict
    earlier = classify(facts, before_cut, beside)
    return verdict if earlier.failure_class is FailureClass.UNKNOWN else _of_lost_bytes(earlier)


def _beside_the_log(
    directory: RunDirectory, record: records.RunRecord, facts: ExitFacts, scan: ScanResult, looks: Looks | None
) -> dict[str, Any] | None:
    """What the host showed. None when nobody could look, or a defect of ours kept them from it."""
    if looks is None and facts.succeeded:
        return None
    try:
        from gpualert import probes
        from gpualert.judge_observations import names_of_jobs, rank_killed

        lines, killed = names_of_jobs(scan), rank_killed(facts, scan)
        if looks is not None:
            return looks.conclude(facts, record.child_pid, lines, killed)
        return probes.for_report(directory, facts, record.child_pid, lines, killed)
    except Exception:
        return None


def _rank_files(directory: RunDirectory, record: records.RunRecord, scan: ScanResult) -> list[RankFile]:
    """What the ranks of this launch left in files of their own."""
    from gpualert.rank_files import log_dir_of, read_rank_files

    spec = directory.read_spec() or {}
    command = spec.get("command") or ""
    text = command if isinstance(command, str) else " ".join(map(str, command))
    log_dir = log_dir_of(text, os.path.expanduser(spec.get("cwd") or "~"), spec.get("env") or {})
    return read_rank_files(scan, record.created_at, log_dir)


def _of_lost_bytes(verdict: Classification) -> Classification:
    """The verdict with evidence that can no longer be looked up: its offsets would point into other bytes."""
    from dataclasses import replace as changed

    def moved(items: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return tuple(changed(i, source=CUT_LOG, offset=None) if i.source == "log" else i for i in items)

    return changed(verdict, evidence=moved(verdict.evidence), cascade=moved(verdict.cascade), alternatives=())


def record_git(directory: RunDirectory) -> None:
    """Write commit and dirty flag of the command's folder, unless they are there already."""
    try:
        if os.path.exists(directory.git_path):
            return
        spec = directory.read_spec() or {}
        facts, warning = gitfacts.read_git(os.path.expanduser(spec.get("cwd") or "~"))
        value = {"format_version": FORMAT_VERSION, "git": facts, "warning": warning}
        write_once(directory.git_path, encode_json(value) + b"\n", durable=False)
    except (GpuAlertError, OSError):  # then it is not known, and the report says so
        pass


def _warm_up() -> None:
    """Import while nothing happens what the verdict will need."""
    from gpualert import rank_files, several  # noqa: F401


def load_scan(directory: RunDirectory) -> dict[str, Any] | None:
    """The state that an observer saved; None when there is none that can be read (scanning starts again then)."""
    try:
        return directory.read_scan()
    except GpuAlertError:
        return None


def _be_nice() -> None:
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) < _NICE:
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except OSError:
        pass

"""The verbs about launches that exist: status, attach, logs, stop, list, clean."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import time
from typing import Any, Iterator

from gpualert.cli import add_launch_id, add_root, add_verb, print_json, seconds

_BLOCK_BYTES = 64 * 1024


def add_verbs(verbs: Any) -> None:
    status = add_verb(
        verbs,
        "status",
        _status,
        summary="where one launch stands, and its verdict when it has ended",
        description="Tell all that is known of one launch: its state, how it ended, its log, and for a launch that has "
        "ended the cause with the line that proves it.",
        examples="  gpualert status train\n  gpualert status --json train-3f2a9c0d1e4b.1 | jq .outcome.failure_class",
    )
    add_launch_id(status)
    add_root(status)

    attach = add_verb(
        verbs,
        "attach",
        _attach,
        summary="follow a launch to its end, and end with its exit status",
        description="Copy the output of a launch to stdout from now on (or from the start) until it ends; the exit "
        "status is then the command's own, as of `gpualert run`. Ctrl-C detaches and leaves the command running.",
        examples="  gpualert attach train\n  gpualert attach --from-start train > copy.log",
    )
    attach.add_argument("--from-start", action="store_true", help="begin with the first byte of the log")
    attach.add_argument("-q", "--quiet", action="store_true", help="print no verdict and no warning on stderr")
    add_launch_id(attach)
    add_root(attach)

    logs = add_verb(
        verbs,
        "logs",
        _logs,
        summary="print a launch's log, byte for byte",
        description="Print the log of a launch. Without options the bytes are exactly the command's own.",
        examples="  gpualert logs train | less\n  gpualert logs -n 50 -f train\n  gpualert logs -t train | grep epoch",
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the launch has ended")
    logs.add_argument("-n", "--lines", type=_count, metavar="N", help="begin with the last N lines")
    logs.add_argument("-t", "--timestamps", action="store_true", help="put before each line by when it was written")
    add_launch_id(logs)
    add_root(logs)

    stop = add_verb(
        verbs,
        "stop",
        _stop,
        summary="ask a launch to end, and insist",
        description="Write down a stop request, which the launch's keepers carry out: the stop signal, and after the "
        "grace period SIGKILL for the whole process tree. Exit status 1: it had not ended when the wait was over, but "
        "the request stands.",
        examples="  gpualert stop train\n  gpualert stop --wait 0 --reason 'wrong learning rate' train",
    )
    stop.add_argument("--reason", default="asked on the command line", help="for people; kept with the request")
    stop.add_argument(
        "--wait", type=seconds, metavar="TIME", help="how long to wait for the end (default: grace + 10s)"
    )
    add_launch_id(stop)
    add_root(stop)

    listing = add_verb(
        verbs,
        "list",
        _list,
        summary="all launches on this host, the oldest first",
        description="List the launches of this user on this host; at the end those that cannot be read, and why.",
        examples="  gpualert list\n  gpualert list --running\n  gpualert list --json | jq -r '.launches[].launch_id'",
    )
    listing.add_argument("--running", action="store_true", help="only those that have not ended")
    add_root(listing)

    clean = add_verb(
        verbs,
        "clean",
        _clean,
        summary="remove run directories of launches that ended long ago",
        description="Remove the run directories of launches that have ended, and unpacked archives that no launch here "
        "names and that were not used for 30 days or are not among the newest 3. What runs is never touched. Launches "
        "whose end was not reported to anybody go by age only, and those of an Airflow task not before 90 days.",
        examples="  gpualert clean --dry-run\n  gpualert clean --older-than 30d\n  gpualert clean --keep 100",
    )
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    clean.add_argument(
        "--older-than", type=seconds, default=14 * 86400.0, metavar="TIME", help="since the end (default: 14d)"
    )
    clean.add_argument("--keep", type=_count, metavar="N", help="remove reported launches beyond this many, too")
    clean.add_argument(
        "--damaged", action="store_true", help="remove old launches whose files cannot be read, too (see list)"
    )
    clean.add_argument("--keep-bytes", type=_count, metavar="N", help="remove reported launches beyond this size, too")
    add_root(clean)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, found {text!r}")
    return int(text)


def _status(options: argparse.Namespace) -> int:
    from gpualert import cli_text, control, records, report

    run = control.find(options.launch, root=options.root)
    directory = run.path
    record = records.read(directory)
    if record.supervised is False:  # a stop or a deadline that dead keepers cannot carry out any more
        control.tend(run)
    outcome = report.build(directory) if record.state.ended else None
    if options.json:
        print_json({"record": record.to_json(), "outcome": None if outcome is None else outcome.to_json()})
        return 0
    print(cli_text.record_lines(record))
    if outcome is not None and outcome.failure_class not in (None, "success"):
        print(cli_text.verdict_lines(outcome))
    return 0


def _attach(options: argparse.Namespace) -> int:
    from gpualert import cli_text, control
    from gpualert.follow import Follower
    from gpualert.foreground import OWN_FAILURE, write_all
    from gpualert.outcome import Outcome

    directory = control.find(options.launch, root=options.root)
    start = (0, 0) if options.from_start else _end_of_log(directory.log_path)
    outcome: Outcome | None = None
    last = b"\n"
    try:
        # A mere reader: an epoch of its own would take the launch away from whoever follows it for Airflow.
        with Follower(directory.path, start) as follower:
            for header, payload in follower:
                if options.json:
                    print_json(_frame_json(header, payload))
                elif header["type"] == "log":
                    write_all(1, payload)
                    last = payload[-1:] or last
                if header["type"] == "ended":
                    outcome = Outcome.from_json(header["outcome"])
    except KeyboardInterrupt:
        if not options.quiet:
            print(f"\ngpualert: detached; {directory.launch_id} goes on", file=sys.stderr)
        return 130
    if outcome is None:
        return OWN_FAILURE
    if not options.quiet and not options.json:
        sys.stderr.write(("" if last == b"\n" else "\n") + cli_text.verdict_block(outcome))
    return _status_of(outcome)


def _status_of(outcome: Any) -> int:
    """As a shell would: the code, or 128 + the signal; 125 when nobody saw the end."""
    import signal

    from gpualert.foreground import OWN_FAILURE

    if outcome.signal is None:
        return OWN_FAILURE if outcome.exit_code is None else int(outcome.exit_code)
    number = getattr(signal, outcome.signal, None)
    return 128 + int(number if number is not None else outcome.signal[len("SIG") :])


def _frame_json(header: dict[str, Any], payload: bytes) -> dict[str, Any]:
    if header["type"] != "log":
        return header
    # Bytes that are not UTF-8 stand as lone surrogates, so that the exact bytes can be had back.
    return {**header, "text": payload.decode("utf-8", "surrogateescape")}


def _end_of_log(path: str) -> tuple[int, int] | None:
    try:
        return 0, os.stat(path).st_size
    except OSError:
        return None


def _logs(options: argparse.Namespace) -> int:
    from gpualert import control
    from gpualert.foreground import write_all
    from gpualert.logfile import LogReader, TimeIndex

    directory = control.find(options.launch, root=options.root)
    start = 0 if options.lines is None else offset_of_last_lines(directory.log_path, options.lines)
    lines = _Lines(TimeIndex(directory.index_path), options.json) if options.json or options.timestamps else None
    with LogReader(directory.log_path, 0, start) as reader:
        for chunk in _chunks(directory, reader, options.follow):
            if lines is None:
                write_all(1, chunk.data)
            else:
                lines.show(chunk)
        if lines is not None:
            lines.finish()
    return 0


def _chunks(directory: Any, reader: Any, follow: bool) -> Iterator[Any]:
    """The log from the reader's position: to its present end, or until the launch has ended."""
    from gpualert import records

    pause_s = 0.02
    looked_at = 0.0
    until = None if follow else reader.size() or 0
    while True:
        # Looked at before the log, so that nothing written before the end is missed.
        if until is None and (directory.has_ended() or time.monotonic() - looked_at > 1.0):
            looked_at = time.monotonic()
            if records.read(directory.path).state.ended:
                until = reader.size() or 0  # what was left running may write for ever
        chunks = reader.read()
        yield from chunks
        if chunks:
            pause_s = 0.02
            if until is not None and reader.position[1] >= until:
                return
        elif until is not None:
            return
        else:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.25)


class _Lines:
    """Prints lines with the time by which each was written, as text or as JSON."""

    def __init__(self, index: Any, as_json: bool) -> None:
        self._index = index
        self._as_json = as_json
        self._generation = 0
        self._offset = 0
        self._rest = b""

    def show(self, chunk: Any) -> None:
        if chunk.generation != self._generation:
            self.finish()
        if not self._rest:
            self._generation, self._offset = chunk.generation, chunk.offset
        *lines, self._rest = (self._rest + chunk.data).split(b"\n")
        for line in lines:
            self._print(line)
            self._offset += len(line) + 1

    def finish(self) -> None:
        if self._rest:
            self._print(self._rest)
            self._rest = b""

    def _print(self, line: bytes) -> None:
        when = self._index.lookup(self._generation, self._offset)
        if self._as_json:
            print_json(
                {
                    "generation": self._generation,
                    "offset": self._offset,
                    "time": when,
                    "text": line.decode("utf-8", "replace"),
                }
            )
            return
        shown = "-" * 19 if when is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when))
        sys.stdout.buffer.write(shown.encode() + b" " + line + b"\n")
        sys.stdout.buffer.flush()


def offset_of_last_lines(path: str, count: int) -> int:
    """Where the last ``count`` lines begin; an unfinished last line counts as one. 0 when there is no such file."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return 0
    with file:
        size = end = file.seek(0, os.SEEK_END)
        if count == 0 or size == 0:
            return size
        wanted = count
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(end - start)
            if end == size and block.endswith(b"\n"):
                wanted += 1  # the last line's own end
            while True:
                at = block.rfind(b"\n")
                if at < 0:
                    break
                wanted -= 1
                if wanted == 0:
                    return start + at + 1
                block = block[:at]
            end = start
        return 0


def _stop(options: argparse.Namespace) -> int:
    from gpualert import cli_text, control

    directory = control.find(options.launch, root=options.root)
    wait_s = options.wait
    if wait_s is None:
        spec = directory.read_spec() or {}
        wait_s = float(spec.get("grace_period_s", 30.0)) + 10.0
    record = control.stop(
        directory.launch_id, epoch=None, reason=options.reason, who=_who(), wait_s=wait_s, root=options.root
    )
    if options.json:
        print_json({"record": record.to_json()})
    else:
        print(cli_text.record_line(record))
    return 0 if record.state.ended else 1


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name} at {os.uname().nodename}, command line"


def _list(options: argparse.Namespace) -> int:
    from gpualert import cli_text, control

    found, damaged = control.survey(options.root)
    if options.running:
        found = [record for record in found if not record.state.ended]
    if options.json:
        print_json({"launches": [record.to_json() for record in found], "damaged": damaged})
        return 0
    for record in found:
        print(cli_text.record_line(record))
    for item in damaged:
        print(cli_text.damage_line(item))
    if not found and not damaged and sys.stdout.isatty():
        print("gpualert: no launches", file=sys.stderr)
    return 0


def _clean(options: argparse.Namespace) -> int:
    from gpualert import housekeeping

    removed = housekeeping.clean(
        root=options.root,
        older_than_s=options.older_than,
        keep_bytes=options.keep_bytes,
        keep_count=options.keep,
        damaged=options.damaged,
        dry_run=options.dry_run,
    )
    if options.json:
        print_json({"dry_run": options.dry_run, "removed": removed})
        return 0
    for item in removed:
        print(f"{item['launch_id'] or item['run_directory']}  {item['size_bytes']} bytes  {item['why']}")
    total = sum(item["size_bytes"] for item in removed)
    archives = sum(item["kind"] == "archive" for item in removed)
    verb = "would be removed" if options.dry_run else "removed"
    also = f" and {archives} archive(s)" if archives else ""
    print(f"{len(removed) - archives} launch(es){also}, {total} bytes {verb}")
    return 0

"""The verb that brings a log from an Airflow connection's host. What knows connections is found by an entry point."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from gpualert.cli import add_verb, print_json, seconds
from gpualert.errors import GpuAlertError

ENTRY_POINT_GROUP = "gpualert.fetch"


def add_verbs(verbs: Any) -> None:
    fetch = add_verb(
        verbs,
        "fetch",
        _fetch,
        summary="bring a launch's whole log from its host",
        description="Bring the whole log, as the training wrote it and unmasked, from the host of an Airflow "
        "connection. It grows as PATH.part and gets its name when it is whole and its SHA-256 is the host's. A cut "
        "connection is opened again; a second run goes on where the first stopped. Of a log that still grows comes "
        "what it held at the start. Exit status 1: it did not come whole.",
        examples="  gpualert fetch gpu_box train-41a3e87bc327.1\n"
        "  gpualert fetch gpu_box train-41a3e87bc327.1 --to train.log --patience 1h",
    )
    fetch.add_argument("connection", metavar="CONN", help="id of an Airflow ssh connection")
    fetch.add_argument("launch", metavar="LAUNCH_ID", help="the whole launch id, as the task log and XComs have it")
    fetch.add_argument("--to", metavar="PATH", help="where to put it (default: LAUNCH_ID.log here)")
    fetch.add_argument("--force", action="store_true", help="replace PATH if it is there")
    fetch.add_argument(
        "--generation",
        type=int,
        metavar="N",
        help="only this generation of a log that its training cut (default: the one that is there now)",
    )
    fetch.add_argument(
        "--patience",
        type=seconds,
        default=300.0,
        metavar="TIME",
        help="how long to go on without a new byte once the host was reached (default: 5m)",
    )
    fetch.add_argument("--root", metavar="DIR", help="where run directories live on the host, if not in a usual place")


def _fetch(options: argparse.Namespace) -> int:
    path = options.to or options.launch.replace("/", "-") + ".log"  # a wrong id must not lead elsewhere
    progress = _Progress() if sys.stderr.isatty() else None
    try:
        found = _from_connection()(
            options.connection,
            options.launch,
            os.path.abspath(path),
            generation=options.generation,
            patience_s=options.patience,
            root=options.root,
            replace=options.force,
            tell=lambda text: _say(progress, text),
            progress=progress,
        )
    except GpuAlertError as error:
        if error.kind != "incomplete":
            raise
        _say(progress, str(error))
        if options.json:
            print_json({"complete": False, "message": str(error), **getattr(error, "details", {})})
        return 1
    finally:
        if progress is not None:
            progress.end()
    if options.json:
        print_json({"complete": True, **found})
    else:
        print(
            f"{found['path']}: {found['size_bytes']} bytes, generation {found['generation']}, "
            f"SHA-256 {found['sha256']} as on the host"
        )
    return 0


def _from_connection() -> Any:
    from importlib import metadata

    found: Any = metadata.entry_points()
    # Before Python 3.10 this is a dictionary by group.
    group = found.select(group=ENTRY_POINT_GROUP) if hasattr(found, "select") else found.get(ENTRY_POINT_GROUP, ())
    for entry_point in group:
        return entry_point.load()
    raise LookupError(
        "fetch: the host of an Airflow connection is reached from where airflow-provider-gpualert is installed; here "
        f"nothing is registered under the entry point {ENTRY_POINT_GROUP!r}"
    )


def _say(progress: _Progress | None, text: str) -> None:
    if progress is not None:
        progress.end()
    print("gpualert:", " ".join(text.splitlines()), file=sys.stderr, flush=True)


class _Progress:
    """One line of a terminal, written over and over, at most a few times a second."""

    def __init__(self) -> None:
        self._shown_at = 0.0
        self._begun: tuple[float, int] | None = None
        self._open = False

    def __call__(self, done: int, size: int) -> None:
        import time

        now = time.monotonic()
        self._begun = self._begun or (now, done)
        if now - self._shown_at < 0.25 and done < size:
            return
        self._shown_at = now
        elapsed = now - self._begun[0]
        speed = f", {(done - self._begun[1]) / 1e6 / elapsed:.1f} MB/s" if elapsed > 0.5 else ""
        sys.stderr.write(f"\r{done / 1e6:.1f} of {size / 1e6:.1f} MB{speed}\x1b[K")
        sys.stderr.flush()
        self._open = True

    def end(self) -> None:
        if self._open:
            self._open = False
            sys.stderr.write("\n")

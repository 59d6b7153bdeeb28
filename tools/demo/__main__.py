"""`python -m tools.demo [--once]`: start all of it, run the trainings, print the table, stop all of it."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.demo.table import Row, render
from tools.rig.airflow import AirflowRig
from tools.rig.airflow_api import FINISHED_RUN
from tools.rig.embedded_ssh import EmbeddedHost
from tools.rig.sshd import SshdMissing, SshEndpoint, SshHost
from tools.rig.waiting import DidNotHappen, wait_until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DAG_ID = "demo_trainings"


class Stopped(Exception):
    """Ctrl-C or a polite signal: not an error, everything is put away as at the end."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=sys.modules["tools.demo"].__doc__)
    parser.add_argument("--once", action="store_true", help="stop when the table is printed, without waiting for Enter")
    parser.add_argument(
        "--deadline", type=float, default=300, metavar="SECONDS", help="for the trainings (%(default)g)"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="replaced at the start (default: .demo)")
    parser.add_argument(
        "--embedded", action="store_true", help="use the SSH host in Python even where sshd is installed"
    )
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    folder = options.folder.absolute()
    try:
        return _run(folder, options)
    except Stopped:
        print("\nStopped before the trainings had ended.", flush=True)
        return 130
    except DidNotHappen as late:
        print(f"\nThe demo did not get to its end: {late}", flush=True)
        print(f"What the parts of Airflow said: {_shown(folder)}/airflow/component-logs", flush=True)
        return 1


def _run(folder: Path, options: argparse.Namespace) -> int:
    began = time.monotonic()
    if folder.exists():
        shutil.rmtree(folder)
    project = folder / "project"
    shutil.copytree(HERE / "project", project, ignore=shutil.ignore_patterns("__pycache__"))
    with ExitStack() as stack:
        stack.callback(lambda: print("Stopped: Airflow, the SSH host and all they had started.", flush=True))
        host = _start_host(folder / "host", options.embedded)
        stack.enter_context(host)  # type: ignore[arg-type]
        print(f"SSH host: {_kind(host)} on {host.address} port {host.port}, logging in as {host.username}", flush=True)
        rig = AirflowRig(
            folder=folder / "airflow",
            dags=[HERE / "dags"],
            connections={"demo_host": host.airflow_connection_json()},
            env={
                "GPUALERT_DEMO_PROJECT": str(project),
                "GPUALERT_DEMO_ROOT": str(folder / "runs"),
                "GPUALERT_DEMO_PYTHON": sys.executable,
            },
        )
        print("Airflow: starting API server, scheduler, DAG processor and triggerer (about 20 s) …", flush=True)
        stack.enter_context(rig)
        print(f"Airflow: ready after {time.monotonic() - began:.0f} s", flush=True)
        rig.api.wait_for_dag(DAG_ID)
        run_id = rig.api.trigger(DAG_ID)
        print("Trainings: 7, one of which can succeed", flush=True)
        _watch(rig, run_id, options.deadline)
        rows = [_row(rig, run_id, task["task_id"], folder) for task in rig.api.tasks(DAG_ID, run_id)]
        print("\n" + render(sorted(rows, key=_order), shutil.get_terminal_size((140, 24)).columns) + "\n", flush=True)
        as_expected = _closing_words(rows, folder)
        print(f"Airflow: {rig.url}/dags/{DAG_ID}/runs/{run_id}", flush=True)
        print(f"         user admin, password {rig.passwords['admin']} (may all)", flush=True)
        print(f"         user viewer, password {rig.passwords['viewer']} (may look)", flush=True)
        if not options.once:
            _wait_for_enter()
    return 0 if as_expected else 1


def _start_host(folder: Path, embedded: bool) -> SshEndpoint:
    if not embedded:
        try:
            return SshHost(folder)
        except SshdMissing as missing:
            print(f"SSH host: {missing}; the embedded one in Python does instead", flush=True)
    return EmbeddedHost(folder)


def _kind(host: SshEndpoint) -> str:
    return "OpenSSH's own server" if isinstance(host, SshHost) else "an embedded server (asyncssh)"


def _watch(rig: AirflowRig, run_id: str, deadline_s: float) -> None:
    """Wait for the run's end, and say whenever a task is somewhere else than before."""
    told = ""

    def ended() -> bool:
        nonlocal told
        counts = Counter(str(task["state"] or "waiting") for task in rig.api.tasks(DAG_ID, run_id))
        now = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        if now != told:
            told = now
            print(f"    {now}", flush=True)
        return rig.api.run(DAG_ID, run_id)["state"] in FINISHED_RUN

    wait_until(ended, deadline_s, lambda: f"the trainings have ended; now: {told}", interval_s=0.5)


def _row(rig: AirflowRig, run_id: str, task_id: str, folder: Path) -> Row:
    task = rig.api.task(DAG_ID, run_id, task_id)
    outcome: dict[str, Any] = rig.api.xcom(DAG_ID, run_id, task_id, "outcome") or {}
    log = outcome.get("log_path")
    return Row(
        task=task_id,
        state=task["state"],
        failure_class=outcome.get("failure_class"),
        evidence=_evidence(outcome),
        log=None if log is None else _shown(Path(log)),
    )


def _evidence(outcome: dict[str, Any]) -> str | None:
    """The line that proves the class; for a success its result; without either, how the child ended."""
    if outcome.get("result"):
        return f"result: {outcome['result']}"
    for proof in outcome.get("evidence") or ():
        if proof.get("text"):
            where = f"line {proof['line']}: " if proof.get("line") else ""
            return where + str(proof["text"]).strip()
    if outcome.get("signal"):
        return f"ended by {outcome['signal']}"
    return None if outcome.get("exit_code") is None else f"exit status {outcome['exit_code']}"


def _order(row: Row) -> tuple[bool, str]:
    return row.state != "success", row.task


def _closing_words(rows: Sequence[Row], folder: Path) -> bool:
    succeeded = sum(row.state == "success" for row in rows)
    failed = sum(row.state == "failed" for row in rows)
    as_expected = (succeeded, failed) == (1, 6)
    if as_expected:
        print("As it should be: one training succeeded, six failed, each for the reason in its row.", flush=True)
    else:
        print(f"Not as it should be: {succeeded} succeeded and {failed} failed; expected 1 and 6.", flush=True)
    print(
        f"All that the demo made lies in {_shown(folder)} until the next one: these logs, Airflow's own, the project."
    )
    return as_expected


def _shown(path: Path) -> str:
    """Relative to the project where possible, as one would type it there."""
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)


def _wait_for_enter() -> None:
    print("\nAirflow stays up until you press Enter or Ctrl-C.", flush=True)
    try:
        # At the end of a file (a script, a service) nobody can press Enter: only a signal ends it then.
        if not sys.stdin.readline():
            signal.pause()
    except Stopped:
        print(flush=True)


def _stop(number: int, frame: object) -> None:
    # Once is enough: what follows is the orderly end, and a second Ctrl-C must not leave half of it running.
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)
    raise Stopped


if __name__ == "__main__":
    # A terminal's Ctrl-C reaches us alone: every part runs in a session of its own and is stopped in order.
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))

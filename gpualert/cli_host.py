"""The verbs about hosts and files: classify, doctor; and those that machines call: observe, serve."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from gpualert.cli import add_root, add_verb, print_json


def add_verbs(verbs: Any) -> None:
    from gpualert import classify_cli

    classify = add_verb(
        verbs,
        "classify",
        classify_cli.run,
        summary="name the cause of any failed log, with the line that proves it",
        description="Judge logs from anywhere: plain, .gz, or - for stdin.",
        examples="  gpualert classify train.log --exit-code 1\n  gpualert classify --json rank*.log",
        json=False,
    )
    classify_cli.add_arguments(classify)
    doctor = add_verb(
        verbs,
        "doctor",
        _doctor,
        summary="look at a host and say what to do about each finding",
        description="Examine this host, or the host of an Airflow connection: Python, places for run directories, what "
        "a logout does, shared memory, clock, limits, disks, GPU driver, programs. Exit status 1: there is a problem.",
        examples="  gpualert doctor\n  gpualert doctor gpu_box      an Airflow connection, where Airflow is installed",
    )
    doctor.add_argument("connection", nargs="?", metavar="CONN", help="id of an Airflow ssh connection")
    add_root(doctor)

    observe = add_verb(
        verbs,
        "observe",
        _observe,
        summary=None,
        description="Scan and classify one launch to its end. Launches start this by themselves; by hand it takes over "
        "for an observer that was killed.",
        examples="",
        json=False,
    )
    observe.add_argument("run_directory", metavar="RUN_DIRECTORY", help="of the launch")

    add_verb(
        verbs,
        "serve",
        _serve,
        summary=None,
        description="Speak the protocol on stdin and stdout. The Airflow provider starts this by itself.",
        examples="",
        json=False,
    )


def _doctor(options: argparse.Namespace) -> int:
    from gpualert import doctor
    from gpualert.cli_text import finding_lines

    if options.connection is None:
        findings = doctor.examine(options.root)
    else:
        findings = doctor.examine_connection(options.connection)
    worst = doctor.worst(findings)
    if options.json:
        host = options.connection or os.uname().nodename
        print_json({"host": host, "worst": worst, "findings": [finding.to_json() for finding in findings]})
    else:
        print(finding_lines(findings))
    return 1 if worst == doctor.PROBLEM else 0


def _observe(options: argparse.Namespace) -> int:
    from gpualert import control, observer

    observer.main(control.find(os.path.abspath(options.run_directory)).path)
    return 0


def _serve(options: argparse.Namespace) -> int:
    from gpualert import serve

    return serve.main_local(sys.argv[2:])

"""What Slurm prints is read in the shapes of several versions, and only what concerns the launch counts."""

from __future__ import annotations

import pytest

from gpualert.probe_scheduler import _OLD_FIELDS, job_of, judge, parse_sacct, parse_scontrol

SCONTROL_OOM = """\
JobId=2 JobName=oom.sh
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901758 Nice=0 Account=(null) QOS=(null)
   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:125
   RunTime=00:00:02 TimeLimit=UNLIMITED TimeMin=N/A
   Command=/tmp/a b=c.sh
"""


@pytest.mark.parametrize(
    ("rows", "state", "said"),
    [
        (
            "7|TIMEOUT|0:0|0:0|None||1700000900\n7.batch|CANCELLED|0:15|||1000K|1700000900\n",
            "TIMEOUT",
            "sacct: 7 TIMEOUT",
        ),
        (
            "7|FAILED|1:0|0:0|||Unknown\n7.0|OUT_OF_MEMORY|0:125|||9K|Unknown\n",
            "OUT_OF_MEMORY",
            "sacct: 7.0 OUT_OF_MEMORY",
        ),
        ("7|NODE_FAIL|0:0|||None|\n", "NODE_FAIL", "sacct: 7 NODE_FAIL"),
        ("7|PREEMPTED|0:15|||None|\n7.batch|CANCELLED|0:15||||\n", "PREEMPTED", "sacct: 7 PREEMPTED"),
        (
            "7|CANCELLED by 1000|0:15|||None|\n7.0|CANCELLED|0:15||||\n",
            "CANCELLED by 1000",
            "sacct: 7 CANCELLED by 1000",
        ),
        ("7|RUNNING|0:0|0:0|None||Unknown\n7.0|COMPLETED|0:0||||1700000500\n", "COMPLETED", "sacct: 7.0 COMPLETED"),
        ("", None, None),
    ],
)
def test_the_state_that_tells_most(rows: str, state: str | None, said: str | None) -> None:
    found = judge("7", parse_sacct(rows), {}, 1700000000.0)
    assert (found["state"], found["said"]) == (state, said)


def test_a_step_that_ended_before_the_launch_is_somebody_elses() -> None:
    """An allocation may hold many steps; the one that ran out of memory yesterday proves nothing."""
    rows = parse_sacct("7|RUNNING|0:0|0:0|None||Unknown\n7.0|OUT_OF_MEMORY|0:125|||9K|1699999000\n")
    assert judge("7", rows, {}, 1700000000.0)["state"] == "RUNNING"
    assert judge("7", rows, {}, None)["state"] == "OUT_OF_MEMORY"


def test_scontrol_knows_what_accounting_does_not_store() -> None:
    facts = parse_scontrol(SCONTROL_OOM)
    found = judge("2", (), facts, None)
    assert (found["state"], found["reason"], found["exit_code"]) == ("OUT_OF_MEMORY", "OutOfMemory", "0:125")


def test_fields_of_a_version_without_reasons() -> None:
    (row,) = parse_sacct("7|TIMEOUT|0:0|0:0||1700000900\n", _OLD_FIELDS)
    assert row["State"] == "TIMEOUT"


@pytest.mark.parametrize(
    "text",
    [
        "Slurm accounting storage is disabled\n",
        "sacct: error: slurm_persist_conn_open: failed\n",
        "\x00\xff|||||||||\n",
        "7|TIMEOUT\n",
        "|" * 100_000,
        "7|not a state|0:0|||None|\n",
    ],
)
def test_other_words_are_no_rows(text: str) -> None:
    assert parse_sacct(text) == []
    assert judge("7", parse_sacct(text), parse_scontrol(text), None)["state"] is None


@pytest.mark.parametrize(
    ("environment", "lines", "job"),
    [
        ({"SLURM_JOB_ID": "123"}, (), "123"),
        ({"SLURM_JOBID": "123_4"}, (), "123_4"),
        ({"SLURM_JOB_ID": "123; rm -rf /"}, (), None),
        ({"SLURM_JOB_ID": "--help"}, (), None),
        ({}, (), None),
        (None, (), None),
        ({"SLURM_JOB_ID": "1"}, ("Submitted batch job 456",), "456"),
        (None, ("srun: job 457 queued and waiting for resources",), "457"),
        (None, ("srun: Job 458 step creation temporarily disabled, retrying",), "458"),
        (None, ("salloc: Granted job allocation 459",), "459"),
        (None, ("job 12 of 40 done", "Starting Job 5"), None),
    ],
)
def test_which_job(environment: dict[str, str] | None, lines: tuple[str, ...], job: str | None) -> None:
    assert job_of(environment, lines) == job

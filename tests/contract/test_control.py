"""Inspect, find, list, clean: what a later caller, of this version or another, learns about launches."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from gpualert import control, housekeeping, records
from gpualert.errors import NewerFormat, RunDirectoryError, UnknownLaunch
from gpualert.key import Attempt
from gpualert.records import RunRecord, RunState
from gpualert.rundir import KeyDirectory, RunDirectory
from tests.support.launching import Host, host, stop

__all__ = ["host"]


def test_a_record_says_what_is_known(host: Host) -> None:
    """And survives its own JSON."""
    key = host.key()
    record = host.run("echo hello; exit 3", key=key, attempt=Attempt(4, "abc"), label="a word")

    assert (record.attempt, record.label, record.key_parts) == (Attempt(4, "abc"), "a word", key.parts)
    assert record.launch_id == key.launch_id(1)
    assert record.started_at and record.ended_at and record.created_at <= record.started_at <= record.ended_at
    assert record.elapsed_s is not None and 0 < record.elapsed_s < 60
    assert record.rusage and record.rusage["max_rss_kib"] > 0
    assert record.machine_id and record.boot_id
    assert (record.supervised, record.lost_reason, record.note, record.warnings) == (None, None, None, ())
    assert RunRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert (
        control.inspect(key=key).launch_id == control.inspect(launch_id=record.launch_id).launch_id == record.launch_id
    )


def test_a_launch_is_found_by_part_of_its_name(host: Host) -> None:
    """By id, by the start of an id, by its key (the latest), by its path; two that fit are named, not guessed."""
    key, other = host.key("train-a"), host.key("train-b")
    first = host.run("true", key=key)
    second = host.run("true", key=key, attempt=Attempt(2, "b"), after=1)
    host.run("true", key=other)

    assert control.find(first.launch_id).path == first.run_directory
    assert control.find(key.directory_name).path == second.run_directory
    assert control.find("train-a").path == second.run_directory
    assert control.find(first.run_directory).path == first.run_directory
    with pytest.raises(UnknownLaunch, match="2 launches"):
        control.find("train")
    with pytest.raises(UnknownLaunch, match="nothing-like-it"):
        control.find("nothing-like-it")
    for wrong in ("train-a", "../../etc.1", "train-000000000000.1", ".1", ""):
        with pytest.raises(UnknownLaunch):
            control.inspect(launch_id=wrong)


def test_a_newer_format_is_an_answer(host: Host) -> None:
    """Never LOST: another version's launch is not ours to judge."""
    record = host.run("true")
    path = Path(RunDirectory(record.run_directory).exit_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 3}))
    with pytest.raises(NewerFormat, match="expected format_version 1, found 3"):
        records.read(record.run_directory)


def test_fields_of_a_newer_writer_are_left_aside(host: Host) -> None:
    record = host.run("exit 3")
    path = Path(RunDirectory(record.run_directory).exit_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "new_field": [1]}))
    assert records.read(record.run_directory).exit == record.exit


def test_damage_is_told_and_a_torn_file_is_none(host: Host) -> None:
    """Garbage is an error that names the file; an empty file is what a loss of power may leave, and counts as none."""
    record = host.finish("exit 3")
    path = Path(RunDirectory(record.run_directory).exit_path)
    path.write_text("{")
    with pytest.raises(RunDirectoryError, match="exit.json: expected a JSON object"):
        records.read(record.run_directory)
    path.write_text("")
    assert records.read(record.run_directory).state is RunState.LOST


def test_the_list_is_complete_and_in_order(host: Host) -> None:
    made = [host.run("true", key=host.key(word)).launch_id for word in ("b", "a", "c")]
    assert [r.launch_id for r in control.list_launches()] == made


def test_cleaning_never_takes_a_live_or_an_unreported_run(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """By age what has ended; by number and size only what a follower has delivered, and not a moment ago."""
    live = host.launch(["sleep", "600"])
    reported = host.finish("echo reported")
    RunDirectory(reported.run_directory).write_ack(0, 9, ended=True)
    unreported = host.finish("echo unreported")

    assert housekeeping.clean(older_than_s=3600, keep_count=0, dry_run=True) == []
    monkeypatch.setattr(housekeeping, "REPORTED_REST_S", 0.0)
    would = housekeeping.clean(older_than_s=3600, keep_count=0, keep_bytes=0, dry_run=True)
    assert [one["launch_id"] for one in would] == [reported.launch_id]
    assert would[0]["size_bytes"] > 0 and "launches" in would[0]["why"]
    assert os.path.isdir(reported.run_directory), "a dry run removes nothing"
    assert housekeeping.clean(older_than_s=3600, keep_count=0, dry_run=False) == would
    assert not os.path.exists(reported.run_directory)
    assert [r.launch_id for r in control.list_launches()] == [live.launch_id, unreported.launch_id]

    gone = housekeeping.clean(older_than_s=0, dry_run=False)
    assert [one["launch_id"] for one in gone] == [unreported.launch_id]
    assert [r.launch_id for r in control.list_launches()] == [live.launch_id]
    stop(live)


def test_a_number_is_never_used_again(host: Host) -> None:
    """Ledgers name launches by number; after cleaning, the next is still the next."""
    key = host.key()
    host.finish("true", key=key, attempt=Attempt(1, "a"))
    host.finish("true", key=key, attempt=Attempt(2, "b"), after=1)
    housekeeping.clean(older_than_s=0, dry_run=False)
    assert control.list_launches() == []
    assert host.run("true", key=key, attempt=Attempt(3, "c"), after=2).number == 3


def test_what_cleaning_leaves_of_a_key(host: Host) -> None:
    """Nothing, in any root."""
    record = host.finish("true")
    folder = KeyDirectory(os.path.dirname(record.run_directory))
    housekeeping.clean(older_than_s=0, dry_run=False)
    assert not os.path.exists(folder.path)
    assert [p.name for p in host.folder.rglob("*.claim")] == []


def test_epochs_are_taken_once(host: Host) -> None:
    record = host.run("true")
    assert [control.attach(record.launch_id, who) for who in "abc"] == [1, 2, 3]
    assert records.read(record.run_directory).epoch == 3
    shutil.rmtree(record.run_directory)
    with pytest.raises(UnknownLaunch):
        control.attach(record.launch_id, "d")


def test_the_ack_is_read_back(host: Host) -> None:
    run = RunDirectory(host.run("true").run_directory)
    assert run.read_ack() is None
    run.write_ack(1, 7)
    run.write_ack(1, 9, ended=True)
    assert run.read_ack() == {"generation": 1, "offset": 9, "ended": True}


def test_reading_does_not_wait(host: Host) -> None:
    """A record of a running launch is there at once, with what has been written so far."""
    record = host.launch("echo 12345; sleep 600")
    host.wait_for_log(record, b"12345")
    now = records.read(record.run_directory)
    assert (now.state, now.supervised, now.exit, now.log_size_bytes) == (RunState.RUNNING, True, None, 6)
    assert now.started_at is not None and abs(now.started_at - time.time()) < 600
    stop(record)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("exit.json", {"code": "x"}),
        ("exit.json", {"code": 0, "log_generation": "x"}),
        ("../0001.claim", {"attempt": 3, "created_at": "x"}),
    ],
)
def test_files_of_another_shape_hide_no_other_launch(host: Host, name: str, content: dict[str, object]) -> None:
    """They are JSON, but not ours: an error for that launch, and the list goes on without it."""
    good, bad = host.run("true"), host.run("true")
    path = Path(bad.run_directory, name)
    path.unlink()
    path.write_text(json.dumps(content))
    with pytest.raises(RunDirectoryError, match="damaged"):
        records.read(bad.run_directory)
    assert [record.launch_id for record in control.list_launches()] == [good.launch_id]

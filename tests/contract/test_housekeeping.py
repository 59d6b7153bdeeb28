"""Cleaning a host: what is never taken away, what goes, and what of it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpualert import control, housekeeping
from gpualert.key import LaunchKey
from gpualert.records import RunRecord
from gpualert.rundir import RunDirectory
from gpualert_provider.hooks.blocking import open_session
from tests.support.launching import Host, host, stop
from tests.support.sessions import target_of
from tests.support.sshd import SshHost
from tests.support.waiting import wait_until

__all__ = ["host"]

DAY_S = 86400.0


def age(path: str | Path, days: float) -> None:
    """Let everything below a path look as if it was last changed so long ago."""
    then = time.time() - days * DAY_S
    for folder, _, names in os.walk(path):
        for name in names:
            os.utime(os.path.join(folder, name), (then, then))
        os.utime(folder, (then, then))


def end_days_ago(record: RunRecord, days: float) -> None:
    path = Path(RunDirectory(record.run_directory).exit_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "ended_at": time.time() - days * DAY_S}))


def of_a_task(name: str) -> LaunchKey:
    return LaunchKey(("deployment", "dag", "run", name, "-1"), name)


def removed(**how: Any) -> list[str]:
    """What goes, by launch id; for an archive the first letter of its digest."""
    found = housekeeping.clean(**{"older_than_s": 14 * DAY_S, "dry_run": False, **how})
    return [item["launch_id"] or os.path.basename(item["run_directory"])[0] for item in found]


def test_a_tasks_end_that_was_never_reported_is_kept_for_ninety_days(host: Host) -> None:
    """Airflow may be down for weeks, and the next try has to find the end; launches by hand have nobody to tell."""
    young, old, told = (host.finish("true", key=of_a_task(name)) for name in ("young", "old", "told"))
    by_hand = host.finish("true")
    RunDirectory(told.run_directory).write_ack(0, 0, ended=True)
    for record in (young, told, by_hand):
        end_days_ago(record, 89)
    end_days_ago(old, 91)

    assert sorted(removed()) == sorted([old.launch_id, told.launch_id, by_hand.launch_id])
    assert [record.launch_id for record in control.list_launches()] == [young.launch_id]


def damage(record: RunRecord) -> None:
    path = Path(RunDirectory(record.run_directory).key_directory.claim_path(record.number))
    path.unlink()
    path.write_text("{")


def test_a_damaged_launch_is_listed_and_goes_only_when_asked(host: Host) -> None:
    """With what is wrong; a living one stays even then, and so does one that a newer version wrote."""
    dead, newer = host.finish("true"), host.finish("true")
    alive = host.launch(["sleep", "600"])
    damage(dead)
    damage(alive)
    newer_exit = Path(RunDirectory(newer.run_directory).exit_path)
    newer_exit.write_text(json.dumps({**json.loads(newer_exit.read_text()), "format_version": 9}))
    for record in (dead, newer, alive):
        age(os.path.dirname(record.run_directory), 20)

    found, damaged = control.survey()
    assert found == []
    assert {d["launch_id"]: d["newer"] for d in damaged} == {
        dead.launch_id: False, newer.launch_id: True, alive.launch_id: False,
    }  # fmt: skip
    assert "0001.claim" in next(d["why"] for d in damaged if d["launch_id"] == dead.launch_id)

    assert removed() == []
    assert removed(damaged=True, older_than_s=30 * DAY_S) == [], "too young"
    # The supervisor of the living one goes on touching its heartbeat; the tag alone has to be enough.
    assert removed(damaged=True, dry_run=True) == [dead.launch_id]
    assert removed(damaged=True) == [dead.launch_id]
    assert not os.path.exists(dead.run_directory)
    assert os.path.isdir(newer.run_directory) and os.path.isdir(alive.run_directory)


def place(host: Host, letter: str, days: float) -> Path:
    """An unpacked archive that was last used so long ago."""
    folder = host.root / "archives" / (letter * 64)
    folder.mkdir(parents=True)
    (folder / "MANIFEST").write_text("end 0\n")
    (folder / "code.py").write_text("x" * 10_000)
    age(folder, days)
    return folder


def name_archive(record: RunRecord, letter: str) -> None:
    """As if the launch had come with that archive."""
    folder = RunDirectory(record.run_directory).key_directory
    for claim in Path(folder.root).parent.rglob(f"{folder.name}/{record.number:04d}.claim"):
        value = json.loads(claim.read_text())
        claim.unlink()
        claim.write_text(json.dumps({**value, "archive_digest": letter * 64}))


def test_archives_that_nothing_needs_go(host: Host) -> None:
    """By age beyond 30 days, by number beyond the newest three; never one that a launch names, living or ended."""
    live, ended = host.launch(["sleep", "600"]), host.finish("true")
    for letter, days in zip("abcdefgh", (0.1, 1, 2, 3, 4, 31, 40, 50), strict=True):
        place(host, letter, days)
    name_archive(live, "g")
    name_archive(ended, "h")

    plan = housekeeping.clean(older_than_s=14 * DAY_S, dry_run=True)
    assert [(item["kind"], item["launch_id"]) for item in plan] == [("archive", None)] * 3
    assert all(item["size_bytes"] >= 10_000 for item in plan)
    assert {item["why"].rpartition("; ")[2] for item in plan} == {"not among the 3 newest", "not used for 30 days"}
    assert len(os.listdir(host.root / "archives")) == 8, "a dry run removes nothing"
    assert removed() == ["d", "e", "f"]
    assert sorted(name[0] for name in os.listdir(host.root / "archives")) == ["a", "b", "c", "g", "h"]

    stop(live)
    RunDirectory(ended.run_directory).write_ack(0, 0, ended=True)
    end_days_ago(ended, 20)
    assert removed() == [ended.launch_id, "h"], "once its last launch is removed, in the same run"


def test_an_archive_that_a_session_runs_stays(host: Host) -> None:
    """A triggerer's session lasts for weeks and imports late; it keeps the manifest open."""
    folder = place(host, "a", 40)
    code = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(folder / "MANIFEST")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None and session.stdout.readline() == b"open\n"
        assert removed() == []
    assert removed() == ["a"]


def test_a_real_session_holds_its_archive(ssh_host: SshHost) -> None:
    """The receiver opens the manifest of what it becomes, and marks the time; a session's end lets go of it."""

    def holders(manifest: str) -> list[str]:
        return [path for path in housekeeping._held() if path == manifest]

    began_at = time.time()
    with open_session(target_of(ssh_host)) as session:
        manifest = os.path.join(session.hello["archive"], "MANIFEST")
        assert holders(manifest) == [manifest]
        assert os.stat(manifest).st_mtime >= began_at - 2
    wait_until(lambda: not holders(manifest), deadline_s=20, what="the session's end to let go of the archive")


def test_no_archive_goes_while_a_launch_cannot_be_read(host: Host) -> None:
    """It may live, and which archive it runs is not known."""
    place(host, "a", 40)
    record = host.finish("true")
    damage(record)

    assert removed() == []
    assert os.path.isdir(host.root / "archives" / ("a" * 64))


@pytest.mark.parametrize("kind", ["young", "being unpacked"])
def test_an_archive_that_has_just_come_stays(host: Host, kind: str) -> None:
    """Whoever placed it, or found it there, is about to run it."""
    for letter in "abc":
        place(host, letter, 0)
    folder = place(host, "d", 0.01 if kind == "young" else 40)
    if kind != "young":
        folder.rename(f"{folder}.123-abcd")

    assert removed() == []

"""Each finding says what is wrong and what to do; the answers of hosts that are not here are given as values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpualert import doctor
from gpualert.doctor import OK, PROBLEM, UNKNOWN, WARNING, Finding, RootFacts
from gpualert.survival import LoginFacts

GIB = 1024**3


def test_this_host_is_examined_without_an_exception() -> None:
    """Every check yields a finding; a name appears for each part of the host."""
    findings = doctor.examine()

    names = {finding.name for finding in findings}
    assert {"python", "system", "root", "logout", "shm", "clock", "limits", "disk", "gpu", "bash", "git"} <= names
    assert all(finding.status in (OK, WARNING, PROBLEM, UNKNOWN) and finding.found for finding in findings)
    assert [f for f in findings if f.name == "python"][0].status == OK


def test_every_problem_comes_with_what_to_do() -> None:
    """A problem without advice would leave its reader alone."""
    findings = [
        doctor.judge_python((3, 6, 8), "/usr/bin/python3"),
        doctor.judge_system("FreeBSD", "x", "y"),
        doctor.judge_system("Linux", None, "y"),
        *doctor.judge_roots([RootFacts("/r", False, "expected mode 0700, found 0777")]),
        doctor.judge_shm(None, True),
        doctor.judge_clock(0.0, None),
        doctor.judge_limits({"file size": 1000}),
        doctor.judge_disk([("/tmp", (GIB, 0))]),
    ]
    for finding in findings:
        assert finding.status == PROBLEM and finding.advice, finding


def test_a_check_that_breaks_is_unknown_and_the_others_go_on(monkeypatch) -> None:
    def broken(version: object, executable: object) -> Finding:
        raise RuntimeError("no idea")

    monkeypatch.setattr(doctor, "judge_python", broken)
    findings = doctor.examine()
    assert findings[0] == Finding("python", UNKNOWN, "could not be looked at: RuntimeError: no idea")
    assert len(findings) > 8


@pytest.mark.parametrize(
    ("root", "status"),
    [
        ({}, OK),
        ({"filesystem": "nfs4"}, WARNING),
        ({"filesystem": "fuse.sshfs"}, WARNING),
        ({"filesystem": "tmpfs"}, WARNING),
        ({"options": frozenset({"noexec"})}, OK),
        ({"free_bytes": GIB // 2}, WARNING),
        ({"free_bytes": 1024}, PROBLEM),
        ({"free_bytes": None}, OK),
        ({"free_inodes": 3}, PROBLEM),
        ({"free_inodes": None}, OK),
    ],
)
def test_the_root_that_would_be_used_is_judged(root: dict[str, object], status: str) -> None:
    values: dict[str, object] = {"filesystem": "ext4", "free_bytes": 50 * GIB, "free_inodes": 10**6}
    findings = doctor.judge_roots([RootFacts("/r", True, None, **{**values, **root})])  # type: ignore[arg-type]
    assert [finding.status for finding in findings] == [status]


def test_a_root_passed_over_is_a_warning_as_long_as_another_one_serves() -> None:
    findings = doctor.judge_roots([RootFacts("/a", False, "cannot be written"), RootFacts("/b", True, None, "ext4")])
    assert [finding.status for finding in findings] == [WARNING, OK]
    assert "cannot be written" in findings[0].found


def test_a_logout_that_kills_is_a_problem_and_one_that_takes_shared_memory_a_warning() -> None:
    """Where there is no systemd neither can happen."""
    kills = LoginFacts(1000, True, False, True, False, True)
    removes = LoginFacts(1000, True, False, False, False, True)
    dark = LoginFacts(1000, True, False, None, False, None)

    assert doctor.judge_logout(False, None, "ada").status == OK
    assert doctor.judge_logout(True, kills, "ada").status == PROBLEM
    warning = doctor.judge_logout(True, removes, "ada")
    assert warning.status == WARNING and "enable-linger ada" in str(warning.advice)
    assert doctor.judge_logout(True, dark, "ada").status == UNKNOWN
    assert doctor.judge_logout(True, LoginFacts(1000, True, True, False, False, True), "ada").status == OK


def test_shared_memory_of_a_container_is_too_small() -> None:
    assert doctor.judge_shm((64 * 1024**2, 64 * 1024**2), True).status == WARNING
    assert doctor.judge_shm((64 * GIB, 60 * GIB), True).status == OK
    assert doctor.judge_shm((64 * GIB, GIB), True).status == WARNING


def test_the_clock() -> None:
    now = 1.8e9
    assert doctor.judge_clock(now, True).status == OK
    assert doctor.judge_clock(now, False).status == WARNING
    assert doctor.judge_clock(now, None).status == UNKNOWN


def test_limits() -> None:
    """None means unlimited there, so only a number can be too low."""
    assert doctor.judge_limits({"open files": None, "processes": None, "file size": None}).status == OK
    assert doctor.judge_limits({"open files": 1024}).status == WARNING
    assert doctor.judge_limits({"open files": 65536, "address space": 10**9}).status == WARNING
    assert doctor.judge_limits({"open files": 65536, "cpu seconds": 3600}).status == PROBLEM


def test_disks() -> None:
    assert doctor.judge_disk([("/tmp", None)]).status == UNKNOWN
    assert doctor.judge_disk([("/tmp", (9 * GIB, 2 * GIB)), ("/home", None)]).status == WARNING
    assert doctor.judge_disk([("/tmp", (90 * GIB, 20 * GIB))]).status == OK


def test_mounts_are_read_as_the_kernel_writes_them() -> None:
    """A blank in a mount point is ``\\040``; the longest mount point above a path is its own."""
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:30 / /mnt/my\\040data rw,noexec - nfs4 server:/x rw,vers=4.2\n"
        "nonsense\n"
    )
    mounts = doctor.parse_mounts(text)
    assert mounts == [
        ("/", "ext4", frozenset({"rw", "relatime"})),
        ("/mnt/my data", "nfs4", frozenset({"rw", "noexec"})),
    ]
    assert doctor._mount_of("/mnt/my data/x", mounts)[0] == "nfs4"
    assert doctor._mount_of("/mnt/my data2", mounts)[0] == "ext4"


def test_a_connection_needs_the_provider(monkeypatch) -> None:
    """Without it the message says where to run this instead."""
    monkeypatch.setattr(doctor, "_entry_points", list)
    with pytest.raises(LookupError, match="airflow-provider-gpualert"):
        doctor.examine_connection("gpu_box")


def test_a_connection_is_handed_to_what_is_registered(monkeypatch) -> None:
    class Registered:
        @staticmethod
        def load() -> object:
            return lambda conn_id: [{"name": "ssh", "status": OK, "found": conn_id}]

    monkeypatch.setattr(doctor, "_entry_points", lambda: [Registered])
    assert doctor.examine_connection("gpu_box") == [Finding("ssh", OK, "gpu_box")]


def test_a_connection_that_cannot_be_examined_is_one_line(monkeypatch) -> None:
    """Airflow's own errors, and a provider that is half installed, must not end in a stack trace."""

    class Broken:
        @staticmethod
        def load() -> object:
            raise ImportError("No module named 'airflow'")

    monkeypatch.setattr(doctor, "_entry_points", lambda: [Broken])
    with pytest.raises(LookupError, match="gpu_box: could not be examined: ImportError: No module named 'airflow'"):
        doctor.examine_connection("gpu_box")


def test_the_worst_of_several() -> None:
    assert doctor.worst([]) == OK
    assert doctor.worst([Finding("a", UNKNOWN, ""), Finding("b", OK, "")]) == UNKNOWN
    assert doctor.worst([Finding("a", WARNING, ""), Finding("b", PROBLEM, ""), Finding("c", UNKNOWN, "")]) == PROBLEM


def test_a_root_that_does_not_exist_yet_is_measured_where_it_would_be(tmp_path: Path) -> None:
    status = doctor._statvfs(str(tmp_path / "a" / "b"))
    assert status is not None and status.f_blocks == os.statvfs(tmp_path).f_blocks

"""Identities: whose pid it is, and whether that can be seen from here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpualert import procfs
from gpualert.procfs import ProcessIdentity
from tests.support.waiting import wait_until


def mine(**change: object) -> ProcessIdentity:
    found = procfs.identify(os.getpid())
    assert found is not None
    return ProcessIdentity(**{**found.to_json(), **change})


def test_an_identity_is_compared_whole() -> None:
    assert mine() == mine() == ProcessIdentity.from_json(mine().to_json())
    assert procfs.alive(mine()) is True
    assert procfs.alive(mine(start_ticks=1)) is False


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"boot_id": "other"}, False),
        ({"boot_id": "other", "machine_id": "other"}, None),
        ({"boot_id": "other", "machine_id": None}, None),
        ({"boot_id": None}, False),
        ({"pid_namespace": "pid:[1]"}, None),
    ],
)
def test_what_cannot_be_compared_is_not_known(change: dict[str, object], expected: bool | None) -> None:
    """None, never False: somebody's training is not declared dead because we look from the wrong place."""
    if procfs.machine_id() is None and expected is False:
        pytest.skip("this machine has no machine id")
    assert procfs.alive(mine(**change)) is expected


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen(["sleep", "60"])
    identity = procfs.identify(process.pid)
    assert identity is not None and procfs.alive(identity) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.alive(identity) is False
    assert procfs.send_signal(process.pid, identity.start_ticks, 0) is False
    process.wait()
    assert procfs.identify(process.pid) is None


def test_a_name_with_spaces_and_parentheses(tmp_path: object) -> None:
    """proc(5): the command name is between the first '(' and the last ')', whatever is in it."""
    code = "open('/proc/self/comm', 'w').write('a) R 1 (b'); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    found = procfs.stat(process.pid)
    process.communicate(b"\n")

    assert found is not None
    assert (found.command, found.parent) == ("a) R 1 (b", os.getpid())


def test_a_signal_reaches_one_process_not_its_pids_next_owner() -> None:
    assert procfs.send_signal(os.getpid(), 1, 9) is False


def test_the_tag_is_read_from_the_environment() -> None:
    process = subprocess.Popen(["sleep", "60"], env={procfs.TAG: "x.1"})
    try:
        # Popen returns a moment before the kernel shows the new program's environment.
        wait_until(lambda: procfs.is_tagged(process.pid, "x.1"), deadline_s=10, what="the tag to be seen")
        assert not procfs.is_tagged(process.pid, "x.11")
        assert not procfs.is_tagged(process.pid, ".1")
    finally:
        process.kill()
        process.wait()

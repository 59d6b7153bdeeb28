"""The machines that other tests switch off and cut away behave as machines do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.machine import Machine
from tests.support.sshd import Account
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ALIVE = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3", "-o", "ConnectTimeout=3")


def command(machine: Machine, *words: str) -> list[str]:
    made = machine.ssh_command(*words)
    return [made[0], *ALIVE, *made[1:]]


def run(machine: Machine, words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(machine, words), capture_output=True, text=True, timeout=60, **how)


def test_a_machine_has_its_own_processes_name_and_ids(machine_with: Callable[..., Machine]) -> None:
    """What runs here is not seen there."""
    machine = machine_with()

    seen = run(machine, "hostname; cat /proc/sys/kernel/random/boot_id; ps -e | wc -l").stdout.split()

    assert seen[:2] == [machine.name, machine.boot_id]
    assert int(seen[2]) < 15


def test_two_machines_have_different_ids_and_homes(
    machine_with: Callable[..., Machine], account_with: Callable[..., Account]
) -> None:
    """One account on two machines has two homes, unless they share it."""
    account = account_with()
    one, two = machine_with(username=account.name), machine_with(username=account.name)
    run(one, "echo here > mark")

    assert one.boot_id != two.boot_id
    assert run(one, "cat mark").stdout == "here\n"
    assert run(two, "cat mark").returncode == 1
    assert not (account.home / "mark").exists()


def test_a_reboot_ends_everything_and_keeps_disk_and_host_key(machine_with: Callable[..., Machine]) -> None:
    """After a reboot: another boot id, no process left over, the files still there."""
    machine = machine_with()
    before = machine.boot_id
    run(machine, "echo kept > file; setsid sleep 300 </dev/null >/dev/null 2>&1 &")
    wait_until(lambda: "sleep 300" in machine.enter("ps", "-ef"), 10, "the detached process runs")

    machine.reboot()

    assert machine.boot_id != before
    done = run(machine, "cat file; cat /proc/sys/kernel/random/boot_id")
    assert done.stdout.split() == ["kept", machine.boot_id], done.stderr
    assert "sleep 300" not in machine.enter("ps", "-ef")


@pytest.mark.parametrize("harm", ["cut", "drop"])
def test_a_lost_link_ends_the_client_and_not_the_work(machine_with: Callable[..., Machine], harm: str) -> None:
    """The session breaks after the client's own patience; the machine works on and is reachable again when healed."""
    machine = machine_with()
    client = subprocess.Popen(command(machine, "sleep 300"), stderr=subprocess.DEVNULL)
    wait_until(lambda: "sleep 300" in machine.enter("ps", "-ef"), 20, "the session runs its command")

    getattr(machine, harm)()

    assert client.wait(30) == 255
    assert run(machine, "true").returncode == 255
    assert "sleep 300" in machine.enter("ps", "-ef")
    machine.heal()
    assert run(machine, "echo back").stdout == "back\n"


def test_a_refusing_machine_says_so_at_once(machine_with: Callable[..., Machine]) -> None:
    """Refused is another answer than silence."""
    machine = machine_with()
    machine.refuse()

    assert "Connection refused" in run(machine, "true").stderr

    machine.heal()
    assert run(machine, "true").returncode == 0


def test_a_power_cut_tells_nobody(machine_with: Callable[..., Machine]) -> None:
    """A silent power-off is noticed by the client's patience alone; a switched-off machine closes its connections."""
    machine = machine_with()
    client = subprocess.Popen(command(machine, "sleep 300"), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: "sleep 300" in machine.enter("ps", "-ef"), 20, "the session runs its command")

    machine.power_off(silent=True)

    said = client.communicate(timeout=30)[1]
    assert client.returncode == 255
    assert "closed by remote host" not in said


def test_a_frozen_machine_goes_on_where_it_stood(machine_with: Callable[..., Machine]) -> None:
    """Frozen, it accepts connections and says nothing."""
    machine = machine_with()
    machine.freeze()
    assert run(machine, "true").returncode == 255
    machine.thaw()

    assert run(machine, "echo awake").stdout == "awake\n"


def test_its_small_disk_can_be_full(machine_with: Callable[..., Machine]) -> None:
    """ENOSPC is the real one."""
    machine = machine_with()
    machine.fill_disk()

    assert "No space left" in run(machine, f"echo 1234567890 > {machine.disk}/x").stderr

"""The SSH hosts that other tests rely on do what they say."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import mounts
from tests.support.sshd import NOISE, Account, SshHost
from tests.support.waiting import wait_until


def run(host: SshHost, command: str, *, login: str | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(host.ssh_command(command, login=login), capture_output=True, text=True, timeout=60, **how)


def test_a_command_runs_as_the_named_user(ssh_host: SshHost) -> None:
    """Key, host key and account fit together."""
    done = run(ssh_host, "id -un")

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ssh_host.username
    assert ssh_host.connections_accepted() == 1


def test_another_key_is_refused(ssh_host: SshHost, ssh_host_with: Callable[..., SshHost]) -> None:
    """A host lets in its own key alone, so that an authentication failure can be provoked with another host's key."""
    other = ssh_host_with()
    command = [str(other.key_path) if word == str(ssh_host.key_path) else word for word in ssh_host.ssh_command("true")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 255
    assert "Permission denied" in done.stderr


def test_the_host_key_of_another_host_does_not_fit(ssh_host: SshHost, ssh_host_with: Callable[..., SshHost]) -> None:
    """Each host has a host key of its own."""
    assert ssh_host.host_key_line != ssh_host_with().host_key_line


def test_killing_sessions_cuts_the_client_and_not_the_host(ssh_host: SshHost) -> None:
    """A cut connection is provoked without stopping the server."""
    client = subprocess.Popen(ssh_host.ssh_command("sleep 60"), stderr=subprocess.DEVNULL)
    wait_until(ssh_host.connections_accepted, 20, "the client is logged in")

    assert ssh_host.kill_sessions() > 0
    assert client.wait(20) == 255
    assert run(ssh_host, "echo still here").stdout == "still here\n"


def test_a_frozen_host_answers_after_it_thawed(ssh_host: SshHost) -> None:
    """TCP accepts and nobody speaks, until the host goes on."""
    ssh_host.freeze()
    client = subprocess.Popen(ssh_host.ssh_command("echo late"), stdout=subprocess.PIPE, text=True)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            client.communicate(timeout=1)
    finally:
        ssh_host.thaw()

    assert client.communicate(timeout=20)[0] == "late\n"


def test_it_starts_again_on_the_same_port_with_the_same_key(ssh_host: SshHost) -> None:
    """A connection stays valid over a restart of the host."""
    before = (ssh_host.port, ssh_host.host_key_line)
    ssh_host.stop()
    ssh_host.start()

    assert (ssh_host.port, ssh_host.host_key_line) == before
    assert run(ssh_host, "echo again").stdout == "again\n"


def test_every_login_shell_passes_a_script_on(shell_account: Account, ssh_host_with: Callable[..., SshHost]) -> None:
    """The account's own shell really is in between: its start-up file's words come first."""
    host = ssh_host_with(username=shell_account.name)

    done = run(host, "/bin/sh -s", input="echo payload; echo $0")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2] == "payload"
    assert lines[:-2] == ([] if shell_account.shell.endswith("dash") else [NOISE])


def test_an_account_without_a_shell_says_so(
    account_with: Callable[..., Account], ssh_host_with: Callable[..., SshHost]
) -> None:
    """nologin's answer comes on stdout, with status 1."""
    account = account_with("/usr/sbin/nologin")

    done = run(ssh_host_with(username=account.name), "true")

    assert done.returncode == 1
    assert "not available" in done.stdout


def test_a_forced_command_replaces_ours(ssh_host_with: Callable[..., SshHost]) -> None:
    """Options of sshd_config come first and win."""
    host = ssh_host_with(options=["ForceCommand echo only this"])

    assert run(host, "echo mine").stdout == "only this\n"


def test_a_home_can_be_read_only_or_full(
    account_with: Callable[..., Account], ssh_host_with: Callable[..., SshHost]
) -> None:
    """The mounts are the host's alone: the same home is writable outside."""
    account = account_with()
    shut = ssh_host_with(username=account.name, mounts=mounts.read_only(account.home))
    full = ssh_host_with(username=account.name, mounts=mounts.full(account.home, account.uid))

    assert "Read-only file system" in run(shut, "touch ~/x").stderr
    assert "No space left" in run(full, "echo 12345 > ~/x").stderr
    (account.home / "x").write_text("fine")
    assert not any(line.split()[1] == str(account.home) for line in open("/proc/self/mounts"))


def test_a_host_can_lack_python(account_with: Callable[..., Account], ssh_host_with: Callable[..., SshHost]) -> None:
    """Nothing named python starts there, while the shell's own tools do."""
    host = ssh_host_with(username=account_with().name, mounts=mounts.without_python())

    done = run(host, "python3 -c pass; echo $?")

    assert done.stdout.strip() in ("126", "127"), done.stderr


def test_a_noexec_tmp_refuses_programs_and_lets_interpreters_read(
    account_with: Callable[..., Account], ssh_host_with: Callable[..., SshHost]
) -> None:
    """A script there can be read by sh but not started."""
    host = ssh_host_with(username=account_with().name, mounts=mounts.noexec_tmp())
    script = "f=/var/tmp/gpualert-probe-$$; echo 'echo ran' > $f; chmod 755 $f; $f; echo $?; sh $f; rm $f"

    assert run(host, "/bin/sh -s", input=script).stdout.split() == ["126", "ran"]


def test_removing_an_account_ends_its_detached_processes(ssh_host_with: Callable[..., SshHost]) -> None:
    """Nothing that a test left running on a host outlives it."""
    from tests.support import accounts

    account = accounts.create()
    host = ssh_host_with(username=account.name)
    run(host, "setsid sleep 300 </dev/null >/dev/null 2>&1 &")
    wait_until(account.processes, 10, "the detached process runs")

    accounts.remove(account)

    assert account.processes() == []
    assert not os.path.exists(account.home)

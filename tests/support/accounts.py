"""Throwaway accounts with a login shell of one's choice, for hosts on this machine."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import needs
from tests.support.waiting import wait_until

LOGIN_SHELLS = ("bash", "dash", "zsh", "fish", "tcsh")

# Printed by each shell at the start of a non-interactive command, before the payload's own output.
NOISE = "*** Welcome to the GPU cluster! Quota: 93% used ***"
NOISY_FILES: Mapping[str, Mapping[str, str]] = {
    "bash": {".bashrc": f"echo '{NOISE}'\n"},
    "dash": {},  # reads no file for a command
    "zsh": {".zshenv": f"echo '{NOISE}'\n"},
    "fish": {".config/fish/config.fish": f"echo '{NOISE}'\n"},
    "tcsh": {".tcshrc": f"echo '{NOISE}'\n"},
}


@dataclass(frozen=True)
class Account:
    """An account of this machine that lives as long as the test."""

    name: str
    uid: int
    gid: int
    home: Path
    shell: str

    def write(self, relative: str, text: str, mode: int = 0o644) -> Path:
        """Put a file of the account's own under its home."""
        path = self.home / relative
        missing = [parent for parent in [path.parent, *path.parent.parents] if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        for made in [path, *missing]:
            os.chown(made, self.uid, self.gid)
        return path

    def processes(self) -> list[int]:
        """Pids of all processes that run under this account."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{entry}").st_uid == self.uid and not _is_zombie(entry):
                    found.append(int(entry))
            except OSError:  # ended while we looked
                continue
        return found


def create(shell: str = "bash", *, noisy: bool = False) -> Account:
    """
    Make an account (root only, else the test is skipped).

    :param shell: a shell's name, or the absolute path of any program (``/usr/sbin/nologin``).
    :param noisy: its start-up files print :data:`NOISE`.
    """
    needs.root()
    path = shell if shell.startswith("/") else needs.program(shell)
    name = f"gpu{secrets.token_hex(4)}"
    # An account whose password field is "!" counts as locked for sshd without PAM; "*" means that no password fits.
    _retry("useradd", "--create-home", "--shell", path, "--password", "*", name)
    entry = pwd.getpwnam(name)
    account = Account(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir), path)
    if noisy:
        for file, text in NOISY_FILES[shell].items():
            account.write(file, text)
    return account


def remove(account: Account) -> None:
    """End what still runs under the account, then remove it with its home and its fall-back root."""

    def ended() -> bool:
        pids = account.processes()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not pids

    wait_until(ended, 10, f"no process of {account.name} is left")
    _retry("userdel", "--force", account.name)
    shutil.rmtree(account.home, ignore_errors=True)
    shutil.rmtree(f"/var/tmp/gpualert-{account.uid}", ignore_errors=True)


def _retry(program: str, *arguments: str) -> None:
    """Run a tool of the passwd family; another test may hold its lock for a moment."""
    command = [needs.program(program), *arguments]

    def done() -> subprocess.CompletedProcess[str] | None:
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0:
            return result
        if "lock" not in result.stderr:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
        return None

    wait_until(done, 20, f"{program} gets the lock of /etc/passwd")


def _is_zombie(pid: str) -> bool:
    status = Path(f"/proc/{pid}/stat").read_text()
    return status[status.rindex(")") + 2] == "Z"

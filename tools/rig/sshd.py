"""A throwaway OpenSSH server on loopback: own keys, own configuration, own log, a port that was free.

Started by root it lets in, by key, whoever has an account here; started by a plain user, that user alone.
Traffic never leaves this machine.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.rig import processes
from tools.rig.waiting import DidNotHappen, wait_until

# The default, sntrup761, costs 190 ms of CPU per connection; this one 10.
# The second name is the same exchange, and the only one of the two that paramiko knows.
_KEY_EXCHANGE = "curve25519-sha256,curve25519-sha256@libssh.org"


class SshdMissing(RuntimeError):
    """No OpenSSH server is installed here; the message says which package brings it."""


def find_sshd() -> str:
    """The server's absolute path (it refuses to start under a relative one)."""
    found = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
    if found is None or shutil.which("ssh-keygen") is None:
        raise SshdMissing("sshd or ssh-keygen is not installed here (Debian: openssh-server openssh-client)")
    return os.path.abspath(found)


class SshEndpoint:
    """
    What a client needs to know of a host that this project started, and the host's keys.

    :param folder: where keys, configuration and log are kept. Other accounts than ours must be able to pass through it.
    :param address: where the host listens.
    :param username: the account named in connections; any account works when root runs the server.
    :param options: lines of sshd_config that come first (the first value wins), such as ``MaxStartups 1:100:1``.
    """

    def __init__(self, folder: Path, address: str, username: str | None, options: Sequence[str]) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.address = address
        self.port = 0
        self.username = username or getpass.getuser()
        self.options = tuple(options)
        self.log = self.folder / "sshd.log"
        self.key_path = self.folder / "id_ed25519"
        self._make_keys()

    @property
    def host_key_line(self) -> str:
        """Type and key, as the ``host_key`` extra of Airflow's connection takes it."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def known_hosts_line(self) -> str:
        """The same as a line of known_hosts(5)."""
        where = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{where} {self.host_key_line}"

    def connection_extra(self, **changes: Any) -> dict[str, Any]:
        """Extras of an Airflow ``ssh`` connection to this host; ``changes`` win, and a None removes an entry."""
        extra = {"key_file": str(self.key_path), "host_key": self.host_key_line, "conn_timeout": 20, **changes}
        return {name: value for name, value in extra.items() if value is not None}

    def airflow_connection_json(self, *, login: str | None = None, **extra_changes: Any) -> str:
        """What AIRFLOW_CONN_<ID> holds for this host."""
        return json.dumps(
            {
                "conn_type": "ssh",
                "host": self.address,
                "port": self.port,
                "login": login or self.username,
                "extra": self.connection_extra(**extra_changes),
            }
        )

    def ssh_command(self, *words: str, login: str | None = None) -> list[str]:
        """argv of an OpenSSH client that runs ``words`` there; no file of the user's own configuration is read."""
        known = self.folder / "known_hosts"
        known.write_text(self.known_hosts_line + "\n")
        settings = {
            "UserKnownHostsFile": str(known),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "20",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        login = login or self.username
        identity = ["-i", str(self.key_path), "-p", str(self.port), "-l", login]
        return ["ssh", "-F", "none", *identity, *options, self.address, *words]

    def connections_accepted(self) -> int:
        """Logins that have succeeded since the log began."""
        # "Accepted key" also appears once per login, when the key was found and before its signature was checked.
        return self.log.read_text(errors="replace").count("Accepted publickey for ")

    def connections_opened(self) -> int:
        """TCP connections since the log began, whether or not somebody logged in."""
        return self.log.read_text(errors="replace").count("Connection from ")

    def _make_keys(self) -> None:
        for name in ("host_key", "id_ed25519"):
            if not (self.folder / name).exists():
                words = ["-q", "-t", "ed25519", "-N", "", "-C", "gpualert", "-f", str(self.folder / name)]
                subprocess.run(["ssh-keygen", *words], check=True)
        # Read by sshd under the identity of whoever logs in: it must be readable by all, and belongs to us.
        authorized = self.folder / "authorized_keys"
        shutil.copyfile(self.folder / "id_ed25519.pub", authorized)
        authorized.chmod(0o644)

    def _write_config(self) -> Path:
        ours = [
            f"ListenAddress {self.address}",
            f"Port {self.port}",
            f"HostKey {self.folder}/host_key",
            f"PidFile {self.folder}/sshd.pid",
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "UsePAM no",
            "UseDNS no",
            f"KexAlgorithms {_KEY_EXCHANGE}",
            "MaxStartups 100:30:200",
            "MaxSessions 100",
            "PrintMotd no",
            "AcceptEnv LANG LC_*",
            "Subsystem sftp internal-sftp",
            "LogLevel VERBOSE",
        ]
        # Not for every keyword does the first value win (MaxStartups), so ours is left out where the caller has one.
        given = {option.split()[0].lower() for option in self.options}
        lines = [*self.options, *(line for line in ours if line.split()[0].lower() not in given)]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        return config


class SshHost(SshEndpoint):
    """
    An SSH host on loopback; a context manager that starts and stops it.

    :param folder: by default a new one, removed at the end.
    :param address: any address of 127.0.0.0/8, so that several hosts look like several machines.
    :param mounts: shell lines run as root in a mount namespace of the server's own, before it starts
        (tests/support/mounts.py has some).
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        address: str = "127.0.0.1",
        username: str | None = None,
        options: Sequence[str] = (),
        mounts: Sequence[str] = (),
    ) -> None:
        self._sshd = find_sshd()
        self._own_folder = folder is None
        super().__init__(folder or Path(tempfile.mkdtemp(prefix="gpualert-sshd-")), address, username, options)
        self.mounts = tuple(mounts)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the listening server; its sessions are its children."""
        if self._process is None:
            raise RuntimeError(f"the sshd in {self.folder} is not started")
        return self._process.pid

    def start(self) -> SshHost:
        """Start on a free port (the same one after a stop, if it is still free) and wait until it listens."""
        wanted = self.port
        for attempt in range(10):
            self.port = wanted if wanted and attempt == 0 else processes.free_port(self.address)
            if self._listens():
                return self
        raise DidNotHappen(f"sshd found no free port on {self.address} in 10 tries: {self._last_words()}")

    def stop(self, *, sessions: bool = True) -> None:
        """Stop listening, and by default end the open sessions. What these detached goes on."""
        if self._process is None:
            return
        open_sessions = self.session_pids()
        processes.stop(self._process, grace_s=5)
        self._process = None
        if sessions:
            self._end(open_sessions)

    def session_pids(self) -> list[int]:
        """The server's processes for open connections, not the commands that run in them."""
        if self._process is None:
            return []
        return [pid for pid in processes.descendants(self._process.pid) if _name(pid).startswith("sshd")]

    def kill_sessions(self) -> int:
        """Cut every open connection at once; the host goes on listening. Returns how many processes were killed."""
        return self._end(self.session_pids())

    def freeze(self) -> None:
        """Stand still with everything that belongs to the server: TCP still accepts, nobody answers."""
        for pid in [self.pid, *self.session_pids()]:
            processes.send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in [*self.session_pids(), self.pid]:
            processes.send(pid, signal.SIGCONT)

    def __enter__(self) -> SshHost:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _listens(self) -> bool:
        """Start once; False when the port was taken by somebody else in between."""
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        begins_at = self.log.stat().st_size if self.log.exists() else 0
        server = [self._sshd, "-D", "-f", str(self._write_config()), "-E", str(self.log)]
        if self.mounts:
            script = "\n".join(["set -e", *self.mounts, 'exec "$@"'])
            server = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sshd", *server]
        process = self._process = processes.start(server, self.folder / "sshd.out")

        def new_words() -> str:
            if not self.log.exists():
                return ""
            with open(self.log, "rb") as log:
                log.seek(begins_at)
                return log.read().decode(errors="replace")

        def decided() -> str | None:
            words = new_words()
            if f"listening on {self.address} port {self.port}" in words:
                return "listening"
            return "ended" if process.poll() is not None else None

        if wait_until(decided, 20, f"sshd listens on {self.address}:{self.port}", interval_s=0.01) == "listening":
            return True
        self._process = None
        if "Address already in use" in new_words():
            return False
        raise RuntimeError(f"sshd did not start ({self.folder}): {self._last_words()}")

    def _last_words(self) -> str:
        said = [
            path.read_text(errors="replace")[-1500:] for path in (self.folder / "sshd.out", self.log) if path.exists()
        ]
        return " ".join(said).strip() or "it said nothing"

    @staticmethod
    def _end(pids: Sequence[int]) -> int:
        killed = sum(processes.send(pid, signal.SIGKILL) for pid in pids)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") and _name(pid) for pid in pids), 10, f"ended: {pids}")
        return killed


def _name(pid: int) -> str:
    """The process's name; empty when it is gone or only waits to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    name, _, rest = status.partition(" (")[2].rpartition(") ")
    return "" if rest.startswith("Z") else name

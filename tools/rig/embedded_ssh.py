"""An SSH host in Python (asyncssh), for machines on which no OpenSSH server can be had.

    python -m tools.rig.embedded_ssh FOLDER ADDRESS     serve until told to stop; FOLDER/port names the port

It runs commands as the user who started it, by that user's key alone. Good enough for a demo; tests use OpenSSH.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.rig import processes
from tools.rig.sshd import SshEndpoint
from tools.rig.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


class EmbeddedHost(SshEndpoint):
    """The same to a client as :class:`tools.rig.sshd.SshHost`; runs as a process of its own."""

    def __init__(self, folder: Path | None = None, *, address: str = "127.0.0.1") -> None:
        self._own_folder = folder is None
        super().__init__(folder or Path(tempfile.mkdtemp(prefix="gpualert-ssh-")), address, None, ())
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> EmbeddedHost:
        port = self.folder / "port"
        port.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tools.rig.embedded_ssh", str(self.folder), self.address]
        process = self._process = processes.start(command, self.log, cwd=ROOT)

        def listening() -> str | None:
            if process.poll() is not None:
                raise RuntimeError(
                    f"the embedded SSH host did not start: {self.log.read_text(errors='replace')[-1500:]}"
                )
            return port.read_text() if port.exists() else None

        self.port = int(wait_until(listening, 30, "the embedded SSH host listens") or 0)
        return self

    def stop(self) -> None:
        if self._process is not None:
            processes.stop(self._process, grace_s=5)
            self._process = None

    def __enter__(self) -> EmbeddedHost:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _make_keys(self) -> None:
        import asyncssh

        for name in ("host_key", "id_ed25519"):
            if not (self.folder / name).exists():
                key = asyncssh.generate_private_key("ssh-ed25519", comment="gpualert")
                key.write_private_key(str(self.folder / name))
                (self.folder / name).chmod(0o600)
                key.write_public_key(str(self.folder / f"{name}.pub"))
        shutil.copyfile(self.folder / "id_ed25519.pub", self.folder / "authorized_keys")


async def serve(folder: Path, address: str) -> None:
    """Listen on a free port and run what clients ask for, until cancelled."""
    import asyncssh

    async def run(client: asyncssh.SSHServerProcess[bytes]) -> None:
        # As sshd does it: the login shell with -c, in a session of its own.
        shell = os.environ.get("SHELL", "/bin/sh")
        words = [shell, "-c", client.command] if client.command else [shell]
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=Path.home(),
        )
        await client.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        ended = asyncio.ensure_future(child.wait())
        gone = asyncio.ensure_future(client.wait_closed())
        await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            # The client left: its command loses its terminal's end, as under sshd, and what it detached goes on.
            processes.send(child.pid, signal.SIGHUP)
            return
        gone.cancel()
        await client.stdout.drain()
        await client.stderr.drain()
        status = ended.result()
        if status < 0:
            client.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            client.exit(status)

    server = await asyncssh.listen(
        address,
        0,
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=run,
        encoding=None,
        allow_scp=False,
    )
    port = folder / "port.part"
    port.write_text(str(server.get_port()))
    port.rename(folder / "port")
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))

"""How fast `gpualert fetch` brings a log over SSH, and whether every byte comes as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from benchmarks import wrapper
from benchmarks.measure import Effort, Row, Target
from tools.rig.sshd import SshdMissing, SshHost

_PIECE = 1 << 20
_WHAT = "log fetched by `gpualert fetch`, loopback, log-in and hashes counted, byte-exact"

# Digits that change, as in a training's log: one line repeated would flatter a link that compresses.
_WRITE = """
import random, sys
chance = random.Random(1)
line = "epoch {} step {} loss {:.6f} lr {:.2e} {:.0f} tokens/s\\n".format
lines = [line(n // 900, n, chance.random(), chance.random(), chance.random() * 1e5) for n in range(150000)]
block = "".join(lines).encode()
left = int(sys.argv[1])
while left > 0:
    left -= sys.stdout.buffer.write(block[:left])
"""


def measure(effort: Effort) -> Sequence[Row]:
    size = effort.rounds(40, 10) * 1_000_000
    rounds = effort.rounds(3, 2)
    folder = Path(tempfile.mkdtemp(prefix="gpualert-bench-"))
    folder.chmod(0o755)
    try:
        with SshHost(folder / "sshd") as host:
            launch_id, log = _written(folder, size)
            digest = hashlib.sha256(log.read_bytes()).hexdigest()
            taken: dict[str, list[float]] = {name: [] for name in ("ours", "theirs", "ours -C", "theirs -C")}
            for _ in range(rounds):
                for option in ("", " -C"):
                    taken["ours" + option].append(_ours(host, folder, launch_id, digest, compress=bool(option)))
                    taken["theirs" + option].append(_theirs(host, log, digest, compress=bool(option)))
    except SshdMissing as missing:
        return [Row(_WHAT, "MB/s", why_not=str(missing))]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    speeds = {name: tuple(size / 1e6 / seconds for seconds in values) for name, values in taken.items()}
    target = Target(20, at_least=True)
    about = f"{_WHAT}, {size / 1e6:.0f} MB"
    plain, compressed = f"{about}, `compress` false", f"{about}, `compress` as Airflow has it (true)"
    return [
        Row(plain, "MB/s", speeds["ours"], "`ssh HOST cat LOG`", speeds["theirs"], target=target),
        Row(compressed, "MB/s", speeds["ours -C"], "`ssh -C HOST cat LOG`", speeds["theirs -C"], target=target),
    ]


def _written(folder: Path, size: int) -> tuple[str, Path]:
    """A launch that has ended, with a log of that size."""
    words = [sys.executable, str(wrapper.PACKAGE), "run", "--quiet", "--", sys.executable, "-c", _WRITE, str(size)]
    environment = {**os.environ, "GPUALERT_ROOT": str(folder / "root"), "HOME": str(folder)}
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    listed = [sys.executable, str(wrapper.PACKAGE), "list", "--json"]
    done = subprocess.run(listed, env=environment, capture_output=True, text=True, check=True)
    (record,) = json.loads(done.stdout)["launches"]
    return record["launch_id"], Path(record["log_path"])


def _ours(host: SshHost, folder: Path, launch_id: str, digest: str, *, compress: bool) -> float:
    """Seconds of all that `gpualert fetch` does: logging in, the bytes, both hashes, the file made durable."""
    from gpualert_provider.fetch import fetch_from
    from gpualert_provider.hooks.target import SshTarget

    names = {"conn_id": "bench", "conn_type": "ssh", "host": host.address, "port": host.port, "password": None}
    connection = SimpleNamespace(**names, login=host.username)
    target = SshTarget.from_fields(connection, host.connection_extra(look_for_keys=False, compress=compress))
    begin = time.perf_counter()
    path = folder / "fetched"
    fetch_from(target, launch_id, str(path), root=str(folder / "root"), replace=True)
    taken = time.perf_counter() - begin
    _same(hashlib.sha256(path.read_bytes()).hexdigest(), digest)
    return taken


def _theirs(host: SshHost, log: Path, digest: str, *, compress: bool) -> float:
    """The same for OpenSSH's own client, from its first byte on: logging in is not counted here either."""
    found = hashlib.sha256()
    program, *words = host.ssh_command(f"cat {log}")
    command = [program, *(["-C"] if compress else []), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found.update(process.stdout.read(1))
        begin = time.perf_counter()
        while piece := process.stdout.read(_PIECE):
            found.update(piece)
        taken = time.perf_counter() - begin
    _same(found.hexdigest(), digest)
    return taken


def _same(found: str, expected: str) -> None:
    if found != expected:
        raise RuntimeError(f"the fetched log: expected SHA-256 {expected}, found {found}")

"""A whole machine on this one: processes, network, mounts and boot id of its own, an sshd inside, and a cable to cut.

Needs root. Its address lies in 10.99.0.0/16, for which a blackhole route is made first and stays: when a cable is cut
the machine's own route vanishes, and without the blackhole its packets would leave through the default route.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import random
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from tools.rig import processes
from tools.rig.sshd import SshEndpoint, find_sshd
from tools.rig.waiting import wait_until

LAB = "10.99.0.0/16"
_LOCK = "/run/gpualert-lab.lock"


class LabUnavailable(RuntimeError):
    """This machine uses the lab's addresses for something else; nothing was changed."""


class Machine(SshEndpoint):
    """
    A machine with one account's home and /var/tmp of its own, which survive a reboot.

    :param username: an account of this machine; its home is the machine's own unless ``shared_home``.
    :param shared_home: home and /var/tmp are the ones that every other machine sees, as over NFS.
    :param disk_mib: size of the small disk at ``disk``, which can be filled.
    """

    def __init__(
        self,
        username: str,
        *,
        folder: Path | None = None,
        shared_home: bool = False,
        disk_mib: int = 4,
        options: Sequence[str] = (),
    ) -> None:
        self._sshd = find_sshd()
        self._own_folder = folder is None
        self._lease = _Lease()
        super().__init__(
            folder or Path(tempfile.mkdtemp(prefix="gpualert-machine-")), self._lease.inside, username, options
        )
        self.port = 22
        self.name = f"gpu-{self._lease.index}"
        self.shared_home = shared_home
        self.disk = self.folder / "disk"
        self.disk_mib = disk_mib
        self.boot_id = ""
        self.machine_id = uuid.uuid4().hex
        self._unshare: subprocess.Popen[bytes] | None = None
        self._init_pid = 0

    # -- life

    def start(self) -> Machine:
        """Boot, and wait until sshd listens."""
        self.boot_id = str(uuid.uuid4())
        (self.folder / "boot_id").write_text(self.boot_id + "\n")
        (self.folder / "machine_id").write_text(self.machine_id + "\n")
        self._lease.take()
        up = self.folder / "up"
        up.unlink(missing_ok=True)
        names = ["--fork", "--pid", "--mount-proc", "--net", "--mount", "--uts", "--ipc", "--propagation", "private"]
        # bash as first process, since it reaps what is handed to it; `sleep` in its place would keep zombies for ever.
        command = ["unshare", *names, "bash", "-c", self._init_script()]
        self._unshare = processes.start(command, self.folder / "init.log")
        parent = self._unshare.pid

        def first() -> int | None:
            children = processes.descendants(parent)
            return children[0] if children else None

        self._init_pid = wait_until(first, 10, f"{self.name} has a first process", interval_s=0.01) or 0
        ours = os.readlink("/proc/self/ns/net")
        wait_until(
            lambda: os.readlink(f"/proc/{self._init_pid}/ns/net") != ours,
            10,
            f"{self.name} has a network of its own",
            interval_s=0.01,
        )
        self._lease.plug_in(self._init_pid)
        wait_until(up.exists, 20, lambda: f"{self.name} is up: {self.last_words()}", interval_s=0.01)
        return self

    def power_off(self, *, silent: bool = False) -> None:
        """
        End every process at once.

        :param silent: nobody is told, as when the plug is pulled; otherwise the kernel still closes connections.
        """
        if self._unshare is None:
            return
        if silent:
            self.drop()
        # The end of a pid namespace's first process is the end of all its processes, detached ones included.
        processes.send(self._init_pid, signal.SIGKILL)
        self._unshare.wait(20)
        self._unshare = None
        self._lease.unplug()

    def reboot(self, *, silent: bool = False) -> None:
        """Power off and start again: same disk, same host key, another boot id."""
        self.power_off(silent=silent)
        self.start()

    def stop(self) -> None:
        """Power off for good and give the address back."""
        self.power_off()
        self._lease.give_back()

    def __enter__(self) -> Machine:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- what can happen to it

    def cut(self) -> None:
        """Pull the cable: connections hang, new ones find no route, the machine works on."""
        self.enter("ip", "link", "set", self._lease.far, "down")

    def drop(self) -> None:
        """Let every packet vanish, as a firewall or a dead switch does."""
        self._filter("drop")

    def refuse(self) -> None:
        """Answer new and open connections to sshd with a reset, as a machine without sshd does."""
        self._filter("tcp dport 22 reject with tcp reset")

    def lose(self, percent: int) -> None:
        """Lose this share of the packets, at random, in each direction."""
        self._filter(f"numgen random mod 100 < {percent} drop")

    def heal(self) -> None:
        """Undo cut, drop, refuse and lose."""
        self.enter("nft", "flush", "ruleset")
        self.enter("ip", "link", "set", self._lease.far, "up")

    def freeze(self) -> None:
        """Stand still with all processes: TCP connects, nobody answers."""
        for pid in [self._init_pid, *processes.descendants(self._init_pid)]:
            processes.send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in reversed([self._init_pid, *processes.descendants(self._init_pid)]):
            processes.send(pid, signal.SIGCONT)

    def fill_disk(self) -> None:
        """Leave no byte on the small disk."""
        self.enter("sh", "-c", f"dd if=/dev/zero of={self.disk}/ballast bs=64k 2>/dev/null; true")

    # -- looking inside

    def enter(self, *command: str) -> str:
        """Run a command as root inside, whatever the cable does; returns its output."""
        words = ["nsenter", "-t", str(self._init_pid), "-a", "--root", *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} in {self.name}: {done.stderr.strip()}")
        return done.stdout

    def pids(self) -> list[int]:
        """Pids, as this machine sees them, of all processes inside."""
        return [self._init_pid, *processes.descendants(self._init_pid)] if self._unshare else []

    def last_words(self) -> str:
        said = [
            path.read_text(errors="replace")[-1500:] for path in (self.folder / "init.log", self.log) if path.exists()
        ]
        return " ".join(said).strip() or "it said nothing"

    # -- how

    def _filter(self, rule: str) -> None:
        # Replies to a reset need a way out; what vanishes does so in both directions.
        outward = rule if rule.endswith("drop") else ""
        chains = [
            f"chain in {{ type filter hook input priority 0; {rule}; }}",
            f"chain out {{ type filter hook output priority 0; {outward}; }}",
        ]
        self.enter("nft", "\n".join(["flush ruleset", "table inet lab {", *chains, "}"]))

    def _init_script(self) -> str:
        home = Path(pwd.getpwnam(self.username).pw_dir)
        lines = [
            f"hostname {self.name}",
            f"mount --bind {self.folder}/boot_id /proc/sys/kernel/random/boot_id",
            f"[ ! -e /etc/machine-id ] || mount --bind {self.folder}/machine_id /etc/machine-id",
            f"mkdir -p {self.disk}",
            f"mount -t tmpfs -o size={self.disk_mib}m,mode=1777 tmpfs {self.disk}",
        ]
        if not self.shared_home:
            lines += [f"mount --bind {self._own_home(home)} {home}", f"mount --bind {self._own_var_tmp()} /var/tmp"]
        far, inside_address = self._lease.far, self._lease.inside
        lines += [
            "mount -t tmpfs -o mode=0755 tmpfs /run",
            "mkdir -p /run/sshd",
            f"while ! ip link show {far} >/dev/null 2>&1; do sleep .01; done",
            "ip link set lo up",
            f"ip addr add {inside_address}/30 dev {far}",
            f"ip link set {far} up",
            f"{self._sshd} -f {self._write_config()} -E {self.log}",
            f"echo up > {self.folder}/up",
            "sleep infinity & wait",
        ]
        return "\n".join(["set -e", "PATH=$PATH:/usr/sbin:/sbin", *lines])

    def _own_home(self, home: Path) -> Path:
        kept = self.folder / "home"
        if not kept.exists():
            shutil.copytree(home, kept, symlinks=True)
            entry = pwd.getpwnam(self.username)
            for path in [kept, *kept.rglob("*")]:
                os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
        return kept

    def _own_var_tmp(self) -> Path:
        kept = self.folder / "var-tmp"
        kept.mkdir(exist_ok=True)
        kept.chmod(0o1777)
        return kept


class _Lease:
    """A /30 of the lab and the veth pair in it; the name of the near end holds the place against other test runs."""

    def __init__(self) -> None:
        self.index = 0
        with open(_LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            routes = _ip("-o", "route", "show", "root", LAB).splitlines()
            foreign = [route for route in routes if not route.startswith("blackhole") and "dev gpun" not in route]
            if foreign:
                raise LabUnavailable(f"{LAB} is in use on this machine: {foreign[0].strip()}")
            _ip("route", "replace", "blackhole", LAB)
            free = [index for index in range(1, 255) if not _taken(index)]
            if not free:
                raise LabUnavailable(f"all 254 networks of {LAB} are taken")
            self.index = random.choice(free)
            self._hold.write_text(str(os.getpid()))

    @property
    def _hold(self) -> Path:
        return Path(f"/run/gpualert-lab-{self.index}")

    @property
    def outside(self) -> str:
        return f"10.99.{self.index}.1"

    @property
    def inside(self) -> str:
        return f"10.99.{self.index}.2"

    @property
    def near(self) -> str:
        return f"gpun{self.index}"

    @property
    def far(self) -> str:
        return f"gpuf{self.index}"

    def take(self) -> None:
        """Make the cable, with our end configured."""
        _ip("link", "add", self.near, "type", "veth", "peer", "name", self.far)
        _ip("addr", "add", f"{self.outside}/30", "dev", self.near)
        _ip("link", "set", self.near, "up")

    def plug_in(self, pid: int) -> None:
        """Hand the far end to the network namespace of this process."""
        _ip("link", "set", self.far, "netns", str(pid))

    def unplug(self) -> None:
        """Remove the cable; the dead machine's namespace may linger and would keep its name."""
        subprocess.run(["ip", "link", "del", self.near], capture_output=True, env=_ENVIRONMENT)

    def give_back(self) -> None:
        self.unplug()
        self._hold.unlink(missing_ok=True)


_ENVIRONMENT = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, env=_ENVIRONMENT)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _taken(index: int) -> bool:
    """True when a living test run holds this network, or a cable of a dead one is still there."""
    try:
        holder = Path(f"/run/gpualert-lab-{index}").read_text().strip()
    except FileNotFoundError:
        holder = ""
    return bool(holder and Path(f"/proc/{holder}").exists()) or Path(f"/sys/class/net/gpun{index}").exists()

"""What can be wrong with a host's disks and programs, as shell lines for ``SshHost(mounts=…)``.

They run in a mount namespace of that server alone: sessions of this host see them, nobody else does.
"""

from __future__ import annotations

from pathlib import Path


def read_only(folder: Path) -> list[str]:
    """The folder can be read and not written."""
    return [f"mount --bind '{folder}' '{folder}'", f"mount -o remount,ro,bind '{folder}'"]


def full(folder: Path, uid: int) -> list[str]:
    """The folder is a disk of its own, the account's, with no byte left: writing gives ENOSPC."""
    return [
        f"mount -t tmpfs -o size=64k,mode=0755,uid={uid} tmpfs '{folder}'",
        f"dd if=/dev/zero of='{folder}/ballast' bs=4k 2>/dev/null || true",
    ]


def out_of_inodes(folder: Path, uid: int) -> list[str]:
    """The folder is a disk of its own on which no file can be made, though bytes are free."""
    return [f"mount -t tmpfs -o nr_inodes=1,mode=0755,uid={uid} tmpfs '{folder}'"]


def missing(folder: Path) -> list[str]:
    """Nothing lies where the folder should be (an account whose home was never made, or is not mounted)."""
    return [f"mount -t tmpfs -o mode=0755 tmpfs '{folder.parent}'"]


def noexec_tmp() -> list[str]:
    """Files in /tmp and /var/tmp cannot be executed, as on many hardened machines."""
    return [
        line
        for tmp in ("/tmp", "/var/tmp")
        for line in (f"mount --bind {tmp} {tmp}", f"mount -o remount,bind,noexec {tmp}")
    ]


def without_python() -> list[str]:
    """No Python can be started, wherever this machine keeps one."""
    return [
        "for p in /usr/bin/python* /usr/local/bin/python* /usr/local/python*/bin/python* /opt/*/bin/python*; do "
        '[ -f "$p" ] && p=$(readlink -f "$p") && [ -f "$p" ] && mount --bind /dev/null "$p"; done; true',
        "for d in /root/.pyenv /opt/conda /opt/miniconda3; do if [ -d $d ]; then mount -t tmpfs tmpfs $d; fi; done",
    ]

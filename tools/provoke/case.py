"""One provocation: the files of a small job, the command that runs it, and the trouble that awaits it.

A case says how a failure is made, never what it is: the label is written afterwards, by reading the captured log.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

# Two folders, because whoever writes rules reads the first and must not read the second.
CASES_FOLDERS = (Path(__file__).parent / "cases", Path(__file__).parent / "cases_holdout")


@dataclass(frozen=True)
class Case:
    """
    What the sandbox needs to run one job.

    :param name: unique, kebab-case; becomes the name of the log file.
    :param command: text of ``job.sh``, run by bash in the project folder.
    :param files: path relative to the project folder → text.
    :param needs: names of things that may be missing: ``torch``, ``jax``, ``hf`` …, or a program such as ``gcc``.
    :param project: the folder the job sees as its own, below /home, /srv or /mnt.
    :param timeout_s: seconds until the sandbox gives up and kills everything; reaching it is an error of the case.
    :param shm_mib: size of /dev/shm.
    :param disks: mount point → size in MiB of a small tmpfs that can be filled.
    :param memory_mib: limit of a memory cgroup (version 1) around the job; None means no cgroup.
    :param signal_when: (regular expression on the output, signal name, "group" or "leader"), sent once.
    :param env: additions to a small clean environment.
    """

    name: str
    command: str
    files: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    project: str = "/srv/project"
    timeout_s: float = 90.0
    shm_mib: int = 256
    disks: dict[str, int] = field(default_factory=dict)
    memory_mib: int | None = None
    signal_when: tuple[str, str, str] | None = None
    env: dict[str, str] = field(default_factory=dict)


def load_cases(folders: tuple[Path, ...] = CASES_FOLDERS) -> dict[str, Case]:
    """:return: every case of every module in the folders, by name; raises ValueError for a name used twice."""
    found: dict[str, Case] = {}
    for path in [path for folder in folders for path in sorted(folder.glob("[a-z]*.py"))]:
        spec = importlib.util.spec_from_file_location(f"provoke_cases_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for case in module.CASES:
            if case.name in found:
                raise ValueError(f"{path.name}: case name {case.name!r} is used twice")
            found[case.name] = case
    return found

"""Hosts full of trainings that cost nothing: real run directories whose children and keepers are one process.

A thousand real trainings take a thousand times four processes, more than the machine that measures has. What a
triggerer sees of a host is what ``gpualert serve`` reads from run directories, and that is all there is here: one
process writes the lines of all logs, and in the end what the keepers and observers would have written.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpualert import procfs
from gpualert.key import Attempt, LaunchKey
from gpualert.rundir import KeyDirectory, RunDirectory
from gpualert.taxonomy import FailureClass, FailureDomain
from gpualert.verdict import Classification, Outlook

#: So often in a second some of the logs get their lines: never all at once.
_TURNS = 20


@dataclass
class Job:
    """One launch: its id, where it lies, and its log."""

    launch_id: str
    files: RunDirectory
    log: int
    lines: int = 0


@dataclass
class Hosts:
    """
    Jobs on several hosts, written by a process of their account. A context manager.

    :param root_of: root for run directories by host, below the account's home.
    :param jobs: how many on each host.
    """

    account: Any
    jobs: dict[str, int]
    launch_ids: dict[str, list[str]] = field(default_factory=dict)
    _process: Any = None
    _pipe: Any = None

    def __enter__(self) -> Hosts:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_write_all, args=(theirs, self.account, self.jobs), daemon=True)
        self._process.start()
        theirs.close()
        self.launch_ids = self._heard()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()

    def root_of(self, host: str) -> str:
        return f"{self.account.home}/{host}"

    def say(self, hosts: list[str], bytes_per_s: int) -> None:
        """From now on every job of these hosts writes so much, in lines; 0 for nothing."""
        self._ask(("say", hosts, bytes_per_s))

    def end(self, hosts: list[str]) -> dict[str, float]:
        """All jobs of these hosts succeed. Launch id to the unix time at which its end could be seen."""
        found: dict[str, float] = self._ask(("end", hosts))
        return found

    def attached(self) -> int:
        """How many jobs somebody follows."""
        return sum(
            1
            for host, ids in self.launch_ids.items()
            for launch_id in ids
            if RunDirectory(f"{self.root_of(host)}/launches/{launch_id.rsplit('.', 1)[0]}/0001").epoch()
        )

    def _ask(self, question: Any) -> Any:
        self._pipe.send(question)
        return self._heard()

    def _heard(self) -> Any:
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"the process that stands for the hosts: {answer}")
        return answer


def _write_all(pipe: Any, account: Any, wanted: dict[str, int]) -> None:
    try:
        os.setgroups([])
        os.setgid(account.gid)
        os.setuid(account.uid)
        os.environ["HOME"] = str(account.home)
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        jobs = {
            host: [_made(f"{account.home}/{host}", number) for number in range(count)] for host, count in wanted.items()
        }
        pipe.send({host: [job.launch_id for job in these] for host, these in jobs.items()})
        _serve(pipe, jobs)
    except EOFError:
        pass
    except Exception:
        pipe.send(traceback.format_exc())


def _serve(pipe: Any, jobs: dict[str, list[Job]]) -> None:
    rates = dict.fromkeys(jobs, 0)
    turn, next_at = 0, time.monotonic()
    while True:
        next_at = max(next_at + 1.0 / _TURNS, time.monotonic() - 1.0)
        while pipe.poll(max(0.0, next_at - time.monotonic())):
            what, hosts, *rest = pipe.recv()
            if what == "say":
                rates.update(dict.fromkeys(hosts, rest[0]))
                pipe.send(True)
            else:
                rates.update(dict.fromkeys(hosts, 0))
                pipe.send({job.launch_id: _end(job) for host in hosts for job in jobs[host]})
        for host, rate in rates.items():
            if rate:
                for job in jobs[host][turn % _TURNS :: _TURNS]:
                    _say(job, rate)
        turn += 1


def _say(job: Job, size: int) -> None:
    job.lines += 1
    line = b"step %d loss 0.6931 lr 0.0003 time %.3f\n" % (job.lines, time.time())
    os.write(job.log, line if size <= 100 else line * (size // len(line)))


def _made(root: str, number: int) -> Job:
    key = LaunchKey(["benchmark", "many", root, "train", str(number)], "train")
    folder = KeyDirectory(f"{root}/launches/{key.directory_name}")
    if not os.path.isdir(root):
        os.mkdir(root, 0o700)
        os.mkdir(f"{root}/launches", 0o700)
    folder.create(key.to_json())
    me = procfs.identify(os.getpid())
    assert me is not None
    launch_id, now = key.launch_id(1), time.time()
    claim = {"launch_id": launch_id, "number": 1, "attempt": Attempt(1, "1").to_json(), "created_at": now, "root": root}
    folder.claim(1, claim, durable=False)
    files = folder.run_directory(1)
    files.create()
    Path(files.spec_path).write_text(json.dumps({"command": "python train.py"}))
    who = {name: me.to_json() for name in ("child", "supervisor", "guard")}
    files.write_started({"launch_id": launch_id, "number": 1, "started_at": now, **who})
    return Job(launch_id, files, os.open(files.log_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))


def _end(job: Job) -> float:
    """What observer and keepers would have written, in the order in which nobody has to wait for any of it."""
    size = os.fstat(job.log).st_size
    success = Classification(FailureClass.SUCCESS, FailureDomain.UNKNOWN, Outlook.default(FailureClass.SUCCESS))
    verdict = dict(success.to_json(), format_version=1, generation=0, offset=size)
    Path(job.files.verdict_path).write_text(json.dumps(verdict))
    job.files.write_tree({"killed": [], "survivors": []})
    now = time.time()
    end = {"code": 0, "signal": None, "ended_at": now, "elapsed_s": 60.0, "witness": "supervisor"}
    job.files.write_exit({**end, "log_size_bytes": size, "log_generation": 0, "log_truncated": False})
    return now

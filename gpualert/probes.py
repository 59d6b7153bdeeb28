"""What is looked at beside the log, and when: near the start, on the way, and at the end.

Each probe runs in a process of its own that may be killed (``probe_fork``), so that a disk, a driver or a program that
hangs or crashes costs its own entry and nothing else. *Before* is taken beside the scan and waited for by nobody;
*after* is taken only when the child failed, and its bound is the longest that it can keep a verdict waiting.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, Mapping, Sequence

from gpualert import observations, probe_fork, probe_host, probe_kernel, probe_memory, probe_scheduler, procfs
from gpualert.errors import GpuAlertError
from gpualert.exit_facts import ExitFacts
from gpualert.rundir import FORMAT_VERSION, RunDirectory, encode_json, write_once
from gpualert.samples import Samples

#: Seconds that each probe may take near the start, where nobody waits.
BEFORE_S = 10.0
#: Seconds for the probes after the end: all of them; each of those that ask only the kernel and the disks. A terminal
#: waits a little longer than the first for a verdict.
AFTER_S = 2.5
CHEAP_S = 1.0
#: How much less a probe gives the programs that it asks than it has itself: it must live to end them.
_SPARE_S = 0.4
#: How long after its end a launch can still be looked at by who comes without samples.
JUST_ENDED_S = 20.0
#: Variables of the child's that say where its job and its GPUs are.
_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH")
_DRIVER_SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")


class Looks:
    """
    Everything beside the log of one launch; what the observer holds.

    No method raises for what a probe does; the observer still guards against defects here.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._spec: dict[str, Any] = {}
        self._started: dict[str, Any] = {}
        self._running: dict[str, Any] | None = None
        self._path = ""
        self._samples = Samples(directory.launch_id)
        self.before: dict[str, Any] | None = None

    def step(self, child: procfs.ProcessIdentity) -> None:
        """Begin, sample, collect: whatever is due. To be called again and again while the child lives."""
        if self.before is None and self._running is None:
            self._begin(child)
        self._collect()
        guard = self._started.get("guard")
        self._samples.take(child, None if guard is None else procfs.ProcessIdentity.from_json(guard))

    def _begin(self, child: procfs.ProcessIdentity) -> None:
        self._spec, self._started = _spec_and_start(self._directory)
        self.before = self._read()  # of an observer before us
        if self.before is not None:
            return
        self._running = probe_fork.start(
            {
                "memory": (partial(probe_memory.look, None, child.pid), BEFORE_S),
                "kernel": (partial(probe_kernel.look, self._started.get("clock_monotonic_s"), None, 2.0), BEFORE_S),
                "host": (partial(probe_host.look, _places(self._spec, self._directory)), BEFORE_S),
                "child": (partial(_child, child, _of_spec(self._spec)), BEFORE_S),
                "gpu": (partial(_gpu_for, child, BEFORE_S - 1.0, _of_spec(self._spec)), BEFORE_S),
            }
        )

    def _collect(self, now: bool = False) -> None:
        if self._running is None:
            return
        found = probe_fork.wait(self._running, 0.0) if now else probe_fork.answers(self._running)
        if found is not None:
            self._running = None
            of_child = dict(found.pop("child").get("seen") or {})
            self._path = str(of_child.pop("path", ""))
            self.before = dict(found, **of_child, who=_who(), format_version=FORMAT_VERSION, at=time.time())
            _write(self._directory.before_path, self.before)

    def _read(self) -> dict[str, Any] | None:
        try:
            return self._directory.read_before()
        except GpuAlertError:
            return None

    def conclude(
        self, exit: ExitFacts, child_pid: int | None, log_lines: Sequence[str], rank_killed: bool
    ) -> dict[str, Any]:
        """
        After the child's end: look once more if it failed, write all down, and reduce it.

        :param log_lines: of the log, that name a Slurm job.
        :param rank_killed: see :func:`gpualert.observations.reduce`.
        :return: what :func:`gpualert.classify.classify` takes.
        """
        if not self._started:
            self._spec, self._started = _spec_and_start(self._directory)
        self._collect(now=True)
        self._samples.stop()
        if self.before is None:
            self.before = self._read()
        after = look_after(
            self._directory, self._spec, self._started, self.before, exit, log_lines, self._samples, self._path
        )
        return _keep(self._directory, self.before, after, exit, child_pid, rank_killed)


def look_after(
    directory: RunDirectory,
    spec: Mapping[str, Any],
    started: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    exit: ExitFacts,
    log_lines: Sequence[str],
    samples: Samples | None = None,
    path: str = "",
) -> dict[str, Any]:
    """
    What can be seen at the end; after a success, or a stop that was asked for, only what was sampled.

    :param path: the child's PATH: tools of its scheduler may lie there.
    """
    after: dict[str, Any] = {}
    if not exit.succeeded and exit.stopped_by != "request":
        after = _look(directory, spec, started, before, log_lines, path)
    after["began_s"] = started.get("clock_monotonic_s")
    after["ended_s"] = _monotonic_of_end(directory, started)
    after["who"] = _who()
    if samples is not None and samples.taken:
        after["samples"] = dict(samples.to_json(), grown=None if exit.succeeded else samples.grown())
    return after


def _keep(
    directory: RunDirectory,
    before: Mapping[str, Any] | None,
    after: dict[str, Any],
    exit: ExitFacts,
    child_pid: int | None,
    rank_killed: bool,
) -> dict[str, Any]:
    """Reduce it, and write it down as it was judged."""
    reduced = observations.reduce(before, after, exit, child_pid, rank_killed)
    _write(directory.after_path, dict(after, reduced=reduced, format_version=FORMAT_VERSION, at=time.time()))
    return reduced


def _look(
    directory: RunDirectory,
    spec: Mapping[str, Any],
    started: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    log_lines: Sequence[str],
    path: str,
) -> dict[str, Any]:
    began_s = started.get("clock_monotonic_s")
    environ = (before or {}).get("environment") or _of_spec(spec)
    group = (observations.seen(before, "memory") or {}).get("group")
    probes: dict[str, Any] = {
        "memory": (partial(probe_memory.look, group), CHEAP_S),
        "host": (partial(probe_host.look, _places(spec, directory)), CHEAP_S),
    }
    known: dict[str, Any] = {}
    kernel = (before or {}).get("kernel") or {}
    if kernel.get("not_seen") and kernel.get("kind") != probe_fork.LATE:
        known["kernel"] = kernel  # who could not read it at the start cannot now
    else:
        look = partial(probe_kernel.look, began_s, observations.seen(before, "kernel"), CHEAP_S - _SPARE_S)
        probes["kernel"] = (look, CHEAP_S)
    if observations.does_not_apply(before, "gpu") and not any(map(os.path.exists, _DRIVER_SIGNS)):
        known["gpu"] = (before or {})["gpu"]
    else:
        probes["gpu"] = (partial(_gpu, AFTER_S - _SPARE_S, environ), AFTER_S)
    job = probe_scheduler.job_of(environ, log_lines)
    if job is None:
        known["scheduler"] = {"not_seen": "the launch is in no Slurm job", "kind": "no_job"}
    else:
        asked = partial(_scheduler, job, started.get("started_at"), AFTER_S - 2 * _SPARE_S, path, environ)
        probes["scheduler"] = (asked, AFTER_S)
    return {**known, **probe_fork.wait(probe_fork.start(probes), AFTER_S)}


# -- for a report, where no observer concluded


def for_report(
    directory: RunDirectory, exit: ExitFacts, child_pid: int | None, log_lines: Sequence[str], rank_killed: bool
) -> dict[str, Any] | None:
    """
    What an observer saw before it died, and what can still be seen now if the launch has only just ended here.

    :return: None when nothing was seen and nothing can be.
    """
    spec, started = _spec_and_start(directory)
    before, after = read(directory)
    if after is None and _just_ended_here(directory, started) and not _observed(directory):
        after = look_after(directory, spec, started, before, exit, log_lines)
        return _keep(directory, before, after, exit, child_pid, rank_killed)
    if before is None and after is None:
        return None
    return observations.reduce(before, after, exit, child_pid, rank_killed)


def read(directory: RunDirectory) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """before.json and after.json; None for what is not there or cannot be read."""
    found = []
    for reader in (directory.read_before, directory.read_after):
        try:
            found.append(reader())
        except GpuAlertError:
            found.append(None)
    return found[0], found[1]


def _just_ended_here(directory: RunDirectory, started: Mapping[str, Any]) -> bool:
    try:
        end = directory.read_exit()
    except GpuAlertError:
        return False
    if end is None or not started.get("child") or not isinstance(end.get("ended_at"), (int, float)):
        return False
    here = procfs.same_place(procfs.ProcessIdentity.from_json(started["child"])) is True
    return here and -1.0 < time.time() - float(end["ended_at"]) < JUST_ENDED_S


def _observed(directory: RunDirectory) -> bool:
    """An observer lives, and looks itself: it only takes its time."""
    try:
        watching = (directory.read_scan() or {}).get("observer")
    except GpuAlertError:
        return False
    return watching is not None and procfs.alive(procfs.ProcessIdentity.from_json(watching)) is True


# -- what the probes need to know


def _spec_and_start(directory: RunDirectory) -> tuple[dict[str, Any], dict[str, Any]]:
    found = []
    for reader in (directory.read_spec, directory.read_started):
        try:
            found.append(reader() or {})
        except GpuAlertError:
            found.append({})
    return found[0], found[1]


def _of_spec(spec: Mapping[str, Any]) -> dict[str, str]:
    environ = spec.get("env") or {}
    return {name: str(environ[name])[:1000] for name in _VARIABLES if name in environ and name != "PATH"}


def _places(spec: Mapping[str, Any], directory: RunDirectory) -> list[tuple[str, str]]:
    return [
        ("cwd", str(spec.get("cwd") or "~")),
        ("shm", probe_host.SHM),
        ("tmp", "/tmp"),
        ("run_directory", directory.path),
    ]


def _who() -> dict[str, Any]:
    return {"uid": os.getuid(), "pid_namespace": procfs.pid_namespace()}


def _monotonic_of_end(directory: RunDirectory, started: Mapping[str, Any]) -> float | None:
    """When the child ended, by the monotonic clock; None when it is not known."""
    try:
        end = directory.read_exit() or {}
    except GpuAlertError:
        return None
    began, elapsed = started.get("clock_monotonic_s"), end.get("elapsed_s")
    return None if began is None or elapsed is None else float(began) + float(elapsed)


def _gpu(bound_s: float, environ: Mapping[str, str] | None) -> Mapping[str, Any]:
    try:
        from gpualert.probe_gpu import snapshot
    except ImportError:
        return {"not_seen": "this version cannot ask GPUs", "kind": "not_built"}
    return snapshot(bound_s, environ)


def _child(child: procfs.ProcessIdentity, of_spec: Mapping[str, str]) -> Mapping[str, Any]:
    """{"seen": {environment, path, limits}}: how the child was started, as far as it can be read."""
    environ = probe_host.environment_of(child.pid, _VARIABLES)
    limits = probe_host.limits(child.pid)
    if procfs.alive(child) is not True:  # the pid may be somebody else's by now
        environ, limits = None, None
    if environ is None:
        environ = dict(of_spec)
    return {"seen": {"path": environ.pop("PATH", ""), "environment": environ, "limits": limits}}


def _gpu_for(child: procfs.ProcessIdentity, bound_s: float, of_spec: Mapping[str, str]) -> Mapping[str, Any]:
    return _gpu(bound_s, _child(child, of_spec)["seen"]["environment"])


def _scheduler(
    job: str, began_at: float | None, bound_s: float, path: str, environ: Mapping[str, str] | None
) -> Mapping[str, Any]:
    if path:
        os.environ["PATH"] = os.environ.get("PATH", "") + ":" + path
    if (environ or {}).get("SLURM_CONF"):
        os.environ["SLURM_CONF"] = str((environ or {})["SLURM_CONF"])
    return probe_scheduler.look(job, began_at, bound_s)


def _write(path: str, value: Mapping[str, Any]) -> None:
    try:
        write_once(path, encode_json(value) + b"\n", durable=False)
    except (GpuAlertError, TypeError, ValueError):  # the disk is full: the verdict matters more
        pass

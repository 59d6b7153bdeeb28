"""The use case: claim, prepare, start the guard, reply.

The guard is forked before the claim is made, so that the claim can name it: whoever finds a claim can then see whether
anybody is still working on it. What runs in parallel: guard, supervisor and child fork themselves into place while the
launcher is busy with the disk.
"""

from __future__ import annotations

import os
import time

from gpualert import guard as guards
from gpualert import procfs, rundir
from gpualert.errors import GpuAlertError, InvalidSpec, Refused, RunDirectoryError
from gpualert.guard import Plan
from gpualert.key import Attempt, LaunchKey
from gpualert.rundir import KeyDirectory, RunDirectory
from gpualert.supervisor import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

    from gpualert.child import Execution
    from gpualert.records import RunRecord
    from gpualert.rundir import Root
    from gpualert.spec import LaunchSpec

#: What Python itself puts into LC_CTYPE when it starts in the C locale (PEP 538); nobody meant it for the child.
_COERCED_LOCALES = (b"C.UTF-8", b"C.utf8", b"UTF-8")
#: Guards forked by this process that may have ended since; collected at the next launch.
_guards: list[int] = []
#: A terminal's agent stays usable in a foreground run; all else that SSH sets does not (with SSH_CLIENT, ``bash -c``
#: reads .bashrc).
_KEPT_IN_FOREGROUND = (b"SSH_AUTH_SOCK", b"SSH_AGENT_PID", b"SSH_ASKPASS")


class FastLaunch:
    """
    A foreground launch under way.

    :param announce: read end of a pipe. When the child has ended, the line ``ended <code|-> <signal|->`` comes through
        it (``- -``: nobody saw the end); an end of file without that line means that supervisor and guard are both
        dead: ask ``records.read``. The caller closes it.
    :param warnings: for people, of the places that were passed over.
    """

    __slots__ = (
        "announce",
        "child_pid",
        "guard_pid",
        "launch_id",
        "log_path",
        "run_directory",
        "supervisor_pid",
        "warnings",
    )

    def __init__(
        self, run: RunDirectory, announce: int, pids: tuple[int, int, int], warnings: Sequence[str] = ()
    ) -> None:
        self.warnings = list(warnings)
        self.run_directory = run.path
        self.log_path = run.log_path
        self.launch_id = run.launch_id
        self.announce = announce
        self.child_pid, self.supervisor_pid, self.guard_pid = pids


def launch(
    key: LaunchKey,
    attempt: Attempt,
    spec: LaunchSpec,
    secrets: Mapping[str, str],
    after: int,
    archive_digest: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[str, RunRecord]:
    """
    Launch a training detached from the caller, at most once per key at a time.

    When this returns, the child has its log and waits for nothing any more, and nothing that runs for it holds a
    descriptor of the caller's.
    :param secrets: values for ``spec.secret_env``; they reach the child's environment and nothing else.
    :param after: number of the last launch of this key that the caller knows; 0 for none. A later one is reported, not
        replaced.
    :param environ: the host's environment, from which the child's is made.
    :return: ``("launched", record)``; or ``("existing", record)`` when the latest launch is alive, is later than
        ``after``, or was made by this very attempt.
    :raises InvalidSpec: also kind ``cwd_missing``: the folder is not there or may not be entered.
    :raises Refused: kinds ``superseded``, ``tombstoned``, ``root_unreadable``.
    :raises RunDirectoryError: kinds ``no_root``, ``disk``; nothing is left behind.
    """
    from gpualert import claim, records, shell, survival

    _collect_guards()
    missing = sorted(set(spec.secret_env) - set(secrets))
    if missing:
        raise InvalidSpec("secret_env: no value came for {}".format(", ".join(missing)))
    foreign = sorted(set(secrets) - set(spec.secret_env))
    if foreign:
        raise InvalidSpec("secrets: values came for {}, which secret_env does not name".format(", ".join(foreign)))
    cwd = shell.working_directory(spec, environ)
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
        found = "a folder that may not be entered" if os.path.isdir(cwd) else _what_is(cwd)
        raise InvalidSpec(f"cwd: expected a folder on this host, found {found} at {cwd}", "cwd_missing")
    roots = rundir.find_roots(spec.root, environ)
    claim.check_readable(roots)
    chosen = rundir.choose_among(roots)
    rundir.meeting_place(roots, environ)
    env = _child_environment(environ, cwd, {**spec.env, **secrets}, ())
    if shell.wants_unbuffered(spec):
        env.setdefault(b"PYTHONUNBUFFERED", b"1")
    interpreter = shell.find_shell(environ) if shell.needs_shell(spec) else ""
    folder = KeyDirectory(chosen.launches + "/" + key.directory_name)

    def resolve(run: RunDirectory) -> Execution:
        return _execution(shell.argv(spec, run, interpreter), env, cwd, run.launch_id)

    def settled(run: RunDirectory) -> bool:
        return records.read(run.path).state.ended

    plan = Plan(lambda: resolve, Settings.from_spec(spec.to_json()), None, observe=True)
    passed_over = _passed_over(roots, chosen)
    at_logout: list[str] | None = None
    while True:
        number, existing = claim.decide(roots, chosen, key, attempt, after, settled)
        if existing is not None:
            return "existing", records.read(existing.path)
        run = None
        if at_logout is None:
            at_logout = survival.prepare()  # before anything is forked, which then lives where we live
        starting = _Starting(plan)
        try:
            value = _claim_value(key, attempt, number, chosen, starting.guard, spec.label, archive_digest)
            value["warnings"] = passed_over + at_logout
            if not claim.take(roots, chosen, key, attempt, number, value):
                raise _Lost
            run = folder.run_directory(number)
            run.create()
            stored = spec.to_json()
            rules = stored.pop("rules")
            rundir.write_file(run.spec_path, rundir.encode_json(stored) + b"\n")
            if rules is not None:
                rundir.write_file(run.rules_path, rundir.encode_json(rules) + b"\n")
            shell.write_scripts(spec, run)
            starting.give_word(run)
        except _Lost:
            starting.call_off(None)
            time.sleep(os.urandom(1)[0] / 10000.0)  # two that made way for each other do not meet again
            continue
        except BaseException:
            if starting.call_off(run) and run is not None:
                claim.withdraw(claim.folders(roots, chosen, key.directory_name), number)
            raise
        os.close(starting.ready)
        return "launched", records.read(run.path)


def start_fast(
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    label: str | None = None,
    deadline_s: float | None = None,
    grace_period_s: float = 30.0,
    leftovers: str = "kill",
    root: str | None = None,
    stdin: int | None = None,
    rules: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> FastLaunch:
    """
    Launch an argv for a caller who stays to watch, with a key of its own, by the shortest way.

    :param stdin: descriptor that becomes the child's standard input (the terminal's, say); None for /dev/null.
    :param env: set beside the caller's environment.
    :param rules: the user's own, compiled and checked.
    :raises RunDirectoryError: kinds ``no_root``, ``disk``; nothing is left behind.
    :raises InvalidSpec: kind ``cwd_missing``.
    """
    try:
        here = os.getcwd() if cwd is None else rundir.expand_home(cwd, environ)
    except FileNotFoundError:
        raise InvalidSpec("cwd: expected a folder, found that the current one was deleted", "cwd_missing") from None
    if cwd is not None and not (os.path.isdir(here) and os.access(here, os.X_OK)):
        raise InvalidSpec(f"cwd: expected a folder, found {_what_is(here)} at {here}", "cwd_missing")

    def prepare() -> Callable[[RunDirectory], Execution]:
        child_env = _child_environment(environ, here, env or {}, _KEPT_IN_FOREGROUND)
        return lambda run: _execution(argv, child_env, here, run.launch_id)

    starting = _Starting(Plan(prepare, Settings(deadline_s, grace_period_s, leftovers=leftovers), stdin, observe=True))
    run = folder = None
    try:
        key = LaunchKey(("foreground", os.urandom(12).hex()), os.path.basename(argv[0]))
        attempt = Attempt(1, os.urandom(4).hex())
        chosen, roots = rundir.choose_root(root, environ)
        passed_over = _passed_over(roots, chosen)
        folder = KeyDirectory(chosen.launches + "/" + key.directory_name)
        folder.create(key.to_json())
        folder.mark_attempt(attempt)
        value = _claim_value(key, attempt, 1, chosen, starting.guard, label, None)
        if passed_over:
            value["warnings"] = passed_over
        folder.claim(1, value, durable=False)
        run = folder.run_directory(1)
        run.create()
        spec = {
            "command": list(argv),
            "cwd": here,
            "env": dict(env or {}),
            "deadline_s": deadline_s,
            "grace_period_s": grace_period_s,
            "leftovers": leftovers,
            "label": label,
            "root": root,
        }
        rundir.write_file(run.spec_path, rundir.encode_json(spec) + b"\n")
        if rules is not None:
            rundir.write_file(run.rules_path, rundir.encode_json(dict(rules)) + b"\n")
        pids = starting.give_word(run)
    except BaseException:
        if starting.call_off(run) and folder is not None:
            folder.discard(1)
        raise
    return FastLaunch(run, starting.ready, pids, passed_over)


class _Lost(Exception):
    """Another launcher has the number."""


class _Starting:
    """
    Guard, supervisor and child, forked and waiting for the word.

    :ivar ready: read end of the guard's pipe.
    """

    def __init__(self, plan: Plan) -> None:
        placeholders = _fill_standard_descriptors()
        go_read, self._go = os.pipe()
        self.ready, ready_write = os.pipe()
        try:
            self._pid = os.fork()
        except OSError as error:
            for descriptor in (go_read, self._go, self.ready, ready_write, *placeholders):
                os.close(descriptor)
            raise GpuAlertError(f"no process can be started on this host: {error.strerror}") from error
        if self._pid == 0:
            try:
                os.close(self._go)
                os.close(self.ready)
                guards.run(plan, go_read, ready_write)
            finally:
                os._exit(1)
        for descriptor in (go_read, ready_write, *placeholders):
            os.close(descriptor)
        self._word_given = False
        self._refused = False
        found = procfs.identify(self._pid)
        if found is None:
            self.call_off(None)
            raise GpuAlertError(f"the guard (pid {self._pid}) died before the launch")
        self.guard = found

    def give_word(self, run: RunDirectory) -> tuple[int, int, int]:
        """
        Let it run, and wait until ``started.json`` is durable.

        :return: pids of child, supervisor, guard.
        :raises RunDirectoryError: the supervisor could not write it.
        """
        try:
            os.write(self._go, os.fsencode(run.path) + b"\0")
            self._word_given = True
        except BrokenPipeError:  # the supervisor is dead already; what it confessed is still to be read
            pass
        words = _read_line(self.ready).split(None, 2)
        if words[:1] != [b"started"]:
            self._refused = True
            if words[:1] == [b"error"]:
                kind, message = words[1].decode(), words[2].decode("utf-8", "replace").strip()
                raise (GpuAlertError if kind == "internal" else RunDirectoryError)(message, kind)
            raise GpuAlertError(f"{run.path}: guard and supervisor died before the child was started")
        os.close(self._go)
        _guards.append(self._pid)
        child, supervisor, guard = (int(word) for word in b" ".join(words[1:]).split())
        return child, supervisor, guard

    def call_off(self, run: RunDirectory | None) -> bool:
        """
        End those who wait, and remove the run directory.

        :return: False when it may have started all the same (we were interrupted): then all is left as it is.
        """
        # Closed before anything is taken back: the guard sees it and ends, and so does the waiting child.
        os.close(self._go)
        os.close(self.ready)
        if self._word_given and not self._refused:
            _guards.append(self._pid)
            return False
        os.waitpid(self._pid, 0)
        if run is not None:
            if run.has_started():
                return False
            _remove_tree(run.path)
        return True


def _fill_standard_descriptors() -> list[int]:
    """A launcher without standard descriptors would get our pipes in their place, and the child replaces those."""
    opened: list[int] = []
    while True:
        descriptor = os.open("/dev/null", os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return opened
        opened.append(descriptor)


def _passed_over(roots: Sequence[Root], chosen: Root) -> list[str]:
    """In words, the places before the chosen one that could not be used, and why."""
    return [
        f"{root.path}: passed over as a place for run directories: {root.why}" for root in roots[: roots.index(chosen)]
    ]


def _claim_value(
    key: LaunchKey,
    attempt: Attempt,
    number: int,
    chosen: Root,
    guard: procfs.ProcessIdentity,
    label: str | None,
    archive_digest: str | None,
) -> dict[str, Any]:
    launcher = procfs.identify(os.getpid())
    return {
        "launch_id": key.launch_id(number),
        "number": number,
        "attempt": attempt.to_json(),
        "root": chosen.path,
        "created_at": time.time(),
        "launcher": None if launcher is None else launcher.to_json(),
        "guard": guard.to_json(),
        "label": label,
        "archive_digest": archive_digest,
    }


def _child_environment(
    environ: Mapping[str, str], cwd: str, extra: Mapping[str, str], kept: tuple[bytes, ...]
) -> dict[bytes, bytes]:
    """
    The host's environment without what belongs to the SSH session, with the launch's own; bytes, so that no locale has
    a say.
    """
    env: dict[bytes, bytes] = {}
    for name, value in environ.items():
        encoded = os.fsencode(name)
        if encoded.startswith(b"SSH_") and encoded not in kept:
            continue
        env[encoded] = os.fsencode(value)
    if environ is os.environ and env.get(b"LC_CTYPE") in _COERCED_LOCALES and not _was_given(b"LC_CTYPE"):
        del env[b"LC_CTYPE"]
    env[b"PWD"] = _encoded(cwd)
    env.pop(b"OLDPWD", None)
    for name, value in extra.items():
        env[_encoded(name)] = _encoded(value)
    return env


def _was_given(name: bytes) -> bool:
    """Whether this process was started with the variable; True where that cannot be seen."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return any(entry.startswith(name + b"=") for entry in file.read().split(b"\0"))
    except OSError:
        return True


def _execution(argv: Sequence[str], env: dict[bytes, bytes], cwd: str, launch_id: str) -> Execution:
    env[procfs.TAG.encode()] = launch_id.encode()
    return [_encoded(word) for word in argv], env, _encoded(cwd)


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _what_is(path: str) -> str:
    if os.path.lexists(path):
        return "a folder that may not be entered" if os.path.isdir(path) else "no folder"
    return "nothing"


def _remove_tree(path: str) -> None:
    """A run directory whose command never ran; it is two levels deep."""
    for folder in (path + "/observer", path):
        try:
            for name in os.listdir(folder):
                if not os.path.isdir(folder + "/" + name):
                    os.unlink(folder + "/" + name)
            os.rmdir(folder)
        except OSError:
            pass


def _collect_guards() -> None:
    for pid in list(_guards):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                _guards.remove(pid)
        except ChildProcessError:
            _guards.remove(pid)


def _read_line(descriptor: int) -> bytes:
    """One line; what there is when the writer is gone."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1)
        if not piece:
            break
        line += piece
    return line


__all__ = ["FastLaunch", "Refused", "launch", "start_fast"]

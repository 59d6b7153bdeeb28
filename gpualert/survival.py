"""What logind does to a detached training when its user logs out, and what can be done against it at launch.

Two settings matter. ``KillUserProcesses=yes`` ends every process in the session's scope: only leaving that scope helps.
``RemoveIPC=yes`` (the default of Debian and Ubuntu) deletes shared memory of a running DataLoader at the last logout:
lingering helps, for then the user never counts as gone. Source: logind.conf(5), loginctl(1), systemd-run(1).

The decision is pure; :func:`prepare` carries it out and never raises.
"""

from __future__ import annotations

import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

#: Exists only where systemd is the running init; sd_booted(3) looks for the same folder.
SYSTEMD_MARKER = "/run/systemd/system"
LINGER_FOLDER = "/var/lib/systemd/linger"
#: In the order of precedence, highest first (logind.conf(5)).
CONFIG_FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
#: Users up to here are system users, whose IPC objects logind leaves alone (SYS_UID_MAX of login.defs).
LAST_SYSTEM_UID = 999
BOUND_S = 2.0

_SESSION_SCOPE = re.compile(r"/session-[^/]+\.scope(?:/|$)", re.MULTILINE)
_TRUE = frozenset(("1", "yes", "y", "true", "t", "on"))
_FALSE = frozenset(("0", "no", "n", "false", "f", "off"))


class LoginFacts:
    """
    What decides whether a logout hurts. None: could not be seen.

    :param in_session_scope: our process lies in the scope of a login session.
    :param linger: the user lingers.
    :param kill_excluded: the user is exempt from KillUserProcesses (root is, by default).
    """

    __slots__ = ("in_session_scope", "kill_excluded", "kill_user_processes", "linger", "remove_ipc", "uid")

    def __init__(
        self,
        uid: int,
        in_session_scope: bool | None,
        linger: bool | None,
        kill_user_processes: bool | None,
        kill_excluded: bool,
        remove_ipc: bool | None,
    ) -> None:
        self.uid = uid
        self.in_session_scope = in_session_scope
        self.linger = linger
        self.kill_user_processes = kill_user_processes
        self.kill_excluded = kill_excluded
        self.remove_ipc = remove_ipc

    @property
    def killed_at_logout(self) -> bool | None:
        """Processes of the login session end at logout, a training among them; None when the setting is not known."""
        if self.kill_excluded or self.in_session_scope is False:
            return False
        return self.kill_user_processes

    @property
    def ipc_removed_at_logout(self) -> bool | None:
        """POSIX and System V shared memory of this user goes at the last logout; None when that is not known."""
        if self.uid <= LAST_SYSTEM_UID or self.linger:
            return False
        return self.remove_ipc


#: What :func:`decide` may ask for, in the order in which it is done.
ENABLE_LINGER = "enable_linger"
LEAVE_SESSION = "leave_session"

LINGER_WARNING = (
    "RemoveIPC: logind deletes this user's shared memory at the last logout, also that of a running DataLoader "
    "(“No such file or directory: /torch_…”); ask an administrator for: loginctl enable-linger %s"
)
KILL_WARNING = (
    "KillUserProcesses: logind ends this user's processes at logout, also a detached training; ask an administrator "
    "for KillUserProcesses=no in logind.conf, or launch with: systemd-run --user --scope (and enable-linger %s)"
)


def decide(facts: LoginFacts) -> tuple[str, ...]:
    """The steps that keep a detached training alive at logout; empty when nothing threatens it or nothing is known."""
    steps = []
    # A scope of the user's own manager ends with that manager, so leaving the session needs lingering as well.
    if (facts.ipc_removed_at_logout or facts.killed_at_logout) and not facts.linger:
        steps.append(ENABLE_LINGER)
    if facts.killed_at_logout:
        steps.append(LEAVE_SESSION)
    return tuple(steps)


def warnings_after(facts: LoginFacts, user: str) -> list[str]:
    """What still threatens a training, after the steps were tried and the facts read again."""
    warnings = []
    if facts.killed_at_logout:
        warnings.append(KILL_WARNING % user)
    if facts.ipc_removed_at_logout:
        warnings.append(LINGER_WARNING % user)
    return warnings


def prepare(bound_s: float = BOUND_S) -> list[str]:
    """
    Protect what this process is about to launch from its user's logout, as far as that is allowed.

    It may enable lingering and may move this process into a scope of its own, before anything is forked.

    :param bound_s: seconds that all of it may take.
    :return: warnings, for the record of the launch; empty where there is no systemd. Never raises.
    """
    if not os.path.isdir(SYSTEMD_MARKER):
        return []
    try:
        return _prepare(time.monotonic() + bound_s)
    except Exception as error:  # a training is launched with or without this protection
        return [f"survival at logout could not be checked: {type(error).__name__}: {error}"]


def _prepare(until: float) -> list[str]:
    user = user_name()
    facts = read_facts(user)
    for step in decide(facts):
        _bounded_run(command_for(step, user, os.getpid()), until)
    return warnings_after(read_facts(user), user)


def command_for(step: str, user: str, pid: int) -> list[str]:
    """The argv that carries out a step of :func:`decide`."""
    if step == ENABLE_LINGER:
        return ["loginctl", "--no-ask-password", "enable-linger", user]
    if step == LEAVE_SESSION:
        # What `systemd-run --user --scope` asks of the manager, for a process that runs already.
        call = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
        unit = ["StartTransientUnit", "ssa(sv)a(sa(sv))", f"gpualert-{pid}.scope", "fail"]
        return ["busctl", "--user", "call", *call, *unit, "1", "PIDs", "au", "1", str(pid), "0"]
    raise ValueError(f"step: expected {ENABLE_LINGER} or {LEAVE_SESSION}, found {step!r}")


def _bounded_run(argv: Sequence[str], until: float) -> None:
    """Run to the end or to the deadline; what it did is read from the facts afterwards, not from its status."""
    import subprocess  # late: 15 ms, and only hosts with a threat pay it

    left = until - time.monotonic()
    if left <= 0:
        return
    environment = dict(os.environ)
    environment.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError:  # not installed: the facts stay as they are, and the warning says what to do
        return
    try:
        process.wait(left)
    except subprocess.TimeoutExpired:
        process.kill()
        process.poll()


def user_name() -> str:
    """Our user's name, or its number where there is no entry."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def read_facts(user: str, root: str = "/") -> LoginFacts:
    """
    Read cgroup, linger marker and logind's configuration.

    :param root: where the file system begins (tests lay one out).
    """
    try:
        in_scope: bool | None = bool(_SESSION_SCOPE.search(_read(_under(root, "/proc/self/cgroup"))))
    except OSError:
        in_scope = None
    linger_folder = _under(root, LINGER_FOLDER)
    linger: bool | None = os.path.exists(os.path.join(linger_folder, user)) if os.path.isdir(linger_folder) else False
    settings = logind_settings(root)
    excluded = settings.get("KillExcludeUsers", "root").split()
    only = settings.get("KillOnlyUsers", "").split()
    return LoginFacts(
        uid=os.getuid(),
        in_session_scope=in_scope,
        linger=linger,
        kill_user_processes=_boolean(settings.get("KillUserProcesses")),
        kill_excluded=user in excluded or (bool(only) and user not in only),
        remove_ipc=_boolean(settings.get("RemoveIPC")),
    )


def logind_settings(root: str = "/") -> dict[str, str]:
    """
    The settings of the section ``[Login]`` that hold: main file, then drop-ins by name.

    A commented-out line of the main file states what was compiled in, so it counts as the default.
    """
    main = [path for path in (_under(root, f"{folder}/logind.conf") for folder in CONFIG_FOLDERS) if _is_file(path)]
    drop_ins: dict[str, str] = {}
    for folder in reversed(CONFIG_FOLDERS):
        where = _under(root, f"{folder}/logind.conf.d")
        try:
            names = [name for name in os.listdir(where) if name.endswith(".conf")]
        except OSError:
            continue
        drop_ins.update((name, os.path.join(where, name)) for name in names)
    settings: dict[str, str] = {}
    # The vendor's file documents the defaults even where an administrator's replaces it.
    for path in reversed(main):
        settings.update(_parse(_read_or_empty(path), commented=True))
    for path in main[:1] + [drop_ins[name] for name in sorted(drop_ins)]:
        settings.update(_parse(_read_or_empty(path), commented=False))
    return settings


def _parse(text: str, commented: bool) -> Mapping[str, str]:
    found: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line
        is_comment = line[:1] in ("#", ";")
        if section != "[Login]" or is_comment is not commented:
            continue
        name, equals, value = line.lstrip("#;").partition("=")
        if equals and name.strip().isalnum():
            found[name.strip()] = value.strip()
    return found


def _boolean(text: str | None) -> bool | None:
    if text is None:
        return None
    return True if text.lower() in _TRUE else False if text.lower() in _FALSE else None


def _under(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1024 * 1024)


def _read_or_empty(path: str) -> str:
    try:
        return _read(path)
    except OSError:
        return ""

"""A detached training outlives its user's logout, or the launch warns. Each answer of logind's files is a case here."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpualert import survival
from gpualert.survival import ENABLE_LINGER, LEAVE_SESSION, LoginFacts, decide, logind_settings, warnings_after

DEBIAN = "[Login]\n#NAutoVTs=6\n#KillUserProcesses=no\n#KillOnlyUsers=\n#KillExcludeUsers=root\n#RemoveIPC=yes\n"
FEDORA = DEBIAN.replace("#RemoveIPC=yes", "#RemoveIPC=no")


def facts(**changes: object) -> LoginFacts:
    """A plain user of a Debian machine, logged in over SSH."""
    values: dict[str, object] = {
        "uid": 1000,
        "in_session_scope": True,
        "linger": False,
        "kill_user_processes": False,
        "kill_excluded": False,
        "remove_ipc": True,
    }
    return LoginFacts(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, (ENABLE_LINGER,)),
        ({"linger": True}, ()),
        ({"remove_ipc": False}, ()),
        ({"remove_ipc": None}, ()),
        ({"uid": 999}, ()),
        ({"uid": 0, "kill_excluded": True}, ()),
        ({"remove_ipc": False, "kill_user_processes": True}, (ENABLE_LINGER, LEAVE_SESSION)),
        ({"linger": True, "kill_user_processes": True}, (LEAVE_SESSION,)),
        ({"linger": True, "kill_user_processes": True, "in_session_scope": False}, ()),
        ({"linger": True, "kill_user_processes": True, "kill_excluded": True}, ()),
        ({"linger": True, "kill_user_processes": None}, ()),
    ],
)
def test_only_a_real_threat_is_acted_on(changes: dict[str, object], steps: tuple[str, ...]) -> None:
    """Lingering is enabled where IPC would go; the session is left where its processes would be killed."""
    assert decide(facts(**changes)) == steps


def test_what_could_not_be_prevented_is_said() -> None:
    """Each warning names the setting and what to ask an administrator for."""
    warnings = warnings_after(facts(kill_user_processes=True), "ada")

    assert len(warnings) == 2
    assert any("KillUserProcesses" in warning for warning in warnings)
    assert any("RemoveIPC" in warning and "enable-linger ada" in warning for warning in warnings)
    assert warnings_after(facts(linger=True), "ada") == []


def lay_out(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_a_commented_line_is_the_compiled_default(tmp_path: Path) -> None:
    """Debian and Fedora differ exactly there, and nowhere else can it be read without asking logind."""
    assert logind_settings(lay_out(tmp_path / "debian", {"/etc/systemd/logind.conf": DEBIAN}))["RemoveIPC"] == "yes"
    assert logind_settings(lay_out(tmp_path / "fedora", {"/usr/lib/systemd/logind.conf": FEDORA}))["RemoveIPC"] == "no"
    assert "RemoveIPC" not in logind_settings(lay_out(tmp_path / "none", {"/etc/systemd/other.conf": DEBIAN}))


def test_drop_ins_win_by_name_and_a_higher_folder_hides_the_same_name(tmp_path: Path) -> None:
    """The order of logind.conf(5)."""
    root = lay_out(
        tmp_path,
        {
            "/etc/systemd/logind.conf": DEBIAN + "KillUserProcesses=no\n",
            "/usr/lib/systemd/logind.conf.d/10-site.conf": "[Login]\nKillUserProcesses=yes\nRemoveIPC=no\n",
            "/etc/systemd/logind.conf.d/10-site.conf": "[Login]\nRemoveIPC=no\n",
            "/run/systemd/logind.conf.d/90-late.conf": "[Login]\nKillExcludeUsers=root ada\n",
            "/etc/systemd/logind.conf.d/readme.txt": "[Login]\nRemoveIPC=yes\n",
        },
    )

    settings = logind_settings(root)

    assert settings["KillUserProcesses"] == "no"
    assert settings["RemoveIPC"] == "no"
    assert settings["KillExcludeUsers"] == "root ada"


@pytest.mark.parametrize(
    ("cgroup", "in_scope"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", True),
        ("1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n0::/\n", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/gpualert-77.scope\n", False),
        ("0::/system.slice/cron.service\n", False),
    ],
)
def test_facts_are_read_from_files(tmp_path: Path, cgroup: str, in_scope: bool) -> None:
    """No program is asked: reading costs nothing and cannot hang."""
    root = lay_out(
        tmp_path,
        {
            "/proc/self/cgroup": cgroup,
            "/etc/systemd/logind.conf": DEBIAN + "KillUserProcesses=yes\nKillExcludeUsers=\n",
            "/var/lib/systemd/linger/ada": "",
        },
    )

    read = survival.read_facts("ada", root)

    assert (read.in_session_scope, read.linger, read.kill_user_processes) == (in_scope, True, True)
    assert not read.kill_excluded
    assert survival.read_facts("bob", root).linger is False


def test_kill_only_users_spares_all_others(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {"/etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillOnlyUsers=guest\nKillExcludeUsers=\n"},
    )
    assert survival.read_facts("ada", root).kill_excluded
    assert not survival.read_facts("guest", root).kill_excluded


def test_a_host_without_systemd_costs_nothing_and_warns_of_nothing(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(survival, "SYSTEMD_MARKER", str(tmp_path / "absent"))
    monkeypatch.setattr(survival, "read_facts", lambda *_: pytest.fail("nothing is to be read"))
    assert survival.prepare() == []


def test_prepare_does_what_was_decided_and_looks_again(monkeypatch, tmp_path: Path) -> None:
    """A step counts by its effect: the facts are read again, and the exit status of a tool is believed by nobody."""
    monkeypatch.setattr(survival, "SYSTEMD_MARKER", str(tmp_path))
    monkeypatch.setattr(survival, "read_facts", lambda user: facts(linger=(tmp_path / "ada").exists()))
    monkeypatch.setattr(survival, "user_name", lambda: "ada")
    monkeypatch.setattr(survival, "command_for", lambda step, user, pid: ["touch", str(tmp_path / user)])

    assert survival.prepare() == []
    assert (tmp_path / "ada").exists()


@pytest.mark.parametrize("argv", [["/nonexistent/loginctl"], ["false"], ["sleep", "60"]])
def test_prepare_never_fails_and_never_hangs(monkeypatch, tmp_path: Path, argv: list[str]) -> None:
    """A missing tool, one that refuses, and one that hangs: a warning each, within the bound."""
    monkeypatch.setattr(survival, "SYSTEMD_MARKER", str(tmp_path))
    monkeypatch.setattr(survival, "read_facts", lambda user: facts())
    monkeypatch.setattr(survival, "command_for", lambda step, user, pid: argv)

    warnings = survival.prepare(bound_s=0.3)

    assert len(warnings) == 1 and "RemoveIPC" in warnings[0]


def test_a_check_that_breaks_is_a_warning(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(survival, "SYSTEMD_MARKER", str(tmp_path))

    def broken(user: str) -> LoginFacts:
        raise PermissionError("no")

    monkeypatch.setattr(survival, "read_facts", broken)
    assert survival.prepare() == ["survival at logout could not be checked: PermissionError: no"]


def test_the_commands_name_user_and_process() -> None:
    assert survival.command_for(ENABLE_LINGER, "ada", 77)[-1] == "ada"
    scope = survival.command_for(LEAVE_SESSION, "ada", 77)
    assert "gpualert-77.scope" in scope and scope[-2:] == ["77", "0"]

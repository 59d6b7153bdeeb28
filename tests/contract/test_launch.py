"""What reaches the child: environment, secrets, setup, working directory; and what is refused beforehand."""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpualert import launch as launching_room
from gpualert import procfs, records
from gpualert.errors import GpuAlertError, InvalidSpec
from gpualert.key import Attempt, LaunchKey
from gpualert.launch import launch, start_fast
from gpualert.records import ExitStatus, RunState
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec
from tests.support.launching import ROOT, Host, host
from tests.support.waiting import wait_until

__all__ = ["host"]


def environment(host: Host, **options: object) -> dict[str, str]:
    """The environment a child sees."""
    record = host.run(["env", "-0"], **options)  # type: ignore[arg-type]
    return dict(word.split("=", 1) for word in host.log(record).decode().split("\0") if word)


def test_the_childs_environment(host: Host, tmp_path: Path) -> None:
    """The host's, without what belongs to the SSH session (bash would read .bashrc), with the spec's and the tag."""
    seen = environment(
        host,
        env={"WANDB_MODE": "offline", "EMPTY": "", "LINES": "a\nb", "UMLAUT": "ü"},
        cwd=str(tmp_path),
        environ={**os.environ, "SSH_CLIENT": "1 2 3", "SSH_AUTH_SOCK": "/x", "SSH_TTY": "t", "KEPT": "yes"},
    )

    assert not [name for name in seen if name.startswith("SSH_")]
    assert {n: seen[n] for n in ("WANDB_MODE", "EMPTY", "LINES", "UMLAUT", "KEPT", "PWD")} == {
        "WANDB_MODE": "offline",
        "EMPTY": "",
        "LINES": "a\nb",
        "UMLAUT": "ü",
        "KEPT": "yes",
        "PWD": str(tmp_path),
    }
    assert seen["GPUALERT_LAUNCH_ID"] == host.records[-1].launch_id
    assert seen["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize(
    ("command", "unbuffered", "expected"),
    [
        ("env; : python train.py", None, True),
        ("env; : torchrun --nproc-per-node 8 train.py", None, False),
        ("env; : /opt/bin/accelerate launch train.py", None, False),
        ("env; : python -m torch.distributed.run train.py", None, False),
        ("env; : cat torchrun.log", None, True),
        ("env; : torchrun train.py", True, True),
        ("env; : python train.py", False, False),
    ],
)
def test_unbuffered_for_one_process_not_for_many_ranks(
    host: Host, command: str, unbuffered: bool | None, expected: bool
) -> None:
    """Unbuffered, the lines of several ranks tear each other; buffered, a killed process takes its last lines along."""
    environ = {n: v for n, v in os.environ.items() if n != "PYTHONUNBUFFERED"}
    record = host.run(command, unbuffered=unbuffered, environ=environ)

    assert (b"\nPYTHONUNBUFFERED=1\n" in b"\n" + host.log(record)) is expected


def test_secrets_reach_the_child_and_nothing_else(host: Host, tmp_path: Path) -> None:
    """Not the disk, not a command line, not the log of whoever launched."""
    secret = "s3cr3t-" + os.urandom(8).hex()
    gate = tmp_path / "gate"
    record = host.launch(
        f'[ "$TOKEN" = "{secret[:7]}$REST" ] && echo matches; while [ ! -e {gate} ]; do sleep 0.05; done; exit 0',
        secret_env=("TOKEN",),
        secrets={"TOKEN": secret},
        env={"REST": secret[7:]},
    )
    host.wait_for_log(record, b"matches")
    for path in host.root.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    for who in ("guard", "supervisor", "child"):
        assert secret not in (procfs.command_line(host.pid(record, who), 100_000) or "")
        if who != "child":
            assert secret.encode() not in Path(f"/proc/{host.pid(record, who)}/environ").read_bytes()
    gate.touch()
    host.end(record)


@pytest.mark.parametrize(
    ("options", "secrets", "kind", "words"),
    [
        ({"secret_env": ("TOKEN",)}, {}, "invalid_spec", "TOKEN"),
        ({}, {"TOKEN": "x"}, "invalid_spec", "TOKEN"),
        ({"cwd": "/no/such/folder"}, {}, "cwd_missing", "found nothing at /no/such/folder"),
        ({"cwd": "/etc/passwd"}, {}, "cwd_missing", "found no folder at /etc/passwd"),
        ({"cwd": "~/nowhere"}, {}, "cwd_missing", "nowhere"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_happens(
    host: Host, options: dict[str, object], secrets: dict[str, str], kind: str, words: str
) -> None:
    """One clear error, and nothing left behind."""
    with pytest.raises(InvalidSpec, match=words) as caught:
        launch(host.key(), Attempt(1, "a"), LaunchSpec("true", **options), secrets, 0)  # type: ignore[arg-type]

    assert caught.value.kind == kind
    assert not host.root.exists()


def test_the_working_directory(host: Host, tmp_path: Path) -> None:
    """As asked; the home by default; ~ is the home."""
    (host.home / "project").mkdir()
    where = {
        cwd: host.log(host.run("pwd", cwd=cwd)).decode().strip() for cwd in (None, "~", "~/project", str(tmp_path))
    }

    assert where == {
        None: str(host.home),
        "~": str(host.home),
        "~/project": str(host.home / "project"),
        str(tmp_path): str(tmp_path),
    }


def test_setup_is_sourced_before_the_command(host: Host) -> None:
    """What it sets, the command sees: variables, functions, folder; for a list command as well."""
    record = host.run('echo "$WHO in $PWD"; greet', setup="WHO=me\ngreet() { echo hello; }\ncd /  # there")
    assert host.log(record) == b"me in /\nhello\n"
    assert not record.setup_failed
    record = host.run(["sh", "-c", 'echo "$WHO: $1 $2"', "x", "a b", "$(c)"], setup="export WHO=me")
    assert host.log(record) == b"me: a b $(c)\n"


@pytest.mark.parametrize(
    ("setup", "code"),
    [
        ("false", 1),
        ("exit 7", 7),
        ("set -e; no_such_program; echo go on", 127),
        (". /no/such/file", 1),
        ("(exit 9)", 9),
        ("if [; then", None),
        ("exit 0", 1),
        ("return 4", 4),
    ],
)
def test_a_setup_that_fails_is_a_configuration_error(host: Host, tmp_path: Path, setup: str, code: int | None) -> None:
    """Its status, a line in the log, a file for the classifier; and the command does not run."""
    marker = tmp_path / "ran"
    record = host.run(f"touch {marker}", setup=setup)

    assert record.setup_failed
    assert record.state is RunState.FAILED
    assert record.exit and record.exit.code == code if code is not None else record.exit
    assert b"the command did not run" in host.log(record)
    assert not marker.exists()


def test_a_trap_of_the_setups_own_is_kept(host: Host) -> None:
    record = host.run("echo working", setup="trap 'echo tidy' EXIT")
    assert host.log(record) == b"working\ntidy\n"
    assert (record.exit, record.setup_failed) == (ExitStatus(0, None, False), False)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


CONDA = """#!/bin/sh
[ "$1 $2" = "shell.posix hook" ] || exit 9
cat <<'HOOK'
conda() {
  [ "$1" = activate ] || return 2
  [ "$2" = train ] || { echo "EnvironmentNameNotFound: $2" >&2; return 1; }
  CONDA_DEFAULT_ENV=$2
}
HOOK
"""


@pytest.mark.parametrize("place", ["$CONDA_EXE", "PATH", "~/miniconda3/bin/conda"])
def test_conda_is_found(host: Host, tmp_path: Path, place: str) -> None:
    """Through $CONDA_EXE, PATH, and where its installers put it."""
    environ = {"HOME": str(host.home), "PATH": "/usr/bin:/bin"}
    where = host.home / "miniconda3/bin/conda" if place.startswith("~") else tmp_path / "elsewhere/conda"
    program(where, CONDA)
    if place == "$CONDA_EXE":
        environ["CONDA_EXE"] = str(where)
    elif place == "PATH":
        environ["PATH"] = f"{where.parent}:/usr/bin:/bin"
    record = host.run("echo in $CONDA_DEFAULT_ENV", environment="conda:train", environ=environ)

    assert host.log(record) == b"in train\n"
    wrong = host.run("echo in $CONDA_DEFAULT_ENV", environment="conda:other", environ=environ)
    assert wrong.setup_failed and wrong.exit and wrong.exit.code == 1
    assert b"EnvironmentNameNotFound: other" in host.log(wrong)
    assert b"environment conda:other" in host.log(wrong)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("conda:train", b"no conda here; looked at $CONDA_EXE"),
        ("venv:/no/such/venv", b"found no /no/such/venv/bin/activate"),
        ("venv:~/v'x", b"found no "),
        ("module:cuda/12.1", b"has no 'module' command"),
    ],
)
def test_a_missing_environment_is_a_clear_line(host: Host, wanted: str, words: bytes) -> None:
    """Named, with where it was looked for; the command does not run, and the failure is one of configuration."""
    environ = {"HOME": str(host.home), "PATH": "/usr/bin:/bin"}
    for place in ("/opt/conda/bin/conda", "/etc/profile.d/modules.sh", "/etc/profile.d/lmod.sh"):
        if os.path.exists(place):
            pytest.skip(f"this machine has {place}")
    record = host.run("echo ran", environment=wanted, environ=environ)

    assert record.setup_failed
    assert words in host.log(record)
    assert b"\nran" not in b"\n" + host.log(record)


def test_a_venv_is_activated(host: Host, tmp_path: Path) -> None:
    program(tmp_path / "my venv/bin/activate", f"VIRTUAL_ENV='{tmp_path}/my venv'\n")
    record = host.run("echo $VIRTUAL_ENV", environment=f"venv:{tmp_path}/my venv")
    assert host.log(record).decode() == f"{tmp_path}/my venv\n"


def test_modules_are_loaded(host: Host, tmp_path: Path) -> None:
    """Through the usual initialisation, here $MODULESHOME's; a module that silently fails to load is noticed."""
    program(
        tmp_path / "init/sh",
        "module() { case $2 in cuda*) LOADEDMODULES=$LOADEDMODULES:$2/12.1 ;; bad) return 1 ;; esac; }\n",
    )
    environ = {"HOME": str(host.home), "PATH": "/usr/bin:/bin", "MODULESHOME": str(tmp_path)}
    record = host.run("echo $LOADEDMODULES", environment="module:cuda", environ=environ)
    assert host.log(record) == b":cuda/12.1\n"
    for name in ("bad", "silent"):
        failed = host.run("echo ran", environment=f"module:{name}", environ=environ)
        assert failed.setup_failed
        assert f"environment module:{name}".encode() in host.log(failed)


def test_scripts_are_private_and_exact(host: Host) -> None:
    """command.sh is the command, byte for byte."""
    text = "echo 'ü'  # no line break at the end"
    record = host.run(text, setup="true")
    run = RunDirectory(record.run_directory)

    assert Path(run.command_path).read_bytes() == text.encode()
    for path in (run.command_path, run.setup_path, run.spec_path, run.log_path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_foreground_launch_gives_the_child_its_standard_input(host: Host) -> None:
    """A terminal's, or a pipe's, untouched; and an agent's socket, which is still there."""
    read, write = os.pipe()
    os.write(write, b"typed\n")
    os.close(write)
    environ = {**os.environ, "SSH_AUTH_SOCK": "/agent", "SSH_CLIENT": "1 2 3"}
    started = start_fast(["sh", "-c", "cat; env"], root=str(host.root), stdin=read, environ=environ)
    os.close(read)
    wait_until(lambda: RunDirectory(started.run_directory).has_ended(), deadline_s=10, what="the end")
    os.close(started.announce)
    log = Path(started.log_path).read_text().splitlines()

    assert log[0] == "typed"
    assert "SSH_AUTH_SOCK=/agent" in log
    assert not [line for line in log if line.startswith("SSH_CLIENT")]


def test_whoever_stops_listening_does_not_matter(host: Host) -> None:
    """The foreground process is killed: the training goes on, and its end is written."""
    started = start_fast(["sh", "-c", "sleep 0.3; exit 5"], root=str(host.root))
    os.close(started.announce)
    record = records.read(started.run_directory)
    host.records.append(record)

    assert host.end(record).exit == ExitStatus(5, None, False)


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_a_host_that_allows_no_more_processes_says_so(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spare: int
) -> None:
    """ulimit -u reached at the first, second or third fork: an error with the reason, and nothing left behind."""
    fork, left = os.fork, [spare]

    def fork_while_allowed() -> int:
        if left[0] == 0:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left[0] -= 1
        return fork()

    monkeypatch.setattr(os, "fork", fork_while_allowed)
    with pytest.raises(GpuAlertError, match="Resource temporarily unavailable"):
        launch(host.key(), Attempt(1, "a"), LaunchSpec(["touch", str(tmp_path / "ran")]), {}, 0)
    assert not (tmp_path / "ran").exists()
    assert list(host.root.rglob("0001*")) == []


def test_a_reason_given_before_the_word_is_not_lost(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor was dead before the launcher had finished its work on the disk."""
    launcher, fork, give_word, left = os.getpid(), os.fork, launching_room._Starting.give_word, [1]

    def fork_once() -> int:
        if left[0] == 0:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        left[0] -= 1
        return fork()

    def late(self: launching_room._Starting, run: RunDirectory) -> tuple[int, int, int]:
        assert os.getpid() == launcher
        nobody_reads = select.poll()
        nobody_reads.register(self._go, 0)
        assert nobody_reads.poll(60_000), "the supervisor is dead"
        return give_word(self, run)

    monkeypatch.setattr(os, "fork", fork_once)
    monkeypatch.setattr(launching_room._Starting, "give_word", late)
    with pytest.raises(GpuAlertError, match="Resource temporarily unavailable"):
        launch(host.key(), Attempt(1, "a"), LaunchSpec(["true"]), {}, 0)


def test_a_launcher_without_standard_descriptors(host: Host) -> None:
    """A daemon that has closed 0, 1 and 2: the child has them all the same."""
    key = host.key()
    pid = os.fork()
    if pid == 0:
        try:
            for descriptor in (0, 1, 2):
                os.close(descriptor)
            host.launch(["sh", "-c", "cat; echo out; echo err >&2; exit 4"], key=key)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    record = records.read(f"{host.root}/launches/{key.directory_name}/0001")
    host.records.append(record)

    assert host.end(record).exit == ExitStatus(4, None, False)
    assert host.log(record) == b"out\nerr\n"


_KEY = LaunchKey(("limits",), "limits")


@pytest.mark.parametrize("limit", ["nofile", "fsize"])
def test_small_limits_of_the_host_do_not_hurt_the_keepers(host: Host, limit: str) -> None:
    """ulimit -n 32 and ulimit -f 1: the child may fail by them, the exit is told all the same."""
    import resource

    which, value = {"nofile": (resource.RLIMIT_NOFILE, 32), "fsize": (resource.RLIMIT_FSIZE, 16 * 1024)}[limit]
    before = resource.getrlimit(which)
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(which, (value, before[1]))
            record = host.launch(["head", "-c", "100000", "/dev/zero"], key=_KEY)
            os._exit(0 if record.state is not None else 1)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    record = records.read(f"{host.root}/launches/{_KEY.directory_name}/0001")
    host.records.append(record)
    ended = host.end(record)
    assert ended.exit and (ended.exit.code, ended.exit.signal) == ((0, None) if limit == "nofile" else (None, 25))


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_it_runs_under_every_python_of_the_floor(host: Host, version: str) -> None:
    """Launch, stop and exit status under the interpreters that GPU hosts have."""
    from tests.support import needs
    from tests.support.launching import ROOT

    interpreter = needs.interpreter(version)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpualert import control\n"
        "from gpualert.launch import launch, start_fast\n"
        "from gpualert.key import Attempt, LaunchKey\nfrom gpualert.spec import LaunchSpec\nimport os, time\n"
        "k = LaunchKey(('v',), 'v')\n"
        "_, one = launch(k, Attempt(1, 'a'), LaunchSpec('echo up; exec sleep 600'), {}, 0)\n"
        "one = control.stop(one.launch_id, epoch=None, reason='r', who='w', wait_s=20)\n"
        "two = start_fast(['sh', '-c', 'kill -SEGV $$'])\n"
        "print(one.state, one.exit.text)\nprint(os.read(two.announce, 100).decode())\n"
    )
    done = subprocess.run([interpreter, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    # the shell may not have set its trap yet when the signal comes, or have become sleep
    assert done.stdout.splitlines()[0] in ("STOPPED SIGTERM", "STOPPED exit 143")
    assert done.stdout.splitlines()[1] == "ended - 11"


def test_python_s_own_locale_does_not_reach_the_child(tmp_path: Path) -> None:
    """Started in the C locale, Python sets LC_CTYPE for itself (PEP 538); the child gets only what the caller had."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpualert.launch import start_fast\n"
        "import os\n"
        "print('ours', os.environ.get('LC_CTYPE'))\n"
        "started = start_fast(['/usr/bin/env'])\n"
        "os.read(started.announce, 100)\n"
        "print(open(started.log_path).read())"
    )

    def seen(**given: str) -> str:
        words = [sys.executable, "-c", code, str(ROOT)]
        environment = {"HOME": str(tmp_path), "GPUALERT_ROOT": str(tmp_path / "root"), **given}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout

    coerced, given = seen(), seen(LC_CTYPE="C.UTF-8")
    assert "ours C.UTF-8" in coerced and "LC_CTYPE" not in coerced.replace("ours", "")
    assert "LC_CTYPE=C.UTF-8" in given

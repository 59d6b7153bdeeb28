"""Scripts around a command: what is generated, and that any text survives it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert import shell
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec

RUN = RunDirectory("/root/launches/x-000000000000/0001")


def test_a_list_without_setup_needs_no_shell() -> None:
    spec = LaunchSpec(["python", "a b", "$(x)"])
    assert not shell.needs_shell(spec)
    assert shell.argv(spec, RUN, "/bin/bash") == ["python", "a b", "$(x)"]


def test_a_list_with_setup_is_executed_by_the_shell_unread() -> None:
    """The words are arguments; no shell looks into them."""
    argv = shell.argv(LaunchSpec(["python", "$(x)"], setup="true"), RUN, "/bin/bash")
    assert argv[:2] == ["/bin/bash", "-c"]
    assert argv[2].endswith('exec "$@"')
    assert argv[-2:] == ["python", "$(x)"]


def test_a_script_is_named_not_quoted() -> None:
    """Its text is in the file alone, so no length and no character of it can hurt."""
    argv = shell.argv(LaunchSpec("echo 'x' # y"), RUN, "/bin/bash")
    assert argv[-1] == RUN.command_path
    assert "echo" not in argv[2]


@pytest.mark.parametrize(
    ("signal", "lines"),
    [
        ("SIGTERM", ["trap 'exit 143' TERM"]),
        ("SIGUSR1", ["trap 'exit 138' USR1", "trap 'exit 143' TERM"]),
        ("SIGINT", ["trap 'exit 130' INT", "trap 'exit 143' TERM"]),
    ],
)
def test_the_prologue_ends_with_128_plus_n(signal: str, lines: list[str]) -> None:
    assert shell.prologue(signal).splitlines() == lines


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30))
def test_any_word_survives_quoting(word: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf %s {shell.quote(word)}"], capture_output=True)
    assert done.stdout.decode() == word


@pytest.mark.parametrize(
    "environment",
    ["conda:train", "conda:/envs/a b", "conda:x'y\"z$(touch BAD)`touch BAD`\\", "venv:~/it's", "module:cuda/12.1 gcc"],
)
@pytest.mark.parametrize("program", ["bash", "sh"])
def test_generated_scripts_are_shell_whatever_the_name(tmp_path: Path, environment: str, program: str) -> None:
    """A name with quotes or $() in it is a name, never code."""
    text = shell.setup_text(LaunchSpec("x", environment=environment))
    assert text is not None
    done = subprocess.run(
        [program, "-c", text], cwd=tmp_path, capture_output=True, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    )
    assert b"yntax error" not in done.stderr and b"unexpected" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_environment_comes_before_setup() -> None:
    text = shell.setup_text(LaunchSpec("x", environment="venv:/v", setup="echo mine"))
    assert text is not None and text.index("bin/activate") < text.index("echo mine")
    assert shell.setup_text(LaunchSpec("x")) is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py", True),
        (["torchrun", "train.py"], False),
        (["/opt/bin/torchrun", "train.py"], False),
        (["python", "-m", "torch.distributed.launch", "x"], False),
        ("srun -n 8 python x.py", False),
        ("my-srun-wrapper x", True),
        ("python srun.py", True),
        ("deepspeed\ntrain", False),
    ],
)
def test_which_commands_start_several_ranks(command: str | list[str], expected: bool) -> None:
    assert shell.wants_unbuffered(LaunchSpec(command)) is expected


def test_bash_is_found_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "bash").write_text("")
    assert shell.find_shell({"PATH": str(tmp_path)}) != f"{tmp_path}/bash", "not executable"
    (tmp_path / "bash").chmod(0o755)
    assert shell.find_shell({"PATH": f"relative:{tmp_path}"}) == f"{tmp_path}/bash"
    assert os.path.isabs(shell.find_shell({}))


def test_the_default_folder_is_the_home_and_root_where_there_is_none(tmp_path: Path) -> None:
    assert shell.working_directory(LaunchSpec("x"), {"HOME": str(tmp_path)}) == str(tmp_path)
    assert shell.working_directory(LaunchSpec("x"), {"HOME": str(tmp_path / "missing")}) == "/"
    assert shell.working_directory(LaunchSpec("x", cwd="~/a"), {"HOME": "/h/"}) == "/h/a"

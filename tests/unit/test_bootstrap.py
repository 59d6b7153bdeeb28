"""The first bytes that a host gets survive any login shell, and say nothing that is secret."""

from __future__ import annotations

import json
import subprocess

import pytest

from gpualert import bootstrap
from tests.support import needs


def test_the_command_is_one_plain_line() -> None:
    """One pair of single quotes around the whole, and nothing inside that any shell reads differently between them."""
    before, inside, after = bootstrap.COMMAND.split("'")
    assert (before, after) == ("exec /bin/sh -c ", "")
    assert not set(inside) & set("\\!\n\r`")
    assert bootstrap.COMMAND.isascii()


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "csh", "tcsh", "busybox"])
def test_every_shell_passes_the_command_on_unchanged(shell: str) -> None:
    """What /bin/sh gets is what we meant: an exact count of bytes is taken, and what follows is left on stdin."""
    command = [needs.program(shell), *(["sh"] if shell == "busybox" else []), "-c", bootstrap.COMMAND]
    script = b"printf '%s|' \"$n\"; cat\n"
    done = subprocess.run(command, input=b"%d\n%sleft over" % (len(script), script), capture_output=True, timeout=30)
    assert done.stdout == b"%d|left over" % len(script)
    assert done.stderr == b""


def test_the_preamble_has_exact_counts() -> None:
    """Each of the three readers takes its own bytes and not one more."""
    data = bootstrap.preamble("abc", {"digest": "d", "root": None}, remote_python="/opt/py'thon")
    size, _, rest = data.partition(b"\n")
    script, rest = rest[: int(size)], rest[int(size) :]
    assert b"gpualert-abc" in script and b"'/opt/py'\\''thon'" in script
    receiver, rest = rest[8 : 8 + int(rest[:8])], rest[8 + int(rest[:8]) :]
    compile(receiver, "receiver", "exec")
    assert int(rest[:8]) == len(rest) - 8
    assert json.loads(rest[8:]) == {"digest": "d", "root": None, "nonce": "abc"}


def test_what_we_send_never_looks_like_the_marker() -> None:
    """A far end that echoes must not pass for a host of ours."""
    sent = bootstrap.preamble("abc", {"digest": "d"})
    assert b"\n" + bootstrap.marker("abc").encode() + b" " not in sent


def test_the_stage_2_script_is_posix_shell() -> None:
    """dash is the strictest shell at hand."""
    done = subprocess.run(
        [needs.program("dash"), "-n"], input=bootstrap.stage_2("n", "python9").encode(), capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")

"""What another program says, for a probe: within a time, within a size, or else why not."""

from __future__ import annotations

import os
from typing import Mapping, Sequence

#: A system's tools may lie where a user's PATH does not lead.
_SBIN = ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


def output_of(words: Sequence[str], until: float, max_bytes: int, environment: Mapping[str, str] | None = None) -> str:
    """
    :param until: on ``time.monotonic()``.
    :param environment: added to our own.
    :return: stdout and stderr; what is not UTF-8 replaced.
    :raises OSError: with ``strerror`` in words for people: it is missing, did not answer, said too much, or failed.
    """
    from gpualert.probe_gpu_process import ENDED, HANGS, MISSING, ask

    added = {"LC_ALL": "C", "PATH": os.environ.get("PATH", "") + _SBIN, **(environment or {})}
    path = _find(words[0], added["PATH"])
    if path is None:
        raise OSError(0, "not installed")
    said = ask([path, *words[1:]], until, {**os.environ, **added}, max_bytes)
    if said.how == ENDED and said.status == 0:
        return said.text
    if said.how == MISSING:
        raise OSError(0, "could not be started: " + _line(said.text))
    if said.how == HANGS:
        raise OSError(0, "did not answer in time")
    if said.how == ENDED and said.status is not None:
        how = f"was killed by signal {-said.status}" if said.status < 0 else f"failed with status {said.status}"
        line = _line(said.text)
        own = words[0] + ": "
        raise OSError(0, (line[len(own) :] if line.startswith(own) else line) or how)
    raise OSError(0, f"said more than {max_bytes} bytes")


def _find(name: str, path: str) -> str | None:
    import shutil

    return shutil.which(name, path=path)


def _line(text: str) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in text[:4096].splitlines() if line.strip()]
    return "".join(char if char.isprintable() else "?" for char in lines[0])[:160] if lines else ""

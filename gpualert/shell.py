"""Turn a LaunchSpec into an argv and script files.

A string command is a script. It is written down exactly as given and sourced, so that any number of lines, a trailing
comment, ``exit 3`` and any length work. Around it stands a prologue: without it a shell that gets SIGTERM dies at once,
beside a training that is still writing its checkpoint, and the end that is reported would be the shell's.
"""

from __future__ import annotations

import os
import re
from typing import Mapping

from gpualert.rundir import RunDirectory, expand_home, home, write_file
from gpualert.spec import LaunchSpec

#: Where conda lives when it is in nobody's PATH, in order; ``~`` is the home.
CONDA_PLACES = (
    "~/miniconda3",
    "~/miniforge3",
    "~/mambaforge",
    "~/anaconda3",
    "~/miniconda",
    "~/.conda",
    "/opt/conda",
    "/opt/miniconda3",
    "/opt/miniforge3",
    "/opt/anaconda3",
    "/usr/local/miniconda3",
    "/usr/local/anaconda3",
)
MICROMAMBA_PLACES = (
    "~/.local/bin/micromamba",
    "~/bin/micromamba",
    "~/micromamba/bin/micromamba",
    "/usr/local/bin/micromamba",
)
#: What defines the shell function ``module``.
MODULE_INITS = (
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/z00_lmod.sh",
    "/etc/profile.d/modules.sh",
    "/usr/share/lmod/lmod/init/sh",
    "/usr/share/modules/init/sh",
    "/usr/local/lmod/lmod/init/sh",
    "/opt/apps/lmod/lmod/init/sh",
)
#: Programs that start one process per GPU and pass their lines on; unbuffered, those lines are torn.
_MULTI_RANK = re.compile(
    r"(?<![\w.-])(torchrun|accelerate|deepspeed|mpirun|mpiexec|orterun|srun|horovodrun|torch\.distributed\.(run|launch))(?![\w.-])"
)

# ``. "$0"``: the script's own messages then name command.sh and the right line.
_RUN = '. "$0"'
_TRAP = "trap 'exit {code}' {name}\n"
_SETUP = """\
__gpualert_setup_failed() {{
  __gpualert_status=$?
  echo "$__gpualert_status" > {marker}
  if [ "$__gpualert_status" -eq 0 ]; then
    echo "gpualert: the setup ended the shell (status 0) before the command; the command did not run" >&2
    exit 1
  fi
  echo "gpualert: the setup failed (status $__gpualert_status); the command did not run" >&2
  exit "$__gpualert_status"
}}
trap __gpualert_setup_failed EXIT
. {setup}
__gpualert_status=$?
if [ "$__gpualert_status" -ne 0 ]; then
  exit "$__gpualert_status"
fi
case "$(trap)" in *__gpualert_setup_failed*) trap - EXIT ;; esac
unset __gpualert_status
"""


def needs_shell(spec: LaunchSpec) -> bool:
    return isinstance(spec.command, str) or spec.setup is not None or spec.environment is not None


def write_scripts(spec: LaunchSpec, run: RunDirectory) -> tuple[str, ...]:
    """
    Write ``command.sh`` and ``setup.sh`` as far as the spec has them.

    :return: their names in the run directory.
    :raises RunDirectoryError: the disk would not.
    """
    names = []
    if isinstance(spec.command, str):
        write_file(run.command_path, _bytes(spec.command))
        names.append(os.path.basename(run.command_path))
    text = setup_text(spec)
    if text is not None:
        write_file(run.setup_path, _bytes(text))
        names.append(os.path.basename(run.setup_path))
    return tuple(names)


def argv(spec: LaunchSpec, run: RunDirectory, shell: str) -> list[str]:
    """
    What the child executes.

    :param shell: path of ``bash`` or ``sh``, see :func:`find_shell`.
    """
    if not needs_shell(spec):
        return list(spec.command)
    script = ""
    if isinstance(spec.command, str):
        script = prologue(spec.stop_signal)
    if setup_text(spec) is not None:
        script += _SETUP.format(marker=quote(run.setup_failed_path), setup=quote(run.setup_path))
    if isinstance(spec.command, str):
        return [shell, "-c", script + _RUN, run.command_path]
    return [shell, "-c", script + 'exec "$@"', "gpualert", *spec.command]


def prologue(stop_signal: str) -> str:
    """
    Make the shell outlive its foreground command for the stop signal and SIGTERM, and end with 128 + N after it.

    A shell runs a trap only when its foreground command has ended; that command has the default disposition, since
    traps are not inherited. A trap of the user's replaces ours.
    """
    import signal

    names = dict.fromkeys([stop_signal, "SIGTERM"])
    return "".join(_TRAP.format(code=128 + getattr(signal, name), name=name[3:]) for name in names)


def setup_text(spec: LaunchSpec) -> str | None:
    """The content of setup.sh: ``environment`` first, then ``setup``. None when there is neither."""
    parts = []
    if spec.environment is not None:
        kind, _, what = spec.environment.partition(":")
        parts.append({"conda": _conda, "venv": _venv, "module": _module}[kind](what.strip()))
    if spec.setup is not None:
        parts.append(spec.setup)
    return "\n".join(parts) + "\n" if parts else None


def _say(kind: str, what: str) -> str:
    """A shell function for messages about one environment."""
    return f'__gpualert_say() {{ echo "gpualert: environment {kind}:{_plain(what)}: $1" >&2; }}\n'


def _conda(name: str) -> str:
    places = " ".join(_home_word(place + "/bin/conda") for place in CONDA_PLACES)
    micromamba = " ".join(_home_word(place) for place in MICROMAMBA_PLACES)
    return (
        _say("conda", name)
        + f"""\
__gpualert_activate() {{
  for __gpualert_tool in "${{CONDA_EXE:-}}" "$(command -v conda 2>/dev/null)" {places}; do
    if [ -f "$__gpualert_tool" ] && [ -x "$__gpualert_tool" ]; then
      __gpualert_hook=$("$__gpualert_tool" shell.posix hook) || {{
        __gpualert_say "$__gpualert_tool shell.posix hook failed"; return 1; }}
      eval "$__gpualert_hook"
      conda activate {quote(name)} || {{
        __gpualert_say "$__gpualert_tool could not activate it; see '$__gpualert_tool env list'"; return 1; }}
      return 0
    fi
  done
  for __gpualert_tool in "${{MAMBA_EXE:-}}" "$(command -v micromamba 2>/dev/null)" {micromamba}; do
    if [ -f "$__gpualert_tool" ] && [ -x "$__gpualert_tool" ]; then
      __gpualert_hook=$("$__gpualert_tool" shell hook -s posix) || {{
        __gpualert_say "$__gpualert_tool shell hook failed"; return 1; }}
      eval "$__gpualert_hook"
      micromamba activate {quote(name)} || {{
        __gpualert_say "$__gpualert_tool could not activate it"; return 1; }}
      return 0
    fi
  done
  __gpualert_say "no conda here; looked at \\$CONDA_EXE, \\$PATH, {", ".join(CONDA_PLACES)}, micromamba"
  return 1
}}
__gpualert_activate || exit 1
unset -f __gpualert_activate
"""
    )


def _venv(path: str) -> str:
    return (
        _say("venv", path)
        + f"""\
__gpualert_venv={_home_word(path)}
if [ ! -f "$__gpualert_venv/bin/activate" ]; then
  __gpualert_say "expected a virtual environment, found no $__gpualert_venv/bin/activate"
  exit 1
fi
. "$__gpualert_venv/bin/activate" || exit 1
unset __gpualert_venv
"""
    )


def _module(names: str) -> str:
    inits = " ".join(quote(path) for path in MODULE_INITS)
    lines = [
        _say("module", names)
        + f"""\
if ! command -v module >/dev/null 2>&1; then
  for __gpualert_init in "${{MODULESHOME:+$MODULESHOME/init/sh}}" {inits}; do
    if [ -f "$__gpualert_init" ]; then . "$__gpualert_init"; fi
    if command -v module >/dev/null 2>&1; then break; fi
  done
fi
if ! command -v module >/dev/null 2>&1; then
  __gpualert_say "this host has no 'module' command; looked at \\$MODULESHOME, {", ".join(MODULE_INITS)}"
  exit 1
fi
"""
    ]
    for name in names.split():
        # Old versions of modules end with 0 whatever happens; but then the list of what is loaded has not changed.
        lines.append(
            f"""\
__gpualert_before=${{LOADEDMODULES-}}
module load {quote(name)} || {{ __gpualert_say "{_plain(name)} could not be loaded"; exit 1; }}
case ":${{LOADEDMODULES-}}:" in
  *:{quote(name)}:* | *:{quote(name)}/*) ;;
  *) if [ "${{LOADEDMODULES-}}" = "$__gpualert_before" ]; then
       __gpualert_say "{_plain(name)} is not among the loaded modules"; exit 1
     fi ;;
esac
"""
        )
    return "".join(lines)


def find_shell(environ: Mapping[str, str]) -> str:
    """``bash`` from PATH or its usual places, else ``/bin/sh``."""
    for folder in [*environ.get("PATH", "").split(":"), "/bin", "/usr/bin", "/usr/local/bin"]:
        path = folder + "/bash"
        if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return "/bin/sh"


def wants_unbuffered(spec: LaunchSpec) -> bool:
    """Whether PYTHONUNBUFFERED is set: as the spec says, else for everything but launchers of several ranks."""
    if spec.unbuffered is not None:
        return spec.unbuffered
    text = spec.command if isinstance(spec.command, str) else " ".join(_last_part(word) for word in spec.command)
    return _MULTI_RANK.search(text) is None


def _last_part(word: str) -> str:
    return word.rpartition("/")[2]


def quote(word: str) -> str:
    """One word of a shell's, whatever it holds."""
    return "'" + word.replace("'", "'\\''") + "'"


def _home_word(path: str) -> str:
    """A quoted path in which a leading ``~`` is still the home."""
    if path == "~" or path.startswith("~/"):
        return '"$HOME"' + (quote(path[1:]) if len(path) > 1 else "")
    return quote(path)


def _plain(text: str) -> str:
    """For a message between double quotes in a script."""
    return re.sub(r'[`$"\\!]', "?", text)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def working_directory(spec: LaunchSpec, environ: Mapping[str, str]) -> str:
    """``cwd`` as an absolute path; the home when there is none, ``/`` when there is no home either."""
    if spec.cwd is None:
        there = home(environ)
        return there if there is not None and os.path.isdir(there) else "/"
    return expand_home(spec.cwd, environ)

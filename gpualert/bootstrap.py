"""From an SSH exec channel, whatever the login shell, to our own code running on the host: the first few hundred bytes.

Three steps, each with one reason:

1. :data:`COMMAND`, the channel's command. A login shell of any kind has to pass it on unchanged to ``/bin/sh``, so it
   is one line in single quotes that holds no quote, backslash, ``!`` or line break. It is a constant: it can be put on
   an allow-list, and nothing of the caller ever stands in a process list.
2. the *stage-2 script* for ``/bin/sh``, which finds a Python. Its size goes before it, and ``dd bs=1`` takes exactly
   that: what follows belongs to Python.
3. the *receiver* (``receiver.py``, sent as text), which finds or receives the archive and becomes ``gpualert.serve``.

All three go out at once, so a host that has the archive answers in one round trip.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from gpualert import archive

#: What to execute on the SSH channel.
COMMAND = 'exec /bin/sh -c \'read -r n && s=$(dd bs=1 count="$n" 2>/dev/null) && eval "$s"\''

#: The oldest Python that can run the core.
OLDEST_PYTHON = (3, 8)

# Names first (PATH is what the host's owner chose), then places where Pythons are usually put by hand.
_PYTHON_NAMES = ("python3", *(f"python3.{minor}" for minor in range(13, 7, -1)), "python")
_PYTHON_PLACES = (
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "$h/miniconda3/bin/python",
    "$h/miniforge3/bin/python",
    "$h/mambaforge/bin/python",
    "$h/anaconda3/bin/python",
    "$h/micromamba/bin/python",
    "/opt/conda/bin/python",
    "/opt/miniconda3/bin/python",
    "/opt/miniforge3/bin/python",
    "/opt/anaconda3/bin/python",
    "$h/.pyenv/versions/*/bin/python",
    "$h/.local/share/uv/python/*/bin/python3",
    "/opt/rh/*/root/usr/bin/python3",
)

# Reads exactly the receiver and its settings from stdin: the frames behind them are not for it. No single quote may
# stand in here.
_LOADER = """\
import os, sys
def take(n):
    data = b""
    while len(data) < n:
        piece = os.read(0, n - len(data))
        if not piece:
            os._exit(3)
        data += piece
    return data
space = {"__name__": "gpualert_receiver"}
try:
    exec(compile(take(int(take(8))), "<gpualert receiver>", "exec"), space)
except ImportError as error:
    words = "%s %s (%s)" % (sys.executable, sys.version.split()[0], error)
    os.write(1, ("\\n@MARKER@ error python_incomplete %s\\n" % words).encode())
    os._exit(1)
space["main"](take(int(take(8))))
"""

# -I: the user's PYTHONPATH, PYTHONHOME and site-packages must not reach us. -S: nor .pth files; and it starts faster.
# -X utf8: file names mean the same everywhere.
# A probe of its own, because a shim (pyenv's) or a broken installation is found on PATH and is no Python.
_STAGE_2 = """\
m=@MARKER@
h=${HOME:-/nonexistent}
passed=
for p in @PYTHONS@; do
case $p in
"~/"*) p=$h/${p#??} ;;
esac
case $p in
*/*) [ -x "$p" ] || continue ;;
*) command -v "$p" >/dev/null 2>&1 || continue ;;
esac
if "$p" -I -S -c "import sys; sys.exit(sys.version_info < @OLDEST@)" </dev/null >/dev/null 2>&1; then
exec "$p" -I -S -X utf8 -c '@LOADER@' "$passed"
fi
v=$("$p" -V 2>&1 </dev/null | head -n 1 | tr -cd '[:alnum:] ._-' | cut -c 1-60)
passed="$passed$p ($v), "
done
if [ -n "$passed" ]; then k=python_too_old; else k=no_python; fi
printf '\\n%s error %s %s\\n' "$m" "$k" "$passed"
exit 1
"""


def marker(nonce: str) -> str:
    """What begins the one line that separates the host's own noise from ours."""
    return f"gpualert-{nonce}"


def stage_2(nonce: str, remote_python: str | None = None) -> str:
    """
    The script for ``/bin/sh`` that picks a Python and becomes it, or says on a marked line which ones it found unfit.
    """
    first = [] if remote_python is None else [_sh_quoted(remote_python)]
    pythons = first + list(_PYTHON_NAMES) + [place.replace("$h", '"$h"') for place in _PYTHON_PLACES]
    return (
        _STAGE_2.replace("@LOADER@", _LOADER)
        .replace("@MARKER@", marker(nonce))
        .replace("@PYTHONS@", " ".join(pythons))
        .replace("@OLDEST@", repr(OLDEST_PYTHON))
    )


def preamble(nonce: str, settings: Mapping[str, Any], remote_python: str | None = None) -> bytes:
    """
    All that goes to the channel's stdin before the first frame.

    :param settings: what the receiver needs to know (``nonce`` is added): see ``receiver.main``.
    """
    script = stage_2(nonce, remote_python).encode("utf-8", "surrogateescape")
    receiver = archive.source("receiver.py")
    told = json.dumps({**settings, "nonce": nonce}).encode()
    return b"%d\n%s%08d%s%08d%s" % (len(script), script, len(receiver), receiver, len(told), told)


def _sh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"

"""``python -m gpualert``: the command line; ``python -m gpualert serve`` speaks the protocol on stdin and stdout.

``run`` and ``serve`` go their own ways, past argparse: the one for the milliseconds before the command's start.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    verb = sys.argv[1:2]
    if verb == ["run"]:
        import _signal

        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            # Until something is launched, Ctrl-C just ends us.
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        from gpualert import foreground

        status = foreground.main(sys.argv[2:])
        # The interpreter's own farewell costs more than the launch; nothing is buffered that is not written.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass
        os._exit(status)
    if verb == ["serve"]:
        from gpualert import serve

        return serve.main_local(sys.argv[2:])
    from gpualert import cli

    return cli.main()


if __name__ == "__main__":
    if not __package__:  # executed as a folder or a file: its modules must not pass for top-level ones
        folder = os.path.dirname(os.path.abspath(__file__))
        sys.path[:] = [os.path.dirname(folder), *(path for path in sys.path if os.path.abspath(path) != folder)]
    sys.exit(main())

"""``python -m gpualert``: the command line; ``python -m gpualert serve`` speaks the protocol on stdin and stdout."""

from __future__ import annotations

import sys


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        from gpualert import serve

        return serve.main_local(sys.argv[2:])
    from gpualert import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())

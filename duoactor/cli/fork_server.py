"""A process that has imported what actors with a model need, and computed nothing: it forks them.

Imports are most of what a small drafter takes from its start to its first draft. Here they are made once, before the
first start; an actor that is started again has them, and shares their memory with the others.

``python -m duoactor.cli.fork_server`` is asked by :mod:`duoactor.launch.forks`, through its standard input.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from duoactor.launch.forking import READY, rename, serve


def main() -> int:
    from duoactor import cli

    link = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from actors.engines.preload import preload

    preload()
    link.send(READY)
    fork = serve(link)
    if fork is None:
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rename(fork.arguments)
    return cli.main(fork.arguments)


if __name__ == "__main__":
    sys.exit(main())

"""A process that has imported what actors with a model need, and computed nothing: it forks them.

Imports are most of what a small drafter takes from its start to its first draft. Here they are made once, before the
first start; an actor that is started again has them, and shares their memory with the others.

``python -m duoactor.cli.fork_server`` is asked by :mod:`duoactor.launch.forks`, through its standard input.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

from duoactor.launch.forking import READY, rename, serve


class Announcements(logging.Handler):
    """Writes what the imports log: warnings as lines, the rest (such as that layers are compiled, which takes a while)
    as progress, which for :class:`duoactor.launch.child.OutputLines` is what follows a carriage return."""

    line_is_open = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            sys.stderr.write(f"\r{record.getMessage()}")
        else:
            sys.stderr.write("\n" * self.line_is_open + f"{record.getMessage()}\n")
        self.line_is_open = record.levelno < logging.WARNING
        sys.stderr.flush()


def main() -> int:
    from duoactor import cli

    link = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from actors.engines.preload import preload

    heard = Announcements()
    logging.getLogger("duoactor").addHandler(heard)
    logging.getLogger("duoactor").setLevel(logging.INFO)
    preload()
    logging.getLogger("duoactor").setLevel(logging.NOTSET)
    logging.getLogger("duoactor").removeHandler(heard)  # each actor logs as its own options say
    link.send(READY)
    fork = serve(link)
    if fork is None:
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rename(fork.arguments)
    return cli.main(fork.arguments)


if __name__ == "__main__":
    sys.exit(main())

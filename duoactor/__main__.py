"""``duoactor``, and ``python -m duoactor``. Ctrl-C is quiet also while the command line itself is being loaded."""

import os
import sys


def run() -> int:
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # the hub's client tells each of its retries, here and in actors
    try:
        from duoactor.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())

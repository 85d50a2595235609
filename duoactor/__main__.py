"""``duoactor``, and ``python -m duoactor``. Ctrl-C is quiet also while the command line itself is being loaded."""

import sys


def run() -> int:
    try:
        from duoactor.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())

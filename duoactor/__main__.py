"""``python -m duoactor``."""

import sys

from duoactor.cli import main

sys.exit(main())

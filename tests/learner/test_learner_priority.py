"""A learner's process leaves the CPUs to others."""

import subprocess
import sys
from pathlib import Path

import pytest

from actors.learner.start import AUTOGROUP

PROGRAM = """
import os
from actors.learner.start import give_way
give_way()
print(os.nice(0), open("/proc/self/autogroup").read().split()[-1], flush=True)
os._exit(0)  # at this priority a busy machine takes half a minute to tidy an interpreter
"""


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this system does not group processes by session")
@pytest.mark.parametrize(("own_session", "session_nice"), [(True, "19"), (False, "0")])
def test_its_priority_is_the_lowest_and_that_of_its_session_where_it_has_one_of_its_own(own_session, session_nice):
    # a session that is not its own is made for the test: that of the test's own process may have any priority
    program = PROGRAM if own_session else f"import os\nif os.fork():\n  os.wait(); os._exit(0)\n{PROGRAM}"
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    assert said.stdout.split() == ["19", session_nice]

"""Every example that needs running actors says so in one sentence when there are none."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALONE = {"own_proposer.py"}  # it waits for one


def test_examples_without_actors_end_in_a_sentence(tmp_path):
    environment = os.environ | {"DUOACTOR_CONNECT": f"ipc://{tmp_path}/nobody.ipc", "NO_PROXY": "*"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = {
        path.name: subprocess.Popen([sys.executable, str(path)], cwd=ROOT, env=environment, **pipes)
        for path in (ROOT / "examples").glob("*.py")
        if path.name not in ALONE
    }
    said = {name: one.communicate("Hello\n")[1].strip() for name, one in running.items()}
    tried = {name: text for name, text in said.items() if "No module named" not in text}  # clients that are here
    assert len(tried) >= 6
    assert not {name: text for name, text in tried.items() if "Traceback" in text or "start" not in text}
    assert {running[name].returncode for name in tried} == {1}

"""docs/gpu.sh where no GPU is: every step is begun and reported, whatever became of those before it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = (ROOT / "docs" / "gpu.sh").read_text()
LIMITS = re.findall(r'^ *(?:step|bench) "?(\w[\w$-]*)"? (\d+)', SCRIPT, re.MULTILINE)
STEPS = [name for name, _ in LIMITS]
PEERS = ("peer-built", "peer", "file")  # in a call of their own
PYTHON = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *families_on_device*) echo 'one is WRONG'; exit 3 ;; esac
echo 'a figure of a step'
"""


def run(tmp_path: Path, *arguments: str, **told: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"), **told}
    script = ["sh", ROOT / "docs" / "gpu.sh", *arguments]
    return subprocess.run(script, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def test_each_step_is_reported_with_its_figure_and_one_that_fails_stops_none(fake_python: Path) -> None:
    done = run(fake_python, str(fake_python / "out"), DEVICE="cpu")
    report = (fake_python / "out" / "report.md").read_text()
    rows = dict(re.findall(r"^\| ([\w-]+) \| (.+?) \| \d+ \|$", report, re.MULTILINE))
    names = [name for name in STEPS if name != "rounds-$kind" and name not in PEERS]
    assert len(names) > 10 and {*names, "rounds-Q4_K", "rounds-Q8_0"} <= rows.keys()
    assert rows["families"] == "**failed** with 3" and "one is WRONG" in report
    assert {what for name, what in rows.items() if name != "families"} == {"done"}
    assert done.returncode == 1 and report.count("a figure of a step") >= len(names)
    assert list(rows).index("formats") < list(rows).index("families") < list(rows).index("map")  # most telling first


def test_the_limits_of_all_steps_fit_into_ten_minutes() -> None:
    seconds = [(name in PEERS, (1 + (name == "rounds-$kind")) * int(limit)) for name, limit in LIMITS]
    assert 500 <= sum(limit for peer, limit in seconds if not peer) <= 600
    assert 0 < sum(limit for peer, limit in seconds if peer) <= 600


def test_a_step_for_which_no_time_is_left_is_said(fake_python: Path) -> None:
    done = run(fake_python, str(fake_python / "out"), DEVICE="cpu", MINUTES="0", STEPS="families map")
    assert done.returncode == 2
    assert (fake_python / "out" / "report.md").read_text().count("**not begun**") == 2


def test_what_kernels_need_is_printed_without_a_gpu(fake_python: Path) -> None:
    assert run(fake_python, "--compile", "90").returncode == 0
    assert (fake_python / "calls").read_text() == "-m tests.engines.compiled_kernels 90\n"


@pytest.mark.skipif(sys.platform != "linux", reason="as on a lent machine")
def test_rounds_are_timed_in_blocks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    done = run(tmp_path, str(tmp_path / "out"), DEVICE="cpu", STEPS="rounds-Q4_K")
    report = (tmp_path / "out" / "report.md").read_text()
    assert done.returncode == 0, report
    assert re.search(r"\| 64 \| 1 \| 8 \| [\d.]+ \| [\d.]+ \| \d+% \|", report), report

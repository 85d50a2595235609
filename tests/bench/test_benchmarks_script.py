"""The script that measures the sections of docs/benchmarks anew."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from duoactor.bench.methods import choose
from duoactor.bench.suites import BUILTIN
from duoactor.cli.bench import BenchOptions, bench
from duoactor.cli.options import settings_from

SCRIPT = Path(__file__).parents[2] / "docs" / "benchmarks.sh"
SECTIONS = ("bundled", "inflated", "sampled", "sweep", "load", "load-inflated", "spec-bench", "humaneval")
FAKE = r"""#!/bin/sh
echo "$@" >> "$ASKED"
case $1 in
inflate) mkdir -p "$3" ;;
bench | -m)
    while [ "$1" != --out ]; do shift; done
    mkdir -p "$2"
    echo made > "$2/results.json"
    printf -- "- command: x\n\n## In short\n\n- It wins.\n\n## Table 1\n\n- no\n\n| new | table |\n" > "$2/report.md"
    touch "$2/map.json" "$2/map.svg"
    ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    for directory in ("docs", "bin"):
        (tmp_path / directory).mkdir()
    (tmp_path / "docs" / "benchmarks.sh").write_text(SCRIPT.read_text())
    for name in ("duoactor", "python"):
        fake = tmp_path / "bin" / name
        fake.write_text(FAKE)
        fake.chmod(0o755)
    return tmp_path


def called(checkout, *sections, **environment):
    """(exit code, the commands that were run)"""
    asked = checkout / "asked"
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    script = ["sh", str(checkout / "docs" / "benchmarks.sh"), *sections]
    done = subprocess.run(script, env={"PATH": path, "ASKED": str(asked)} | environment, capture_output=True)
    return done.returncode, [shlex.split(line) for line in asked.read_text().splitlines()] if asked.exists() else []


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_asks_for_options_and_rows_that_there_are_and_leaves_a_report(checkout, section):
    code, commands = called(checkout, section, SPEC_BENCH="question.jsonl", HUMANEVAL="HumanEval.jsonl")
    assert code == 0
    (measured,) = [command for command in commands if command[0] == "bench"]
    options = settings_from(BenchOptions, {}, bench.make_context("bench", measured[1:]).params)
    assert options.job().rows if options.suite == BUILTIN else choose(options.methods)
    assert bool(options.streams) == section.startswith("load")
    assert (options.limit == 0) == (section in ("bundled", "inflated"))  # 0: every prompt of the built-in suite
    made = {path.name for path in (checkout / "docs" / "benchmarks" / section).iterdir()}
    assert made == {"report.md"}
    index = (checkout / "docs" / "benchmarks" / "README.md").read_text()
    assert f"## [{section}]({section}/report.md)\n\n- command: x\n- It wins.\n" in index
    assert "- no" not in index


@pytest.mark.parametrize(("section", "page"), [("map", "benchmarks"), ("modes", "two-devices")])
def test_a_table_takes_the_place_of_the_old_one_on_its_page(checkout, section, page):
    marks = [f"<!-- {section} {what} -->" for what in ("begins", "ends")]
    path = checkout / "docs" / f"{page}.md"
    path.write_text("\n".join(["before", marks[0], "| old |", marks[1], "after", ""]))
    code, _ = called(checkout, section)
    lines = path.read_text().splitlines()
    assert code == 0 and "| new | table |" in lines and "| old |" not in lines
    assert [lines[0], lines[1], *lines[-2:]] == ["before", marks[0], marks[1], "after"]


def test_a_section_is_measured_anew_and_a_limit_of_ones_own_is_taken(checkout):
    called(checkout, "bundled")
    _, (_, second) = called(checkout, "bundled", LIMIT="2")
    assert second[second.index("--limit") + 1] == "2"


def test_a_section_without_its_file_or_a_wrong_name_is_said(checkout):
    code, commands = called(checkout, "spec-bench")
    assert code != 0 and commands == []
    assert called(checkout, "nothing") == (2, [])

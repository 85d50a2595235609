"""`duoactor config init` writes a file that changes nothing, and that becomes whole when its # are taken away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duoactor import config
from duoactor.cli import main
from duoactor.config_reference import template


def test_the_file_as_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["config", "init"]) == 0
    assert capsys.readouterr().out == "wrote duo.toml; use it with `duoactor up --config duo.toml`\n"
    read = config.read("duo.toml")
    assert (read.verifier, read.drafters, read.controller) == ({}, ({},), {})


def test_it_holds_every_option_with_its_default(tmp_path: Path):
    file = tmp_path / "duo.toml"
    file.write_text(re.sub(r"^# (\w+ = )", r"\1", template(), flags=re.MULTILINE))
    read = config.read(file)
    tables = {"verifier": read.verifier, "drafter": read.drafter(), "controller": read.controller}
    for name, table in tables.items():
        struct = config.SECTIONS[name]
        assert sorted(table) == sorted(struct.__struct_fields__)
        assert config.build(struct, table) == struct()


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, capsys):
    file = tmp_path / "duo.toml"
    file.write_text("[verifier]\n")
    assert main(["config", "init", str(file)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "[verifier]\n"


def test_a_dash_is_standard_output(capsys):
    assert main(["config", "init", "-"]) == 0
    assert capsys.readouterr().out == template()

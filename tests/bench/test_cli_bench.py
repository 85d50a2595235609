"""``duoactor bench`` and ``inflate`` from end to end, with small programs in place of the actors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.engines.weights.inflate import MARK
from duoactor.bench import provenance
from duoactor.cli import main
from duoactor.cli.environment import Environment
from tests.cli.fake_actors import FakeClient, fake_world


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> tuple[FakeClient, Environment]:
    monkeypatch.chdir(tmp_path)
    return fake_world(monkeypatch)


BENCH = ("bench", "--limit", "1", "--tasks", "qa,code", "--repeats", "2", "--out", "out")
FEW = ("--methods", "sps,duodecoding-2,rest")


def test_the_json_is_one_document_with_every_row(world, capsys):
    client, environment = world
    assert main([*BENCH, *FEW, "--json"], environment) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 4 and document["complete"] is True and document["directory"] == "out"
    assert [line["name"] for line in document["table"]] == ["vanilla", "sps", "rest", "duodecoding-2"]
    assert not any(line["missing"] for line in document["table"])
    assert document["settings"]["datastore"] == "the modules of Python's standard library"
    assert {"machine", "versions", "command", "settings", "models"} <= set(document)
    assert ("duodecoding", 2, 0) in client.asked
    assert ("rest", 0, 0) in client.asked


def test_the_directory_holds_a_report_and_the_averages_are_printed(world, tmp_path, capsys):
    _, environment = world
    assert main([*BENCH, *FEW], environment) == 0
    out = capsys.readouterr().out
    assert "Average of the tasks, end to end" in out and "REST" in out and "\x1b" not in out
    assert (tmp_path / "out" / "report.md").read_text().startswith("# duoactor bench\n\n- command: `duoactor")
    assert {"results.json", "report.md"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_the_command_in_the_report_names_no_directory_of_this_machine(world, tmp_path, monkeypatch):
    _, environment = world
    arguments = [*BENCH[:-1], str(tmp_path / "deep"), *FEW]
    monkeypatch.setattr("sys.argv", ["duoactor", *arguments])
    assert main(arguments, environment) == 0
    text = (tmp_path / "deep" / "report.md").read_text()
    assert "--out deep --methods sps,duodecoding-2,rest`" in text
    assert str(tmp_path) not in text


def test_a_text_of_ours_that_differs_is_exit_code_1(world, capsys):
    client, environment = world
    client.wrong = "sps"
    assert main([*BENCH, *FEW], environment) == 1
    assert "SpS (4 of 4 texts DIFFER)" in capsys.readouterr().out


def test_ctrl_c_keeps_what_is_finished_and_results_are_not_written_over(world, tmp_path, capsys):
    client, environment = world
    client.stop_after = 4 + 5  # behind the warm-up
    assert main([*BENCH, *FEW], environment) == 130
    assert "interrupted; what was measured is in out" in capsys.readouterr().err
    partial = json.loads((tmp_path / "out" / "results.json").read_text())
    assert partial["complete"] is False and len(partial["runs"]) == 5
    assert "**Incomplete**" in (tmp_path / "out" / "report.md").read_text()
    assert main([*BENCH, *FEW], environment) == 1
    assert "out/results.json exists already: choose another --out" in capsys.readouterr().err


def test_a_fixed_gamma_is_asked_for(world, capsys):
    client, environment = world
    assert main([*BENCH, "--methods", "duodecoding@3,duodecoding@5"], environment) == 0
    assert {gamma for method, _, gamma in client.asked if method == "duodecoding"} == {3, 5}
    assert "DuoDecoding, γ = 5" in capsys.readouterr().out


def test_many_streams_share_the_actors_and_the_table_is_of_streams(world, tmp_path, capsys):
    _, environment = world
    streams = (*BENCH, "--streams", "1,2", "--methods", "auto,transformers")
    assert main([*streams, "--json"], environment) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(line["streams"], line["name"]) for line in document["table"]] == [
        (number, name) for number in (1, 2) for name in ("vanilla", "auto")
    ]
    assert document["missing"] == {"transformers": "answers one request at a time"}
    assert "## Many streams at once" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--streams", "0"), "--streams takes numbers from 1 to 1024"),
        (("--methods", "spss"), "method 'spss' is not known; choose all or some of vanilla, sps"),
        (("--tasks", "poetry"), "the suite has no task 'poetry'; it has chat, translation"),
        (("--suite", "none.jsonl"), "cannot read the suite none.jsonl: No such file"),
        (("--suite", "bad.jsonl"), "bad.jsonl line 2 is no prompt: Expected `array`"),
        (
            ("--datastore", "nowhere"),
            "there is no datastore at nowhere: make one with `duoactor datastore build nowhere",
        ),
        (("--target", "./no-such-model"), "no-such-model"),
    ],
)
def test_bad_input_is_one_sentence(world, tmp_path, capsys, arguments, said):
    _, environment = world
    (tmp_path / "bad.jsonl").write_text(
        '{"id": 1, "task": "qa", "turns": ["a"]}\n{"id": 2, "task": "qa", "turns": []}\n'
    )
    assert main(["bench", *arguments], environment) == 1
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and out == ""
    assert not list(tmp_path.glob("bench-*"))


def test_inflate_writes_a_model_that_reports_mark(tmp_path, capsys):
    made = tmp_path / "big"
    options = ["inflate", "bundled", str(made), "--layers", "9", "--hidden", "768", "--dtype", "bfloat16"]
    assert main(options) == 0
    assert "9 layers, hidden size 768; use it with --target" in capsys.readouterr().out
    assert provenance.INFLATED == MARK
    assert provenance.inflated(str(made))["parameters"] > provenance.inflated(str(made))["source_parameters"]
    assert provenance.inflated(str(tmp_path)) is None
    assert main(options) == 1
    assert "exists already" in capsys.readouterr().err


def test_a_report_names_the_gpus_of_its_machine(tmp_path, monkeypatch):
    for bus, name in (("0000:00:06.0", "NVIDIA H200"), ("0000:00:07.0", "NVIDIA L4")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 0\n")
    assert list(provenance._gpu_names(tmp_path)) == ["NVIDIA H200", "NVIDIA L4"]
    assert list(provenance._gpu_names(tmp_path / "none")) == []
    monkeypatch.setattr(provenance, "_gpu_names", lambda: iter(["NVIDIA H200"]))
    assert provenance.machine()["accelerator"] == "NVIDIA H200"

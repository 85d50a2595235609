"""``duoactor doctor``: what it says of what was measured."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.settings import DrafterSettings, VerifierSettings
from duoactor import config, doctor, embedded
from duoactor.cli import main
from duoactor.launch.deployment import deploy
from duoactor.launch.wanted import Wanted
from protocols.errors import ConfigError
from protocols.messages import InlineStatus, TargetStatus
from tests.cli.fake_actors import fake_world


def measured(auto: float, retrieval: float = 1.0) -> doctor.DoctorReport:
    report = doctor.DoctorReport(
        target="bundled", draft="bundled", machine={"cpu": "a CPU", "cpus": 4, "python": "3.12"},
        versions={"torch": "2"}, served=TargetStatus("bundled", "cpu", "float32", 0, 0), texts=7,
    )  # fmt: skip
    report.methods = tuple(
        doctor.MeasuredMethod(
            method=name, tokens_per_second=100 * speedup, speedup=speedup, tokens_per_round=1.5, by_task={"qa": speedup}
        )
        for name, speedup in (("vanilla", 1.0), ("sam", retrieval), ("auto", auto))
    )
    report.verdict = doctor.verdict(report)
    return report


@pytest.mark.parametrize(
    ("auto", "retrieval", "said"),
    [
        (2.0, 1.2, "Speculation pays here: auto is 2.00x the target alone, 200 instead of 100 tokens/s (1.20x by"),
        (1.01, 1.3, "This draft does not pay here: auto is 1.01x, retrieval alone 1.30x; use --draft sam."),
        (0.9, 1.0, "Speculation does not pay here: auto is 0.90x the target alone, 90 instead of 100 tokens/s"),
    ],
)
def test_the_verdict_is_one_sentence_that_says_whether_and_by_how_much(auto, retrieval, said):
    assert measured(auto, retrieval).verdict.startswith(said)


def test_lines_tell_the_machine_the_figures_and_findings():
    report = measured(2.0)
    report.add("warning", "something to know")
    report.place = "At c = 9 and"
    text = "\n".join(doctor.lines(report))
    for wanted in (
        "map        At c = 9",
        "a CPU, 4 CPUs",
        "no NVIDIA GPU",
        "7 texts",
        "2.00x",
        "200.0 tokens/s",
        "something to know",
    ):
        assert wanted in text, wanted
    assert text.startswith(report.verdict)


def test_no_path_or_command_is_cut_where_it_is_longer_than_a_line():
    report = measured(2.0)
    path = "/models/" + "very_long_directory/" * 5 + "target.gguf"
    report.add("warning", f"the file {path} is on a network disk")
    assert any(path in line for line in doctor.lines(report, 60))


def test_lines_fit_a_terminal_and_go_on_below_their_text():
    report = measured(2.0)
    report.add("warning", "something to know " * 20)
    lines = doctor.lines(report, 80)
    assert max(map(len, lines)) <= 80
    begin = next(n for n, line in enumerate(lines) if line.startswith("warning    something"))
    assert len(lines) > begin + 2 and all(line.startswith(" " * 11) for line in lines[begin + 1 :])


@pytest.mark.parametrize(("first", "findings"), [(0.72, 0), (0.21, 1)])
def test_of_a_head_it_says_how_often_its_tokens_are_right_and_warns_where_that_is_too_seldom(first, findings):
    report = measured(2.0)
    doctor.judge_head(report, InlineStatus("org/EAGLE3-of-it", agreement=(first, 0.5)))
    text = "\n".join(doctor.lines(report))
    assert f"EAGLE3-of-it: agrees {first:.0%} at depth 1, 50% at depth 2; published heads reach 60 to 85%" in text
    assert len(report.findings) == findings


def test_a_busy_machine_is_a_warning(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 9.0, 9.0))
    [finding] = doctor.begun(VerifierSettings(), (DrafterSettings(),), 2).findings
    assert "load 9.0 on 2 CPUs" in finding.text and finding.level == "warning"
    monkeypatch.setattr("os.getloadavg", lambda: (0.2, 9.0, 9.0))
    assert doctor.begun(VerifierSettings(), (DrafterSettings(),), 2).findings == ()


def test_sample_prompts_come_by_turns_of_the_tasks():
    prompts = doctor.sample_prompts()
    assert len(prompts) == len({one.id for one in prompts}) == 21
    assert len({one.task for one in prompts[:7]}) == 7


@pytest.mark.parametrize(("auto", "draft"), [(1.5, "bundled"), (0.9, "sam")])
def test_the_file_that_fix_writes_can_be_deployed(tmp_path, auto, draft):
    file = tmp_path / "duo.toml"
    config.write_new(str(file), doctor.toml(measured(auto), VerifierSettings(), (DrafterSettings(),)))
    found = config.read(file)
    [table] = found.drafters
    assert (found.verifier["target"], table["draft"]) == ("bundled", draft)
    verifier = config.build(VerifierSettings, found.verifier, {"bind": f"ipc://{tmp_path}/v"})
    deploy(Wanted(verifier, (config.build(DrafterSettings, table),)), cpus=(0, 1))
    with pytest.raises(ConfigError, match="exists already"):
        config.write_new(str(file), "")


def test_methods_take_turns_until_the_time_is_over_and_the_report_is_of_whole_prompts(monkeypatch, capsys, tmp_path):
    client, environment = fake_world(monkeypatch)
    client.rounds = 1
    monkeypatch.setattr(doctor, "SECONDS", 0.0)
    file = tmp_path / "duo.toml"
    assert main(["doctor", "--json", "--fix", str(file)], environment) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in report["methods"]] == ["vanilla", "sam", "auto"]
    assert len(client.asked) == 3 + 3 * 2  # to warm up; a conversation of two turns each
    assert report["target"] == embedded.bundled("target")  # what `up` serves where nobody names a model
    assert report["verdict"] in file.read_text() and report["texts"] == 3
    assert "the model says" in report["place"]


def test_a_file_that_is_there_is_refused_before_anything_is_measured(monkeypatch, capsys, tmp_path):
    client, environment = fake_world(monkeypatch)
    (tmp_path / "duo.toml").write_text("mine")
    assert main(["doctor", "--fix", str(tmp_path / "duo.toml")], environment) == 1
    out, err = capsys.readouterr()
    assert client.asked == [] and out == "" and "duo.toml exists already" in err
    assert (tmp_path / "duo.toml").read_text() == "mine"


def test_what_was_measured_is_shown_where_the_file_cannot_be_written(monkeypatch, capsys, tmp_path):
    client, environment = fake_world(monkeypatch)
    client.rounds = 1
    monkeypatch.setattr(doctor, "SECONDS", 0.0)
    assert main(["doctor", "--fix", str(tmp_path / "nowhere" / "duo.toml")], environment) == 1
    out, err = capsys.readouterr()
    assert "measured" in out and "duo.toml cannot be written" in err


def test_a_text_that_differs_is_a_problem(monkeypatch, capsys):
    client, environment = fake_world(monkeypatch)
    client.wrong, client.rounds = "auto", 1
    monkeypatch.setattr(doctor, "SECONDS", 0.0)
    assert main(["doctor"], environment) == 1
    assert "\n\nDo not use this pair: 1 of 3 texts differ from the target's own" in capsys.readouterr().out


def test_models_that_do_not_load_are_findings_and_no_tracebacks_and_no_file_is_written(capsys, tmp_path):
    file = tmp_path / "duo.toml"
    assert main(["doctor", "--target", str(tmp_path / "none"), "--fix", str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("Nothing was measured: ") and f"{file} is not written" in captured.out
    assert not file.exists()
    assert captured.out.count(str(tmp_path / "none")) == 2 and "Traceback" not in captured.out + captured.err


def test_the_report_is_json(capsys):
    assert msgspec.json.decode(msgspec.json.encode(measured(1.1)))["methods"][2]["speedup"] == 1.1


def test_how_weights_are_stored_is_told_first(monkeypatch, capsys):
    _, environment = fake_world(monkeypatch)
    assert main(["doctor", "--target", "bundled"], environment) == 0
    first, _, rest = capsys.readouterr().out.partition("\n\n")
    assert first.splitlines()[:2] == ["weights as they are stored", "  model.embed_tokens: BF16"]
    assert "model.layers.0-7: mlp.down_proj" in first and "machine " in rest

"""duoactor replay, with the bundled draft and a target that is not timed but told."""

import json

import pytest

from actors.records import LoggedRequest, encoded
from duoactor.cli import main
from duoactor.replay import measure
from duoactor.replay.target import TimedTarget
from protocols.messages import Sampling

FORWARD = {1: 2300.0, 8: 4400.0, 32: 11000.0}
COPYING = tuple(range(300, 330))


class Idle:
    """A target beside the replay that computes nothing."""

    def begin(self, tokens):
        return

    def __call__(self, rows):
        return

    def use_spare_cpus(self, used):
        return


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Two requests: a text that copies, at temperature 0, and one that does not."""
    told = TimedTarget("cpu", True, FORWARD, None, 0.0, beside=Idle())
    monkeypatch.setattr(measure, "timed_target", lambda name, device, cpus: told)
    one = LoggedRequest(prompt=COPYING, text=COPYING + COPYING[:10], sampling=Sampling(max_tokens=40), task="copy")
    other = LoggedRequest(
        prompt=(5, 6), text=tuple(range(900, 940)), sampling=Sampling(temperature=1.0, max_tokens=40), task="other"
    )
    (tmp_path / "log").write_bytes(encoded(one) + encoded(other))
    return str(tmp_path / "log")


def test_replay_tells_agreement_speed_and_limits(log, capsys):
    assert main(["replay", log, "--method", "sps", "--method", "pld", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"] == 2
    assert report["rounds"].keys() == {"vanilla", "sps", "pld"}
    assert min(one["code"] for one in report["rounds"].values()) > 0
    assert [share["places"] for share in report["shares"]] == [80, 40, 40, 40, 40]
    sps, pld, drafted, perfect = report["lines"]
    assert pld["by_task"]["copy"]["speedup"] > 1.5 > pld["by_task"]["other"]["speedup"]
    assert pld["by_temperature"]["0"] == pld["by_task"]["copy"]
    assert pld["all"]["mean_acceptance_length"] > 1
    assert sps["all"]["speedup"] <= drafted["all"]["speedup"] <= perfect["all"]["speedup"]
    assert [line["method"] for line in report["lines"][2:]] == ["limit with these drafts", "limit with perfect drafts"]


def test_a_method_that_drafts_with_no_model_is_replayed_once_for_all_drafts(log, capsys):
    assert (
        main(["replay", log, "--draft", "sam", "--draft", "pld", "--method", "pld", "--method", "sps", "--json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert [(line["draft"], line["method"]) for line in report["lines"]] == [
        ("sam", "pld"),
        ("sam", "sps"),
        ("pld", "sps"),
    ]
    assert report["shares"] == []


def test_what_each_source_of_auto_is_worth_is_told_by_taking_it_away(log, capsys):
    assert main(["replay", log, "--method", "auto", "--method", "sps", "--ablate", "--memory", "1000", "--json"]) == 0
    lines = {line["method"]: line["by_task"] for line in json.loads(capsys.readouterr().out)["lines"]}
    assert [*lines][:5] == ["auto", "auto, no draft model", "auto, no memory", "auto, no retrieval", "sps"]
    copied = {name: task["copy"]["accepted"] for name, task in lines.items()}
    # how many depends on the times that were measured
    assert copied["auto, no draft model"] > copied["auto, no retrieval"], "the text copies its own prompt"
    assert lines["auto, no draft model"]["other"]["drafted"] == 0, "there is nothing to copy"


def test_for_people_there_is_a_line_for_each_method_and_task(log, capsys):
    assert main(["replay", log, "--method", "sps", "--num-speculative-tokens", "2", "--limit", "1"]) == 0
    text = capsys.readouterr().out
    assert "temperature 0" in text and "copy" in text
    assert "other" not in text
    assert "limit with perfect drafts" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.jsonl"], "cannot be read"),
        (["LOG", "--method", "lookahead"], "cannot be replayed"),
        (["LOG", "--method", "guess"], "choose one of"),
        (["LOG", "--draft", "./no-such-model"], "no-such-model"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(log, capsys, arguments, sentence):
    assert main(["replay", *(log if word == "LOG" else word for word in arguments)]) == 1
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1

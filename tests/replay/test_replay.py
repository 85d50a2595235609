"""``duoactor replay``: exact figures of a draft on a log."""

import json

import msgspec
import pytest

from actors.engines.text.tokenizer import tokenizer_digest
from actors.engines.weights.loading import load_tokenizer
from actors.records import LoggedRequest, encoded
from duoactor.cli import main
from duoactor.config import resolve_model
from duoactor.replay import agreements, tokens_per_round
from protocols.messages import Sampling

COPYING = tuple(range(300, 330))


def test_a_chain_ends_with_its_first_wrong_token_and_the_next_begins_behind_it():
    assert tokens_per_round([[0, 1, 1, 2, 1]], 4) == 2.0  # rounds of three tokens, and of one: the text ends
    assert tokens_per_round([[1, 1, 1, 1, 1, 1, 1]], 2) == 3.0
    assert tokens_per_round([[1, 2, 2]], 8) == 1.0
    assert tokens_per_round([], 4) == 0.0


def test_shares_are_of_all_of_each_temperature_and_of_each_task():
    logged = [
        LoggedRequest(prompt=(1,), text=(2, 3), sampling=Sampling(temperature=t), task=task)
        for t, task in ((0.0, "qa"), (1.0, "code"))
    ]
    found = agreements("d", logged, [[1, 1], [2, 0]])
    assert [(one.temperature, one.task) for one in found] == [
        (None, None), (0.0, None), (1.0, None), (None, "qa"), (None, "code"),
    ]  # fmt: skip
    assert [one.ranks[:2] for one in found] == [(0.5, 0.25), (1.0, 0.0), (0.0, 0.5), (1.0, 0.0), (0.0, 0.5)]


@pytest.fixture
def log(tmp_path):
    one = LoggedRequest(prompt=COPYING, text=COPYING + COPYING[:10], sampling=Sampling(max_tokens=40), task="copy")
    other = LoggedRequest(prompt=(5, 6), text=tuple(range(900, 940)), sampling=Sampling(temperature=1.0, max_tokens=40))
    (tmp_path / "log").write_bytes(encoded(one) + encoded(other))
    return str(tmp_path / "log")


def test_replay_prints_a_line_for_each_draft_and_group(log, capsys):
    assert main(["replay", log, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"] == 2
    assert [one["places"] for one in report["agreements"]] == [80, 40, 40, 40]
    assert all(1 <= one["tokens_per_round"]["4"] <= 5 for one in report["agreements"])
    assert main(["replay", log, "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "copy" in out and "Of 1 requests" in out and "temperature" not in out


def test_texts_of_another_tokenizer_are_refused_and_those_of_the_drafts_own_are_not(tmp_path, capsys):
    one = LoggedRequest(prompt=(5, 6), text=(7, 8, 9), model_id="org/other", tokenizer="ab" * 32)
    (tmp_path / "other").write_bytes(encoded(one))
    assert main(["replay", str(tmp_path / "other")]) == 1
    said = capsys.readouterr().err
    assert "the log has texts of org/other, whose tokenizer is not that of bundled: give" in said
    own = msgspec.structs.replace(one, tokenizer=tokenizer_digest(load_tokenizer(resolve_model("bundled", "target"))))
    (tmp_path / "own").write_bytes(encoded(own))
    assert main(["replay", str(tmp_path / "own")]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.jsonl"], "cannot be read"),
        (["LOG", "--draft", "sam"], "sam has no model to replay: give --draft a draft model"),
        (["LOG", "--draft", "./no-such-model"], "no-such-model"),
        (["LOG", "--draft", "auto"], "auto is a head, which reads its target's states: give --target, too"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(log, capsys, arguments, sentence):
    assert main(["replay", *(log if word == "LOG" else word for word in arguments)]) == 1
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1

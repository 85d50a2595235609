"""A draft that learns from texts alone, and is judged as it would serve."""

import random

import numpy as np
import pytest
import torch

from actors.engines.weights.draft_vocabulary import with_part_head
from actors.engines.weights.loading import load_model
from actors.records import LoggedRequest
from actors.training import draft_training, online
from actors.training.online import OnlineTrainer
from duoactor import config
from protocols.messages import Sampling
from tests.engines.tiny import VOCAB, make


@pytest.fixture(params=["whole head", "part of it"])
def draft(tmp_path, request):
    from transformers import AutoTokenizer

    model = make("llama")
    if request.param == "part of it":
        model = with_part_head(model, np.arange(2, VOCAB - 2))
    model.save_pretrained(tmp_path / "draft")
    AutoTokenizer.from_pretrained(config.resolve_model("bundled", "draft")).save_pretrained(tmp_path / "draft")
    return str(tmp_path / "draft")


def texts(count: int, temperature: float, seed: int) -> list[LoggedRequest]:
    """Each token is the one before plus three."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        start = dice.randrange(VOCAB)
        row = tuple((start + 3 * i) % VOCAB for i in range(40))
        sampling = Sampling(temperature=temperature, seed=number)
        made.append(LoggedRequest(prompt=row[:5], text=row[5:], sampling=sampling))
    return made


def test_it_learns_what_it_is_shown_and_serves_it_from_its_directory(draft, tmp_path, monkeypatch):
    monkeypatch.setattr(online, "RATE", 3.0)  # it begins at random: there is nothing to keep
    monkeypatch.setattr(online, "halfway", lambda model, start: None)
    monkeypatch.setattr(draft_training, "WARM_UP", 1)
    trainer = OnlineTrainer(draft, "auto")
    shown, later = [*texts(8, 0.0, 1), *texts(8, 1.0, 2)], [*texts(4, 0.0, 3), *texts(4, 1.0, 4)]
    before = sum(trainer.hits("", text) for text in later)
    seen = sum(trainer.learn(shown) for _ in range(30))
    trainer.save(tmp_path / "candidate")
    after = sum(trainer.hits(str(tmp_path / "candidate"), text) for text in later)
    assert after > 2 * before + 28, (before, after)  # out of 280
    assert 0 < seen <= 30 * 2048
    trainer.begin("")
    trainer.save(tmp_path / "candidate")  # the same name again: what is served is what is written now
    assert sum(trainer.hits(str(tmp_path / "candidate"), text) for text in later) == before


def test_a_candidate_is_halfway_between_the_incumbent_and_what_was_learned(draft, tmp_path):
    trainer = OnlineTrainer(draft, "auto")
    incumbent = load_model(draft, torch.device("cpu"), torch.float32).state_dict()
    for _ in range(3):
        trainer.learn(texts(8, 1.0, 2))
    learned = trainer._learner.averaged.state_dict()
    trainer.save(tmp_path / "candidate")
    candidate = load_model(str(tmp_path / "candidate"), torch.device("cpu"), torch.float32).state_dict()
    assert any(not torch.equal(learned[name], weight) for name, weight in incumbent.items())
    for name, weight in candidate.items():
        assert torch.allclose(weight.float(), (incumbent[name] + learned[name]) / 2, atol=1e-6)


def test_texts_that_the_draft_cannot_hold_are_passed_over(draft):
    trainer = OnlineTrainer(draft, "auto")
    foreign = LoggedRequest(prompt=(1, 2), text=(VOCAB + 1, 5))
    long = LoggedRequest(prompt=tuple(range(100)) * 6, text=(1, 2, 3))
    assert trainer.learn([foreign, long]) == 5


def test_tokens_that_the_head_lacks_are_left_out(draft):
    trainer = OnlineTrainer(draft, "auto")
    columns = trainer._learner.columns
    lacking = [token for token in range(VOCAB) if int(columns[token]) < 0]
    if lacking:
        before = [p.clone() for p in trainer._learner.model.parameters()]
        trainer.learn([LoggedRequest(prompt=(5, 6), text=(lacking[0],) * 3)])
        assert all(torch.equal(a, b) for a, b in zip(before, trainer._learner.model.parameters(), strict=True))

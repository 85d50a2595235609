"""A draft that learns from texts alone, and is judged as it would serve."""

import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch

from actors.engines.weights.draft_vocabulary import with_part_head
from actors.engines.weights.loading import load_model
from actors.learner.traffic import Heard
from actors.training import learner as training_learner
from actors.training import online
from actors.training.batches import Batch
from actors.training.heard import alternatives, loss, told
from actors.training.losses import blend, choice, divergences
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


def texts(count: int, temperature: float, seed: int) -> list[Heard]:
    """Each token is the one before plus three."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        start = dice.randrange(VOCAB)
        row = tuple((start + 3 * i) % VOCAB for i in range(40))
        sampling = Sampling(temperature=temperature, seed=number)
        made.append(Heard(prompt=row[:5], text=row[5:], sampling=sampling))
    return made


def test_it_learns_what_it_is_shown_and_serves_it_from_its_directory(draft, tmp_path, monkeypatch):
    monkeypatch.setattr(online, "RATE", 3.0)  # it begins at random: there is nothing to keep
    monkeypatch.setattr(online, "SHARE", 1.0)
    monkeypatch.setattr(training_learner, "WARM_UP", 1)
    trainer = OnlineTrainer(draft, "auto")
    shown, later = [*texts(8, 0.0, 1), *texts(8, 1.0, 2)], [*texts(4, 0.0, 3), *texts(4, 1.0, 4)]
    before = sum(trainer.hits("", text) for text in later)
    seen = sum(trainer.learn(shown) for _ in range(30))
    trainer.save(tmp_path / "candidate")
    after = sum(trainer.hits(str(tmp_path / "candidate"), text) for text in later)
    assert after > 2 * before + 28, (before, after)  # of 280
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
    foreign = Heard(prompt=(1, 2), text=(VOCAB + 1, 5))
    long = Heard(prompt=tuple(range(100)) * 6, text=(1, 2, 3))
    assert trainer.learn([foreign, long]) == 5


# --- from what the target held likeliest -----------------------------------------------------------------------------


def soft_texts(count: int, seed: int, told: bool) -> list[Heard]:
    """The next token is three further, five or nine, with these chances, whatever came before."""
    dice = random.Random(seed)
    made = []
    for number in range(count):
        row = [dice.randrange(VOCAB)]
        while len(row) < 40:
            row.append((row[-1] + dice.choices(STEPS, CHANCES)[0]) % VOCAB)
        heard = Heard(prompt=tuple(row[:5]), text=tuple(row[5:]), sampling=Sampling(temperature=1.0, seed=number))
        made.append(with_alternatives(heard, row[4:-1]) if told else heard)
    return made


STEPS, CHANCES = (3, 5, 9), (0.5, 0.3, 0.2)


def with_alternatives(heard: Heard, before: Sequence[int], known: int = 10**6) -> Heard:
    """At the first ``known`` places."""
    ids = (np.array(before)[:, None] + np.array(STEPS)) % VOCAB
    ids[known:] = -1
    logprobs = np.log(np.array(CHANCES)) + 0.0 * ids
    packed = {"top_ids": ids.astype("<i4").tobytes(), "top_logprobs": logprobs.astype("<f2").tobytes()}
    return msgspec.structs.replace(heard, **packed)


def kl_after(draft: str, steps: int, shown: Sequence[Heard]) -> float:
    """Of the language from the draft, on later texts of it."""
    trainer = OnlineTrainer(draft, "auto")
    for _ in range(steps):
        trainer.learn(shown)
    later = soft_texts(8, seed=99, told=True)
    tokens = torch.tensor([[*one.prompt, *one.text[:-1]] for one in later])
    with torch.no_grad():
        logits = trainer._learner.averaged(input_ids=tokens).logits[:, 4:].flatten(0, 1)
    ids = (tokens[:, 4:].reshape(-1, 1) + torch.tensor(STEPS)) % VOCAB
    ids = trainer._learner.columns[ids]
    kl, _ = divergences(logits, ids, torch.tensor(CHANCES).log().expand_as(ids), torch.ones(len(ids)))
    return float(kl.mean())


def test_it_learns_more_in_as_many_steps_from_what_the_target_held_likeliest(draft, monkeypatch):
    monkeypatch.setattr(online, "RATE", 3.0)
    monkeypatch.setattr(training_learner, "WARM_UP", 1)
    before = kl_after(draft, 0, [])
    tokens, logits = (kl_after(draft, 20, soft_texts(16, 1, told)) for told in (False, True))
    assert before - logits > 3 * (before - tokens) > 0, (before, tokens, logits)


def test_places_of_which_nothing_is_known_are_learned_from_their_tokens(draft, monkeypatch):
    monkeypatch.setattr(training_learner, "WARM_UP", 1)
    bare = texts(8, 1.0, 2)
    holes = [with_alternatives(one, range(35), known=0) for one in bare]
    learned = []
    for shown in (bare, holes, [with_alternatives(one, [one.prompt[-1], *one.text[:-1]], 20) for one in bare]):
        trainer = OnlineTrainer(draft, "auto")
        for _ in range(3):
            trainer.learn(shown)
        learned.append(torch.cat([p.flatten() for p in trainer._learner.averaged.parameters()]))
    assert torch.equal(learned[0], learned[1])
    assert not torch.equal(learned[0], learned[2]) and bool(learned[2].isfinite().all())


def test_an_alternative_that_the_draft_has_no_token_for_is_one_of_the_others():
    ids = np.array([[2, VOCAB + 5, 4], [VOCAB, 1 << 20, -1]], "<i4").tobytes()
    logprobs = np.log(np.array([[0.5, 0.3, 0.1], [0.9, 0.1, 1.0]])).astype("<f2").tobytes()
    heard = Heard(prompt=(1,), text=(2, 3), top_ids=ids, top_logprobs=logprobs)
    shown, said = alternatives(heard, 2, 3, VOCAB)
    assert shown.tolist() == [[2, VOCAB, 4], [VOCAB] * 3]
    kinds = torch.from_numpy(shown).long()
    assert told(kinds, VOCAB).tolist() == [True, False]
    batch = Batch(
        torch.zeros(1), 0, torch.zeros(1), torch.tensor([2, 3]), kinds, torch.from_numpy(said).float(), torch.ones(2)
    )
    logits = torch.zeros(2, VOCAB)
    found = loss(logits, batch, torch.zeros(1, VOCAB), torch.arange(VOCAB))
    two = torch.tensor([[2, 4]])
    kl, tv = divergences(logits[:1], two, torch.tensor([[0.5, 0.1]]).log(), torch.ones(1))
    expected = (
        blend(kl, tv, 1 - float(tv)) + choice(logits[1:], torch.tensor([3]), torch.zeros(1, VOCAB), torch.ones(1))
    ) / 2
    assert float(found) == pytest.approx(float(expected), rel=1e-3)


def test_what_the_head_lacks_is_lost_where_alternatives_are_known_and_left_out_where_they_are_not():
    columns = torch.arange(VOCAB) - 1  # it lacks the first token
    batch = Batch(
        *(torch.zeros(1), 0, torch.zeros(1), torch.tensor([0, 0, 3])),
        *(torch.tensor([[0, 4], [VOCAB, VOCAB], [VOCAB, VOCAB]]), torch.tensor([[0.5, 0.3], [1, 1], [1, 1]]).log()),
        torch.ones(3),
    )
    logits = torch.zeros(3, VOCAB - 1, requires_grad=True)
    found = loss(logits, batch, torch.zeros(2, VOCAB - 1), columns)
    kl, tv = divergences(logits[:1], torch.tensor([[-1, 3]]), batch.logprobs[:1], torch.ones(1))
    alone = choice(logits[2:], torch.tensor([2]), torch.zeros(1, VOCAB - 1), torch.ones(1))
    expected = blend(kl, tv, 1 - float(tv.detach())) / 3 + alone * 2 / 3
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    found.backward()
    assert logits.grad is not None and not logits.grad[1].any() and logits.grad[[0, 2]].any(1).all()


@pytest.mark.parametrize("lengths", [(0, 0), (4, 2), (12, 5), (8, 6)])
def test_what_is_told_in_no_whole_number_for_each_token_is_not_used(lengths):
    heard = Heard(prompt=(1,), text=(2, 3), top_ids=bytes(lengths[0]), top_logprobs=bytes(lengths[1]))
    assert heard.alternatives == 0


def test_the_choice_is_right_where_the_noise_makes_it_so():
    logits = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    noise = torch.tensor([[0.0, 9.0, 0.0], [0.0, 0.0, 0.0]])
    tokens, warm = torch.tensor([1, 0]), torch.ones(2)
    assert choice(logits, tokens, noise, warm) < choice(logits, tokens, torch.zeros(2, 3), warm)

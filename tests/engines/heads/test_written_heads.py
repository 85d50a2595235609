"""Heads that speculators wrote answer as its own forward does (tests/data/heads; tools/heads/with_speculators.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.heads.build import build_head
from actors.engines.heads.kinds import configuration, kind_of
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Leaf, ModelInfo
from protocols.errors import ModelError
from protocols.messages import Sampling

DATA = Path(__file__).parents[2] / "data" / "heads"
TOLD = json.loads((DATA / "answers.json").read_text())["heads"]
GREEDY = Sampling(max_tokens=16)
REFUSED = {
    "dspark-gated": "dspark-gated cannot draft: it is a gated DSpark head, whose markov_head.gate_proj.",
    "dspark-rnn": "dspark-rnn cannot draft: it is a recurrent DSpark head, whose markov_head.joint_proj.",
    "xpress": "xpress cannot draft: it is an XPress head, whose refiner_head.",
    "mtp": "mtp cannot draft: it is speculators' head of kind mtp, which is not read; choose another head of this",
}


@pytest.fixture
def target():
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(DATA / "target", dtype=torch.float32).eval()
    info = ModelInfo("target", model.config.vocab_size, 256, frozenset({1}), "tiny-tokenizer")
    return Target(CompiledEngine(model, info, 2048), rows_agree=ROWS)


def asked(draft, mirror, text, path):
    """The expansions of the root and of every token of a path below it."""
    found = draft.expand([Leaf(mirror, text[-1], (), is_root=True)])
    slots: list[int] = []
    for token in path:
        [one] = draft.expand([Leaf(mirror, token, tuple(slots))])
        slots.append(one.slot)
        found.append(one)
    draft.release(mirror, slots)
    return found


@pytest.mark.parametrize("name", TOLD)
def test_a_head_that_speculators_wrote_answers_as_its_own_forward(name, target):
    draft = build_head(str(DATA / name), target, str(DATA / "target"))
    for number, told in enumerate(TOLD[name]):
        *prompt, first = told["text"]
        handle = target.open(prompt, GREEDY, cache_salt=str(number))  # a beginning that is kept gives no states
        while (outcome := target.prefill(handle)) is None:
            pass
        assert outcome.tokens == [first]
        mirror = draft.open(told["text"], len(prompt), GREEDY)
        draft.follow(mirror, handle)
        found = asked(draft, mirror, told["text"], told["path"][:-1])
        assert len(found) == len(told["places"])
        for one, place in zip(found, told["places"], strict=True):
            assert list(one.tokens[: len(place["ids"])]) == place["ids"]
            assert list(one.probs[: len(place["ids"])]) == pytest.approx(place["chances"], abs=2e-5)
        target.close(handle)
        draft.close(mirror)


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_that_is_not_computed_is_named_when_it_is_refused(name, target):
    assert kind_of(configuration(str(DATA / name)))
    with pytest.raises(ModelError, match=REFUSED[name].replace(".", r"\.")) as refused:
        build_head(str(DATA / name), target, str(DATA / "target"))
    assert "--draft auto" in str(refused.value) and str(refused.value).count("\n") == 0

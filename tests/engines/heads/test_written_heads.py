"""Heads that speculators and SpecForge wrote answer as their own forwards do (tests/data/heads; tools/heads)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.heads.build import build_head
from actors.engines.heads.kinds import configuration, kind_of
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.engines.weights.faults import check_checkpoint
from actors.models import Leaf, ModelInfo
from protocols.errors import ModelError
from protocols.messages import Sampling
from tools.heads.table import PAGE, page

DATA = Path(__file__).parents[2] / "data" / "heads"
KEPT = {
    name: told for file in sorted(DATA.glob("*.json")) for name, told in json.loads(file.read_text())["heads"].items()
}
TOLD = {name: told for name, told in KEPT.items() if told}
GREEDY = Sampling(max_tokens=16)
REFUSED = {
    "dspark-gated": "dspark-gated cannot draft: it is a gated DSpark head, whose markov_head.gate_proj.",
    "dspark-rnn": "dspark-rnn cannot draft: it is a recurrent DSpark head, whose markov_head.joint_proj.",
    "xpress": "xpress cannot draft: it is an XPress head, whose refiner_head.",
    "specforge-dspark-gated": "it is a gated DSpark head, whose markov_head.gate_proj.",
    "specforge-dspark-rnn": "it is a recurrent DSpark head, whose markov_head.joint_proj.",
    "specforge-domino": "it is a Domino head, whose prefix_gru.",
    "mtp": "mtp cannot draft: it is a head of kind mtp, which is not computed; choose another head of this",
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
def test_a_head_answers_as_the_forward_of_the_package_that_wrote_it(name, target):
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


def test_each_head_answers_or_is_refused():
    assert KEPT.keys() - TOLD.keys() == REFUSED.keys() and KEPT.keys() | {"target"} == {
        place.name for place in DATA.iterdir() if place.is_dir()
    }


def test_the_page_about_drafts_has_the_table_of_heads():
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m tools.heads.table"


def copied(name, place, config=(), weights=()):
    """A head with other settings and tensors."""
    shutil.copytree(DATA / name, place)
    file = place / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **dict(config)}))
    save_file({**load_file(place / "model.safetensors"), **dict(weights)}, place / "model.safetensors")
    return str(place)


def test_the_config_of_a_quantised_target_says_nothing_of_a_head_in_plain_numbers(tmp_path, target):
    stale = {"quantization_config": {"quant_method": "of next year", "bits": 1}}
    place = copied("eagle3", tmp_path / "head", stale)
    check_checkpoint(place, head=True)
    build_head(place, target, str(DATA / "target"))
    codes = {"layers.0.mlp.up_proj.weight": torch.zeros(16, 16, dtype=torch.uint8)}
    with pytest.raises(ModelError, match="quant_method 'of next year', which duoactor does not read"):
        build_head(copied("eagle3", tmp_path / "codes", stale, codes), target, str(DATA / "target"))


@pytest.mark.parametrize("name", ["fc.bias", "layers.0.self_attn.q_proj.bias", "layers.0.self_attn.g_proj.weight"])
def test_a_head_with_a_tensor_that_is_not_computed_with_is_refused(name, tmp_path, target):
    with pytest.raises(ModelError, match=f"it has {name}, which duoactor does not compute with; choose another head"):
        build_head(copied("eagle3", tmp_path / "head", (), {name: torch.zeros(32)}), target, str(DATA / "target"))


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"model_type": "medusa"}, "medusa"),
        ({"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"}, "mlp_speculator"),
    ],
)
def test_a_head_of_a_kind_that_is_not_computed_is_named(said, kind, tmp_path, target):
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(
        ModelError, match=f"cannot draft: it is a head of kind {kind}, which is not computed; choose an"
    ):
        build_head(str(tmp_path), target, str(DATA / "target"))


def test_a_block_whose_masks_are_no_token_that_its_config_names_is_refused(tmp_path, target):
    place = copied("specforge-peagle", tmp_path / "head", {"mask_token_id": None})
    with pytest.raises(ModelError, match=r"does not say which token its masks are .*: add mask_token_id, the number"):
        build_head(place, target, str(DATA / "target"))


def test_the_pair_scores_of_the_first_specforge_heads_are_read_by_their_old_name(tmp_path, target):
    place = copied("specforge-dspark", tmp_path / "head")
    file = tmp_path / "head" / "model.safetensors"
    old = {name.replace("markov_head", "logit_head.markov_head"): one for name, one in load_file(file).items()}
    save_file(old, file)
    assert build_head(place, target, str(DATA / "target")).engine.head.pairs is not None


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_that_is_not_computed_is_named_when_it_is_refused(name, target):
    assert kind_of(configuration(str(DATA / name)))
    with pytest.raises(ModelError, match=re.escape(REFUSED[name])) as refused:
        build_head(str(DATA / name), target, str(DATA / "target"))
    assert "--draft auto" in str(refused.value) and str(refused.value).count("\n") == 0

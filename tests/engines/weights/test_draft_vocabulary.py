"""A draft whose head covers part of the vocabulary says what one with the whole head says that never names the rest."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.engines.build import EngineOptions, build_draft, build_target
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.drafts.draft import Draft
from actors.engines.weights.draft_vocabulary import draft_vocabulary, with_part_head, with_whole_head
from actors.engines.weights.loading import load_model, load_tokenizer
from actors.models import Leaf
from duoactor import config
from protocols.errors import ModelError
from protocols.messages import Sampling
from tests.engines.mirrored_texts import SAMPLINGS, assert_same, one_thread, root, some_prompt  # noqa: F401
from tests.engines.tiny import VOCAB, info, make, torch_engine

CPU = torch.device("cpu")
IDS = np.unique(np.random.default_rng(0).integers(0, VOCAB, 90))  # 69 tokens, no multiple of a vector
LACKING = int(np.setdiff1d(np.arange(VOCAB), IDS)[7])


@pytest.fixture(params=[CompiledEngine, torch_engine])
def engine(request):
    """From a model to a draft's engine."""
    return lambda model: request.param(model, info(model), 2048)


def part_and_whole(family="qwen2"):
    part = with_part_head(make(family), IDS)
    return part, with_whole_head(copy.deepcopy(part))


def test_both_name_the_same_candidates_under_every_sampling(engine):
    part, whole = (Draft(engine(model)) for model in part_and_whole())
    tokens = [LACKING, *some_prompt(30, 1), LACKING]
    biased = [
        Sampling(max_tokens=80, temperature=t, logit_bias=((LACKING, 100.0), (int(IDS[3]), 2.0))) for t in (0.0, 1.0)
    ]
    for sampling in (*SAMPLINGS, *biased):
        told = []
        for draft in (part, whole):
            handle = draft.open(tokens, 20, sampling)
            [first] = draft.expand([root(handle)])
            told.append([first, *draft.expand([Leaf(handle, token, ()) for token in first.tokens[:3]])])
            draft.close(handle)
        for ours, theirs in zip(*told, strict=True):
            assert_same(ours, theirs)
            assert set(ours.tokens) <= set(IDS.tolist())
        text = [*some_prompt(20, 2), LACKING, *some_prompt(5, 3)]
        for ours, theirs in zip(*(draft.along(tokens, text, sampling) for draft in (part, whole)), strict=True):
            assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]


def test_of_equal_logits_the_lower_id_comes_first(engine):
    model = with_part_head(make("llama"), IDS)
    model.requires_grad_(False).get_output_embeddings().weight.zero_()
    draft = Draft(engine(model))
    [told] = draft.expand([root(draft.open(some_prompt(9), 9, Sampling()))])
    assert len(set(told.tokens)) == 8 and set(told.tokens) <= set(IDS.tolist())
    if isinstance(draft.engine, CompiledEngine):  # torch's topk has no order for them
        assert list(told.tokens) == IDS[:8].tolist()


def test_no_more_candidates_are_named_than_the_head_has(engine):
    few = with_part_head(make("llama"), np.array([3, 30, 77]))
    draft = Draft(engine(few))
    for sampling in (Sampling(), Sampling(temperature=1.0), Sampling(logit_bias=((5, 9.0),))):
        [told] = draft.expand([root(draft.open(some_prompt(9), 9, sampling))])
        assert sorted(told.tokens) == [3, 30, 77]


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path) -> Path:
    with_part_head(make("llama-tied"), IDS).save_pretrained(tmp_path)
    load_tokenizer(config.resolve_model("bundled", "draft")).save_pretrained(tmp_path)
    return tmp_path


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def rewrite(directory: Path, **changed: torch.Tensor | None) -> None:
    weights = {**load_file(directory / "model.safetensors"), **changed}
    kept = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


def test_the_checkpoint_is_eagle_3s(directory):
    weights = load_file(directory / "model.safetensors")
    assert weights["lm_head.weight"].shape == (len(IDS), 64)
    assert weights["model.embed_tokens.weight"].shape == (VOCAB, 64)
    assert (weights["d2t"] + torch.arange(len(IDS))).tolist() == IDS.tolist() and weights["d2t"].dtype == torch.int64
    told = json.loads((directory / "config.json").read_text())
    assert (told["draft_vocab_size"], told["vocab_size"], told["tie_word_embeddings"]) == (len(IDS), VOCAB, False)
    assert told["architectures"] == ["LlamaForCausalLM"]


def test_it_loads_as_any_other_draft_and_announces_the_whole_vocabulary(directory):
    draft = build_draft(str(directory), EngineOptions())
    assert draft.info.vocab_size == VOCAB
    assert draft.engine.draft_vocabulary.ids.tolist() == IDS.tolist()
    assert set(draft.expand([root(draft.open([5, 6], 2, Sampling()))])[0].tokens) <= set(IDS.tolist())


def test_rows_in_any_order_are_put_in_that_of_their_ids(directory):
    before = load_model(str(directory), CPU, torch.float32)
    order = torch.randperm(len(IDS), generator=torch.Generator().manual_seed(0))
    rows = load_file(directory / "model.safetensors")["lm_head.weight"]
    shuffled = {"d2t": torch.from_numpy(IDS)[order] - torch.arange(len(IDS)), "lm_head.weight": rows[order]}
    covered = torch.isin(torch.arange(VOCAB), torch.from_numpy(IDS))
    rewrite(directory, **shuffled, t2d=covered)  # EAGLE's have it too, and nobody reads it
    after = load_model(str(directory), CPU, torch.float32)
    assert torch.equal(before.lm_head.weight, after.lm_head.weight)
    assert draft_vocabulary(after).ids.tolist() == IDS.tolist()


def test_a_head_of_as_many_tokens_as_the_vocabulary_has_needs_no_map(tmp_path):
    make("llama").save_pretrained(tmp_path)
    edit(tmp_path / "config.json", draft_vocab_size=VOCAB)
    assert draft_vocabulary(load_model(str(tmp_path), CPU, torch.float32)) is None


@pytest.mark.parametrize(
    ("d2t", "sentence"),
    [
        (None, "1 weights are missing or of another shape, d2t first"),
        (torch.zeros(5, dtype=torch.int64), "d2t, which is 5 where config.json says 69, first"),
        (torch.full((len(IDS),), VOCAB), "names a token twice or one outside its 160"),
        (torch.full((len(IDS),), -1), "names a token twice or one outside its 160"),
        (-torch.arange(len(IDS)), "names a token twice or one outside its 160"),
    ],
)
def test_a_map_that_leads_nowhere_is_refused_in_one_sentence(directory, d2t, sentence):
    rewrite(directory, d2t=d2t)
    with pytest.raises(ModelError, match=sentence):
        load_model(str(directory), CPU, torch.float32)


@pytest.mark.parametrize("size", [0, -3, VOCAB + 1, "many", 2.5])
def test_a_size_that_means_nothing_is_refused_in_one_sentence(directory, size):
    edit(directory / "config.json", draft_vocab_size=size)
    with pytest.raises(ModelError, match=f"has draft_vocab_size {size!r}, which is no number from 1 to "):
        load_model(str(directory), CPU, torch.float32)


def test_a_head_of_another_size_than_announced_is_refused(directory):
    edit(directory / "config.json", draft_vocab_size=40)
    with pytest.raises(ModelError, match="2 weights are missing or of another shape"):
        load_model(str(directory), CPU, torch.float32)


def test_a_model_whose_head_covers_a_part_is_refused_as_a_target(directory):
    with pytest.raises(ModelError, match="covers 69 of its 160 tokens, so it can draft and not be a target"):
        build_target(str(directory), EngineOptions())


def test_a_program_that_knows_no_map_gets_a_whole_head(directory):
    part = load_model(str(directory), CPU, torch.float32)
    whole = with_whole_head(copy.deepcopy(part))
    text = torch.tensor([some_prompt(12)])
    logits = whole(input_ids=text).logits[0]
    assert torch.allclose(logits[:, IDS], part(input_ids=text).logits[0], atol=1e-5)
    assert (logits[:, np.setdiff1d(np.arange(VOCAB), IDS)] < -1e36).all()
    assert with_whole_head(whole) is whole

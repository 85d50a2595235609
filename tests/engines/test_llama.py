"""The compiled decoder against transformers' own forward of the same weights; each family: test_programs.py."""

import threading

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig

from actors.engines.decoder.configuration import compiled_spec, spec_of
from actors.engines.decoder.cpu import engine as compiled_engine
from actors.engines.decoder.cpu.engine import CompiledEngine, own_team
from actors.engines.flat_batch import FlatBatch, align
from actors.models import ModelInfo
from tests.engines.tiny import VOCAB, info, make

SLOTS = 512
BUNDLED = ModelInfo("bundled", 8192, 2048, frozenset({1}), "bundled")
OURS = ["llama", "llama-tied", "qwen2", "qwen3", "mistral"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def build(family: str) -> CompiledEngine:
    model = make(family)
    return CompiledEngine(model, info(model), SLOTS)


def plain(family: str, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return make(family)(torch.tensor([tokens])).logits[0].float()


def ids(count: int, seed: int = 0, vocabulary: int = VOCAB) -> list[int]:
    return torch.randint(2, vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def chain(engine: CompiledEngine, tokens: list[int], start: int, rows: int, span: int = 0) -> torch.Tensor:
    """Rows ``start .. start + rows`` of a text in slots 0 .."""
    places = range(start, start + rows)
    visible = np.tril(np.ones((rows, span or align(start + rows)), dtype=bool), k=start)
    return engine.forward(one_request(0, tokens[start : start + rows], places, places, visible))


def one_request(base: int, tokens, positions, slots, visible) -> FlatBatch:
    batch = FlatBatch()
    batch.add(base, tokens, positions, slots, visible)
    return batch


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=3e-5, rtol=3e-4)


def bundled(name: str, **options) -> CompiledEngine:
    return CompiledEngine(load(name), BUNDLED, SLOTS, **options)


def load(name: str, dtype: torch.dtype = torch.float32):
    return AutoModelForCausalLM.from_pretrained(f"duoactor/pair/{name}", dtype=dtype).eval().requires_grad_(False)


def test_the_families_are_those_that_are_computed_here():
    windowed = MistralConfig(sliding_window=64)
    assert spec_of(windowed) is not None and compiled_spec(windowed) == spec_of(windowed)
    assert (
        compiled_spec(windowed, torch.device("cuda")) is None and compiled_spec(windowed, dtype=torch.float16) is None
    )
    assert spec_of(LlamaConfig(hidden_act="tanh")) is None
    assert compiled_spec(LlamaConfig(rope_parameters=LLAMA3)) is not None


def test_a_tree_in_scattered_slots_agrees_with_one_plain_forward_per_branch():
    prompt, tree, base = ids(12), ids(6, seed=2), 64
    home = torch.randperm(100, generator=torch.Generator().manual_seed(1)).tolist()
    engine = build("qwen3")
    span = 128
    visible = np.zeros((12, span), dtype=bool)
    for row in range(12):
        visible[row, home[: row + 1]] = True
    engine.forward(one_request(base, prompt, range(12), [base + s for s in home[:12]], visible), [11])
    paths: list[list[int]] = []
    for node, parent in enumerate([-1, 0, 0, 1, 2, -1]):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    visible = np.zeros((6, span), dtype=bool)
    for node, path in enumerate(paths):
        visible[node, home[:12] + [home[20 + n] for n in path]] = True
    slots = [base + home[20 + n] for n in range(6)]
    out = engine.forward(one_request(base, tree, [11 + len(p) for p in paths], slots, visible))
    for node, path in enumerate(paths):
        close(out[node], plain("qwen3", [*prompt, *(tree[n] for n in path)])[-1])


def test_an_engine_starts_no_threads_where_it_computes_with_those_of_another_and_has_the_same_bits():
    tokens, alone, model = ids(30), build("qwen2"), make("llama")
    target = CompiledEngine(model, info(model), SLOTS, own_team([0]))
    target.use_spare_cpus(True)
    before, model = threading.active_count(), make("qwen2")
    draft = CompiledEngine(model, info(model), SLOTS, target.team)
    assert threading.active_count() == before
    for start in (0, 5, 10):  # in turns with the other, whose matrices are others
        chain(target, tokens, start, 5)
        assert torch.equal(chain(draft, tokens, start, 5), chain(alone, tokens, start, 5))


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_compiled_layers_refuse_a_token_that_the_model_does_not_have(token):
    with pytest.raises(IndexError):
        chain(build("llama"), [3, token], 0, 2)


def test_only_the_selected_rows_get_logits():
    tokens, engine = ids(8), build("llama")
    visible = np.tril(np.ones((8, 64), dtype=bool))
    some = engine.forward(one_request(0, tokens, range(8), range(8), visible), select=[2, 7])
    assert some.shape == (2, VOCAB)
    close(some, plain("llama", tokens)[[2, 7]])


def test_padding_rows_write_no_slot_but_the_rounds_own():
    engine = build("llama")
    chain(engine, ids(1), 0, 1)
    assert all(not keys[:, 1:].any() and keys[:, 0].any() for keys in engine.pool.keys)


def test_scaled_rotations_agree_and_texts_may_outgrow_the_first_table(monkeypatch):
    monkeypatch.setattr(compiled_engine, "TURNS", 16)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, max_position_embeddings=512, rope_parameters=LLAMA3)  # fmt: skip
    torch.manual_seed(0)
    model, tokens = LlamaForCausalLM(config).eval(), ids(90)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    close(chain(CompiledEngine(model, info(model), SLOTS), tokens, 0, 90), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_targets_bits_do_not_depend_on_the_rows_beside_or_on_the_span(dtype):
    torch.set_num_threads(1)
    engine = CompiledEngine(load("target", dtype), BUNDLED, SLOTS)
    tokens = ids(340, vocabulary=8192)
    for start in (37, 119, 250):
        chain(engine, tokens, 0, start)
        whole = chain(engine, tokens, start, 64)
        for rows, span in ((1, 0), (2, 0), (3, 384), (4, 448), (5, 0), (7, 0), (8, 512), (14, 0), (16, 0), (31, 448)):
            assert torch.equal(chain(engine, tokens, start, rows, span), whole[:rows]), (start, rows, span)


def test_the_bundled_pair_agrees_with_transformers():
    tokens = ids(300, vocabulary=8192)
    for name in ("draft", "target"):
        with torch.inference_mode():
            expected = load(name)(torch.tensor([tokens])).logits[0, 290:]
        engine = bundled(name)
        chain(engine, tokens, 0, 290)
        torch.testing.assert_close(chain(engine, tokens, 290, 10), expected, atol=2e-4, rtol=2e-4)


def test_int8_drafts_stay_close_to_the_float_model():
    tokens = ids(200, vocabulary=8192)
    with torch.inference_mode():
        expected = load("draft")(torch.tensor([tokens])).logits[0].log_softmax(-1)
    ours = chain(bundled("draft", int8=True), tokens, 0, 200).log_softmax(-1)
    divergence = (expected.exp() * (expected - ours)).sum(-1)
    assert divergence.mean() < 0.01 and divergence.max() < 0.1


@pytest.mark.parametrize("family", OURS)
def test_an_int8_target_of_every_family_is_close_to_the_plain_model(family):
    model, tokens = make(family), ids(60)
    ours = chain(CompiledEngine(model, info(model), SLOTS, int8=True), tokens, 0, 60)
    off = (ours - plain(family, tokens)).abs().mean() / plain(family, tokens).abs().mean()
    assert 1e-4 < off < 0.05


def test_bfloat16_is_close_to_float32():
    tokens = ids(60, vocabulary=8192)
    with torch.inference_mode():
        expected = load("target")(torch.tensor([tokens])).logits[0].log_softmax(-1)
    engine = CompiledEngine(load("target", torch.bfloat16), BUNDLED, SLOTS)
    assert engine.pool.keys[0].dtype == torch.bfloat16
    out = chain(engine, tokens, 0, 60)
    assert out.dtype == torch.float32
    assert (expected.exp() * (expected - out.log_softmax(-1))).sum(-1).mean() < 0.02


def test_the_transformers_model_is_spent_and_the_device_is_explicit():
    model = make("llama")
    engine = CompiledEngine(model, info(model), SLOTS)
    assert sum(p.numel() for p in model.parameters()) == 0
    assert engine.device == torch.device("cpu") and engine.pool.keys[0].device == engine.device

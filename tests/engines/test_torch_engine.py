"""The program in torch over slots against a model's own plain forward."""

import gc
import weakref

import numpy as np
import pytest
import torch

from actors.engines.flat_batch import FlatBatch, align
from tests.engines.tiny import VOCAB, info, make, torch_engine

SLOTS = 512
KINDS = ["llama-tied", "mistral-sliding", "gemma2", "gpt2", "gpt-oss"]  # test_families.py has all


def plain(family: str, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return make(family)(torch.tensor([tokens])).logits[0].float()


def engine_for(family: str, **options) -> torch_engine:
    model = make(family)
    return torch_engine(model, info(model), SLOTS, **options)


def ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(2, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def run(engine, tokens, positions, slots, sees, base=0, span=None):
    """One segment; ``sees[i]`` are the slots (relative to base) that row i sees."""
    span = span or align(max(max(s) for s in sees) + 1)
    visible = np.zeros((len(tokens), span), dtype=bool)
    for row, seen in enumerate(sees):
        visible[row, list(seen)] = True
    batch = FlatBatch()
    batch.add(base, tokens, positions, [base + s for s in slots], visible)
    return engine.forward(batch)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("family", KINDS)
def test_scattered_slots_agree_with_the_plain_model(family):
    tokens = ids(24)
    where = torch.randperm(200, generator=torch.Generator().manual_seed(1))[:24].tolist()
    engine = engine_for(family)
    first = run(engine, tokens[:10], range(10), where[:10], [where[: i + 1] for i in range(10)], base=64)
    rest = run(engine, tokens[10:], range(10, 24), where[10:], [where[: i + 1] for i in range(10, 24)], base=64)
    close(torch.cat([first, rest]), plain(family, tokens))


@pytest.mark.parametrize("family", KINDS)
def test_a_branching_tree_agrees_with_one_plain_forward_per_branch(family):
    prompt, tree = ids(12), ids(6, seed=2)
    parents = [-1, 0, 0, 1, 2, -1]
    engine = engine_for(family)
    run(engine, prompt, range(12), range(12), [range(i + 1) for i in range(12)])
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    out = run(
        engine,
        tree,
        [11 + len(p) for p in paths],
        [20 + 3 * n for n in range(6)],
        [[*range(12), *(20 + 3 * n for n in p)] for p in paths],
    )
    for node, path in enumerate(paths):
        close(out[node], plain(family, [*prompt, *(tree[n] for n in path)])[-1])


@pytest.mark.parametrize("family", KINDS)
def test_rolling_back_is_forgetting_slots(family):
    prompt, wrong, right = ids(15), ids(4, seed=3), ids(4, seed=4)
    engine = engine_for(family)
    run(engine, prompt, range(15), range(15), [range(i + 1) for i in range(15)])
    sees = [range(i + 1) for i in range(15, 19)]
    run(engine, wrong, range(15, 19), range(15, 19), sees)
    out = run(engine, right, range(15, 19), range(15, 19), sees)
    close(out, plain(family, prompt + right)[15:])


@pytest.mark.parametrize("family", KINDS)
def test_two_requests_in_one_flat_batch_do_not_see_each_other(family):
    a, b = ids(9, seed=5), ids(14, seed=6)
    engine = engine_for(family)
    span = 64
    see = [np.tril(np.ones((len(t), span), dtype=bool)) for t in (a, b)]
    batch = FlatBatch()
    batch.add(0, a, range(len(a)), range(len(a)), see[0])
    batch.add(128, b, range(len(b)), range(128, 128 + len(b)), see[1])
    out = engine.forward(batch)
    close(out[: len(a)], plain(family, a))
    close(out[len(a) :], plain(family, b))


def test_only_the_selected_rows_get_logits():
    tokens = ids(8)
    engine = engine_for("llama")
    visible = np.tril(np.ones((8, 64), dtype=bool))
    batch = FlatBatch()
    batch.add(0, tokens, range(8), range(8), visible)
    whole, some = engine.forward(batch), engine.forward(batch, select=[2, 7])
    assert some.shape == (2, VOCAB)
    close(some, whole[[2, 7]])


def test_copying_slots_moves_what_they_hold_even_where_source_and_target_overlap():
    tokens = ids(10)
    engine = engine_for("llama")
    out = run(engine, tokens, range(10), range(5, 15), [range(5, 6 + i) for i in range(10)])
    engine.pool.copy(list(range(5, 15)), list(range(7, 17)))
    again = run(engine, tokens[-1:], [9], [16], [range(7, 17)])
    close(again[0], out[-1])


def test_device_placement_is_explicit():
    model = make("llama")
    engine = torch_engine(model, info(model), SLOTS)
    assert engine.device == torch.device("cpu") and engine.pool.keys[0].device == engine.device
    with torch.device("meta"):
        nowhere = make("llama")
    ghost = torch_engine(nowhere, info(nowhere), SLOTS)
    assert ghost.pool.keys[0].device.type == "meta"
    out = run(ghost, ids(4), range(4), range(4), [range(i + 1) for i in range(4)])
    assert out.device.type == "meta" and out.shape == (4, VOCAB)


def test_an_engine_that_nobody_holds_is_freed():
    engine = engine_for("llama")
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def test_rounds_of_any_size_and_slots_far_beyond_give_the_same_bits():
    torch.set_num_threads(1)
    tokens = ids(300)
    engine = engine_for("llama")
    run(engine, tokens[:250], range(250), range(250), [range(i + 1) for i in range(250)])
    sees = [range(i + 1) for i in range(250, 266)]
    wide = run(engine, tokens[250:266], range(250, 266), range(250, 266), sees, span=512)
    for rows in (1, 2, 3, 4, 8, 16):
        some = run(engine, tokens[250 : 250 + rows], range(250, 250 + rows), range(250, 250 + rows), sees[:rows])
        assert torch.equal(some, wide[:rows]), rows

"""Our Triton kernels in Triton's interpreter, which a process of its own has from its beginning (see
test_triton_attention.py), with numbers that can be checked."""

import importlib
import random
import sys
from types import SimpleNamespace

import pytest
import torch
from recorded_rounds import fill, torch_alone, tree_round  # noqa: F401
from test_graphs_of_several import TEXTS, some_trees, together
from test_llama import close
from tiny import info, make
from triton.runtime import interpreter

from actors.engines.backends.llama import triton_attention as kernels
from actors.engines.backends.llama.engine import LlamaEngine
from actors.engines.backends.llama.graphs import Direct
from actors.engines.backends.llama.in_place import InPlace, in_place
from actors.engines.drafts.draft import Draft
from actors.models import Leaf
from protocols.messages import Sampling

kernels.SPLIT = 128  # fewer steps for as many parts


def dot_in_one_order(_builder, a, b, start, _precision, _imprecise) -> interpreter.TensorHandle:
    """A tile's product, each row added up in the same order wherever in the tile it lies, as is assumed of a
    GPU's. The interpreter leaves it to NumPy's BLAS, of which some do not (OpenBLAS's for Haswell and Zen)."""
    dtype = start.data.dtype
    terms = a.data.astype(dtype)[:, :, None] * b.data.astype(dtype)
    return interpreter.TensorHandle(terms.sum(1) + start.data, start.dtype.scalar)


interpreter.InterpreterBuilder.create_dot = dot_in_one_order
NAME = "actors.engines.backends.llama.triton_attention"


def int32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def exact(query, keys, values, slots, scale):
    """One row in float64: query (heads, width), what it sees in ``slots``."""
    group = len(query) // len(keys)
    keys, values = (part[:, slots].repeat_interleave(group, 0).double() for part in (keys, values))
    weights = (torch.einsum("hd,hnd->hn", query.double(), keys) * scale).softmax(-1)
    return torch.einsum("hn,hnd->hd", weights, values).flatten()


@pytest.mark.parametrize(
    "heads, kv_heads, width, dtype",
    [(8, 2, 32, torch.float32), (3, 3, 64, torch.float32), (24, 1, 48, torch.float16), (7, 1, 16, torch.float16)],
)
def test_a_row_sees_its_text_wherever_that_lies_and_has_the_bits_that_it_has_alone(heads, kv_heads, width, dtype):
    chance = torch.Generator().manual_seed(heads)
    keys, values = (torch.randn(kv_heads, 2500, width, generator=chance).to(dtype) for _ in range(2))
    requests = [(100, 70, [-1, 0, 0, 1, -1]), (300, kernels.SPLIT + 88, []), (1200, 2 * kernels.SPLIT - 1, [-1, -1, 0])]
    rows, tiles, tails, looks = [], [], [], []
    for base, length, parents in requests:
        first, count = len(rows), 1 + len(parents)
        for node in range(-1, len(parents)):
            path = []
            while node >= 0:
                path.insert(0, base + length + node)
                node = parents[node]
            looks.append([*range(base, base + length), *path])
            in_a_row = next((n for n, slot in enumerate(looks[-1]) if slot != base + n), len(looks[-1]))
            rows.append((base, in_a_row, len(looks[-1])))
            tails.append((looks[-1][in_a_row:] + [0] * 8)[:8])
        tile = kernels.tile_rows(heads, kv_heads)
        tiles += [(at, min(tile, first + count - at)) for at in range(first, first + count, tile)]
    query = torch.randn(len(rows) + 1, heads, width, generator=chance).to(dtype)
    scale = width**-0.5
    told = [int32(part) for part in zip(*rows, (0, 0, 0), strict=True)]
    found = kernels.attend(
        query, keys, values, int32([*tiles, (0, 0)]), *told, int32([*tails, [0] * 8]), splits=4, scale=scale
    )
    assert not found[-1].any()  # of no length
    for row, look in enumerate(looks):
        tolerance = 1e-5 if dtype == torch.float32 else 2e-3
        assert (found[row] - exact(query[row], keys, values, look, scale)).abs().max() < tolerance
        moved = [part.clone() for part in (keys, values)]
        for there, here in zip(moved, (keys, values), strict=True):
            there[:, 9 : 9 + len(look)] = here[:, look]
        length = int32([len(look)])
        alone = kernels.attend(
            query[row : row + 1], *moved, int32([(0, 1)]), int32([9]), length, length, int32([[0]]), 3, scale
        )
        assert torch.equal(alone[0], found[row])


def engine_in_place() -> LlamaEngine:
    model = make("qwen3")
    engine = LlamaEngine(model, info(model), 2048, recorder=Direct())
    engine.graphs.layout = InPlace(engine.graphs.body, kernels)
    return engine


def test_every_branch_of_every_request_has_the_logits_of_the_plain_model_and_the_bits_of_a_chain_alone():
    engine, model = engine_in_place(), make("qwen3")
    plain = LlamaEngine(model, info(model), 2048)
    for base, text in TEXTS.items():
        for each in (engine, plain):
            fill(each, base, text)
    parts = list(some_trees(random.Random(5), TEXTS, 7))
    found = together(engine, parts)
    assert engine.best is not None, "no round of graphs"
    close(found, together(plain, parts))
    first = 0
    for base, length, tokens, parents in parts:
        for node in range(len(parents)):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            line = [tokens[0], *(tokens[1 + each] for each in path)]
            alone = tree_round(engine, base, length, line, range(-1, len(path) - 1))
            assert torch.equal(alone[-1], found[first + 1 + node])
        first += len(tokens)


def test_a_draft_grows_the_tree_that_it_grows_without_graphs():
    model = make("llama")
    engines = [LlamaEngine(make("llama"), info(model), 2048, exact=False, recorder=Direct()) for _ in range(2)]
    engines[0].graphs.layout = InPlace(engines[0].graphs.body, kernels)
    engines[1].graphs = None
    grown = []
    for engine in engines:
        draft = Draft(engine, candidates=3)
        handle = draft.open(TEXTS[64], 4, Sampling(max_tokens=40))
        [root] = draft.expand([Leaf(handle, TEXTS[64][-1], (), is_root=True)])
        below = draft.expand([Leaf(handle, token, ()) for token in root.tokens])
        last = draft.expand([Leaf(handle, below[1].tokens[0], (below[1].slot,)), Leaf(handle, 7, (below[2].slot,))])
        grown.append([root, *below, *last])
        assert engine.graphs is None or engine.best is not None
    for ours, theirs in zip(*grown, strict=True):
        assert (ours.slot, ours.tokens) == (theirs.slot, theirs.tokens)
        assert ours.probs == pytest.approx(theirs.probs, abs=1e-5)


@pytest.mark.parametrize("fault", ["wrong", "raises", None])
def test_kernels_that_fail_or_err_on_this_machine_are_not_used(fault, monkeypatch, caplog):
    def attend(query, *rest):
        if fault == "raises":
            raise RuntimeError("PTX was compiled for another GPU\nand so on")
        return kernels.attend(query, *rest) + (0.1 if fault == "wrong" else 0.0)

    own = SimpleNamespace(attend=attend, SPLIT=kernels.SPLIT, tile_rows=kernels.tile_rows)
    monkeypatch.setattr(importlib.import_module("actors.engines.backends.llama"), "triton_attention", own)
    body = engine_in_place().graphs.body
    layout = in_place(body)
    assert (layout is None) == (fault is not None)
    assert ("Triton's attention failed" in caplog.text) == (fault is not None)
    assert "and so on" not in caplog.text


def test_without_triton_rounds_copy_what_they_attend_to(monkeypatch):
    monkeypatch.delattr(importlib.import_module("actors.engines.backends.llama"), "triton_attention")
    monkeypatch.setitem(sys.modules, NAME, None)
    assert in_place(engine_in_place().graphs.body) is None

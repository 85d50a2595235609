"""What only a CUDA device can show: that a captured round replays with the bits of the same round launched one by one,
and that text does not depend on speculation there."""

import random

import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.decoder.gpu.graphs import CudaRecorder, Direct
from actors.engines.decoder.gpu.groups import GroupedMatrix
from actors.engines.sampling.sampler import ranked
from actors.engines.targets.target import Target
from actors.engines.weights.blocks import Blocks
from actors.models import RANKED, Window
from protocols.messages import Sampling
from tests.engines.recorded_rounds import TEXTS, fill, some_trees, together, tree_round
from tests.engines.test_llama import BUNDLED, chain, ids, load
from tests.engines.weights.test_grouped import CODES, INPUTS, stored

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DTYPES = [torch.float32, torch.bfloat16]


def engine_of(dtype: torch.dtype, recorder=None, slots: int = 4096) -> GpuEngine:
    return GpuEngine(load("target", dtype).to("cuda"), BUNDLED, slots, recorder=recorder)


def still_recording(engine: GpuEngine) -> bool:
    return isinstance(engine.graphs._recorder, CudaRecorder) and len(engine.graphs) > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_replayed_rounds_have_the_bits_of_launched_ones(dtype):
    graphed, direct = engine_of(dtype), engine_of(dtype, Direct())
    chance = random.Random(0)
    texts = {base: ids(n, seed=base, vocabulary=8192) for base, n in ((64, 30), (448, 250), (1024, 700), (2048, 1100))}
    for base, text in texts.items():
        for engine in (graphed, direct):
            for start in range(0, len(text), 512):  # prompts run as usual
                fill(engine, base, text[: start + 512])
    for turn in range(40):
        base, text = chance.choice(list(texts.items()))
        parents = [chance.randrange(-1, node) for node in range(chance.choice([0, 1, 3, 7, 12, 15]))]
        tokens = [text[-1], *(chance.randrange(8192) for _ in parents)]
        found, expected = (tree_round(e, base, len(text), tokens, parents) for e in (graphed, direct))
        assert torch.equal(found, expected), (turn, base, parents)
        assert torch.equal(graphed.best.long(), found.argmax(-1))
    assert still_recording(graphed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_replayed_rounds_of_several_requests_have_the_bits_of_launched_ones(dtype):
    graphed, direct = engine_of(dtype), engine_of(dtype, Direct())
    for base, text in TEXTS.items():
        for engine in (graphed, direct):
            fill(engine, base, text)
    chance = random.Random(0)
    for turn in range(20):
        parts = list(some_trees(chance, chance.sample(list(TEXTS), chance.randrange(2, 5)), (1, 4)[turn % 2]))
        found, expected = (together(engine, parts) for engine in (graphed, direct))
        assert torch.equal(found, expected), (turn, parts)
    assert still_recording(graphed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_replayed_rounds_agree_with_the_ordinary_forward(dtype):
    engine, tokens = engine_of(dtype), ids(310, vocabulary=8192)
    fill(engine, 0, tokens)
    replayed = chain(engine, tokens, 300, 10).log_softmax(-1)
    graphs, engine.graphs = engine.graphs, None
    usual = chain(engine, tokens, 300, 10).log_softmax(-1)
    engine.graphs = graphs
    divergence = (usual.exp() * (usual - replayed)).sum(-1).mean()
    assert divergence < (1e-6 if dtype == torch.float32 else 0.02)
    assert still_recording(engine)


@pytest.mark.parametrize("name", CODES)
def test_weights_in_groups_have_torchs_products_and_a_row_the_bits_that_it_has_alone(name):
    from actors.engines.decoder.gpu.triton_kernels import gpu, groups, prompts

    device = torch.device("cuda")
    parts = [(stored(name, rows), None) for rows in (320, 70)]
    matrix = GroupedMatrix.of(Blocks(parts), None, device)
    values = torch.cat([part.values(slice(None)) for part in matrix.parts]).to(torch.bfloat16)
    x = torch.randn(150, INPUTS, dtype=torch.bfloat16, device=device)
    found, right = prompts.multiply(x, matrix, gpu.gpu_of(device)).float().sum(0), x.float() @ values.float().T
    assert (found - right).norm() < 2**-8 * right.norm()
    x = x[:64]
    found, right = groups.multiply(x, matrix), matrix.multiply(matrix.inputs(x.float()))
    assert (found.sum(0) - right).norm() < 1e-5 * right.norm()
    for rows in (1, 3, 17, 33):
        assert torch.equal(groups.multiply(x[:rows], matrix), found[:, :rows])


def test_the_gpu_agrees_with_the_cpu():
    tokens = ids(310, vocabulary=8192)
    outs = []
    for build, device in ((CompiledEngine, "cpu"), (GpuEngine, "cuda")):
        engine = build(load("target").to(device), BUNDLED, 1024)
        fill(engine, 0, tokens)
        outs.append(chain(engine, tokens, 300, 10).cpu())
    torch.testing.assert_close(*outs, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [250, 506, 762, 1018])
def test_the_bits_of_a_token_do_not_depend_on_the_span(start, dtype):
    engine, tokens = engine_of(dtype), ids(start + 8, vocabulary=8192)
    fill(engine, 0, tokens)
    near = chain(engine, tokens, start, 4)
    for span in (start + 70, 2048):
        assert torch.equal(chain(engine, tokens, start, 4, span // 64 * 64), near), span


def test_likely_tokens_are_those_of_a_cpu_and_nothing_waits_before_they_are_read():
    logits = torch.randn(5, 152_000, generator=torch.Generator().manual_seed(0))
    there, expected = logits.to("cuda"), logits.topk(RANKED)
    torch.cuda.set_sync_debug_mode("error")
    try:
        wait = ranked(there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    told = wait()
    assert [row.tolist() for row in told.tokens] == expected.indices.tolist()
    assert [row.tolist() for row in told.logits] == expected.values.tolist()


def test_a_round_waits_for_nothing_before_its_tokens_are_read():
    engine, tokens = engine_of(torch.bfloat16), ids(60, vocabulary=8192)
    fill(engine, 0, tokens)
    chain(engine, tokens, 50, 4)
    torch.cuda.set_sync_debug_mode("error")
    try:
        chain(engine, tokens, 50, 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert still_recording(engine)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_speculated_text_is_plain_text(dtype, temperature):
    target = Target(engine_of(dtype))
    assert len(target.rows_agree) >= 3, "too few row counts agree for speculation to be exact here"
    prompt, count = ids(240, seed=4, vocabulary=8192), 120
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=count + 40, ignore_eos=True)

    def begin():
        handle = target.open(prompt, sampling)
        while (outcome := target.prefill(handle)) is None:
            pass
        return handle, list(outcome.tokens)

    handle, plain = begin()
    while len(plain) < count + 8:
        plain += target.verify([Window(handle)])[0].tokens
    target.close(handle)
    handle, text = begin()
    chance = random.Random(1)
    while len(text) < count:
        right = plain[len(text) : len(text) + chance.randrange(1 + min(7, target.max_window // 2))]
        wrong = [(token + 1) % 8192 for token in right]
        parents = list(range(-1, len(right) - 1))
        if (
            chance.random() < 0.5
        ):  # a wrong sibling of each: nodes listed first lie in canonical slots and keep their bits
            outcome = target.verify([Window(handle, [*right, *wrong], [*parents, *parents])])[0]
            assert len(outcome.path) == len(right)
        else:  # a chain that goes wrong at its end
            draft = [*right, *wrong[:1]]
            outcome = target.verify([Window(handle, draft, list(range(-1, len(draft) - 1)))])[0]
            assert len(outcome.path) >= len(right)
        text += outcome.tokens
    target.close(handle)
    assert text[:count] == plain[:count]
    assert still_recording(target.engine)

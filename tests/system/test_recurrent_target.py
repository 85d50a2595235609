"""The whole system with a target whose layers are recurrent: one text, whatever method drafts and whatever happens."""

import asyncio
from dataclasses import replace

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from actors.engines.cache.kv_cache import TRASH
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Cancel, Chunk, Generate, Sampling
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import INFO, VOCAB
from tests.world.structured import Told

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
DELTA = {
    "head_dim": 16,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MODELS = {
    "convolutions": lambda: Lfm2ForCausalLM(Lfm2Config(**SIZES, layer_types=["conv", "full_attention"])),
    "delta net": lambda: Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(**SIZES, **DELTA, layer_types=["linear_attention", "full_attention"])
    ),
}
METHODS = ["vanilla", "auto", "pld", "tree", "sps", "duodecoding"]
PROMPTS = [(3 + i, 9, 33, 8, 9, 33, 8) for i in range(len(METHODS))]
SAMPLING = Sampling(max_tokens=60, ignore_eos=True, temperature=0.7, seed=5)


@pytest.fixture(scope="module", params=MODELS)
def engine(request):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = MODELS[request.param]().eval()
    with torch.no_grad():  # the default initialisation is so small that every prediction is the same
        for name, parameter in model.named_parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 and "embed" not in name else 1.0)
    return CompiledEngine(model, replace(INFO, model_id="tiny", max_context=512), TRASH + 3 * 448)


@pytest.fixture(scope="module")
def texts(engine):
    """What the target writes alone, token by token."""
    target = Target(engine, rows_agree=ROWS)
    found = []
    for prompt in PROMPTS:
        handle = target.open(prompt, SAMPLING)
        while (outcome := target.prefill(handle)) is None:
            pass
        text = list(outcome.tokens)
        while len(text) < SAMPLING.max_tokens:
            text += target.verify([Window(handle)])[0].tokens
        target.close(handle)
        found.append(text)
    return found


def cluster_of(engine, texts) -> Cluster:
    known = Told([[*prompt, *text] for prompt, text in zip(PROMPTS, texts, strict=True)])
    return Cluster(language=known, target=Target(engine, rows_agree=ROWS), forward_s=0.001)


def test_every_method_writes_the_same_text_beside_the_others(engine, texts):
    """The pool does not hold all at once, so that streams also wait for each other."""

    async def go():
        async with cluster_of(engine, texts) as cluster:
            cluster.start_drafter("d1", skill=0.8)
            cluster.start_controller()
            await cluster.connected("d1")
            callers = [await cluster.caller() for _ in METHODS]
            streams = [
                caller.generate(prompt, SAMPLING, method)
                for caller, prompt, method in zip(callers, PROMPTS, METHODS, strict=True)
            ]
            return await asyncio.gather(*streams)

    streams = run(go())
    assert [tokens_of(chunks) for chunks in streams] == texts
    accepted = {method: chunks[-1].stats.accepted_tokens for method, chunks in zip(METHODS, streams, strict=True)}
    assert accepted["vanilla"] == 0 and accepted["sps"] > 10 and accepted["tree"] > 10, accepted


def test_streams_are_cancelled_resumed_and_left_by_their_drafter_without_a_token_changing(engine, texts):
    async def go():
        async with cluster_of(engine, texts) as cluster:
            cluster.start_drafter("d1", skill=0.9)
            await cluster.connected("d1")
            one, other = await cluster.caller(), await cluster.caller()
            one.send(Generate("cut", PROMPTS[0], sampling=SAMPLING, method="tree"))
            running = asyncio.create_task(other.generate(PROMPTS[1], SAMPLING, "auto"))
            begun: list[int] = []
            while len(begun) < 20:
                chunk = await one.until(lambda m: isinstance(m, Chunk))
                begun += chunk.token_ids
            one.send(Cancel("cut"))
            await cluster.kill("d1")
            rest = await one.generate(PROMPTS[0], SAMPLING, "sps", generated=tuple(begun))
            return begun, rest, await running

    begun, rest, whole = run(go())
    assert [*begun, *(token for chunk in rest for token in chunk.token_ids)] == texts[0]
    assert tokens_of(whole) == texts[1]

"""A target whose layers with windows keep rings is short of room: streams give way to others, and no text changes."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch

from actors.engines.cache.kv_cache import TRASH
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.cpu.rings import Rings
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.families import model_of
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import INFO, VOCAB
from tests.world.structured import Told

CONTEXT = 2048
METHODS = ["vanilla", "auto", "tree", "pld"]
PROMPTS = [tuple(random.Random(seed).choices(range(2, VOCAB), k=300 + 150 * seed)) for seed in range(len(METHODS))]
SAMPLING = Sampling(max_tokens=400, ignore_eos=True, temperature=1.0, seed=5)
ROOM = 3 * 1152  # three streams at their beginning, and two at their end


def target_of(family: str, slots: int, rings: int) -> Target:
    torch.set_num_threads(1)
    model = model_of(family, vocab_size=VOCAB, max_position_embeddings=CONTEXT)
    engine = CompiledEngine(model, replace(INFO, model_id="tiny", max_context=CONTEXT), slots, rings=rings)
    return Target(engine, rows_agree=(*ROWS, 48, 64, 128))


def alone(target: Target, prompt: tuple[int, ...]) -> list[int]:
    handle = target.open(prompt, SAMPLING)
    while (outcome := target.prefill(handle)) is None:
        pass
    text = list(outcome.tokens)
    while len(text) < SAMPLING.max_tokens:
        text += target.verify([Window(handle)])[0].tokens
    target.close(handle)
    return text


@pytest.mark.parametrize("family", ["Gemma2", "GptOss"])
def test_streams_that_give_way_and_come_back_have_the_texts_of_whole_keys(family):
    pytest.importorskip("numba")
    whole = target_of(family, 4 * CONTEXT, 0)
    texts = [alone(whole, prompt) for prompt in PROMPTS]
    target = target_of(family, TRASH + ROOM, 8)
    assert isinstance(target.engine.recurrence, Rings) and whole.engine.recurrence is None

    async def go():
        known = Told([[*prompt, *text] for prompt, text in zip(PROMPTS, texts, strict=True)])
        async with Cluster(language=known, target=target, forward_s=0.001) as cluster:
            cluster.start_drafter("d1", skill=0.8)
            await cluster.connected("d1")
            callers = [await cluster.caller() for _ in PROMPTS]
            streams = (
                caller.generate(prompt, SAMPLING, method)
                for caller, prompt, method in zip(callers, PROMPTS, METHODS, strict=True)
            )
            return await asyncio.gather(*streams), cluster.verifier.state.counters["preempted"]

    streams, preempted = run(go())
    assert [tokens_of(chunks) for chunks in streams] == texts
    assert preempted > 0
    assert streams[METHODS.index("tree")][-1].stats.accepted_tokens > 10
    assert target.kv_used == 0

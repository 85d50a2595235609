"""A whole verifier with a real (tiny) target and 32 streams at once, which join, leave and are cancelled: every text is
that of the same request alone, bit for bit as it was drawn."""

import asyncio
import random
from dataclasses import dataclass, replace

import pytest
import torch

from actors.engines.cache.kv_cache import TRASH, full_request
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.targets.target import Target
from actors.models import Window
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from protocols.messages import Cancel, Chunk, Generate, Method, Sampling
from tests.engines.tiny import VOCAB, make
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.inline_drafts import inline
from tests.world.models import INFO, ToyDraft
from tests.world.structured import Told

STREAMS, TURNS = 32, 42
ABOUT = replace(INFO, model_id="tiny", vocab_size=VOCAB, max_context=512)
METHODS = [method for method in Method if method != Method.REST]  # REST has no datastore here
SYSTEM = tuple(3 + 7 * i % 150 for i in range(40))  # what half of the prompts begin with


@dataclass
class Asked:
    prompt: tuple[int, ...]
    sampling: Sampling
    method: Method
    cut: int  # tokens after which it is cancelled; 0: it is not
    own: list[int]  # its text alone


@pytest.fixture(scope="module")
def engine():
    torch.set_num_threads(1)
    return CompiledEngine(make("llama"), ABOUT, TRASH + (STREAMS + 1) * full_request(ABOUT.max_context))


def alone(target: Target, prompt: tuple[int, ...], sampling: Sampling) -> list[int]:
    """One token at a time, with nobody beside it and nothing taken over from earlier prompts."""
    handle = target.open(prompt, sampling, cache_salt=repr(sampling))
    while (outcome := target.prefill(handle)) is None:
        pass
    text = list(outcome.tokens)
    while len(text) < sampling.max_tokens and (sampling.ignore_eos or text[-1] not in target.info.eos_token_ids):
        text += target.verify([Window(handle)])[0].tokens
    target.close(handle)
    return text


def drawn(engine: CompiledEngine, seed: int) -> list[Asked]:
    """Requests of every method, at several temperatures."""
    dice, target, asked = random.Random(seed), Target(engine), []
    for number in range(TURNS):
        prompt = tuple(dice.randrange(3, VOCAB) for _ in range(dice.randrange(4, 30)))
        sampling = Sampling(
            temperature=dice.choice([0.0, 0.0, 0.7, 1.0]),
            top_p=dice.choice([1.0, 0.9]),
            repetition_penalty=dice.choice([1.0, 5.0, 5.0]),  # most repeat themselves without
            seed=dice.randrange(1 << 30),
            max_tokens=dice.randrange(80, 130),
            ignore_eos=dice.random() < 0.8,
        )
        prompt = SYSTEM + prompt if number % 2 else prompt
        cut = dice.randrange(1, 30) if number % 5 == 0 else 0
        asked.append(Asked(prompt, sampling, METHODS[number % len(METHODS)], cut, alone(target, prompt, sampling)))
    dice.shuffle(asked)
    return sorted(asked, key=lambda one: one.cut > 0)  # the first are to be there all at once


async def served(caller, one: Asked) -> list[Chunk]:
    """Its chunks, all of them or as many as came until it was cancelled."""
    if not one.cut:
        return await caller.generate(one.prompt, one.sampling, one.method)
    rid, chunks = f"{caller.name}-cut", []
    caller.send(Generate(rid, one.prompt, sampling=one.sampling, method=one.method))
    while sum(len(chunk.token_ids) for chunk in chunks) < one.cut and not (chunks and chunks[-1].finish_reason):
        chunks.append(await caller.until(lambda message: isinstance(message, Chunk) and message.rid == rid))
    caller.send(Cancel(rid))
    return chunks


@pytest.mark.parametrize(("seed", "drafts"), [(1, "a drafter"), (2, "between forwards")])
def test_32_streams_that_join_leave_and_are_cancelled_have_the_texts_that_each_has_alone(engine, seed, drafts):
    asked = drawn(engine, seed)
    known = Told([[*one.prompt, *one.own] for one in asked])
    target = Target(engine)
    own = inline(ToyDraft(known, skill=0.8)) if drafts == "between forwards" else None
    sources = Library(memory=Memory(1 << 14))

    async def story():
        live, most, verify = 0, 0, target.verify

        def counted(windows):
            nonlocal live, most
            live, most = max(live, len([*system.verifier.state.requests])), max(most, len(windows))
            return verify(windows)

        target.verify = counted
        system = Cluster(language=known, target=target, sources=sources, inline=own, forward_s=0.002)
        async with system:
            if drafts == "a drafter":
                system.start_drafter(vocab_size=VOCAB)
                system.start_controller()
                await system.connected("d1")
            callers = [await system.caller() for _ in range(STREAMS)]
            waiting, found = iter(enumerate(asked)), {}

            async def keep_asking(caller):
                for number, one in waiting:  # who has left is followed by the next
                    found[number] = await served(caller, one)

            await asyncio.gather(*map(keep_asking, callers))
            return [found[number] for number in range(TURNS)], live, most

    chunks, live, most = run(story())
    assert live == STREAMS and most >= STREAMS // 2, "and many share a forward"
    for one, seen in zip(asked, chunks, strict=True):
        text = tokens_of(seen)
        assert text == (one.own[: len(text)] if one.cut else one.own), one
        assert len(text) >= min(one.cut, len(one.own))
    assert any(seen[0].cached_tokens >= len(SYSTEM) // 16 * 16 for seen in chunks), "some began as earlier ones"
    assert sum(sum(chunk.accepted) for seen in chunks for chunk in seen) > 100, "drafts were right"

"""What the target thought likely: told by both executors, and recycled by a verifier whose texts stay the same."""

import numpy as np
import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.sampling.sampler import ranked
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import RANKED, Window
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from protocols.messages import Sampling, Status, StatusReport
from tests.engines.heads.test_head_source import model_of_tokens
from tests.engines.test_target import begin, target_of
from tests.engines.tiny import info
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster


@pytest.mark.parametrize("size", [5, 16, 4099])
def test_the_likeliest_tokens_of_every_row_come_best_first(size):
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    told, expected = ranked(logits)(), logits.topk(min(RANKED, size))
    assert np.array(told.tokens).tolist() == expected.indices.tolist()
    assert np.array(told.logits).tolist() == expected.values.tolist()


def test_a_window_that_asks_is_told_of_its_own_rows_alone():
    target = target_of()
    first, second = (begin(target, prompt, Sampling(max_tokens=50))[0] for prompt in ([1, 2, 3], [4, 5]))
    windows = [Window(first, [7, 8], [-1, -1]), Window(second, [9], [-1], ranks=True)]
    silent, telling = target.verify(windows)
    assert silent.ranked is None and telling.ranked is not None
    expected = target.engine.logits[3:5].topk(RANKED)
    assert np.array(telling.ranked.tokens).tolist() == expected.indices.tolist()
    assert [int(tokens[0]) for tokens in telling.ranked.tokens] == telling.sampled


@pytest.mark.parametrize(("temperature", "steps"), [(0.0, 1), (0.0, 4), (0.7, 1), (1.0, 1)])
def test_texts_are_those_of_plain_decoding_in_fewer_rounds(temperature, steps):
    model = model_of_tokens()
    asked = [Sampling(max_tokens=120, temperature=temperature, seed=seed, ignore_eos=True) for seed in range(3)]

    async def story():
        target = Target(CompiledEngine(model, info(model), 4096), rows_agree=ROWS)
        library = Library(memory=Memory(10_000), recycles=True)
        library.sources = [source for source in library.sources if source.name == "recycling"]
        async with Cluster(target=target, sources=library, forward_s=0.01, steps=steps) as system:
            found = {}
            for method in ("vanilla", "auto"):
                callers = [await system.caller() for _ in asked]
                answers = (
                    caller.generate((5, 6, 7 + at), one, method)
                    for at, (caller, one) in enumerate(zip(callers, asked, strict=True))
                )
                found[method] = [await answer for answer in answers]
            caller = await system.caller()
            caller.send(Status("s"))
            return found, await caller.until(lambda message: isinstance(message, StatusReport))

    found, report = run(story())
    assert [*map(tokens_of, found["auto"])] == [*map(tokens_of, found["vanilla"])]
    assert report.counters["accepted_from_recycling"] > 30
    assert "dropped_sources" not in report.counters

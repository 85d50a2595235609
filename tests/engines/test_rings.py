"""Layers with windows keep a ring of each text: the bits are those of a pool that keeps whole texts."""

import random

import pytest
import torch
from msgspec.structs import replace

from actors.engines.build import MAX_RINGS, _rings, _slots
from actors.engines.cache import memory
from actors.engines.cache.kv_cache import full_request
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.cpu.rings import Rings
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.errors import PoolFull
from protocols.messages import Sampling
from tests.engines.families import model_of
from tests.engines.test_recurrence import chain, drafted, tree
from tests.engines.tiny import info

FAMILIES = ["Gemma2", "Gemma3", "Gemma4", "GptOss", "Llama4"]  # caps; no full layers; shared keys; sinks; chunks
CONTEXT, RING = 2048, 384
SAMPLING = Sampling(max_tokens=300, ignore_eos=True, temperature=1.0)


def text_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(5, 150), k=length)


class Seen(Target):
    """Keeps the last forward's logits."""

    def __init__(self, family: str, rings: int) -> None:
        torch.set_num_threads(1)
        model = model_of(family, max_position_embeddings=CONTEXT)
        engine = CompiledEngine(model, info(model), 32768, rings=rings)
        engine.pick = lambda *_: None
        super().__init__(engine, rows_agree=(*ROWS, 48, 64, 128))

    def _forward(self, *told):
        self.logits = super()._forward(*told)
        return self.logits

    def begin(self, prompt: list[int], generated: list[int], seed: int) -> tuple[int, list[int], int]:
        """The handle, the text, and how many tokens were not computed."""
        handle = self.open(prompt, replace(SAMPLING, seed=seed), generated)
        while (outcome := self.prefill(handle)) is None:
            pass
        return handle, [*generated, *outcome.tokens], outcome.reused


@pytest.fixture(scope="module", params=FAMILIES)
def both(request):
    pytest.importorskip("numba")
    ringed, whole = Seen(request.param, 8), Seen(request.param, 0)
    assert isinstance(ringed.engine.recurrence, Rings) and whole.engine.recurrence is None
    assert ringed.engine.recurrence.length == RING
    assert len(ringed.engine.pool.keys) < len(whole.engine.pool.keys)
    return ringed, whole


def texts(target: Target, prompts: dict[int, list[int]], count: int) -> dict[int, list[int]]:
    found = {}
    for seed, prompt in prompts.items():
        handle, text, _ = target.begin(prompt, [], seed)
        while len(text) < count:
            text += target.verify([Window(handle)])[0].tokens
        target.close(handle)
        found[seed] = text
    return found


def test_trees_resumes_and_streams_beside_have_the_bits_of_whole_texts(both):
    ringed, whole = both
    prompts = {seed: text_of(length, seed) for seed, length in enumerate([RING - 20, 21, 1100, 3 * RING - 70, 9])}
    plain, again = (texts(target, prompts, 130) for target in both)
    assert plain == again
    running: dict[int, tuple[int, list[int]]] = {}
    turn = 0
    while turn < 6 or running:
        if turn in prompts:  # one more in every round
            running[turn] = ringed.begin(prompts[turn], [], turn)[:2]
            assert running[turn] == whole.begin(prompts[turn], [], turn)[:2]
            assert torch.equal(ringed.logits, whole.logits)
        if turn == 17:  # cut off, and taken up again
            handle, text = running[2]
            for target in both:
                target.close(handle)
                running[2] = target.begin(prompts[2], text, 2)[:2]
            assert torch.equal(ringed.logits, whole.logits)
        windows = [
            tree(handle, plain[seed], len(text), (turn + seed) % 5)
            if (turn + seed) % 3
            else chain(handle, drafted(plain[seed], len(text), turn % 12, seed % 2))
            for seed, (handle, text) in running.items()
        ]
        outcomes = ringed.verify(windows)
        assert whole.verify(windows) == outcomes
        assert torch.equal(ringed.logits, whole.logits)
        for seed, outcome in zip(list(running), outcomes, strict=True):
            handle, text = running[seed]
            text += outcome.tokens
            if len(text) >= 110:
                assert text == plain[seed][: len(text)]
                for target in both:
                    target.close(handle)
                del running[seed]
        turn += 1
    assert ringed.kv_used == 0


def test_prompts_go_on_behind_what_earlier_ones_have_computed_with_the_same_bits(both):
    ringed, whole = both
    system = text_of(700, 7)
    first, other, third = ([*system, *text_of(300, seed)] for seed in (8, 9, 10))
    reused = []

    def asked(prompt: list[int]) -> list[int]:
        (handle, text, count), (cold, expected, _) = ringed.begin(prompt, [], 3), whole.begin(prompt, [], 3)
        reused.append(count)
        assert torch.equal(ringed.logits, whole.logits)
        while len(text) < 40:
            outcomes = ringed.verify([Window(handle)])
            assert outcomes == whole.verify([Window(cold)]) and torch.equal(ringed.logits, whole.logits)
            text += outcomes[0].tokens
            expected += outcomes[0].tokens
        ringed.close(handle)
        whole.close(cold)
        return text

    answer = asked(first)
    asked([*first, *answer, *text_of(50, 11)])  # the next turn of a chat
    asked([*first, *answer[:9], 3, 4])  # ... another, behind a part of the answer
    asked(first)  # once more
    asked(other)  # same beginning, which is kept from now on
    asked(third)
    short = text_of(300, 12)
    asked([*short[:200], *text_of(30, 13)])
    asked(short)  # a ring that holds the whole text gives each beginning
    assert reused == [0, 1024, 1008, 992, 0, 688, 0, 192]
    cancelled = text_of(900, 14)
    handle = ringed.open(cancelled, SAMPLING)
    for _ in range(5):
        ringed.prefill(handle)
    ringed.close(handle)
    asked([*cancelled, 7])
    assert reused[-1] == 640


def test_requests_wait_for_rings_and_those_of_earlier_texts_give_way():
    target = Seen("Gemma2", 3)
    for seed in range(5):
        target.close(target.begin(text_of(400, seed), [], seed)[0])
    handles = [target.begin(text_of(400, seed), [], seed)[0] for seed in range(3)]
    with pytest.raises(PoolFull, match="states of 3 requests"):
        target.open([5, 6], SAMPLING)
    for handle in handles:
        target.close(handle)
    assert target.begin(text_of(400, 2), [], 2)[2] == 384


def test_more_tokens_fit_the_same_memory_where_windows_have_rings(monkeypatch):
    pytest.importorskip("numba")
    model, context = model_of("Gemma2", max_position_embeddings=100_000), 100_000  # two layers of three have windows
    sizes = []
    for free in (64 << 20, 64 << 30):
        monkeypatch.setattr(memory, "available_bytes", lambda device, free=free: free)
        rings = _rings(model, context)
        sizes.append((rings, *(_slots(0, model, full_request(context), rings=kept) for kept in (0, rings))))
    (few, whole, ringed), (many, *_) = sizes
    assert 1 < few < many == MAX_RINGS
    assert ringed == pytest.approx(1.5 * whole, rel=0.01)
    assert _rings(model, RING) == 0  # a context is no longer than a ring

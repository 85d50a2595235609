"""Targets with recurrent layers: a state for each request, whose bits are those of plain decoding after any window."""

import pytest
import torch

from actors.engines.cache.kv_cache import CHUNK, TRASH
from actors.engines.drafts.draft import Draft
from actors.engines.generic.engine import TransformersEngine
from actors.engines.targets.selfcheck import ROWS, self_check
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.errors import ModelError, PoolFull
from protocols.messages import Sampling
from tests.engines.test_families import VOCAB, model_of
from tests.engines.tiny import info

DENSE = [
    "Lfm2",
    "Qwen3_5",
    "OlmoHybrid",
    "Mamba",
    "Mamba2",
    "FalconH1",
    "GraniteMoeHybrid",
]  # experts' bits depend on rows
FEW = ["Lfm2", "Qwen3_5", "Mamba"]
PROMPT = [5 + 7 * i % 150 for i in range(21)]
COUNT = 40


def engine_of(name: str, slots: int = 4096) -> TransformersEngine:
    torch.set_num_threads(1)
    model = model_of(name)
    return TransformersEngine(model, info(model), slots)


def begin(target: Target, prompt=PROMPT, generated=(), seed: int = 3) -> tuple[int, list[int]]:
    sampling = Sampling(max_tokens=300, ignore_eos=True, temperature=1.0, seed=seed)
    handle = target.open(prompt, sampling, generated)
    while (outcome := target.prefill(handle)) is None:
        pass
    return handle, [*generated, *outcome.tokens]


def alone(target: Target, prompt=PROMPT, seed: int = 3, count: int = COUNT) -> list[int]:
    handle, text = begin(target, prompt, seed=seed)
    while len(text) < count:
        text += target.verify([Window(handle)])[0].tokens
    target.close(handle)
    return text[:count]


def chain(handle: int, tokens: list[int]) -> Window:
    return Window(handle, tokens, list(range(-1, len(tokens) - 1)))


def drafted(text: list[int], done: int, right: int, wrong: int) -> list[int]:
    """Tokens of a text that go on right and then wrong."""
    found = text[done : done + right + wrong]
    return [*found[:right], *((token + 1) % VOCAB for token in found[right:])]


@pytest.mark.parametrize("name", DENSE)
def test_windows_of_any_length_right_or_wrong_change_no_bit_of_any_logit(name):
    engine = engine_of(name)
    assert set(ROWS) <= set(self_check(engine).rows)
    target, seen = Target(engine, rows_agree=ROWS), []
    forward = engine.forward
    engine.forward = lambda *arguments, **options: seen.append(forward(*arguments, **options)) or seen[-1]
    handle, text = begin(target)
    plain = []
    while len(text) <= COUNT:
        text += target.verify([Window(handle)])[0].tokens
        plain.append(seen[-1][0])
    handle, _ = begin(target)
    done, turn = 1, 0
    while done < COUNT - 8:
        turn += 1
        [outcome] = target.verify([chain(handle, drafted(text, done, turn % 5, turn % 3))])
        for row, at in enumerate(range(done - 1, done - 1 + len(outcome.tokens))):
            assert torch.equal(seen[-1][row], plain[at]), (done, row)
        done += len(outcome.tokens)
    assert turn < done - 5, "some drafts were accepted"


@pytest.mark.parametrize("name", FEW)
def test_streams_that_join_leave_and_are_resumed_beside_others_write_what_they_write_alone(name):
    target = Target(engine_of(name), rows_agree=ROWS)
    texts = {seed: alone(target, PROMPT[seed:], seed) for seed in range(4)}
    running: dict[int, tuple[int, list[int]]] = {}
    finished, turn = set(), 0
    while len(finished) < 4:
        turn += 1
        if (seed := turn - 1) in texts:  # one more in every round
            running[seed] = begin(target, PROMPT[seed:], seed=seed)
        if turn == 7:  # cut off, and taken up again
            handle, text = running[2]
            target.close(handle)
            running[2] = begin(target, PROMPT[2:], text, seed=2)
        windows = [
            chain(handle, drafted(texts[seed], len(text), (turn + seed) % 4, seed % 2))
            for seed, (handle, text) in running.items()
        ]
        for seed, outcome in zip(list(running), target.verify(windows), strict=True):
            handle, text = running[seed]
            text += outcome.tokens
            if len(text) >= COUNT:
                assert text[:COUNT] == texts[seed]
                target.close(handle)
                del running[seed]
                finished.add(seed)
    assert target.kv_used == TRASH and target.kv_cached == 0


@pytest.mark.parametrize("name", ["Lfm2", "Qwen3_5", "Mamba", "Mamba2"])
def test_a_prompt_of_several_chunks_is_continued_as_by_transformers(name):
    model = model_of(name)
    prompt = [5 + 7 * i * i % 150 for i in range(CHUNK + 90)]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    engine = TransformersEngine(model, info(model), 4096)
    target = Target(engine, rows_agree=ROWS)
    seen = []
    forward = engine.forward
    engine.forward = lambda *arguments, **options: seen.append(forward(*arguments, **options)) or seen[-1]
    begin(target, prompt)
    assert len(seen) == 2
    torch.testing.assert_close(seen[-1][0], expected, atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("name", FEW)
def test_a_round_that_failed_half_way_is_done_again_with_the_same_result(name):
    engine = engine_of(name)
    target = Target(engine, rows_agree=ROWS)
    text = alone(target)
    handle, again = begin(target)
    again += target.verify([chain(handle, drafted(text, 1, 3, 1))])[0].tokens
    fails = engine.model.model.layers[-1] if hasattr(engine.model, "model") else engine.model.backbone.layers[-1]
    forward = fails.forward
    fails.forward = None
    with pytest.raises(TypeError):
        target.verify([chain(handle, drafted(text, len(again), 4, 1))])
    fails.forward = forward
    while len(again) < COUNT:
        again += target.verify([chain(handle, drafted(text, len(again), 2, 1))])[0].tokens
    assert again[:COUNT] == text


def test_a_text_whose_slots_moved_goes_on_with_its_state():
    name, prompts = "Qwen3_5", [PROMPT * 3, PROMPT[::-1] * 3, PROMPT[3:] * 4]
    roomy = Target(engine_of(name, 4096), rows_agree=ROWS)
    expected = [alone(roomy, prompt, count=298) for prompt in prompts]
    tight = Target(engine_of(name, TRASH + 3 * 512), rows_agree=ROWS)
    moved = []
    take = tight._kv._prefixes.take_moves
    tight._kv._prefixes.take_moves = lambda: moved.extend(found := take()) or found
    running = [begin(tight, prompt) for prompt in prompts]
    while len(running[0][1]) < 298:
        for handle, _ in running:
            tight.reserve(handle)
        outcomes = tight.verify([Window(handle) for handle, _ in running])
        for (_, text), outcome in zip(running, outcomes, strict=True):
            text += outcome.tokens
    assert moved and [text[:298] for _, text in running] == expected


def test_prompts_that_begin_alike_are_computed_anew():
    target = Target(engine_of("Lfm2"), rows_agree=ROWS)
    prompt = [5 + 7 * i % 150 for i in range(CHUNK + 20)]
    for _ in range(2):
        handle = target.open(prompt, Sampling(max_tokens=4))
        while (outcome := target.prefill(handle)) is None:
            pass
        assert outcome.reused == 0
        target.close(handle)
    assert target.kv_cached == 0


def test_windows_are_chains_and_no_longer_than_there_is_room_for_their_states():
    engine = engine_of("Lfm2")
    assert not Target(engine, rows_agree=ROWS).branches
    engine.recurrence.limit = 8 * 5
    target = Target(engine, rows_agree=ROWS)
    assert target.max_window == 4
    handles = [begin(target)[0] for _ in range(8)]
    with pytest.raises(PoolFull, match="room for 40"):
        begin(target)
    target.close(handles[0])
    begin(target)


def test_a_model_with_recurrent_layers_does_not_draft():
    with pytest.raises(ModelError, match="recurrent layers, which cannot draft a tree"):
        Draft(engine_of("Mamba2"))

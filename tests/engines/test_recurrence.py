"""Targets with recurrent layers: a state for each request, whose bits are those of plain decoding after any window."""

import dataclasses
import random

import pytest
import torch
from msgspec.structs import replace

from actors.engines.build import EngineOptions, build_target
from actors.engines.cache.kv_cache import TRASH
from actors.engines.cache.snapshots import BORDER
from actors.engines.decoder import configuration
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.drafts.draft import Draft
from actors.engines.drafts.recurrent import draft_on
from actors.engines.targets.selfcheck import ROWS, self_check
from actors.engines.targets.target import Target
from actors.engines.weights.dtypes import draft_dtype
from actors.engines.weights.loading import checkpoint_of
from actors.models import Expansion, Leaf, Window
from protocols.errors import ConfigError, PoolFull
from protocols.messages import Sampling
from tests.engines.mirrored_texts import assert_same
from tests.engines.test_families import VOCAB, model_of
from tests.engines.tiny import info
from tests.training.test_distill import words

KINDS = ["Lfm2", "Qwen3_5", "GraniteMoeHybrid", "Mamba"]  # one of each
BY_TORCH = "Qwen3_5 by torch"  # on a CPU where numba compiles nothing
PROMPT = [5 + 7 * i % 150 for i in range(21)]
COUNT = 40
SAMPLING = Sampling(max_tokens=300, ignore_eos=True, temperature=1.0, seed=3)


def engine_of(name: str, slots: int = 4096) -> CompiledEngine | GpuEngine:
    torch.set_num_threads(1)
    model = model_of(name.removesuffix(" by torch"))
    if name == BY_TORCH:
        return GpuEngine(model, dataclasses.replace(info(model), max_context=slots), slots, plain=True)
    return CompiledEngine(model, info(model), slots)


def begin(target: Target, prompt=PROMPT, generated=(), seed: int = 3) -> tuple[int, list[int]]:
    handle = target.open(prompt, replace(SAMPLING, seed=seed), generated)
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


def tree(handle: int, text: list[int], done: int, depth: int) -> Window:
    """The text's next tokens, each behind a wrong sibling with a child of its own, and in front of another."""
    tokens: list[int] = []
    parents: list[int] = []
    node = -1
    for token in text[done : done + depth]:
        right = len(tokens) + 2
        tokens += [(token + 1) % VOCAB, token, token, (token + 2) % VOCAB]
        parents += [node, right - 2, node, node]
        node = right
    return Window(handle, tokens, parents)


@pytest.mark.parametrize("name", [*KINDS, BY_TORCH])
def test_windows_of_any_length_right_or_wrong_change_no_bit_of_any_logit(name):
    engine = engine_of(name)
    assert set(ROWS) <= set(self_check(engine).rows)
    target, seen = Target(engine, rows_agree=ROWS), []
    forward = engine.forward
    engine.forward = lambda *arguments, **options: seen.append(forward(*arguments, **options)) or seen[-1]
    engine.pick = lambda *_: None
    handle, text = begin(target)
    plain = []
    while len(text) <= COUNT:
        text += target.verify([Window(handle)])[0].tokens
        plain.append(seen[-1][0].clone())
    handle, _ = begin(target)
    assert target.branches
    done, turn = 1, 0
    while done < COUNT - 8:
        turn += 1
        right = drafted(text, done, turn % 5, turn % 3)
        [outcome] = target.verify([chain(handle, right) if turn % 2 else tree(handle, text, done, turn % 4)])
        for row, at in zip((0, *(1 + node for node in outcome.path)), range(done - 1, COUNT), strict=False):
            assert torch.equal(seen[-1][row], plain[at]), (done, row)
        done += len(outcome.tokens)
    assert turn < done - 5, "some drafts were accepted"


@pytest.mark.parametrize("name", KINDS)
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
            if turn % 3
            else tree(handle, texts[seed], len(text), seed)
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
    assert target.kv_used == 0


@pytest.mark.parametrize("name", KINDS)
def test_32_streams_in_one_batch_write_what_they_write_alone(name):
    target = Target(engine_of(name, 16384), rows_agree=ROWS)
    texts = [alone(target, PROMPT[seed % 9 :], seed, 12) for seed in range(32)]
    running = [begin(target, PROMPT[seed % 9 :], seed=seed) for seed in range(32)]
    for turn in range(11):
        windows = [
            tree(handle, whole, len(text), (turn + seed) % 3)
            for seed, ((handle, text), whole) in enumerate(zip(running, texts, strict=True))
        ]
        for (_, text), outcome in zip(running, target.verify(windows), strict=True):
            text += outcome.tokens
    assert [text[:12] for _, text in running] == texts


@pytest.mark.parametrize("name", KINDS)
def test_a_round_that_failed_behind_its_forward_is_done_again_with_the_same_result(name):
    engine = engine_of(name)
    target = Target(engine, rows_agree=ROWS)
    text = alone(target)
    for once in ("forward", "pick"):
        compute = getattr(engine, once)
        setattr(engine, once, lambda *told, compute=compute: [compute(*told), compute(*told)][1])
    handle, again = begin(target)
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


@pytest.mark.parametrize("name", [BY_TORCH, *KINDS])
def test_prompts_go_on_behind_what_earlier_ones_have_computed_with_the_same_text(name):
    """From a border, from where two prompts part, and behind an answer."""
    fresh, target = (Target(engine_of(name), rows_agree=ROWS) for _ in range(2))
    long = [5 + 7 * i * i % 150 for i in range(BORDER + 290)]
    prompts = [long, [*long[:780], 3, 4], [*long[:780], 9, 3]]
    reused, texts = [], []
    for prompt in prompts:
        handle = target.open(prompt, SAMPLING)
        while (outcome := target.prefill(handle)) is None:
            pass
        reused.append(outcome.reused)
        texts.append(list(outcome.tokens))
        while len(texts[-1]) < COUNT:
            texts[-1] += target.verify([tree(handle, texts[-1], 0, 1)])[0].tokens
        target.close(handle)
        assert texts[-1][:COUNT] == alone(fresh, prompt, count=COUNT)
    assert reused == ([0, 512, 768] if name == BY_TORCH else [0, 512, 780])
    if name != BY_TORCH:
        whole = [*prompts[-1], *texts[-1]]
        handle = target.open([*whole, 7, 8, 9], SAMPLING)
        outcome = target.prefill(handle)
        assert outcome.reused == len(whole) - 1
        assert outcome.tokens == alone(fresh, [*whole, 7, 8, 9], count=1)


def test_snapshots_give_way_to_requests():
    engine = engine_of("Lfm2")
    engine.recurrence.limit = 3
    target = Target(engine, rows_agree=ROWS)
    for start in (0, 50, 100):
        target.close(begin(target, [*PROMPT[:9], start])[0])
    handles = [begin(target, [seed, 9])[0] for seed in range(2)]
    third = target.open([*PROMPT[:9], 100, 3], SAMPLING)
    assert target.prefill(third).reused == 0
    for handle in handles:
        target.close(handle)


def test_a_request_waits_while_there_is_no_room_for_its_state():
    engine = engine_of("Lfm2")
    engine.recurrence.limit = 8
    target = Target(engine, rows_agree=ROWS)
    handles = [begin(target)[0] for _ in range(8)]
    with pytest.raises(PoolFull, match="states of 8 requests"):
        begin(target)
    target.close(handles[0])
    begin(target)


def test_without_compiled_layers_torch_computes_recurrent_ones(tmp_path, monkeypatch):
    model_of("Lfm2").save_pretrained(tmp_path)
    words().save_pretrained(tmp_path)
    target, _ = build_target(str(tmp_path), EngineOptions(kv_tokens=2048))
    expected = alone(target)
    monkeypatch.setattr(configuration, "compiled_kernels", lambda: None)
    target, _ = build_target(str(tmp_path), EngineOptions(kv_tokens=2048))
    assert isinstance(target.engine, GpuEngine) and alone(target) == expected
    config = checkpoint_of(str(tmp_path)).known_config()
    assert draft_dtype("auto", target.engine.device, config) == (torch.float32, False)
    with pytest.raises(ConfigError, match=r"int8 draft needs .* duoactor\[jit\]"):
        draft_dtype("int8", target.engine.device, config)


def fresh(draft: Draft, text: list[int], sampling: Sampling) -> Expansion:
    handle = draft.open(text, len(text), sampling)
    [found] = draft.expand([Leaf(handle, 0, (), is_root=True)])
    draft.close(handle)
    return found


@pytest.mark.parametrize("name", [BY_TORCH, *KINDS])
def test_a_draft_with_recurrent_layers_expands_nodes_as_if_they_were_committed(name):
    draft, other = draft_on(engine_of(name)), draft_on(engine_of(name))
    chance, text = random.Random(5), [*PROMPT]
    handle = draft.open(text, len(text), SAMPLING)
    for turn in range(8):
        if turn != 3:
            [found] = draft.expand([Leaf(handle, 0, (), is_root=True)])
            assert_same(found, fresh(other, text, SAMPLING))
            pending = draft._mirrors[handle].state.pending
            assert not (len(pending) if name == BY_TORCH else pending.shape[1]), "replayed in every later step"
        path: list[int] = []
        slots: list[int] = []
        for _ in range(chance.randrange(1, 4)):
            path.append(chance.randrange(VOCAB))
            wrong = Leaf(handle, (path[-1] + 1) % VOCAB, tuple(slots))
            found, beside = draft.expand([Leaf(handle, path[-1], tuple(slots)), wrong])
            assert_same(found, fresh(other, [*text, *path], SAMPLING))
            draft.release(handle, [beside.slot])
            slots.append(found.slot)
        kept = chance.randrange(len(path) + 1)
        tokens = [*path[:kept], *[chance.randrange(VOCAB)] * chance.randrange(kept == 0, 3)]
        where = [*slots[:kept], *[-1] * (len(tokens) - kept)]
        draft.commit(handle, tokens, where)
        draft.release(handle, slots)
        text += tokens
        if turn == 5:  # another lease of the same text, and behind it one that has lost its end
            draft.reopen(handle, text, len(text), SAMPLING)
        if turn == 6:
            text = text[:-9]
            draft.reopen(handle, text, len(text), SAMPLING)
    assert not draft._mirrors[handle].records
    named = [ids for some in other.along(PROMPT, [7, 8, 9], SAMPLING) for ids, _ in some]
    assert [tuple(ids) for ids in named] == [
        fresh(other, [*PROMPT, *(7, 8)[:count]], SAMPLING).tokens for count in range(3)
    ]

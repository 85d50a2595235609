import random

import pytest
import torch

from actors.engines.drafts.draft import Draft
from actors.engines.drafts.ranking import rank
from actors.engines.sampling.noise import gumbel
from actors.engines.sampling.sampler import SamplerState
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Leaf, Window
from protocols.messages import Sampling
from tests.engines.mirrored_texts import SAMPLINGS, assert_same, engine_of, fresh, one_thread, root, some_prompt  # noqa: F401
from tests.engines.tiny import VOCAB


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_tree_node_expands_as_if_its_path_were_committed(sampling):
    engine, other = engine_of(), engine_of()
    draft = Draft(engine)
    prompt = some_prompt(300)
    handle = draft.open(prompt, 300, sampling)
    [top] = draft.expand([root(handle)])
    assert top.slot == -1
    assert_same(top, fresh(other, prompt, 300, sampling))
    a, b = draft.expand([Leaf(handle, 5, ()), Leaf(handle, 9, ())])
    aa, ab, ba = draft.expand([Leaf(handle, 7, (a.slot,)), Leaf(handle, 5, (a.slot,)), Leaf(handle, 7, (b.slot,))])
    [aba] = draft.expand([Leaf(handle, 11, (a.slot, ab.slot))])
    for path, found in (([5], a), ([9], b), ([5, 7], aa), ([5, 5], ab), ([9, 7], ba), ([5, 5, 11], aba)):
        assert_same(found, fresh(other, prompt + path, 300, sampling))
    assert len({x.slot for x in (a, b, aa, ab, ba, aba)}) == 6


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_after_any_commits_the_mirror_equals_a_fresh_one(sampling):
    draft, other = Draft(engine_of()), engine_of()
    chance = random.Random(5)
    text = some_prompt(40)
    handle = draft.open(text, 40, sampling)
    for _ in range(12):
        [top] = draft.expand([root(handle)])
        assert_same(top, fresh(other, text, 40, sampling))
        path, slots = [], []
        for _ in range(chance.randrange(4)):
            token = chance.randrange(VOCAB)
            [found] = draft.expand([Leaf(handle, token, tuple(slots))])
            path.append(token)
            slots.append(found.slot)
        held = list(slots)
        kept = chance.randrange(len(path) + 1)
        tokens = path[:kept] + [chance.randrange(VOCAB)] * chance.randrange(3)
        where = slots[:kept] + [-1] * (len(tokens) - kept)
        if where and chance.random() < 0.3:  # a gap: what lies behind it must be computed again
            where[0] = -1
        draft.commit(handle, tokens, where)
        draft.release(handle, held)  # those of committed tokens were freed already
        text = text + tokens
    mirror = draft._mirrors[handle]
    assert sorted(mirror.free) == list(range(draft.scratch_slots))
    draft.close(handle)
    assert draft._allocator.used == 0


def test_survivors_below_the_new_root_stay_valid():
    draft, other = Draft(engine_of()), engine_of()
    prompt = some_prompt(70)
    handle = draft.open(prompt, 70, SAMPLINGS[0])
    draft.expand([root(handle)])
    [a] = draft.expand([Leaf(handle, 5, ())])
    [b] = draft.expand([Leaf(handle, 6, (a.slot,))])
    draft.commit(handle, [5], [a.slot])
    [c] = draft.expand([Leaf(handle, 7, (b.slot,))])
    assert_same(c, fresh(other, [*prompt, 5, 6, 7], 70, SAMPLINGS[0]))
    [again] = draft.expand([root(handle)])  # the root was computed as a node
    assert_same(again, fresh(other, [*prompt, 5], 70, SAMPLINGS[0]))


def test_a_step_looks_at_the_text_and_at_scratch_blocks_in_use_only(monkeypatch):
    engine, other, spans = engine_of(), engine_of(), []
    forward = engine.forward

    def watched(batch, select=None):
        spans.append([(segment.base, segment.span) for segment in batch.segments])
        return forward(batch, select)

    monkeypatch.setattr(engine, "forward", watched)
    monkeypatch.setattr(engine, "pick", lambda *_: None)
    draft = Draft(engine)
    prompt, path, slots = some_prompt(70), [], []
    handle = draft.open(prompt, 70, SAMPLINGS[0])
    draft.expand([root(handle)])
    for token in some_prompt(70, seed=1):
        [found] = draft.expand([Leaf(handle, token, tuple(slots))])
        path.append(token)
        slots.append(found.slot)
    assert spans == [[(128, 128)]] + [[(64, 192)]] * 64 + [[(0, 256)]] * 6
    assert_same(found, fresh(other, prompt + path, 70, SAMPLINGS[0]))
    [short] = draft.expand([Leaf(handle, 5, (slots[0],))])
    assert_same(short, fresh(other, [*prompt, path[0], 5], 70, SAMPLINGS[0]))
    draft.release(handle, slots[64:])
    [back] = draft.expand([Leaf(handle, 6, tuple(slots[:2]))])
    assert spans[-1] == [(0, 256)], "its own slot is in the far block"
    assert_same(back, fresh(other, [*prompt, *path[:2], 6], 70, SAMPLINGS[0]))


def test_several_requests_grow_in_one_batch():
    draft, other = Draft(engine_of()), engine_of()
    prompts = [some_prompt(n, n) for n in (10, 90, 280)]
    settings = [SAMPLINGS[0], SAMPLINGS[1], SAMPLINGS[4]]
    handles = [draft.open(p, len(p), s) for p, s in zip(prompts, settings, strict=True)]
    [first] = draft.expand([root(handles[0])])
    leaves = [root(handles[2]), Leaf(handles[0], 4, ()), root(handles[1]), Leaf(handles[0], 8, ())]
    third, four, second, eight = draft.expand(leaves)
    assert_same(first, fresh(other, prompts[0], 10, settings[0]))
    assert_same(second, fresh(other, prompts[1], 90, settings[1]))
    assert_same(third, fresh(other, prompts[2], 280, settings[2]))
    assert_same(four, fresh(other, [*prompts[0], 4], 10, settings[0]))
    assert_same(eight, fresh(other, [*prompts[0], 8], 10, settings[0]))


@pytest.mark.parametrize(("sampling", "least"), [(SAMPLINGS[0], 1.0), (SAMPLINGS[3], 1.0), (SAMPLINGS[1], 0.97),
                                                 (SAMPLINGS[2], 0.95), (SAMPLINGS[4], 0.95)])  # fmt: skip
def test_a_target_accepts_nearly_all_that_it_drafted_itself(sampling, least):
    """Shared noise: the same model at the same position picks the same token, sampled or not."""
    draft, target = Draft(engine_of()), Target(engine_of(), rows_agree=ROWS)
    drafted = accepted = 0
    for seed in range(3):
        prompt = some_prompt(50, seed)
        goal = target.open(prompt, sampling)
        handle = draft.open(prompt, 50, sampling)
        while (outcome := target.prefill(goal)) is None:
            pass
        draft.commit(handle, outcome.tokens, [-1])
        for _ in range(12):
            tokens = [draft.expand([root(handle)])[0].tokens[0]]
            slots = []
            for _ in range(4):
                [found] = draft.expand([Leaf(handle, tokens[-1], tuple(slots))])
                slots.append(found.slot)
                tokens.append(found.tokens[0])
            [outcome] = target.verify([Window(goal, tokens, [-1, 0, 1, 2, 3])])
            accepted += len(outcome.path)
            drafted += min(5, len(outcome.path) + 1)  # up to and with the first that was refused
            where = [slots[i] if i < min(len(outcome.path), 4) else -1 for i in range(len(outcome.tokens))]
            draft.commit(handle, outcome.tokens, where)
            draft.release(handle, slots)
        target.close(goal)
        draft.close(handle)
    assert accepted >= least * drafted


def test_candidates_are_ranked_by_the_value_that_shared_noise_gives():
    class Row:
        path: tuple[int, ...] = ()

        def __init__(self, sampling, position):
            self.sampler, self.position = SamplerState(sampling, [1]), position

    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)) * 4
    rows = [Row(Sampling(), 4), Row(Sampling(temperature=0.5, seed=3), 5), Row(Sampling(temperature=1.0, seed=9), 6)]
    greedy, half, one = rank(logits, rows, 8)
    assert greedy[0] == logits[0].topk(8).indices.tolist()
    assert greedy[1] == pytest.approx(logits[0].softmax(-1).topk(8).values.tolist())
    for found, row, position, temperature, seed in ((half, 1, 5, 0.5, 3), (one, 2, 6, 1.0, 9)):
        perturbed = logits[row] / temperature + gumbel(seed, [position], 5000)[0]
        assert found[0][0] == int(perturbed.argmax())
        assert found[1] == sorted(found[1], reverse=True)
        assert sum(found[1]) <= 1.0001
    assert rank(logits[:1], rows[:1], 8)[0] == greedy


@pytest.mark.parametrize("chunk", [1, 16, 100, 1000])
def test_a_text_computed_in_chunks_is_the_text_computed_at_once(chunk):
    draft, other = Draft(engine_of()), engine_of()
    prompt = some_prompt(300)
    handle = draft.open(prompt, 300, SAMPLINGS[1])
    left = [draft.missing(handle)]
    while left[-1] > 3:
        draft.prefill(handle, min(chunk, left[-1] - 3))
        left.append(draft.missing(handle))
    assert left[0] == 299 and left[-1] == 3
    assert_same(draft.expand([root(handle)])[0], fresh(other, prompt, 300, SAMPLINGS[1]))
    assert draft.missing(handle) == 0


def test_a_verdict_between_two_chunks_loses_nothing():
    draft, other = Draft(engine_of()), engine_of()
    prompt = some_prompt(200)
    handle = draft.open(prompt, 200, SAMPLINGS[0])
    draft.prefill(handle, 120)
    draft.commit(handle, [5, 6], [-1, -1])
    assert draft.missing(handle) == 81
    assert_same(draft.expand([root(handle)])[0], fresh(other, [*prompt, 5, 6], 200, SAMPLINGS[0]))


@pytest.mark.parametrize("kept", [0, 1, 130, 200])
def test_a_mirror_turned_to_another_text_keeps_what_both_have_in_common(kept):
    draft, other = Draft(engine_of()), engine_of()
    prompt = some_prompt(200)
    handle = draft.open(prompt, 200, SAMPLINGS[0])
    draft.expand([root(handle)])
    draft.expand([Leaf(handle, 5, ())])
    changed = prompt[:kept] + some_prompt(20, seed=9) if kept else [VOCAB - 1, *some_prompt(100, seed=9)]
    draft.reopen(handle, changed, len(changed), SAMPLINGS[3])
    assert draft.missing(handle) == len(changed) - 1 - kept
    assert_same(draft.expand([root(handle)])[0], fresh(other, changed, len(changed), SAMPLINGS[3]))
    expanded = draft.expand([Leaf(handle, token, ()) for token in range(2, 34)])
    assert len({expansion.slot for expansion in expanded}) == 32  # the old tree's slots are free again

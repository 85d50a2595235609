"""What a draft model has no room, no token or no position for."""

import contextlib

import pytest

from actors.engines.drafts.draft import Draft
from actors.models import Leaf
from protocols.errors import CannotDraft, PoolFull
from protocols.messages import Sampling
from tests.engines.mirrored_texts import SAMPLINGS, assert_same, engine_of, fresh, one_thread, root, some_prompt  # noqa: F401
from tests.engines.tiny import VOCAB


def test_a_full_pool_and_full_scratch_say_so():
    draft = Draft(engine_of(slots=512))
    handle = draft.open(some_prompt(20), 20, Sampling(max_tokens=100))
    with pytest.raises(PoolFull):
        draft.open(some_prompt(100), 100, Sampling(max_tokens=300))
    draft.expand([root(handle)])
    for _ in range(4):
        draft.expand([Leaf(handle, token, ()) for token in range(32)])
    with pytest.raises(PoolFull, match="scratch"):
        draft.expand([Leaf(handle, 1, ())])
    with pytest.raises(PoolFull, match="outgrown"):
        draft.commit(handle, [1] * 200, [-1] * 200)
    draft.close(handle)
    draft.close(draft.open(some_prompt(100), 100, Sampling(max_tokens=250)))


def test_a_prompt_with_a_token_that_the_draft_lacks_cannot_be_drafted():
    draft = Draft(engine_of())
    with pytest.raises(CannotDraft, match="token 160 and draft model tiny knows 160"):
        draft.open([5, VOCAB, 7], 3, Sampling())
    draft.open([5, VOCAB - 1, 7], 3, Sampling())


def test_a_bias_on_a_token_that_the_draft_lacks_is_no_matter_for_it():
    draft, tokens = Draft(engine_of()), some_prompt(9)
    known, beyond = (7, 50.0), (VOCAB + 3, 50.0)
    handle = draft.open(tokens, 9, Sampling(logit_bias=(known, beyond)))
    told = draft.expand([root(handle)])[0]
    assert told.tokens[0] == 7
    assert_same(told, fresh(engine_of(), tokens, 9, Sampling(logit_bias=(known,))))
    draft.reopen(handle, tokens, 9, Sampling(logit_bias=(beyond,)))
    assert_same(draft.expand([root(handle)])[0], fresh(engine_of(), tokens, 9, Sampling()))


def test_a_committed_token_that_the_draft_lacks_ends_its_mirror_and_no_other():
    draft, other = Draft(engine_of()), engine_of()
    lost, kept = draft.open([5, 6], 2, Sampling()), draft.open([5, 6], 2, Sampling())
    draft.expand([root(lost), root(kept)])
    with pytest.raises(CannotDraft):
        draft.commit(lost, [9, VOCAB + 3], [-1, -1])
    draft.close(lost)
    draft.commit(kept, [9], [-1])
    assert_same(draft.expand([root(kept)])[0], fresh(other, [5, 6, 9], 2, Sampling()))


def test_a_text_longer_than_the_drafts_context_cannot_be_drafted():
    draft = Draft(engine_of())
    context = draft.info.max_context
    with pytest.raises(CannotDraft, match="513 tokens and the context of draft model tiny holds 512"):
        draft.open(some_prompt(context + 1), context + 1, Sampling())
    handle = draft.open(some_prompt(context - 1), context - 1, Sampling(max_tokens=100))
    draft.commit(handle, [5], [-1])
    with pytest.raises(CannotDraft):
        draft.commit(handle, [5], [-1])


def test_nothing_is_computed_beyond_the_drafts_context():
    draft = Draft(engine_of())
    context = draft.info.max_context
    handle = draft.open(some_prompt(context - 1), context - 1, Sampling(max_tokens=100))
    [top] = draft.expand([root(handle)])
    assert top.tokens
    [last] = draft.expand([Leaf(handle, 5, ())])
    assert last.tokens and last.slot >= 0
    [within, beyond] = draft.expand([Leaf(handle, 6, ()), Leaf(handle, 7, (last.slot,))])
    assert within.tokens and (beyond.slot, beyond.tokens) == (-1, ())
    assert draft.expand([Leaf(handle, 7, (last.slot,))])[0].tokens == ()


@pytest.mark.parametrize("blocked", [False, True])
def test_a_mirror_too_small_for_the_next_turn_grows_where_it_is_or_moves(blocked):
    draft, other = Draft(engine_of()), engine_of()
    prompt = some_prompt(100)
    handle = draft.open(prompt, 100, Sampling(max_tokens=1))
    draft.expand([root(handle)])
    if blocked:
        draft.open(some_prompt(50, seed=2), 50, Sampling(max_tokens=1))
    turn = [*prompt, *some_prompt(200, seed=1)]
    draft.reopen(handle, turn, 300, SAMPLINGS[0])
    assert draft.missing(handle) == 199
    assert_same(draft.expand([root(handle)])[0], fresh(other, turn, 300, SAMPLINGS[0]))


def test_a_mirror_that_finds_no_room_for_another_text_stays_what_it_was():
    draft, other = Draft(engine_of()), engine_of()
    prompt = some_prompt(100)
    handle = draft.open(prompt, 100, Sampling(max_tokens=1))
    draft.expand([root(handle)])
    with contextlib.suppress(PoolFull):
        while True:
            draft.open(some_prompt(50, seed=2), 50, Sampling(max_tokens=1))
    with pytest.raises(PoolFull):
        draft.reopen(handle, some_prompt(400, seed=1), 400, SAMPLINGS[0])
    assert_same(draft.expand([root(handle)])[0], fresh(other, prompt, 100, SAMPLINGS[0]))


def test_a_forward_that_fails_leaves_the_mirrors_as_they_were(monkeypatch):
    engine, other = engine_of(), engine_of()
    draft = Draft(engine)
    prompts = [some_prompt(50, 1), some_prompt(60, 2)]
    one, two = (draft.open(prompt, len(prompt), SAMPLINGS[0]) for prompt in prompts)
    draft.expand([root(one)])

    def broken(*arguments):
        raise RuntimeError("as asked")

    monkeypatch.setattr(engine, "forward", broken)
    monkeypatch.setattr(engine, "pick", broken)
    for _ in range(draft.scratch_slots):
        with pytest.raises(RuntimeError, match="as asked"):
            draft.expand([Leaf(one, 5, ()), Leaf(one, 6, ()), root(two)])
    monkeypatch.undo()
    five, _, top = draft.expand([Leaf(one, 5, ()), Leaf(one, 6, ()), root(two)])
    assert_same(five, fresh(other, [*prompts[0], 5], 50, SAMPLINGS[0]))
    assert_same(top, fresh(other, prompts[1], 60, SAMPLINGS[0]))

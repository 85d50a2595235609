"""Several draft steps in one call: what each finds is what it would have found alone."""

import math
import random

import pytest
from tiny import info, make

from actors.engines.backends.llama.compiler import compiled_kernels
from actors.engines.backends.llama.engine import LlamaEngine
from actors.engines.backends.transformers import TransformersEngine
from actors.engines.draft import SCRATCH, Draft
from actors.models import Ahead, Leaf
from actors.tree.calibration import _PLACES, Calibration
from protocols.messages import Sampling

pytestmark = pytest.mark.skipif(compiled_kernels() is None, reason="without numba each step is a call")
SURE = [1.0] * len(_PLACES)
SAMPLINGS = [
    Sampling(max_tokens=80),
    Sampling(max_tokens=80, temperature=1.0, seed=7),
    Sampling(max_tokens=80, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=1),
]


def some_text(length, seed=0):
    chance = random.Random(seed)
    return [chance.randrange(2, 150) for _ in range(length)]


def draft_of(family="qwen3"):
    model = make(family)
    return Draft(LlamaEngine(model, info(model), 2048, exact=False))


def root(handle, text):
    return Leaf(handle, text[-1], (), is_root=True)


def one_by_one(draft, leaf, steps):
    found, path = [], leaf.path
    for _ in range(steps):
        found += draft.expand([leaf])
        path = path if leaf.is_root else (*path, found[-1].slot)
        leaf = Leaf(leaf.handle, found[-1].tokens[0], path)
    return found


def assert_same(some, others):
    assert [one.tokens for one in some] == [one.tokens for one in others]
    assert [one.slot for one in some] == [one.slot for one in others]
    for one, other in zip(some, others, strict=True):
        assert one.probs == pytest.approx(other.probs, rel=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "filtered"])
def test_steps_in_one_call_find_what_each_finds_alone(sampling):
    draft, text = draft_of(), some_text(37)
    ahead, alone = (draft.open(text, len(text), sampling) for _ in range(2))
    found = draft.expand_ahead(root(ahead, text), Ahead(6, 1.0, 0.0, SURE))
    assert len(found) == 7
    assert_same(found, one_by_one(draft, root(alone, text), 7))
    for handle in (ahead, alone):
        draft.release(handle, [one.slot for one in found[1:]])
    second = found[0].tokens[1]
    [beside], [also] = draft.expand([Leaf(ahead, second, ())]), draft.expand([Leaf(alone, second, ())])
    leaves = (Leaf(ahead, beside.tokens[1], (beside.slot,)), Leaf(alone, also.tokens[1], (also.slot,)))
    assert_same(draft.expand_ahead(leaves[0], Ahead(4, 0.5, 0.0, SURE)), one_by_one(draft, leaves[1], 5))


def test_what_was_expanded_ahead_is_committed_like_any_node():
    draft, text, sampling = draft_of(), some_text(20), Sampling(max_tokens=60, temperature=0.7, seed=3)
    handle = draft.open(text, len(text), sampling)
    found = draft.expand_ahead(root(handle, text), Ahead(3, 1.0, 0.0, SURE))
    tokens = [one.tokens[0] for one in found[:3]]
    draft.commit(handle, tokens, [one.slot for one in found[1:]])
    text += tokens
    fresh = draft.expand([root(draft.open(text, 20, sampling), text)])
    [again] = draft.expand([root(handle, text)])
    assert again.tokens == fresh[0].tokens == found[3].tokens


@pytest.mark.parametrize("least", [0.02, 0.1, 0.4])
def test_steps_end_where_the_path_is_no_longer_likely_enough(least):
    draft, text, calibration = draft_of(), some_text(25), Calibration()
    chance = random.Random(5)
    for _ in range(300):
        calibration.observe((chance.random(),), hit=chance.choice([0, -1]))
    handle = draft.open(text, len(text), sampling := Sampling(max_tokens=60, temperature=0.3, seed=4))
    every = one_by_one(draft, root(draft.open(text, len(text), sampling), text), 12)
    path, wanted = 0.9, 1
    while wanted < 12 and (path := path * calibration.probability(0, every[wanted - 1].probs[0])) >= least:
        wanted += 1
    found = draft.expand_ahead(root(handle, text), Ahead(11, 0.9, least, calibration.first_choices()))
    assert abs(len(found) - wanted) <= 1  # between the bins the table is a straight line
    assert_same(found, every[: len(found)])


def test_first_choices_are_the_chances_where_the_bins_lie():
    calibration = Calibration()
    for _ in range(20):
        calibration.observe((0.7, 0.2), hit=0)
    expected = [calibration.probability(0, place) for place in _PLACES]
    assert calibration.first_choices() == pytest.approx(expected)
    assert math.log(_PLACES[-1] / (1 - _PLACES[-1])) == pytest.approx(6.0)


def test_slots_that_nothing_came_to_are_free():
    draft, text = draft_of(), some_text(12)
    handle = draft.open(text, len(text), Sampling(max_tokens=20))
    for _ in range(3):
        found = draft.expand_ahead(root(handle, text), Ahead(SCRATCH, 1.0, 0.0, SURE))
        assert len(found) == SCRATCH + 1
        draft.release(handle, [one.slot for one in found[1:]])
        [only] = draft.expand_ahead(root(handle, text), Ahead(SCRATCH, 1.0, 2.0, SURE))
        assert only.slot == -1


@pytest.mark.parametrize(
    ("sampling", "length", "engine"),
    [
        (Sampling(max_tokens=20, presence_penalty=0.5), 12, LlamaEngine),
        (Sampling(max_tokens=20), 90, LlamaEngine),
        (Sampling(max_tokens=20), 12, TransformersEngine),
    ],
    ids=["penalties", "a prompt to be read", "another engine"],
)
def test_where_one_call_cannot_it_makes_one_step(sampling, length, engine):
    model = make("llama")
    draft = Draft(engine(model, info(model), 1024, **({"exact": False} if engine is LlamaEngine else {})))
    text = some_text(length)
    handle, alone = (draft.open(text, length, sampling) for _ in range(2))
    assert_same(draft.expand_ahead(root(handle, text), Ahead(5, 1.0, 0.0, SURE)), draft.expand([root(alone, text)]))

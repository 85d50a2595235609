"""EAGLE-3 heads propose what the published forward does, wherever a text comes from."""

import pytest
import torch

from actors.engines.drafts.replay import replay_draft
from actors.engines.heads.draft import HeadReplay
from actors.engines.heads.eagle3 import Eagle3, convention_of
from actors.models import Leaf, Window
from actors.records import LoggedRequest
from protocols.errors import ModelError
from protocols.messages import Sampling
from tests.engines.heads.published import (
    EAGLE3,
    HIDDEN,
    SPECULATORS,
    Pair,
    by_torch,
    eagle3_reference,
    eagle3_weights,
    fused,
)
from tests.engines.mirrored_texts import some_prompt
from tests.engines.tiny import VOCAB, make

GREEDY = Sampling(max_tokens=64)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


LAYOUTS = {
    "SafeAILab": (EAGLE3, {}),
    "SpecForge": (EAGLE3 | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 1, 0]}}, {}),
    "whole vocabulary and embedding": (EAGLE3, {"head_vocab": VOCAB, "embedding": True}),
    "speculators": (SPECULATORS | {"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [0, 2, 1]},
                    {"prefix": "layers.0"}),
    "EAGLE 3.1": (SPECULATORS | {"norm_output": True}, {"prefix": "layers.0"}),
    "SpecForge without the last norm": (EAGLE3 | {"norm_output": False}, {}),
}  # fmt: skip


def pair_of(config, options, target=fused):
    weights = eagle3_weights(**options)
    pair = Pair(target(make("llama")), make("llama"), lambda trunk: Eagle3(config, weights, trunk))
    pair.weights, pair.prefix = weights, options.get("prefix", "midlayer")
    return pair


def expected(pair, text, path):
    taps = pair.head.convention.taps
    states = pair.tapped(text[:-1])
    tapped = torch.cat([states[layer][0] for layer in taps], 1)
    table = pair.weights.get("embed_tokens.weight", pair.model.get_input_embeddings().weight.detach())
    embedded = table[torch.tensor([*text[1:], *path])]
    found = pair.head.convention
    return eagle3_reference(pair.weights, embedded, tapped, len(path), found.norm_before_residual,
                            found.recycles_normed, found.norms_logits, pair.prefix)  # fmt: skip


def assert_proposes(found, logits):
    """As at temperature 0: the likeliest tokens with their probabilities."""
    best, ids = logits.softmax(-1).topk(len(found.tokens))
    assert found.probs == pytest.approx(best.tolist(), abs=2e-4)
    for token, place, probability in zip(found.tokens, ids.tolist(), best.tolist(), strict=True):
        assert token == place or float(logits.softmax(-1)[token]) == pytest.approx(probability, abs=2e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_proposals_are_those_of_the_published_forward(layout):
    pair = pair_of(*LAYOUTS[layout])
    seen = 0
    for text, path, found in pair.rounds(*pair.begin(some_prompt(30), GREEDY), 6):
        assert_proposes(found, expected(pair, text, path))
        seen += len(path)
    assert seen > 12


@pytest.mark.parametrize("target", [fused, by_torch])
def test_several_streams_and_a_resumed_one_draft_as_alone(target):
    pair = pair_of(EAGLE3, {}, target)
    begun = [
        pair.begin(some_prompt(30), GREEDY),
        pair.begin(some_prompt(90, 1), GREEDY),
        pair.begin(some_prompt(20, 2), GREEDY, some_prompt(11, 5)),
    ]
    turns = [pair.rounds(*one, 4) for one in begun]
    for _ in range(14):
        for turn in turns:
            if (step := next(turn, None)) is not None:
                text, path, found = step
                assert_proposes(found, expected(pair, text, path))


def test_leaves_of_several_streams_share_a_step():
    from actors.models import Leaf

    pair = pair_of(EAGLE3, {})
    begun = [pair.begin(some_prompt(length, length), GREEDY) for length in (10, 70, 300)]
    tops = pair.draft.expand([Leaf(mirror, text[-1], (), is_root=True) for _, mirror, text in begun])
    leaves = [Leaf(mirror, top.tokens[0], ()) for (_, mirror, _), top in zip(begun, tops, strict=True)]
    for (_, _, text), top, below in zip(begun, tops, pair.draft.expand(leaves), strict=True):
        assert_proposes(top, expected(pair, text, []))
        assert_proposes(below, expected(pair, text, [top.tokens[0]]))


def test_the_next_turn_of_a_chat_goes_on_from_what_the_head_kept():
    pair = pair_of(EAGLE3, {})
    handle, mirror, begun = pair.begin(some_prompt(200), GREEDY)
    known = [step[0] for step in pair.rounds(handle, mirror, begun, 4)][-1]
    pair.target.close(handle)
    handle, mirror, text = pair.begin([*known, 7, 8, 9], GREEDY, mirror=mirror)
    position = pair.draft.states._unread[handle].start
    assert position > 150, "the target computed its beginning before"
    kept = pair.draft._mirrors[mirror]
    assert pair.draft.missing(mirror) < len(text) - 150
    assert kept.known[1:150].all()
    for _, _, found in pair.rounds(handle, mirror, text, 3):
        assert found.tokens


def test_what_was_never_computed_is_not_seen():
    """A prefix that an earlier request left in the target's cache has no states: the head drafts from the rest."""
    pair = pair_of(EAGLE3, {})
    prompt = some_prompt(200)
    handle, _, _ = pair.begin(prompt, GREEDY)
    pair.target.close(handle)
    handle, mirror, text = pair.begin([*prompt, 5, 6], GREEDY)
    first = pair.draft.states._unread[handle].start
    [top] = pair.draft.expand([root_of(mirror, text)])
    states = pair.tapped(text[:-1])
    tapped = torch.cat([states[layer][0] for layer in pair.head.taps], 1)[first:]
    embedded = pair.model.get_input_embeddings().weight.detach()[torch.tensor(text[first + 1 :])]
    assert_proposes(top, eagle3_reference(pair.weights, embedded, tapped, 0))


def root_of(mirror, text):
    from actors.models import Leaf

    return Leaf(mirror, text[-1], (), is_root=True)


def test_layers_are_read_by_whose_configuration_names_them():
    assert convention_of(EAGLE3, 32).taps == (2, 16, 29)
    assert convention_of(EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, 36).taps == (2, 18, 33)
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}}
    assert convention_of(EAGLE3 | nested, 36).taps == (2, 18, 33)
    assert convention_of(EAGLE3 | {"eagle_config": {"use_aux_hidden_state": False}}, 36).taps == (36,)


@pytest.mark.parametrize(
    ("config", "options", "sentence"),
    [
        (EAGLE3 | {"vocab_size": 99}, {}, "knows 99 tokens and the target 160"),
        (EAGLE3, {"taps": 6}, "reads states of 128 numbers and the target's have 64"),
        (EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [2, 9, 20]}, {}, "reads layer 20 and the target has 3"),
        (EAGLE3 | {"parallel_drafting": True}, {}, "drafts in parallel and has no mask_hidden"),
        (EAGLE3 | {"parallel_drafting": True, "ptd_token_id": 9}, {}, "no mask_hidden"),
    ],
)
def test_a_head_of_another_target_is_refused_with_what_differs(config, options, sentence):
    with pytest.raises(ModelError, match=sentence):
        Eagle3(config, eagle3_weights(**options), fused(make("llama")).engine.trunk())


def test_the_state_behind_the_last_norm_is_read_where_no_others_are():
    config = EAGLE3 | {"eagle_config": {"use_aux_hidden_state": False}}
    weights = eagle3_weights(taps=1)
    pair = Pair(fused(make("llama")), make("llama"), lambda trunk: Eagle3(config, weights, trunk))
    assert pair.head.width == HIDDEN
    embedded = pair.model.get_input_embeddings().weight.detach()
    for text, path, found in pair.rounds(*pair.begin(some_prompt(20), GREEDY), 2):
        last = pair.tapped(text[:-1])[-1][0]
        rows = embedded[torch.tensor([*text[1:], *path])]
        assert_proposes(found, eagle3_reference(weights, rows, last, len(path)))


@pytest.mark.parametrize("prompt", [9, 300])
def test_a_replay_names_the_ranks_that_the_head_had_while_the_target_wrote(prompt):
    sampling = Sampling(max_tokens=64, temperature=1.0, seed=5)
    pair = pair_of(*LAYOUTS["whole vocabulary and embedding"])
    handle, mirror, text = pair.begin(some_prompt(prompt), sampling)
    ranks = [0]  # the first token comes with the prompt, and the head names none
    for _ in range(30):
        [found] = pair.draft.expand([Leaf(mirror, text[-1], (), is_root=True)])
        [outcome] = pair.target.verify([Window(handle)])
        [token] = outcome.tokens
        ranks.append(found.tokens.index(token) + 1 if token in found.tokens else 0)
        pair.draft.commit(mirror, [token], [-1])
        text.append(token)
    request = LoggedRequest(prompt=tuple(text[:prompt]), text=tuple(text[prompt:]), sampling=sampling)
    [replayed] = replay_draft(HeadReplay(pair.draft, pair.target), [request])
    assert replayed.tolist()[1:] == ranks[1:]
    assert sum(rank > 0 for rank in ranks) > 3

import subprocess
import sys

import pytest

from actors.datastore import build
from actors.draft_timing import measure_draft
from actors.drafter.proposer import build_proposer_draft
from actors.models import Leaf
from protocols.errors import ConfigError
from protocols.messages import Sampling

TEXT = [5, 6, 7, 8, 9, 10, 11, 5, 6]


def opened(name, text=TEXT):
    draft = build_proposer_draft(name)
    return draft, draft.open(text, len(text), Sampling())


def grown(draft, handle, root, depth):
    """The chain of first candidates below the root: (tokens, slots)."""
    [expansion] = draft.expand([Leaf(handle, root, (), is_root=True)])
    assert expansion.slot == -1
    tokens, slots = [], []
    while expansion.tokens and len(tokens) < depth:
        tokens.append(expansion.tokens[0])
        [expansion] = draft.expand([Leaf(handle, tokens[-1], tuple(slots))])
        slots.append(expansion.slot)
    return tokens, slots


@pytest.mark.parametrize("name", ["pld", "sam"])
def test_a_proposer_drafts_what_followed_the_same_tokens_before(name):
    draft, handle = opened(name)
    tokens, slots = grown(draft, handle, 6, 4)
    assert tokens == [7, 8, 9, 10]
    assert len(set(slots)) == 4


def test_what_survives_a_verdict_is_gone_on_with():
    draft, handle = opened("sam")
    tokens, slots = grown(draft, handle, 6, 4)
    draft.commit(handle, tokens[:2], slots[:2])
    [expansion] = draft.expand([Leaf(handle, 11, tuple(slots[2:]))])
    assert expansion.tokens == (5,)
    assert 0.0 < expansion.probs[0] <= 1.0


def test_below_a_token_it_did_not_propose_it_has_nothing_to_say():
    draft, handle = opened("sam")
    [expansion] = draft.expand([Leaf(handle, 40, ())])
    assert (expansion.tokens, expansion.probs) == ((), ())
    [below] = draft.expand([Leaf(handle, 7, (expansion.slot,))])
    assert below.tokens == ()


def test_slots_are_used_again_once_released():
    draft, handle = opened("pld")
    _, slots = grown(draft, handle, 6, 4)
    draft.release(handle, slots[2:])
    [expansion] = draft.expand([Leaf(handle, 9, tuple(slots[:2]))])
    assert expansion.slot in slots[2:]
    draft.close(handle)


def test_a_datastore_gives_branches_best_first(tmp_path):
    build(tmp_path, [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]], 16, "digest")
    draft, handle = opened(f"rest:{tmp_path}", [9, 1, 2])
    assert (draft.info.vocab_size, draft.info.tokenizer_digest) == (16, "digest")
    [expansion] = draft.expand([Leaf(handle, 2, (), is_root=True)])
    assert expansion.tokens == (3, 6)
    assert expansion.probs[0] > expansion.probs[1]
    [below] = draft.expand([Leaf(handle, 3, ())])
    assert set(below.tokens) == {4, 5}


@pytest.mark.parametrize("name", ["pld", "sam"])
def test_a_long_text_is_read_in_pieces(name):
    text = TEXT * 50
    draft, handle = opened(name, text)
    whole, other = opened(name, text)
    assert draft.missing(handle) == len(text) - 1
    draft.prefill(handle, 100)
    assert draft.missing(handle) == len(text) - 101
    draft.commit(handle, [7], [-1])
    whole.commit(other, [7], [-1])
    assert grown(draft, handle, 7, 8)[0] == grown(whole, other, 7, 8)[0]
    assert draft.missing(handle) == 0


@pytest.mark.parametrize("text", [[*TEXT, 7, 8], [5, 6, 20, 21, 5, 6], TEXT[:-2]], ids=["longer", "another", "shorter"])
def test_a_mirror_of_another_text_says_what_a_fresh_one_says(text):
    draft, handle = opened("sam")
    grown(draft, handle, 6, 4)
    draft.reopen(handle, text, len(text), Sampling())
    fresh, other = opened("sam", text)
    assert grown(draft, handle, text[-1], 4)[0] == grown(fresh, other, text[-1], 4)[0]


def test_a_proposers_steps_can_be_measured_like_a_models():
    draft, _ = opened("pld")
    assert all(0 < us < 1e5 for us in measure_draft(draft).values())


def test_an_unknown_proposer_is_refused_with_a_sentence():
    for name in ("rest:", "plt", "rest"):
        with pytest.raises(ConfigError, match=r"use pld, sam or rest:DIR"):
            build_proposer_draft(name)
    with pytest.raises(ConfigError, match="there is no datastore at"):
        build_proposer_draft("rest:/nowhere")


def test_a_drafter_without_a_model_needs_no_torch():
    program = (
        "import sys, actors.drafter.start, actors.drafter.loop, actors.draft_timing\n"
        "from actors.settings import DrafterSettings\n"
        "from actors.drafter.start import load_draft\n"
        "load_draft(DrafterSettings(draft='sam'))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

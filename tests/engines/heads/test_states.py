"""What a target keeps of the rows that it commits, for draft heads: the states that transformers' own model has."""

from functools import partial

import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.test_target import begin, some_prompt
from tests.engines.tiny import info, make

LAYERS = (0, 2, 3)  # the last is what leaves the model's three layers


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def expected(family, text):
    """What enters the layers, of transformers' own model: (tokens, states side by side). The last is normed there."""
    with torch.inference_mode():
        found = make(family)(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.cat([found[layer][0] for layer in LAYERS], 1)


def normed(target, states):
    hidden = target.engine.trunk().hidden
    return torch.cat([states[:, :-hidden], target.engine.trunk().norm(states[:, -hidden:])], 1)


def target_of(family, engine):
    model = make(family)
    kinds = {"by torch": partial(GpuEngine, plain=True), "fused": CompiledEngine}
    target = Target(kinds[engine](model, info(model), 2048))
    return target, target.keep_states(LAYERS)


EVERYWHERE = pytest.mark.parametrize(
    ("family", "engine"),
    [("llama", "by torch"), ("gemma3", "by torch"), ("llama-tied", "fused"), ("qwen3", "fused"), ("gemma3", "fused")],
)


@EVERYWHERE
def test_states_of_committed_rows_are_those_of_the_text(family, engine):
    target, states = target_of(family, engine)
    prompt = some_prompt(150)
    handle, tokens = begin(target, prompt, Sampling(max_tokens=64))
    text, parts, at = [*prompt, *tokens], [], 0
    for turn in range(6):
        wrong = (tokens[-1] + 1 + turn) % 100
        [outcome] = target.verify([Window(handle, [wrong, wrong + 1, wrong + 2], [-1, -1, 0])])
        if turn % 2:  # what is read late is all there
            position, found = states.take(handle)
            assert position == at
            parts.append(found)
            at += len(found)
        tokens = outcome.tokens
        text += tokens
    whole = torch.cat(parts)
    assert len(whole) == len(text) - 1
    torch.testing.assert_close(normed(target, whole), expected(family, text[:-1]), rtol=1e-3, atol=1e-3)


@EVERYWHERE
def test_accepted_branches_have_their_own_states(family, engine):
    target, states = target_of(family, engine)
    prompt = some_prompt(20)
    plain, first = begin(target, prompt, Sampling(max_tokens=64))
    truth = [*first]
    while len(truth) < 5:
        truth += target.verify([Window(plain)])[0].tokens
    other, _ = begin(target, prompt, Sampling(max_tokens=64))
    mine, _ = begin(target, prompt, Sampling(max_tokens=64))
    for handle in (other, mine):
        states.take(handle)
    a, b = truth[1:3]
    windows = [Window(other, [a + 1, a], [-1, -1]), Window(mine, [a + 1, a, b + 1, b], [-1, -1, 1, 1])]
    outcomes = target.verify(windows)
    assert [len(outcome.path) for outcome in outcomes] == [1, 2]
    for handle, rows in ((other, 2), (mine, 3)):
        position, found = states.take(handle)
        assert (position, len(found)) == (len(prompt), rows)
        wanted = expected(family, [*prompt, *truth])[len(prompt) :][:rows]
        torch.testing.assert_close(normed(target, found), wanted, rtol=1e-3, atol=1e-3)


@EVERYWHERE
def test_a_resumed_stream_has_all_states_and_a_cached_prefix_none(family, engine):
    target, states = target_of(family, engine)
    prompt = some_prompt(300)
    handle, _ = begin(target, prompt, Sampling(max_tokens=64), some_prompt(9, seed=3))
    position, found = states.take(handle)
    assert position == 0
    wanted = expected(family, [*prompt, *some_prompt(9, seed=3)])
    torch.testing.assert_close(normed(target, found), wanted, rtol=1e-3, atol=1e-3)
    target.close(handle)
    again, _ = begin(target, [*prompt, 7, 8], Sampling(max_tokens=64))
    position, found = states.take(again)
    assert 0 < position < 302
    assert position + len(found) == 302
    wanted = expected(family, [*prompt, 7, 8])[position:]
    torch.testing.assert_close(normed(target, found), wanted, rtol=1e-3, atol=1e-3)


def test_a_pieces_states_beside_a_round_are_its_own():
    target, states = target_of("llama", "fused")
    other, _ = begin(target, some_prompt(10), Sampling(max_tokens=64))
    prompt = some_prompt(40, seed=5)
    handle = target.open(prompt, Sampling(max_tokens=8))
    for _ in range(4):
        target.verify_beside([Window(other, [3], [-1])], handle, 10)
    position, found = states.take(handle)
    assert (position, len(found)) == (0, 40)
    torch.testing.assert_close(normed(target, found), expected("llama", prompt), rtol=1e-3, atol=1e-3)


def test_the_oldest_states_of_a_text_that_nobody_reads_are_given_up(monkeypatch):
    monkeypatch.setattr("actors.engines.targets.states.KEPT", 64)
    target, states = target_of("llama", "fused")
    handle, _ = begin(target, some_prompt(300), Sampling(max_tokens=8))
    position, found = states.take(handle)
    assert position + len(found) == 300
    assert 64 <= len(found) < 300
    assert states.take(handle) is None
    target.close(handle)
    assert not states._unread


@torch.inference_mode()
def test_a_trunk_embeds_and_answers_as_its_target():
    for family, engine in (("llama", "by torch"), ("llama-tied", "fused"), ("gemma3", "fused")):
        target, states = target_of(family, engine)
        prompt = some_prompt(12)
        begin(target, prompt, Sampling(max_tokens=8))
        trunk = target.engine.trunk()
        with torch.inference_mode():
            found = make(family)(torch.tensor([prompt]), output_hidden_states=True)
        last = trunk.logits(trunk.norm(states._unread[1].parts[0][:, -trunk.hidden :]))
        torch.testing.assert_close(last, found.logits[0].float(), rtol=1e-3, atol=2e-3)
        torch.testing.assert_close(trunk.embed(torch.tensor(prompt)), found.hidden_states[0][0], rtol=1e-4, atol=1e-4)
        weight, x = torch.randn(48, trunk.hidden), torch.randn(3, trunk.hidden)
        torch.testing.assert_close(trunk.linear(weight)(x), x @ weight.T, rtol=1e-3, atol=1e-3)

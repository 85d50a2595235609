"""A head in a drafter's process: the target's states come in its verdicts, and it drafts as beside the target."""

import asyncio
import itertools
from dataclasses import replace

import msgspec
import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.heads.draft import HeadDraft
from actors.engines.heads.engine import HeadEngine
from actors.engines.heads.kinds import QWEN
from actors.engines.heads.mtp import Mtp
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.states import States, unpacked
from actors.engines.targets.target import Target
from protocols.messages import HiddenStates, Refuse, Sampling, Verdict
from tests.engines.heads.published import HIDDEN, by_torch, fused
from tests.engines.heads.test_head_source import PROMPT, model_of_tokens, weights_for
from tests.engines.tiny import VOCAB, info, make
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster

ASKED = Sampling(max_tokens=120, temperature=1.0, seed=3, ignore_eos=True)
LONG = tuple(range(5, 155)) * 2


def remote(layers=3):
    """A cluster, and the head for a drafter of it."""
    model = model_of_tokens()
    known, weights = replace(info(model), layers=layers), weights_for(model, 0.0)
    target = Target(CompiledEngine(model, known, 4096), rows_agree=ROWS)
    trunk = target.engine.trunk()
    head = Mtp(model.config, weights, trunk, QWEN)
    draft = HeadDraft(HeadEngine(head, trunk, known, 4096), States(head.taps))
    draft.width = HIDDEN
    return Cluster(target=target, forward_s=0.002), draft


def start(system, draft, name="head"):
    fields = {"tokenizer_digest": "tiny-tokenizer", "vocab_size": VOCAB, "max_context": 512, "states": draft.taps}
    ticks = itertools.count()
    return system.start_drafter(name, model=draft, timer=lambda: next(ticks) * 1e-5, **fields)


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "long"])
def test_it_agrees_as_beside_the_target_and_its_death_leaves_the_text(prompt):
    async def story():
        system, draft = remote()
        async with system:
            drafter = start(system, draft)
            await system.connected("head")
            caller, other = await system.caller(), await system.caller()
            plain = await other.generate(prompt, ASKED, "vanilla")
            drafted = await caller.generate(prompt, ASKED, "tree")
            assert tokens_of(drafted) == tokens_of(plain)
            assert drafted[-1].stats.rounds < 60
            again = asyncio.create_task(caller.generate(prompt, ASKED, "tree"))
            await asyncio.sleep(0.03)
            await system.kill("head")
            assert tokens_of(await again) == tokens_of(plain)
            assert drafter.unfit == 0
            await asyncio.sleep(10.0)  # it is taken for dead
            assert not system.target.taps._readers

    run(story())


def test_states_of_another_size_or_without_meaning_are_counted_and_cost_speed_alone():
    chance = itertools.count()

    def spoilt(found):
        rows = found.rows
        bad = (
            HiddenStates(found.start, found.width, rows[:-1]),
            HiddenStates(found.start, found.width + 1, rows),
            HiddenStates(found.start, found.width, b"\xff" * len(rows)),  # not a number
            HiddenStates(1 << 30, found.width, rows),
            HiddenStates(found.start, 0, b""),
        )
        return bad[next(chance) % len(bad)]

    async def story():
        system, draft = remote()
        async with system:
            drafter = start(system, draft)
            await system.connected("head")
            send = system.verifier.context.send

            def spoil(peer, message):
                if isinstance(message, Verdict) and message.states is not None:
                    message = msgspec.structs.replace(message, states=spoilt(message.states))
                return send(peer, message)

            object.__setattr__(system.verifier.context, "send", spoil)
            caller, other = await system.caller(), await system.caller()
            plain = await other.generate(PROMPT, ASKED, "vanilla")
            drafted = await caller.generate(PROMPT, ASKED, "tree")
            assert tokens_of(drafted) == tokens_of(plain)
            assert drafter.unfit > 5

    run(story())


def test_a_head_that_reads_layers_which_the_target_has_not_is_refused():
    async def story():
        system, draft = remote(layers=2)
        async with system:
            stranger = await system.caller()
            answer = await stranger.hello(
                role="drafter", model_id="head", tokenizer_digest="tiny-tokenizer", vocab_size=VOCAB, states=draft.taps
            )
            assert isinstance(answer, Refuse) and "reads layer 3 and the target has 2" in answer.detail

    run(story())


@pytest.mark.parametrize("engine", [fused, by_torch])
def test_several_readers_have_the_states_of_their_own_layers(engine):
    torch.set_num_threads(1)
    target = engine(make("llama"))
    one, other = target.keep_states((0, 3)), target.keep_states((2, 1, 3))
    handle = target.open(range(5, 25), Sampling(max_tokens=8))
    while target.prefill(handle) is None:
        pass
    (_, first), (packed,) = one.take(handle), other.packed(handle)
    second = unpacked(packed, 3 * HIDDEN)
    assert (packed.start, packed.width, len(second)) == (0, 3 * HIDDEN, 20)
    torch.testing.assert_close(second[:, 2 * HIDDEN :].float(), first[:, HIDDEN:], rtol=0.01, atol=0.01)
    target.leave_states(one)

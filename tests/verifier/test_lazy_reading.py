"""Texts are read for the verifier's own guesses only where somebody is going to ask for those."""

import asyncio

import pytest

from actors.proposers.suffix_automaton import SuffixAutomatonSession
from actors.verifier.own_drafts import OwnDrafts
from protocols.messages import Method, Sampling
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster

PROMPT = tuple(2 + i % 50 for i in range(300))
ANSWER = Sampling(max_tokens=20, ignore_eos=True)
RUNNING = Sampling(max_tokens=800, ignore_eos=True)


def read_of_third(monkeypatch, pays, method=Method.AUTO):
    """How many tokens of a text are read while its prompt is computed beside two streams and it is answered."""
    session = []
    opened = SuffixAutomatonSession.__init__
    monkeypatch.setattr(SuffixAutomatonSession, "__init__", lambda self, o: opened(self, o) or session.append(self))
    monkeypatch.setattr(OwnDrafts, "pay", lambda *_: pays)

    async def story():
        async with Cluster(forward_s=0.002) as system:
            callers = [await system.caller() for _ in range(3)]
            running = [asyncio.ensure_future(one.generate(PROMPT[:9], RUNNING, method)) for one in callers[:2]]
            while len(system.verifier.state.requests.of("decode")) < 2:
                await asyncio.sleep(0.001)
            before = len(session)
            text = tokens_of(await callers[2].generate(PROMPT, ANSWER, method))
            assert text == system.language.continuation(PROMPT, ANSWER)
            read = sum(len(one.text) for one in session[before:])
            await asyncio.gather(*running)
            return read

    return run(story())


def test_a_prompt_is_read_while_it_is_computed(monkeypatch):
    assert read_of_third(monkeypatch, pays=True) >= len(PROMPT)


@pytest.mark.parametrize("method", [Method.AUTO, Method.VANILLA])
def test_no_text_is_read_while_nobody_asks_for_guesses(monkeypatch, method):
    assert read_of_third(monkeypatch, pays=False, method=method) == 0


def test_a_method_that_is_nothing_but_a_proposer_reads_whatever_pays(monkeypatch):
    assert read_of_third(monkeypatch, pays=False, method=Method.SAM) >= len(PROMPT)

"""What a learner hears of the target's likeliest tokens: at which places, of which texts, and nothing unasked."""

import asyncio

import numpy as np
import pytest

from actors.replay.clock import run
from actors.verifier.alternatives import LEAST, MAX_TOKENS, PACKED, Alternatives
from actors.verifier.learning import MAX_ASKED, MAX_WAITING
from protocols.messages import Finished, Generate, Sampling, StructuredOutputs
from tests.world.cluster import Cluster
from tests.world.fakes import ToyTarget, toy_likeliest
from tests.world.pupil import LANGUAGE, PROMPT, SHORT, Pupil

TOP = 3


def alternatives(text: Finished) -> tuple[np.ndarray, np.ndarray]:
    """``(n, TOP)`` each."""
    ids = np.frombuffer(text.top_ids, "<i4").reshape(-1, TOP)
    return ids, np.frombuffer(text.top_logprobs, "<f2").reshape(-1, TOP)


def expected(tokens) -> np.ndarray:
    return toy_likeliest(tokens, TOP).ids


def hears(prepare=None, top: int = TOP, **fields):
    """What a learner that asks for ``top`` hears of one request."""

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            if prepare is not None:
                prepare(cluster)
            await pupil.hello(alternatives=top)
            await caller.generate(PROMPT, SHORT, **fields)
            return await pupil.heard(), cluster.target

    return run(go())


@pytest.mark.parametrize("method", ["vanilla", "auto", "sam", "tree"])
def test_every_token_comes_with_what_the_target_held_likeliest_at_its_place(method):
    (text,), _ = hears(lambda cluster: cluster.start_drafter(), method=method)
    ids, logprobs = alternatives(text)
    assert ids.tolist() == expected(text.tokens[text.prompt_len :]).tolist()
    assert logprobs == pytest.approx(np.log(0.5) * np.arange(1, TOP + 1) + 0 * ids, abs=1e-3)


def test_what_a_client_had_of_its_output_counts_as_prompt_here_too():
    (text,), _ = hears(generated=(3, 4))
    assert alternatives(text)[0].tolist() == expected(text.tokens[5:]).tolist()


def test_where_nobody_asks_the_target_works_nothing_out():
    (text,), target = hears(top=0)
    assert (text.top_ids, text.top_logprobs) == (b"", b"")
    assert set(target.likeliest.values()) == {0}


def test_of_what_the_learner_is_not_told_the_target_works_nothing_out():
    assert set(hears(cache_salt="a key's")[1].likeliest.values()) == {0}

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            await Pupil(cluster.network).hello(alternatives=TOP)
            message = Generate("r", PROMPT, sampling=SHORT, structured_outputs=StructuredOutputs(regex="a"))
            return cluster.verifier.learning._tells(type("Asked", (), {"message": message}))

    assert not run(go())


def test_a_text_that_lost_its_room_is_told_at_every_place():
    async def go():
        target = ToyTarget(LANGUAGE, slots=60, ahead=8)
        async with Cluster(language=LANGUAGE, target=target) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello(alternatives=TOP)
            for rid in "ab":
                caller.send(Generate(rid, (*PROMPT, ord(rid) % 50), sampling=Sampling(max_tokens=40, ignore_eos=True)))
            await caller.collect("a", "b")
            return await pupil.heard(), cluster.verifier.state.counters["preempted"]

    texts, preempted = run(go())
    assert preempted and len(texts) == 2
    for text in texts:
        assert alternatives(text)[0].tolist() == expected(text.tokens[text.prompt_len :]).tolist()


def test_a_text_that_began_before_the_learner_came_is_told_without():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.1) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=SHORT))
            await asyncio.sleep(1.0)
            await pupil.hello(alternatives=TOP)
            await caller.collect("r")
            return await pupil.heard()

    (text,) = run(go())
    assert (text.top_ids, text.top_logprobs) == (b"", b"")


def test_a_learner_that_comes_again_hears_of_what_ended_meanwhile_and_one_that_does_not_ask_hears_the_texts_alone():
    async def go(second: int):
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            first = Pupil(cluster.network, "one")
            await first.hello(alternatives=TOP)
            await caller.generate((1, *PROMPT), SHORT)
            await first.heard()
            cluster.network.kill("one")  # no goodbye
            await asyncio.sleep(5.0)
            assert cluster.verifier.state.learner is None
            await caller.generate(PROMPT, SHORT)
            await asyncio.sleep(2.0)
            pupil = Pupil(cluster.network, "two")
            await pupil.hello(alternatives=second)
            return await pupil.heard()

    (text,) = run(go(TOP))
    assert alternatives(text)[0].tolist() == expected(text.tokens[text.prompt_len :]).tolist()
    (bare,) = run(go(0))
    assert bare.tokens == text.tokens and bare.top_ids == b""


def test_of_many_streams_at_once_a_few_are_told_with_alternatives():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.01) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello(alternatives=TOP)
            rids = [str(number) for number in range(MAX_ASKED + 8)]
            for rid in rids:
                caller.send(Generate(rid, (*PROMPT, int(rid)), sampling=SHORT))
            await caller.collect(*rids)
            return await pupil.heard()

    texts = run(go())
    assert len(texts) == MAX_ASKED + 8
    assert sum(bool(text.top_ids) for text in texts) == MAX_ASKED


def test_while_texts_wait_for_a_learner_that_does_not_take_them_no_more_is_worked_out():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            await Pupil(cluster.network, "one").hello(alternatives=TOP)
            await caller.generate(PROMPT, SHORT)
            cluster.network.kill("one")
            await asyncio.sleep(5.0)
            cluster.verifier.learning._waiting_tokens = MAX_WAITING // 2 + 1
            await caller.generate(PROMPT, SHORT)
            return list(cluster.target.likeliest.values())

    assert run(go()) == [TOP, 0]


# --- how they are kept -----------------------------------------------------------------------------------------------


def test_places_of_which_nothing_is_known_have_no_ids():
    kept = Alternatives(TOP)
    kept.add(2, None)
    kept.add(1, toy_likeliest([7, 8], TOP))  # the second token was behind the end of the output
    kept.add(1, toy_likeliest([9], 2))  # of a vocabulary of two
    ids, logprobs = kept.packed()
    assert np.frombuffer(ids, "<i4").reshape(-1, TOP).tolist() == [[-1] * 3, [-1] * 3, [7, 8, 9], [9, 10, -1]]
    assert kept.tokens == 4 and len(logprobs) == 4 * TOP * 2


def test_what_is_kept_of_a_token_takes_six_bytes_for_each_alternative_and_of_no_text_more_than_is_told():
    kept = Alternatives(16)
    for _ in range(MAX_TOKENS // PACKED):
        kept.add(PACKED, toy_likeliest(range(PACKED), 16))
        assert not kept._pending
    assert sum(map(len, kept.packed())) == MAX_TOKENS * 16 * 6
    kept.add(1, toy_likeliest([1], 16))
    assert not any(kept.packed())


def test_a_probability_of_nothing_is_told_as_a_number():
    kept = Alternatives(1)
    found = toy_likeliest([1], 1)
    kept.add(1, type(found)(found.ids, found.probabilities * 0))
    assert np.frombuffer(kept.packed()[1], "<f2")[0] == np.float16(np.log(np.float32(LEAST)))

"""What a learner hears."""

import asyncio

import pytest

from actors.verifier.learning import MAX_WAITING
from actors.verifier.owners import EVERYBODY
from protocols.messages import Generate, Refuse, RefuseCode, Role, StructuredOutputs, Welcome
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.pupil import LANGUAGE, PROMPT, SHORT, Pupil


def test_a_learner_hears_prompt_output_and_sampling_of_what_has_ended():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            await caller.generate(PROMPT, SHORT)
            return await pupil.heard()

    (text,) = run(go())
    assert text.tokens == (*PROMPT, *LANGUAGE.continuation(PROMPT, SHORT))
    assert (text.prompt_len, text.sampling) == (len(PROMPT), SHORT)


def test_what_a_client_says_it_had_of_its_output_counts_as_prompt():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            await caller.generate(PROMPT, SHORT, generated=(3, 4))
            return await pupil.heard()

    (text,) = run(go())
    assert (text.tokens[:5], text.prompt_len) == ((*PROMPT, 3, 4), 5)


@pytest.mark.parametrize("salted", [False, True])
def test_requests_with_a_salt_are_told_only_if_the_operator_says_so(salted):
    async def go():
        async with Cluster(language=LANGUAGE, learn_salted=salted) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            await caller.generate(PROMPT, SHORT, cache_salt="a key's")
            return await pupil.heard()

    assert len(run(go())) == salted


def test_nobody_but_a_learner_hears_of_texts():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            client, caller = Pupil(cluster.network, "client"), await cluster.caller()
            await client.hello(role=Role.CLIENT)
            await caller.generate(PROMPT, SHORT)
            return await client.heard()

    assert run(go()) == []


def test_a_grammars_choices_are_not_told():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil = Pupil(cluster.network)
            await pupil.hello()
            request = Generate("r", PROMPT, sampling=SHORT)
            cluster.verifier.learning.ended(ended(request, first=1))
            cluster.verifier.learning.ended(ended(replace_structured(request), first=2))
            return await pupil.heard(1.0)

    assert [text.tokens[0] for text in run(go())] == [1]


class ended:
    """A request as ``Learning`` sees it."""

    def __init__(self, message: Generate, first: int, length: int = 8) -> None:
        self.message, self.rid, self.text, self.scope = message, message.rid, self, EVERYBODY
        self.committed, self.given, self.sampling = [first, *range(1, length)], 3, message.sampling

    def __len__(self) -> int:
        return len(self.committed)


def replace_structured(message: Generate) -> Generate:
    return Generate("g", message.prompt, sampling=message.sampling, structured_outputs=StructuredOutputs(regex="a"))


def test_what_ends_while_the_learner_is_away_is_told_when_it_is_back_and_nothing_from_before_it_first_came():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            await caller.generate((1, *PROMPT), SHORT)
            await asyncio.sleep(2.0)
            first = Pupil(cluster.network, "one")
            await first.hello()
            await caller.generate((2, *PROMPT), SHORT)
            heard = await first.heard()
            cluster.network.kill("one")
            await asyncio.sleep(5.0)
            assert cluster.verifier.state.learner is None
            await caller.generate((3, *PROMPT), SHORT)
            await asyncio.sleep(2.0)
            second = Pupil(cluster.network, "two")
            await second.hello()
            return heard, await second.heard()

    before, after = run(go())
    assert [text.tokens[0] for text in before] == [2]
    assert [text.tokens[0] for text in after] == [3]


def test_where_more_ends_than_is_told_the_oldest_is_lost_and_nothing_waits():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil = Pupil(cluster.network)
            await pupil.hello()
            for number in range(MAX_WAITING // 16_000 + 10):
                cluster.verifier.learning.ended(ended(Generate(str(number), PROMPT, sampling=SHORT), number, 16_000))
            cluster.verifier.learning.ended(ended(Generate("long", PROMPT, sampling=SHORT), 0, 20_000))
            return await pupil.heard(10.0)

    assert [text.tokens[0] for text in run(go())] == list(range(10, MAX_WAITING // 16_000 + 10))


def test_there_is_one_learner_and_its_model_has_the_targets_tokenizer():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            first, second, other = (Pupil(cluster.network, name) for name in ("one", "two", "three"))
            return (
                await other.hello(tokenizer_digest="another"),
                await first.hello(),
                await second.hello(incarnation="2"),
            )

    other, first, second = run(go())
    assert isinstance(other, Refuse) and other.code is RefuseCode.TOKENIZER
    assert isinstance(first, Welcome)
    assert isinstance(second, Refuse) and second.code is RefuseCode.DUPLICATE and "a learner already" in second.detail

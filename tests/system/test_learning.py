"""What a learner hears, and weights that it promotes while streams run: the texts are those of the target."""

import asyncio
import itertools
from dataclasses import replace

import msgspec
import pytest
from cluster import Caller, Cluster, tokens_of

from actors.replay.clock import run
from actors.verifier.drafters.learning import MAX_WAITING
from fakes import INFO, ToyDraft, ToyLanguage
from protocols.errors import ModelError
from protocols.messages import (
    Done,
    Failed,
    Finished,
    Generate,
    Promote,
    Refuse,
    RefuseCode,
    Role,
    Sampling,
    Status,
    StatusReport,
    StructuredOutputs,
    ToLearner,
    Undo,
    Welcome,
)
from protocols.wire import Decoder

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
SHORT = Sampling(max_tokens=20, temperature=1.0, seed=7)
BETTER = Promote(1, "better", "toy-draft", 0.05)


class Pupil(Caller):
    """A learner that does what the test says."""

    def __init__(self, network, name: str = "learner") -> None:
        super().__init__(network, name)
        self.decoder = Decoder(ToLearner)

    async def hello(self, **fields):
        digest = INFO.tokenizer_digest
        return await super().hello(
            **{"role": Role.LEARNER, "tokenizer_digest": digest, "vocab_size": INFO.vocab_size, **fields}
        )

    async def heard(self, seconds: float = 5.0) -> list[Finished]:
        """Texts of so long a time."""
        beating = asyncio.create_task(self.beat())
        await asyncio.sleep(seconds)
        beating.cancel()
        found = []
        while (frames := self.link.receive_nowait()) is not None:
            message = self.decoder.decode(frames)
            found += [message] if isinstance(message, Finished) else []
        return found


async def load(path: str) -> ToyDraft:
    """Directories of weights, as toys."""
    await asyncio.sleep(0.5)
    if path == "broken":
        raise ModelError("there is nothing in broken")
    if path == "other":
        return ToyDraft(LANGUAGE, 0.9, info=replace(INFO, tokenizer_digest="another"))
    return ToyDraft(LANGUAGE, 0.95 if path else 0.3)


async def drafter(caller, wanted=lambda d: True):
    """The status of the only drafter, once it is as wanted."""
    for _ in range(200):
        caller.send(Status("s"))
        report = await caller.until(lambda m: isinstance(m, StatusReport))
        if wanted(report.drafters[0]):
            return report.drafters[0]
        await asyncio.sleep(0.1)
    raise AssertionError(report.drafters[0])


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
        self.message, self.rid, self.spec = message, message.rid, self
        self.committed, self.prompt_len, self.sampling = [first, *range(1, length)], 3, message.sampling


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


# --- promotion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=500), Sampling(max_tokens=500, temperature=1.0, seed=3)])
def test_promotion_and_undo_in_mid_stream_leave_the_text_equal_and_new_leases_get_new_weights(sampling):
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.02) as cluster:
            pupil, caller, observer = Pupil(cluster.network), await cluster.caller(), await cluster.caller()
            await pupil.hello()
            pupil_beats = asyncio.create_task(pupil.beat())
            ticks = itertools.count()
            own = cluster.start_drafter(skill=0.3, load=load, timer=lambda: next(ticks) * 1e-4)
            await cluster.connected("d1")
            caller.send(Generate("r", PROMPT, sampling=sampling, method="tree"))
            await asyncio.sleep(0.2)
            pupil.send(BETTER)
            better = await drafter(observer, lambda d: d.version == 1)
            generations = {lease.generation for lease in own.leases.values()}
            second = await cluster.caller()
            few = msgspec.structs.replace(sampling, max_tokens=40)
            second_text = tokens_of(await second.generate(PROMPT, few, "tree"))
            pupil.send(Promote(0, "", "toy-draft"))
            undone = await drafter(observer, lambda d: d.version == 0)
            assert own.leases  # the stream runs on
            text = tokens_of((await caller.collect("r"))["r"])
            await asyncio.sleep(2.0)
            pupil_beats.cancel()
            return text, second_text, better, undone, generations, own.generations._held

    text, second, better, undone, generations, held = run(go())
    assert text == LANGUAGE.continuation(PROMPT, sampling)
    assert second == text[:40]
    assert (better.gain, better.trouble, undone.gain) == (0.05, "", 0.0)
    assert generations == {0}  # the running lease went on with what it began with
    assert list(held) == [2]  # and what no lease uses is given up


def test_a_drafter_that_comes_later_is_told_what_is_in_force():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            pupil.send(BETTER)
            cluster.start_drafter(load=load)
            await cluster.connected("d1")
            await drafter(caller, lambda d: d.version == 1)
            await cluster.kill("d1")
            cluster.start_drafter("d2", load=load)  # the learner is long gone
            await cluster.connected("d2")
            return await drafter(caller, lambda d: d.version == 1 and d.actor_id == "d2")

    assert run(go()).gain == 0.05


@pytest.mark.parametrize(("path", "says"), [("broken", "there is nothing in broken"), ("other", "another tokenizer")])
def test_a_drafter_that_cannot_load_the_weights_serves_on_and_says_why(path, says):
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.01) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            cluster.start_drafter(load=load)
            await cluster.connected("d1")
            pupil.send(Promote(1, path, "toy-draft"))
            troubled = await drafter(caller, lambda d: d.trouble)
            chunks = await caller.generate(PROMPT, Sampling(max_tokens=40), "tree")
            pupil.send(Promote(2, "good", "toy-draft"))
            return troubled, chunks, await drafter(caller, lambda d: d.version == 2)

    troubled, chunks, cured = run(go())
    assert says in troubled.trouble and troubled.version == 0
    assert chunks[-1].stats.drafters == ("d1",)
    assert cured.trouble == ""


def test_drafters_of_other_models_and_those_that_know_no_load_are_left_alone():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            cluster.start_drafter("d1", load=load, model_id="another")
            old = cluster.start_drafter("d2")
            await cluster.connected("d1", "d2")
            pupil.send(BETTER)
            await asyncio.sleep(1.5)
            caller.send(Status("s"))
            report = await caller.until(lambda m: isinstance(m, StatusReport))
            return report, old.line.malformed

    report, malformed = run(go())
    assert [d.version for d in report.drafters] == [0, 0]
    assert malformed == 0
    assert report.learner == "learner"


def test_undo_is_handed_to_the_learner_or_refused_in_a_sentence():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            answers = []

            async def undo():
                caller.send(Undo("u"))
                answers.append(await caller.until(lambda m: isinstance(m, (Done, Failed))))

            await undo()
            await pupil.hello()
            await undo()
            pupil.send(BETTER)
            await asyncio.sleep(0.1)
            await undo()
            handed = await pupil.until(lambda m: isinstance(m, Undo))
            cluster.network.kill("learner")
            await asyncio.sleep(5.0)
            await undo()
            return answers, handed

    (before, nothing, done, gone), handed = run(go())
    assert "nothing is promoted" in before.detail and "nothing is promoted" in nothing.detail
    assert isinstance(done, Done) and handed == Undo("u")
    assert isinstance(gone, Failed) and "no learner is connected" in gone.detail

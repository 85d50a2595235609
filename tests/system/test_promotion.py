"""Weights that a learner promotes while streams run: the texts are those of the target."""

import asyncio
import itertools
from dataclasses import replace

import msgspec
import pytest

from protocols.errors import ModelError
from protocols.messages import Done, Failed, Generate, Promote, Sampling, Status, StatusReport, Undo
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import INFO, ToyDraft
from tests.world.pupil import LANGUAGE, PROMPT, Pupil

BETTER = Promote(1, "better", "toy-draft", 0.05)


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


def test_what_is_promoted_while_a_broken_version_is_loaded_is_loaded_next():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            cluster.start_drafter(load=load)
            await cluster.connected("d1")
            pupil.send(Promote(1, "broken", "toy-draft"))
            await asyncio.sleep(0.2)  # not known to be broken yet
            pupil.send(Promote(2, "good", "toy-draft"))
            return await drafter(caller, lambda d: d.version == 2)

    assert run(go()).trouble == ""


def test_what_is_undone_while_it_is_loaded_never_serves():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil = Pupil(cluster.network)
            await pupil.hello()
            own = cluster.start_drafter(load=load)
            await cluster.connected("d1")
            pupil.send(BETTER)
            await asyncio.sleep(0.2)
            pupil.send(Promote(0, "", "toy-draft"))
            await asyncio.sleep(2.0)
            return own.generations.newest

    assert run(go()) == 0


@pytest.mark.parametrize(
    "later", [Promote(2, "good", "toy-draft"), Promote(1, "good", "toy-draft")], ids=["next", "of the same number"]
)
@pytest.mark.parametrize("first", ["broken", "better"])
def test_a_drafter_that_does_not_hear_of_a_version_is_told_again_whatever_became_of_the_one_before(first, later):
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            own = cluster.start_drafter(load=load)
            await cluster.connected("d1")
            pupil.send(Promote(1, first, "toy-draft"))
            await drafter(caller, lambda d: d.trouble or d.version == 1)
            cluster.network.partition("d1")
            pupil.send(later)
            await asyncio.sleep(0.1)
            cluster.network.heal("d1")
            await asyncio.sleep(3.0)
            return own.generations

    generations = run(go())
    assert generations.current.source.path == "good" and generations.trouble == ""


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
    assert report.learner.actor_id == "learner"


def test_undo_is_handed_to_the_learner_or_refused_in_a_sentence():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            answers = []

            async def undo():
                caller.send(Undo("u", 1))
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
    assert isinstance(done, Done) and handed == Undo("u", 1)
    assert isinstance(gone, Failed) and "no learner is connected" in gone.detail


def test_an_undo_of_a_version_that_is_no_longer_in_force_is_refused_and_names_the_one_that_is():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            pupil.send(Promote(4, "better", "toy-draft"))
            await asyncio.sleep(0.1)
            caller.send(Undo("u", 3))
            refused = await caller.until(lambda m: isinstance(m, (Done, Failed)))
            caller.send(Undo("v", 4))
            await caller.until(lambda m: isinstance(m, Done))
            return refused, await pupil.until(lambda m: isinstance(m, Undo))

    refused, handed = run(go())
    assert isinstance(refused, Failed) and "version 4 is in force now, not 3" in refused.detail
    assert handed == Undo("v", 4)


def test_an_undo_that_is_asked_for_again_is_no_mistake_once_it_was_carried_out():
    """The answer was lost, and the client's connection with it."""

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            pupil, caller = Pupil(cluster.network), await cluster.caller()
            await pupil.hello()
            answers = []
            for version in (2, 1):
                pupil.send(Promote(version, f"version {version}", "toy-draft"))
                await asyncio.sleep(0.1)
                caller.send(Undo("u", 2))
                answers.append(await caller.until(lambda m: isinstance(m, (Done, Failed))))
            return answers

    first, again = run(go())
    assert isinstance(first, Done) and first == again

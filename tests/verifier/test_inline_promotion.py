"""A verifier that drafts itself goes on with what a learner promotes: in mid-stream, back again, texts being equal."""

import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from actors.calibration import Calibration, TextCalibration
from actors.models import Expansion
from actors.tree.tree import TokenTree
from actors.verifier.loop import Verifier
from actors.verifier.sources.inline_tree import InlineTree
from protocols.errors import ModelError
from protocols.messages import Generate, Hello, Promote, Role, Sampling, Status, StatusReport
from protocols.wire import encode
from tests.world.caller import ADDRESS, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.inline_drafts import FORWARD_S, PROMPT, Counting, inline
from tests.world.models import INFO, ToyDraft, ToyLanguage

LANGUAGE = ToyLanguage()
LONG = Sampling(max_tokens=3000, ignore_eos=True)
SAMPLED = Sampling(max_tokens=3000, ignore_eos=True, temperature=1.0, seed=3)


class Failing(ToyDraft):
    steps = 0

    def expand(self, leaves):
        self.steps += 1
        raise RuntimeError("the toy draft broke, as asked")


class School(Cluster):
    """A verifier that drafts itself, and finds ``others`` in directories of their names."""

    def __init__(self, own: ToyDraft, **others: ToyDraft) -> None:
        self.own, self.others, self.spent_s = own, others, 0.0
        super().__init__(forward_s=FORWARD_S, inline=inline(own, load=self.load), language=LANGUAGE)

    def start_verifier(self) -> Verifier:
        verify, spent = self.target.verify, itertools.count(1)
        self.timer = lambda: self.spent_s  # forwards take time: drafts have a price

        def slow(windows):
            self.spent_s = next(spent) * FORWARD_S
            return verify(windows)

        self.target.verify = slow
        return super().start_verifier()

    async def load(self, path: str) -> ToyDraft:
        await asyncio.sleep(0.05)
        if path and path not in self.others:
            raise ModelError(f"there is nothing in {path}")
        return self.others.get(path) or Counting(LANGUAGE, self.own.skill)

    async def learner(self):
        """What promotes."""
        link = self.network.host(f"learner-{next(self.starts)}").connect(ADDRESS)
        fields = {"vocab_size": INFO.vocab_size, "tokenizer_digest": INFO.tokenizer_digest}
        link.send(encode(Hello(Role.LEARNER, "learner", "l", INFO.model_id, **fields)))
        await link.receive()
        return lambda version, path, model_id=INFO.model_id: link.send(encode(Promote(version, path, model_id)))

    async def status(self, wanted) -> StatusReport:
        """The first that is as wanted."""
        caller = await self.caller()
        for _ in range(400):
            caller.send(Status("s"))
            report = await caller.until(lambda m: isinstance(m, StatusReport))
            if wanted(report):
                return report
            await asyncio.sleep(0.01)
        raise AssertionError(report)

    async def version(self, number: int) -> StatusReport:
        return await self.status(lambda report: report.inline.version == number)

    async def begin(self, sampling: Sampling = LONG):
        """A stream, and a way to have its text."""
        caller = await self.caller()
        caller.send(Generate("r", PROMPT, sampling=sampling, method="auto"))
        await self.rounds()

        async def text() -> list[int]:
            return tokens_of((await caller.collect("r"))["r"])

        return text

    async def rounds(self) -> None:
        """A few dozen of them."""
        await asyncio.sleep(50 * FORWARD_S)

    async def drafts(self) -> None:
        """Until the model in service drafts."""
        for _ in range(400):
            if self.inline.model.steps:
                return
            await asyncio.sleep(FORWARD_S)
        raise AssertionError(self.inline.model.steps)


@pytest.mark.parametrize("sampling", [LONG, SAMPLED], ids=["greedy", "sampled"])
def test_promotion_and_undo_in_mid_stream_leave_the_text_equal(sampling):
    first, better = Counting(LANGUAGE, 0.3), Counting(LANGUAGE, 0.95)

    async def story():
        async with School(first, better=better) as school:
            promote, text = await school.learner(), await school.begin(sampling)
            assert first.steps
            promote(1, "better")
            await school.version(1)
            steps = first.steps
            await school.drafts()
            assert first.steps == steps and better.steps
            promote(0, "")
            await school.version(0)
            steps = better.steps
            await school.rounds()
            assert better.steps == steps
            await school.drafts()
            assert school.verifier.state.requests.decoding  # it runs on
            return await text()

    assert run(story()) == LANGUAGE.continuation(PROMPT, sampling)


def test_what_the_weights_before_have_expanded_is_expanded_again():
    tree, calibration = TokenTree(3, 7), TextCalibration(Calibration())
    stream = SimpleNamespace(rid="r", tree=tree)
    before, after = (InlineTree(stream, ToyDraft(LANGUAGE), 1, frozenset(), 100, calibration) for _ in range(2))
    before.begin(-1.0)
    root = tree.root
    before.expanded(root, Expansion(-1, (5, 6), (0.7, 0.2)))
    before.expanded(root.child(5), Expansion(0, (8,), (0.7,)))
    before.leave()
    after.begin(-1.0)
    assert [node for _, _, node in after.promises()] == [root]
    after.expanded(root, Expansion(-1, (5, 6), (0.7, 0.2)))
    assert {node.token for _, _, node in after.promises()} == {5, 6}


def test_nothing_is_believed_of_new_weights_that_those_before_have_shown():
    async def story():
        async with School(ToyDraft(LANGUAGE, 0.3), better=ToyDraft(LANGUAGE, 0.95)) as school:
            promote, text = await school.learner(), await school.begin()
            before = school.inline.generations.current.calibrations[False].probability(0, 0.7)
            promote(1, "better")
            await school.version(1)
            await school.rounds()
            after = school.inline.generations.current.calibrations[False].probability(0, 0.7)
            await text()
            return before, after

    before, after = run(story())
    assert before < 0.5 and after > 0.7


@pytest.mark.parametrize("path", ["missing", "other"])
def test_weights_that_cannot_be_loaded_cost_nothing_and_status_says_why(path):
    first, other = Counting(LANGUAGE), ToyDraft(LANGUAGE, info=replace(INFO, vocab_size=80))

    async def story():
        async with School(first, other=other) as school:
            promote, text = await school.learner(), await school.begin()
            promote(1, path)
            report = await school.status(lambda report: report.inline.trouble)
            steps = first.steps
            await school.rounds()
            assert first.steps > steps
            return report, await text()

    report, text = run(story())
    assert report.inline.version == 0 and path in report.inline.trouble
    assert text == LANGUAGE.continuation(PROMPT, LONG)


def test_weights_that_fail_draft_no_more_for_the_stream_until_others_come():
    failing = Failing(LANGUAGE)

    async def story():
        async with School(Counting(LANGUAGE), bad=failing) as school:
            promote, text = await school.learner(), await school.begin()
            promote(1, "bad")
            await school.version(1)
            await school.rounds()
            assert failing.steps == 1
            promote(0, "")
            await school.version(0)
            await school.drafts()
            return await text()

    assert run(story()) == LANGUAGE.continuation(PROMPT, LONG)


def test_what_is_promoted_while_another_version_is_loaded_is_loaded_next():
    async def story():
        async with School(ToyDraft(LANGUAGE), one=ToyDraft(LANGUAGE), two=ToyDraft(LANGUAGE)) as school:
            promote = await school.learner()
            promote(1, "one")
            promote(2, "two")
            await school.version(2)

    run(story())


def test_other_models_weights_are_left_alone():
    async def story():
        async with School(ToyDraft(LANGUAGE), one=ToyDraft(LANGUAGE), two=ToyDraft(LANGUAGE)) as school:
            promote = await school.learner()
            promote(1, "one", "another model")
            await asyncio.sleep(2.0)
            await school.version(0)
            promote(2, "two")
            await school.version(2)
            assert school.inline.generations.newest == 1

    run(story())


def test_what_is_promoted_while_a_broken_version_is_loaded_is_loaded_next():
    async def story():
        async with School(ToyDraft(LANGUAGE), two=ToyDraft(LANGUAGE)) as school:
            promote = await school.learner()
            promote(1, "missing")
            promote(2, "two")
            report = await school.version(2)
            assert not report.inline.trouble

    run(story())


def test_weights_that_no_round_has_drafted_with_are_given_up_when_others_come():
    others = {f"d{number}": ToyDraft(LANGUAGE) for number in range(1, 6)}

    async def story():
        async with School(ToyDraft(LANGUAGE), **others) as school:
            promote = await school.learner()
            for number, path in enumerate(others, 1):
                promote(number, path)
                await school.version(number)
            return len(school.inline.generations._held)

    assert run(story()) <= 2

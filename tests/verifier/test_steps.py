"""Several rounds in a row, and several forwards in a row where no drafts are verified: the same text, with less work
beside the forwards."""

import asyncio
import itertools
import time
from types import SimpleNamespace

import msgspec
import pytest

from actors.cost import CostModel
from actors.models import Outcome
from actors.verifier.drafters import DrafterPeer
from actors.verifier.forward import compute
from actors.verifier.price import GUESSED, Price
from actors.verifier.results import NO_WINDOW
from actors.verifier.rounds import Batch, Round
from actors.verifier.scheduler import Scheduler
from actors.verifier.sources.boundary import Sources
from actors.verifier.sources.source import Source
from actors.verifier.trace import Trace
from protocols.messages import Cancel, Chunk, Generate, Hello, Plan, Role, RoundStats, Sampling
from tests.world.caller import Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage, ToyTarget
from tests.world.streams import toy_stream

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
SAMPLING = Sampling(max_tokens=50, ignore_eos=True)
STEPS = 6


def replace_sampling(**fields) -> Sampling:
    return msgspec.structs.replace(SAMPLING, **fields)


async def told(caller: Caller, prompt: tuple[int, ...] = PROMPT, **fields) -> list[Chunk]:
    caller.send(Generate("r", prompt, **{"sampling": SAMPLING, "method": "vanilla", **fields}))
    chunks: list[Chunk] = []
    while not chunks or chunks[-1].finish_reason is None:
        if isinstance(message := await caller.next(), Chunk) and message.token_ids:
            chunks.append(message)
    return chunks


def answered(
    steps: int = STEPS, target: ToyTarget | None = None, forward_s: float = 0.0, **fields
) -> tuple[list[Chunk], list[RoundStats]]:
    """``forward_s``: a round takes so long, on the test's clock; without it rows of drafts look dear."""

    async def go():
        async with Cluster(language=LANGUAGE, target=target, steps=steps, forward_s=forward_s) as cluster:
            rounds: list[RoundStats] = []
            cluster.verifier.publish = lambda stats: rounds.append(stats)
            return await told(await cluster.caller(), **fields), rounds

    return run(go())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_single_steps_and_comes_in_a_chunk_for_several(temperature):
    sampling = replace_sampling(temperature=temperature)
    chunks, _ = answered(sampling=sampling)
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
    assert len(chunks) == 1 + -(-(SAMPLING.max_tokens - 1) // STEPS)


def test_each_forward_counts_as_a_round():
    chunks, rounds = answered()
    stats = chunks[-1].stats
    assert stats.rounds == SAMPLING.max_tokens - 1 == sum(one.rounds for one in rounds)
    assert stats.acceptance_histogram == (SAMPLING.max_tokens - 1,)
    assert all(one.committed == one.rounds <= STEPS and one.window == 0 for one in rounds)


def test_a_stop_token_in_the_middle_ends_the_text_and_the_forwards():
    text = LANGUAGE.continuation(PROMPT, SAMPLING)
    stop = next(token for place, token in enumerate(text) if place % STEPS == 3 and token not in text[:place])
    target = ToyTarget(LANGUAGE)
    chunks, _ = answered(target=target, sampling=replace_sampling(stop_token_ids=(stop,)))
    assert tokens_of(chunks) == text[: text.index(stop) + 1]
    assert target.rounds == text.index(stop)


@pytest.mark.parametrize(
    "fields",
    [{"method": "pld"}, {"method": "sam"}, {"trace": True}, {"attempt": 2}],
    ids=["pld", "sam", "trace", "suspect"],
)
def test_a_request_that_has_something_to_decide_behind_each_token_has_a_round_for_each(fields):
    chunks, rounds = answered(sampling=replace_sampling(max_tokens=12), **fields)
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, replace_sampling(max_tokens=12))
    assert all(one.rounds == 1 for one in rounds)


# --- rounds of a stream that is alone --------------------------------------------------------------------------------

TEXT = LANGUAGE.continuation(PROMPT, SAMPLING)
COPIED = (*TEXT[20:45], *PROMPT)  # a prompt behind which the text is another for 20 tokens, and then a copy


def test_a_message_that_arrives_ends_the_row_of_rounds():
    async def go():
        target = ToyTarget(LANGUAGE)
        async with Cluster(language=LANGUAGE, target=target, steps=40) as cluster:
            caller, verify = await cluster.caller(), target.verify

            def interrupted(windows):
                if target.rounds == 2:
                    caller.send(Cancel("r"))
                return verify(windows)

            target.verify = interrupted
            caller.send(Generate("r", PROMPT, sampling=SAMPLING, method="pld"))
            while cluster.verifier.state.requests or not target.rounds:
                await asyncio.sleep(0)
            return target.rounds

    assert run(go()) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_that_copy_are_the_same_with_rows_as_without(temperature):
    sampling = replace_sampling(temperature=temperature)
    asked = {"prompt": COPIED, "method": "auto", "sampling": sampling, "forward_s": 0.02}
    found = [answered(steps, **asked)[0] for steps in (1, STEPS)]
    assert tokens_of(found[0]) == tokens_of(found[1]) == LANGUAGE.continuation(COPIED, sampling)


def test_one_request_of_a_round_that_has_something_to_decide_decides_for_all():
    async def go():
        async with Cluster(language=LANGUAGE, steps=STEPS) as cluster:
            rounds: list[RoundStats] = []
            cluster.verifier.publish = lambda stats: rounds.append(stats)
            caller = await cluster.caller()
            for name, method in (("a", "vanilla"), ("b", "pld")):
                caller.send(Generate(name, PROMPT, sampling=SAMPLING, method=method))
            ended = 0
            while ended < 2:
                message = await caller.next()
                ended += isinstance(message, Chunk) and message.finish_reason is not None
            return rounds

    shared = [one for one in run(go()) if one.streams == 2]
    assert shared and all(one.rounds == 1 for one in shared)


@pytest.mark.parametrize("steps", [1, STEPS])
def test_short_rounds_first_show_what_they_take_without_drafts(steps):
    """Else drafts would be judged by rounds of their own kind, and look better than they are."""
    sampling, asked = replace_sampling(max_tokens=40), {"prompt": COPIED, "method": "auto", "forward_s": 0.001}
    chunks, rounds = answered(steps, sampling=sampling, **asked)
    assert tokens_of(chunks) == LANGUAGE.continuation(COPIED, sampling)
    plain = sum(one.rounds for one in itertools.takewhile(lambda one: not one.window, rounds))
    assert plain == GUESSED + 1 if steps > 1 else plain <= GUESSED


def test_what_is_measured_is_a_round_of_its_own_streams_and_not_of_others_that_wait():
    price, stream = Price(CostModel({1: 1000.0, 64: 2000.0})), toy_stream(PROMPT, "auto", SAMPLING)
    settings, two = SimpleNamespace(num_speculative_tokens=0), SimpleNamespace(requests=SimpleNamespace(decoding=2))
    scheduler = SimpleNamespace(context=SimpleNamespace(price=price, settings=settings), state=two)
    for left in (1, *range(GUESSED, -1, -1)):
        assert Scheduler._unmeasured(scheduler, [stream]) == left
        price.observe(Round(1, 1, 0, 1, 1000.0, 0.0, 1100.0, 0.0, False, 1))
    assert Scheduler._unmeasured(scheduler, [stream, stream]) == 1


# --- the forwards themselves -----------------------------------------------------------------------------------------


def batch_of(target: ToyTarget) -> Batch:
    """``STEPS`` forwards for one stream whose prompt is computed."""
    stream = toy_stream(PROMPT, "vanilla", SAMPLING)
    stream.handle = target.open(PROMPT, SAMPLING)
    while target.prefill(stream.handle) is None:
        pass
    return Batch((stream,), (NO_WINDOW,), ranks=(False,), steps=STEPS)


def test_whoever_disturbs_ends_them_behind_the_forward_that_runs():
    target = ToyTarget(LANGUAGE)
    batch, asked = batch_of(target), iter([True, True, False])
    (outcome,), steps, _ = compute(target, batch, lambda _: next(asked), time.perf_counter)
    assert isinstance(outcome, Outcome) and len(outcome.tokens) == steps == 3


def test_one_that_fails_leaves_what_the_others_brought():
    target = ToyTarget(LANGUAGE)
    batch, verify, left = batch_of(target), target.verify, iter([1, 1])

    def failing(windows):
        if next(left, 0) == 0:
            raise RuntimeError("no more")
        return verify(windows)

    target.verify = failing
    (outcome,), steps, _ = compute(target, batch, lambda _: True, time.perf_counter)
    assert isinstance(outcome, Outcome) and len(outcome.tokens) == steps == 2
    assert outcome.tokens == LANGUAGE.continuation(PROMPT, SAMPLING)[1:3]


def test_tokens_that_somebody_follows_one_by_one_are_not_taken_together():
    assert toy_stream(PROMPT, "vanilla").unattended
    traced, drafted = toy_stream(PROMPT), toy_stream(PROMPT)
    traced.delivery.trace = Trace()
    drafted.loan.begin(1, Plan("tree"))
    drafted.loan.taken(DrafterPeer(b"d", Hello(Role.DRAFTER, "d", "i"), 0.0))
    assert not any(stream.unattended for stream in (traced, drafted))


# --- rows of forwards beside sources of drafts -----------------------------------------------------------------------


def rounds_of_auto(steps: int, prompt: tuple[int, ...]) -> list[Round]:
    found = list[Round]()

    async def go():
        async with Cluster(language=LANGUAGE, steps=steps, forward_s=0.02) as cluster:
            learn = cluster.verifier._learn
            cluster.verifier._learn = lambda done: (learn(done), found.append(done))
            await told(await cluster.caller(), prompt=prompt, method="auto")

    run(go())
    return [done for done in found if done.streams]


def test_forwards_follow_one_another_until_a_source_has_drafts():
    rows = rounds_of_auto(STEPS, COPIED)
    plain = [done for done in rows if not done.drafts]
    assert max(done.steps for done in plain) > 1 and any(done.drafts for done in rows)
    assert sum(done.tokens for done in rows) == SAMPLING.max_tokens - 1


def test_a_source_that_was_asked_in_vain_has_brought_nothing_in_a_row_of_forwards():
    shares = [(part, share) for done in rounds_of_auto(STEPS, PROMPT) if done.steps > 1 for part in done.parts
              for share in part.shares]  # fmt: skip
    assert shares and all(share.without == part.tokens and share.rows == 0 for part, share in shares)


def test_a_question_between_two_forwards_is_time_of_its_source():
    """Else retrieval that names nothing looks cheaper than it is, and is asked for too long."""
    seconds, source, stream = itertools.count(), Source(), toy_stream(PROMPT, "auto", SAMPLING)
    source.name = "text"
    scheduler = SimpleNamespace(context=SimpleNamespace(clock=lambda: next(seconds)), sources=Sources([source], {}))
    source.finds = lambda *_: False  # type: ignore[method-assign]
    batch = Batch(streams=(stream,), asked=({source: "text"},), steps=STEPS)
    for _ in range(3):
        assert not Scheduler.finds(scheduler, batch, [Outcome([], [1])])
    assert stream.times.spent_us["text"] == pytest.approx(3e6)

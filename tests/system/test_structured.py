"""Structured outputs through the whole system: the same text whatever drafts, fewer rounds, and nobody else's harm."""

import asyncio
import functools
import itertools
import json
import re

import pytest

from actors.verifier.compute import InlineCompute
from duoactor import AsyncClient, RequestError
from protocols.messages import Cancel, Chunk, Failed, Generate, Sampling, Status, StatusReport, StructuredOutputs
from tests.world.caller import ADDRESS, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyDraft
from tests.world.structured import SCHEMA, WANTED, Told, codec, target

COMMON = {"max_tokens": 60}
COMMON_SAMPLING = Sampling(**COMMON)
SAMPLINGS = [
    Sampling(**COMMON),
    Sampling(temperature=1.0, seed=1, logprobs=2, **COMMON),
    Sampling(temperature=0.7, seed=2, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.5, **COMMON),
    Sampling(temperature=1.0, seed=3, stop=("4", "re"), logit_bias=((96, -100.0), (23, 5.0)), **COMMON),
    Sampling(max_tokens=9, presence_penalty=1.0),
]
CASES = [  # every prompt is another, so that drafts can tell which text they are in
    ((470, 300 + at), name, sampling)
    for at, (name, which) in enumerate(
        [("schema", 0), ("schema", 1), ("regex", 2), ("schema", 3), ("lark", 4), ("lark", 1), ("gbnf", 0)]
    )
    for sampling in [SAMPLINGS[which]]
]


def cluster_of(**options) -> Cluster:
    return Cluster(target=target(), codec=codec(), forward_s=0.004, **options)


def text_of(chunks) -> str:
    return "".join(piece for chunk in chunks for piece in chunk.pieces)


@functools.cache
def plain() -> list[list[Chunk]]:
    """What decoding one token at a time gives: the truth of every test of equality."""

    async def go():
        async with cluster_of() as cluster:
            caller = await cluster.caller()
            return [
                await caller.generate(prompt, sampling, "vanilla", structured_outputs=WANTED[name])
                for prompt, name, sampling in CASES
            ]

    return run(go())


def known(skill: float = 0.8) -> ToyDraft:
    """A draft model that knows those texts, and is right with a chance of ``skill``."""
    texts = [(*prompt, *tokens_of(chunks)) for (prompt, _, _), chunks in zip(CASES, plain(), strict=True)]
    return ToyDraft(Told(texts), skill)


def test_what_is_generated_is_what_was_asked_for():
    for (_, name, sampling), chunks in zip(CASES, plain(), strict=True):
        if sampling.stop or chunks[-1].finish_reason != "stop":
            continue
        text, wanted = text_of(chunks), WANTED[name]
        if wanted.regex is not None:
            assert re.fullmatch(wanted.regex, text)
        elif wanted.json_schema is not None:
            assert list(json.loads(text)) == SCHEMA["required"]
        else:
            assert re.fullmatch(r"set [a-z]{2,8} to .*;|answer: (yes|no)[0-9]+", text)
    ends = [chunks[-1].finish_reason for chunks in plain()]
    assert ends.count("stop") >= 4 and "length" in ends


@pytest.mark.parametrize("method", ["sps", "duodecoding", "tree", "auto", "pld", "lookahead"])
def test_the_text_is_that_of_plain_decoding_with_every_method(method):
    async def go():
        async with cluster_of() as cluster:
            cluster.start_drafter("d1", model=draft, vocab_size=8192)
            await cluster.connected("d1")
            caller = await cluster.caller()
            for (prompt, name, sampling), truth in zip(CASES, plain(), strict=True):
                chunks = await caller.generate(prompt, sampling, method, structured_outputs=WANTED[name])
                assert tokens_of(chunks) == tokens_of(truth), (name, sampling)
                assert text_of(chunks) == text_of(truth)
                found = [lp for chunk in chunks for lp in chunk.logprobs]
                wanted = [lp for chunk in truth for lp in chunk.logprobs]
                assert [lp.top_ids for lp in found] == [lp.top_ids for lp in wanted]
                yielded.append(chunks[-1].stats)

    draft, yielded = known(), []
    run(go())
    rounds = sum(stats.rounds for stats in yielded)
    if method != "lookahead":
        assert rounds < 0.8 * sum(chunks[-1].stats.rounds for chunks in plain())
        assert sum(stats.forced_tokens for stats in yielded) > 40


def test_forced_tokens_take_no_rounds_of_their_own_even_where_nobody_drafts():
    async def go():
        async with cluster_of() as cluster:
            caller = await cluster.caller()
            prompt, name, sampling = CASES[0]
            return await caller.generate(prompt, sampling, "auto", structured_outputs=WANTED[name])

    chunks, truth = run(go()), plain()[0]
    stats = chunks[-1].stats
    assert tokens_of(chunks) == tokens_of(truth)
    assert stats.forced_tokens == stats.accepted_tokens >= 15
    assert stats.rounds <= truth[-1].stats.rounds - 15
    assert plain()[0][-1].stats.forced_tokens == 0, "vanilla drafts nothing"


def test_hardly_a_row_is_spent_on_drafts_against_the_grammar():
    """This drafter is always wrong, and mostly so that the grammar shows it."""

    async def go():
        async with cluster_of() as cluster:
            cluster.start_drafter("d1", model=draft, vocab_size=8192)
            await cluster.connected("d1")
            caller = await cluster.caller()
            prompt, name, sampling = CASES[0]
            bound = await caller.generate(prompt, sampling, "sps", structured_outputs=WANTED[name])
            free = await caller.generate(prompt, Sampling(max_tokens=30), "sps")
            return bound[-1].stats, free[-1].stats

    draft = known(skill=0.0)
    bound, free = run(go())
    assert free.draft_tokens - free.accepted_tokens > free.rounds
    assert bound.draft_tokens - bound.accepted_tokens < bound.rounds


def test_a_request_without_structure_is_not_changed_by_one_beside_it():
    async def go():
        async with cluster_of() as cluster:
            caller = await cluster.caller()
            alone = await caller.generate((470, 9), Sampling(max_tokens=20), "auto")
            prompt, name, sampling = CASES[0]
            caller.send(Generate("a", prompt, sampling=sampling, structured_outputs=WANTED[name]))
            caller.send(Generate("b", (470, 9), sampling=Sampling(max_tokens=20)))
            return alone, await caller.collect("a", "b")

    alone, both = run(go())
    assert tokens_of(both["b"]) == tokens_of(alone)
    assert tokens_of(both["a"]) == tokens_of(plain()[0])


@pytest.mark.parametrize("case", [0, 1])
def test_a_stream_goes_on_behind_any_token_with_another_verifier(case):
    prompt, name, sampling = CASES[case]
    truth = tokens_of(plain()[case])

    async def go():
        async with cluster_of() as cluster:
            caller = await cluster.caller()
            for have in range(1, len(truth) - 1, 5):
                sent = Generate(
                    f"r{have}",
                    prompt,
                    sampling=sampling,
                    generated=tuple(truth[:have]),
                    structured_outputs=WANTED[name],
                )
                caller.send(sent)
                chunks = (await caller.collect(sent.rid))[sent.rid]
                assert [t for chunk in chunks for t in chunk.token_ids] == truth[have:]

    run(go())


def test_the_client_resumes_a_structured_stream_when_the_verifier_ends():
    prompt, name, sampling = CASES[1]

    async def go():
        async with cluster_of() as cluster:
            client = AsyncClient(ADDRESS, network=cluster.network.host("client"), reconnect_timeout=30)
            tokens, text = [], ""
            async with client:
                async for chunk in client.stream(prompt, sampling=sampling, structured_outputs=WANTED[name]):
                    tokens += chunk.token_ids
                    text += chunk.text
                    if cluster.verifier.state.incarnation == "v0" and len(tokens) > 6:
                        cluster.crash_verifier()
                        await asyncio.gather(cluster.tasks["verifier"], return_exceptions=True)
                        cluster.target = target()
                        cluster.start_verifier()
            return tokens, text

    tokens, text = run(go())
    assert tokens == tokens_of(plain()[1]) and text == text_of(plain()[1])


def test_what_cannot_be_followed_fails_that_request_only():
    async def go():
        async with cluster_of() as cluster:
            caller = await cluster.caller()
            prompt, name, sampling = CASES[0]
            caller.send(Generate("good", prompt, sampling=sampling, structured_outputs=WANTED[name]))
            for at in range(8):  # more than the errors in a row that would end the verifier
                wrong = StructuredOutputs(regex=f"(a?){{3000}}a{{{3000 + at}}}")
                caller.send(Generate(f"bad{at}", prompt, sampling=sampling, structured_outputs=wrong))
            failed, chunks = {}, []
            while len(failed) < 8 or not chunks or chunks[-1].finish_reason is None:
                message = await caller.next()
                if isinstance(message, Failed):
                    failed[message.rid] = message
                elif isinstance(message, Chunk) and message.rid == "good":
                    chunks.append(message)
            return failed, chunks

    failed, chunks = run(go())
    assert tokens_of(chunks) == tokens_of(plain()[0])
    assert {message.code for message in failed.values()} == {"bad_request"}
    assert all(message.detail.startswith("structured_outputs cannot be") for message in failed.values())


def test_a_cancelled_structured_stream_leaves_nothing_behind():
    async def go():
        async with cluster_of() as cluster:
            caller = await cluster.caller()
            prompt, name, sampling = CASES[0]
            caller.send(Generate("r", prompt, sampling=sampling, structured_outputs=WANTED[name]))
            await caller.until(lambda m: isinstance(m, Chunk) and m.offset > 3)
            caller.send(Cancel("r"))
            caller.send(Status("s"))
            report = await caller.until(lambda m: isinstance(m, StatusReport))
            again = await caller.generate(prompt, sampling, "auto", structured_outputs=WANTED[name])
            return report, again, cluster.target.kv_used

    report, again, used = run(go())
    assert report.requests == () and tokens_of(again) == tokens_of(plain()[0])
    assert used == target().kv_used


def test_ignoring_the_end_and_following_a_grammar_exclude_each_other():
    async def go():
        async with cluster_of() as cluster:
            client = AsyncClient(ADDRESS, network=cluster.network.host("client"))
            async with client:
                await client.generate((470, 9), ignore_eos=True, structured_outputs=WANTED["regex"])

    with pytest.raises(RequestError, match="ignore_eos cannot be had with structured_outputs"):
        run(go())


class Held(InlineCompute):
    """A thread that begins its jobs when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = []

    def start(self, job):
        future = asyncio.get_running_loop().create_future()
        self.jobs.append((future, job))
        return future


def test_a_big_schema_is_compiled_beside_the_streams_that_run():
    held = Held()

    async def go():
        async with cluster_of(tokenizing=held) as cluster:
            caller = await cluster.caller()
            prompt, name, sampling = CASES[0]
            caller.send(Generate("big", prompt, sampling=sampling, structured_outputs=WANTED[name]))
            free = await caller.generate((470, 9), Sampling(max_tokens=20), "vanilla")
            assert len(held.jobs) == 1
            for future, job in held.jobs:
                future.set_result(job())
            return free, (await caller.collect("big"))["big"]

    free, big = run(go())
    assert len(tokens_of(free)) == 20 and tokens_of(big) == tokens_of(plain()[0])


def test_a_grammar_that_takes_too_long_ends_with_a_sentence_and_the_others_do_not_notice():
    """Masks of 80 ms each, by the grammar's own clock, beside a stream without one."""
    spent = itertools.count(step=0.08)

    async def go():
        async with cluster_of() as cluster:
            cluster.verifier.admission.grammars._timer = lambda: next(spent)
            caller, other = await cluster.caller(), await cluster.caller()
            beside = asyncio.create_task(other.generate(CASES[0][0], COMMON_SAMPLING, "auto"))
            caller.send(Generate("slow", (470, 301), sampling=COMMON_SAMPLING, structured_outputs=WANTED["schema"]))
            failed = await caller.until(lambda m: isinstance(m, Failed))
            return failed, await beside, await other.generate(CASES[0][0], COMMON_SAMPLING, "vanilla")

    failed, beside, plain_text = run(go())
    assert failed.code == "bad_request"
    assert re.fullmatch(r"structured_outputs take \d+ ms a token, .* and may take 50: use .*", failed.detail)
    assert tokens_of(beside) == tokens_of(plain_text)
    assert len(tokens_of(beside)) > 30

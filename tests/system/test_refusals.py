"""What does not fit is refused with a sentence or dropped; every other stream is unharmed."""

import asyncio

import msgspec
import pytest

from protocols import wire
from protocols.messages import (
    Budget,
    Chunk,
    Failed,
    FailureCode,
    Generate,
    Goodbye,
    Grow,
    Kind,
    Refuse,
    RefuseCode,
    Role,
    Sampling,
    Status,
    StatusReport,
    Welcome,
)
from tests.world.caller import ADDRESS, Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import VOCAB, ToyLanguage

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()


def test_a_request_that_can_never_fit_fails_with_a_sentence_and_harms_nobody():
    async def go():
        cluster = Cluster(language=LANGUAGE)
        cluster.target.slots = 100
        async with cluster:
            caller = await cluster.caller()
            caller.send(Generate("big", PROMPT, sampling=Sampling(max_tokens=500), method="vanilla"))
            caller.send(Generate("small", PROMPT, sampling=Sampling(max_tokens=10), method="vanilla"))
            failed = await caller.until(lambda m: isinstance(m, Failed))
            return failed, await caller.collect("small")

    failed, streams = run(go())
    assert failed.rid == "big" and failed.code is FailureCode.CONTEXT_LENGTH
    assert len(tokens_of(streams["small"])) == 10


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (Generate("r", ""), FailureCode.BAD_REQUEST, "empty"),
        (Generate("r", (1, VOCAB)), FailureCode.BAD_REQUEST, "vocabulary"),
        (Generate("r", tuple([5] * 5000)), FailureCode.CONTEXT_LENGTH, "too long: 5000 tokens > 4095 maximum"),
        (Generate("r", PROMPT, method="magic"), FailureCode.UNSUPPORTED, "magic"),
        (Generate("r", PROMPT, sampling=Sampling(temperature=-1.0)), FailureCode.BAD_REQUEST, "temperature"),
    ],
)
def test_a_bad_request_gets_one_clear_sentence(message, code, words):
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            caller.send(message)
            failed = await caller.until(lambda m: isinstance(m, Failed))
            good = await caller.generate(PROMPT, Sampling(max_tokens=5), "vanilla")
            return failed, good

    failed, good = run(go())
    assert failed.code is code and words in failed.detail
    assert len(tokens_of(good)) == 5


def test_a_malformed_message_of_a_known_peer_is_answered():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = await cluster.caller()
            bodies = {
                "question": ["Generate", "r", list(PROMPT), [], [0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, [], [], "5"]],
                "statement": ["Cancel", 5],
                "nonsense": {"a": 1},
            }
            for body in bodies.values():
                caller.link.send([wire.HEADER, msgspec.msgpack.encode(body)])
            answers = [await caller.next() for _ in bodies]
            good = await caller.generate(PROMPT, Sampling(max_tokens=5), "vanilla")
            return answers, good

    (question, statement, nonsense), good = run(go())
    assert isinstance(question, Failed) and (question.rid, question.code) == ("r", FailureCode.BAD_REQUEST)
    assert "sampling.max_tokens" in question.detail
    assert [answer.code for answer in (statement, nonsense)] == [RefuseCode.MALFORMED] * 2
    assert len(tokens_of(good)) == 5


def test_garbage_is_counted_and_dropped():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            stranger = cluster.network.connect(ADDRESS)
            for frames in (
                [b""],
                [b"x"] * 7,
                [wire.HEADER, b"\xc1"],
                [b"duoactor/99", b""],
                [wire.HEADER, b"\x90"],
            ):
                stranger.send(frames)
            caller = await cluster.caller()
            good = await caller.generate(PROMPT, Sampling(max_tokens=5), "vanilla")
            answer = wire.Decoder(Refuse).decode(await stranger.receive())
            assert isinstance(answer, Refuse)
            return good, cluster.verifier.state.counters

    good, counters = run(go())
    assert len(tokens_of(good)) == 5
    assert counters["malformed"] == 5


def test_a_drafter_that_lies_is_fenced_off_and_the_text_stays_the_same():
    sampling = Sampling(max_tokens=60)

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("honest")
            await cluster.connected("honest")
            liar = Caller(cluster.network, "liar")
            info = cluster.target.info
            await liar.hello(
                role=Role.DRAFTER, model_id="m", tokenizer_digest=info.tokenizer_digest, vocab_size=info.vocab_size
            )
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=sampling, method="pearl"))
            lies = [
                Grow("r", 1, 4, (-1,), (7,), (0.0,)),
                Grow("nobody's", 1, 4, (-1,), (7,), (0.0,)),
                Grow("r", 1, 4, (-1,), (VOCAB + 5,), (0.0,)),
                Grow("r", 99, 9999, (-1,), (7,), (0.0,)),
            ]
            chunks: list[Chunk] = []
            while not chunks or chunks[-1].finish_reason is None:
                for lie in lies:
                    liar.send(lie)
                message = await caller.next()
                if isinstance(message, Chunk):
                    chunks.append(message)
            return chunks, sum(n for name, n in cluster.verifier.state.counters.items() if name.startswith("fenced"))

    chunks, fenced = run(go())
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
    assert fenced >= 4


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"role": Role.DRAFTER, "tokenizer_digest": "other", "model_id": "gpt"}, RefuseCode.TOKENIZER, "gpt"),
        (
            {
                "role": Role.DRAFTER,
                "model_id": "m",
                "tokenizer_digest": "toy-tokenizer",
                "actor_id": "d1",
                "incarnation": "2",
            },
            RefuseCode.DUPLICATE,
            "d1",
        ),
        (
            {"role": Role.CONTROLLER, "actor_id": "another", "incarnation": "2"},
            RefuseCode.DUPLICATE,
            "has a controller already (controller",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_hello_with_the_reason(fields, code, words):
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            cluster.start_controller()
            await cluster.connected("d1")
            while cluster.verifier.state.controller is None:
                await asyncio.sleep(0.01)
            return await Caller(cluster.network, "x").hello(**fields)

    answer = run(go())
    assert isinstance(answer, Refuse) and answer.code is code and words in answer.detail


def test_the_successor_of_a_controller_that_died_is_welcome_at_once_when_its_heartbeats_have_stopped():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_controller()
            while cluster.verifier.state.controller is None:
                await asyncio.sleep(0.01)
            await cluster.kill("controller")
            await asyncio.sleep(1.1)  # virtual: two heartbeats
            successor = await Caller(cluster.network, "x").hello(role=Role.CONTROLLER, incarnation="2")
            return successor, cluster.verifier.state.controller.hello.incarnation

    welcome, obeyed = run(go())
    assert isinstance(welcome, Welcome) and obeyed == "2"


def test_a_peer_the_verifier_does_not_know_is_told_to_say_hello():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = Caller(cluster.network, "x")
            caller.send(Status("s"))
            answer = await caller.next()
            assert isinstance(answer, Refuse) and answer.code is RefuseCode.UNKNOWN_PEER
            assert isinstance(await caller.hello(), Welcome)

    run(go())


@pytest.mark.parametrize("farewell", [Goodbye("done"), None], ids=["says goodbye", "is silent"])
def test_what_a_controller_has_commanded_ends_with_it(farewell):
    """Seed 46787 of the simulation: a hostile one had forbidden drafts for a minute, and was gone after a second."""

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            watching = await cluster.caller()

            async def said(count):
                while True:
                    watching.send(Status())
                    report = await watching.until(lambda m: isinstance(m, StatusReport))
                    if len(report.budgets) == count:
                        return
                    await asyncio.sleep(0.1)

            controller = Caller(cluster.network, "x")
            await controller.hello(role=Role.CONTROLLER)
            controller.send(Budget(1, 60_000, Kind("sps"), window=0))
            await said(1)
            if farewell is not None:
                controller.send(farewell)
            begun = asyncio.get_running_loop().time()
            await said(0)
            return asyncio.get_running_loop().time() - begun

    assert run(go()) < 10.0  # seconds of virtual time; silence is noticed after 2.5

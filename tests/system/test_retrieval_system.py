"""Retrieval in the whole system: as a method, as the stand-in for a drafter, and as what a drafter drafts with."""

import pytest

from actors.datastore import build
from actors.drafter.proposer import build_proposer_draft
from actors.verifier.sources.lookup import Library
from actors.verifier.sources.memory import Memory
from protocols.messages import Chunk, Failed, FailureCode, Generate, Refuse, RefuseCode, Role, Sampling
from tests.world.caller import Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.datastores import toy_sources
from tests.world.models import INFO, VOCAB, ToyLanguage
from tests.world.network import MemoryNetwork, only

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
COPYING = (*PROMPT, *LANGUAGE.continuation(PROMPT, Sampling(max_tokens=100)), *PROMPT)
PARALLEL = ["sps", "pearl", "duodecoding", "tree", "auto"]
FORWARD_S = 0.001  # a round that takes no time has no price for a row, and a priced window means nothing


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("store")
    toy_sources(directory, LANGUAGE, PROMPT)
    return directory


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return toy_sources(tmp_path_factory.mktemp("store"), LANGUAGE, PROMPT)


async def alone(method, sampling, prompt, sources=None):
    """A stream of a verifier without drafters."""
    async with Cluster(language=LANGUAGE, sources=sources, forward_s=FORWARD_S) as cluster:
        caller = await cluster.caller()
        return await caller.generate(prompt, sampling, method)


@pytest.mark.parametrize("method", ["pld", "pld-earliest", "sam", "auto"])
def test_without_any_drafter_a_text_that_repeats_its_prompt_is_copied(method):
    sampling = Sampling(max_tokens=90)
    chunks = run(alone(method, sampling, COPYING))
    assert tokens_of(chunks) == LANGUAGE.continuation(COPYING, sampling)
    # forwards take no time here, so that auto, which weighs tokens against time, is sparing with rows
    assert chunks[-1].stats.rounds < (50 if method == "auto" else 25)
    assert chunks[-1].stats.accepted_tokens > (40 if method == "auto" else 60)
    assert chunks[-1].stats.drafters == ()


def test_of_several_that_name_the_same_tokens_only_the_one_that_was_asked_counts():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as cluster:
            caller = await cluster.caller()
            chunks = await caller.generate(COPYING, Sampling(max_tokens=90), "sam")
            return chunks[-1].stats, cluster.verifier.state.counters

    stats, counters = run(go())
    assert counters["accepted_from_sam"] == stats.accepted_tokens > 60
    assert [name for name, n in counters.items() if name.startswith("accepted_from_") and n] == ["accepted_from_sam"]


@pytest.mark.parametrize("method", ["rest", "auto"])
def test_without_any_drafter_what_the_datastore_knows_is_copied(method, sources):
    sampling = Sampling(max_tokens=90)
    chunks = run(alone(method, sampling, PROMPT, sources))
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
    assert chunks[-1].stats.rounds < 40


def test_rest_without_a_datastore_is_refused_in_a_sentence_that_says_how_to_make_one():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as cluster:
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=Sampling(), method="rest"))
            return await caller.until(lambda m: isinstance(m, Failed))

    failed = run(go())
    assert failed.code is FailureCode.UNSUPPORTED
    assert failed.detail == (
        "method rest needs a datastore; build one with `duoactor datastore build` and start the verifier with "
        "--datastore DIR"
    )


def test_when_the_drafter_dies_a_stream_goes_on_by_retrieval():
    sampling = Sampling(max_tokens=90)

    async def go():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as cluster:
            cluster.start_drafter("d1", skill=1.0)
            await cluster.connected("d1")
            caller = await cluster.caller()
            caller.send(Generate("r", COPYING, sampling=sampling, method="auto"))
            first = await caller.until(lambda m: isinstance(m, Chunk))
            await cluster.kill("d1")
            return [first, *(await caller.collect("r"))["r"]]

    chunks = run(go())
    assert tokens_of(chunks) == LANGUAGE.continuation(COPYING, sampling)
    assert chunks[-1].stats.rounds < 30


def test_a_draft_length_that_the_client_chose_bounds_what_is_copied():
    sampling = Sampling(max_tokens=60)

    async def go(method):
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as cluster:
            caller = await cluster.caller()
            return await caller.generate(COPYING, sampling, method, num_speculative_tokens=3)

    for method in ("pld", "sam"):
        assert max(len(c.token_ids) for c in run(go(method))) == 4


# --- drafters without a model ---------------------------------------------------------------------------------------


async def drafted(name, method, sampling, network=None, prompt=COPYING):
    """A stream whose drafter retrieves."""
    model = build_proposer_draft(name)
    hello = {
        "model_id": model.info.model_id,
        "vocab_size": model.info.vocab_size,
        "tokenizer_digest": model.info.tokenizer_digest,
    }
    async with Cluster(network, LANGUAGE, forward_s=FORWARD_S) as cluster:
        cluster.start_drafter("d1", model=model, **hello)
        await cluster.connected("d1")
        caller = await cluster.caller()
        return await caller.generate(prompt, sampling, method)


@pytest.mark.parametrize("method", PARALLEL)
@pytest.mark.parametrize("kind", ["pld", "sam", "rest"])
def test_a_drafter_that_retrieves_serves_every_method(method, kind, store):
    sampling = Sampling(max_tokens=90)
    chunks = run(drafted(f"rest:{store}" if kind == "rest" else kind, method, sampling))
    assert tokens_of(chunks) == LANGUAGE.continuation(COPYING, sampling)
    assert chunks[-1].stats.accepted_tokens > 40
    assert chunks[-1].stats.drafters == ("d1",)


@pytest.mark.parametrize("method", PARALLEL)
@pytest.mark.parametrize("kind", ["pld", "sam", "rest"])
def test_nor_does_a_bad_network_in_front_of_it_change_a_token(method, kind, store):
    faulty = only("Open", "Verdict", "Close", "Grow", "Resync", "Budget", "DraftStats")
    for seed in range(3):
        sampling = Sampling(temperature=1.0 * (seed % 2), seed=seed, max_tokens=50)
        network = MemoryNetwork(seed, drop=0.2, duplicate=0.2, reorder=0.3, delay=5, faulty=faulty)
        name = f"rest:{store}" if kind == "rest" else kind
        chunks = run(drafted(name, method, sampling, network))
        assert tokens_of(chunks) == LANGUAGE.continuation(COPYING, sampling)


def test_a_drafter_with_a_datastore_of_another_tokenizer_is_refused(tmp_path):
    build(tmp_path, [[2, 3, 4]], VOCAB, "another")
    info = build_proposer_draft(f"rest:{tmp_path}").info
    assert info.tokenizer_digest != INFO.tokenizer_digest

    async def go():
        async with Cluster(language=LANGUAGE, forward_s=FORWARD_S) as cluster:
            return await Caller(cluster.network).hello(
                role=Role.DRAFTER, model_id="m", tokenizer_digest=info.tokenizer_digest, vocab_size=info.vocab_size
            )

    answer = run(go())
    assert isinstance(answer, Refuse)
    assert answer.code is RefuseCode.TOKENIZER


async def asked_again(memory, method="auto", salts=("", ""), temperature=0.0):
    """Rounds of the same request, the second time when the first has ended and has been read."""
    sampling = Sampling(max_tokens=90, temperature=temperature, seed=7)
    async with Cluster(language=LANGUAGE, sources=Library(memory=memory), forward_s=FORWARD_S) as cluster:
        caller = await cluster.caller()
        rounds = []
        for salt in salts:
            chunks = await caller.generate(PROMPT, sampling, method, cache_salt=salt)
            assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
            rounds.append(chunks[-1].stats.rounds)
        return rounds


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_an_earlier_request_was_answered_is_copied(temperature):
    first, second = run(asked_again(Memory(10_000), temperature=temperature))
    assert second < first / 2


@pytest.mark.parametrize(
    ("memory", "method", "salts"),
    [(None, "auto", ("", "")), (Memory(10_000), "auto", ("a", "b")), (Memory(10_000), "tree", ("", ""))],
)
def test_without_a_memory_in_common_nothing_is_copied_from_earlier_requests(memory, method, salts):
    first, second = run(asked_again(memory, method, salts))
    assert second > first * 0.8

"""The three actors together, on the in-memory network and a virtual clock: the text is always the target's own."""

import pytest

from protocols.messages import Sampling
from tests.world.caller import tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.datastores import toy_sources
from tests.world.models import ToyLanguage
from tests.world.network import MemoryNetwork, only
from tests.world.pairs import every_pair

PROMPT = (5, 9, 33)
RETRIEVING = ["pld", "pld-earliest", "sam", "rest", "lookahead"]
METHODS = ["vanilla", "sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree", "auto", *RETRIEVING]
DRAFTING = only("Open", "Verdict", "Close", "Grow", "Resync", "Budget", "DraftStats")


async def one_stream(cluster: Cluster, sampling: Sampling, method: str, skill: float = 0.8, **fields):
    async with cluster:
        cluster.start_drafter(skill=skill)
        cluster.start_controller()
        await cluster.connected("d1")
        caller = await cluster.caller()
        return await caller.generate(PROMPT, sampling, method, **fields)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return toy_sources(tmp_path_factory.mktemp("store"), ToyLanguage(), PROMPT)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_streams_the_targets_own_text(method, sources):
    language = ToyLanguage(eos_rate=0.01)
    for seed in range(4):
        sampling = Sampling(temperature=1.0 * (seed % 2), seed=seed, max_tokens=60)
        chunks = run(one_stream(Cluster(language=language, sources=sources), sampling, method))
        assert tokens_of(chunks) == language.continuation(PROMPT, sampling)


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree"])
def test_drafts_are_really_used(method):
    chunks = run(one_stream(Cluster(), Sampling(max_tokens=200), method, skill=1.0))
    stats = chunks[-1].stats
    assert stats.accepted_tokens > 60
    assert stats.rounds < 140
    assert sum(sum(c.accepted) for c in chunks) == stats.accepted_tokens
    assert stats.drafters == ("d1",)


def test_a_drafter_is_credited_with_every_accepted_token_the_last_rounds_too():
    async def story():
        async with Cluster() as cluster:
            cluster.start_drafter(skill=1.0)
            await cluster.connected("d1")
            caller = await cluster.caller()
            chunks = await caller.generate(PROMPT, Sampling(max_tokens=40), "sps")
            return chunks[-1].stats, cluster.verifier.state.totals.of_drafter("d1")

    stats, [drafts] = run(story())
    assert (drafts.tokens, drafts.accepted) == (stats.draft_tokens, stats.accepted_tokens)


@pytest.mark.parametrize(("method", "gamma", "sequences"), every_pair(METHODS, [1, 3, 8], [0, 1, 3]))
def test_a_network_that_drops_repeats_reorders_and_delays_changes_no_token(method, gamma, sequences, sources):
    language = ToyLanguage(eos_rate=0.005)
    for seed in range(4):
        sampling = Sampling(temperature=0.7 * (seed % 2), seed=seed, max_tokens=50)
        network = MemoryNetwork(seed, drop=0.2, duplicate=0.2, reorder=0.3, delay=5, faulty=DRAFTING)
        cluster = Cluster(network, language, sources)
        chunks = run(one_stream(cluster, sampling, method, num_speculative_tokens=gamma, sequences=sequences))
        assert tokens_of(chunks) == language.continuation(PROMPT, sampling)

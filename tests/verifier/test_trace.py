"""What a client that asks for a trace is told: every round's tree, what was verified of it, and what was accepted."""

import pytest

from actors.tree.tree import OWN, TokenTree
from actors.verifier.results import Chosen
from actors.verifier.sources.bits import DRAFTER, MEMORY, TEXT
from actors.verifier.trace import MAX_TRACED_NODES, Trace
from duoactor import AsyncClient
from protocols.messages import Kind, Origin, RoundStats
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage

STATS = RoundStats("r", 1, Kind("tree", "d"), 0, 0, 1, 1, 1000.0, 0.0, 1000.0)


def streamed(method: str, **options):
    """The chunks of one answer."""

    async def go():
        async with (
            Cluster(language=ToyLanguage(eos_rate=0.0), forward_s=0.01) as cluster,
            AsyncClient(ADDRESS, network=cluster.network.host("c")) as client,
        ):
            cluster.start_drafter("d", skill=0.7)
            await cluster.connected("d")
            asked = {"max_tokens": 80, "temperature": 1.0, "seed": 3, "method": method, **options}
            return [chunk async for chunk in client.stream([5, 9, 5, 9, 5, 9], **asked)]

    return run(go())


ORIGINS = {
    "vanilla": set(),
    "pld": {Origin.RETRIEVED},
    "lookahead": {Origin.RETRIEVED},
    "sps": {Origin.DRAFT},
    "duodecoding": {Origin.DRAFT, Origin.SIBLING},
    "tree": {Origin.DRAFT, Origin.SIBLING},
    "auto": {Origin.DRAFT, Origin.SIBLING, Origin.RETRIEVED},
}


@pytest.mark.parametrize("method", ORIGINS)
def test_every_round_is_told_and_adds_up_to_the_requests_own_statistics(method):
    chunks = streamed(method, trace=True, sequences=3)
    plain = streamed(method, sequences=3)
    assert [t for c in chunks for t in c.token_ids] == [t for c in plain for t in c.token_ids]
    assert chunks[0].trace is None, "the prompt's forward has no tree"
    drafted = accepted = 0
    for chunk in chunks[1:]:
        trace = chunk.trace
        assert trace.stats.kind.method == method
        assert all(-1 <= parent < at for at, parent in enumerate(trace.parents))
        assert len({*map(len, (trace.tokens, trace.parents, trace.logprobs, trace.origins, trace.arrived_us))}) == 1
        taken = [trace.tokens[at] for at in trace.path][: len(chunk.token_ids)]
        assert list(chunk.token_ids[: len(taken)]) == taken
        assert [trace.parents[at] for at in trace.path] == [-1, *trace.path][: len(trace.path)]
        assert all(at < trace.stats.window for at in trace.path), "what was accepted had been verified"
        assert Origin.TARGET not in trace.origins
        drafted += trace.stats.window
        accepted += sum(chunk.accepted)
        for origin, arrived in zip(trace.origins, trace.arrived_us, strict=True):
            assert origin is not Origin.RETRIEVED or arrived == 0
    assert (drafted, accepted) == (chunks[-1].stats.draft_tokens, chunks[-1].stats.accepted_tokens)
    kinds = {origin for chunk in chunks[1:] for origin in chunk.trace.origins}
    assert kinds == ORIGINS[method]


def test_what_only_an_earlier_requests_text_named_is_told_as_remembered():
    tree = TokenTree(4, 1)
    ours = tree.add(tree.root, 10, -0.1, OWN, TEXT | MEMORY)
    theirs = tree.add(ours, 11, -0.1, OWN, MEMORY)
    both = tree.add(theirs, 12, -0.1, OWN, MEMORY)
    tree.add(theirs, 12, -0.2, 0, DRAFTER)
    drafted = tree.add(both, 13, -0.1, 0, DRAFTER)
    window = [ours, theirs, both, drafted]
    told = Trace().seen(tree, Chosen(window, [10, 11, 12, 13], [-1, 0, 1, 2]), [0, 1, 2, 3])(STATS)
    assert told.remembered == (1, 2)
    assert told.origins == (Origin.RETRIEVED, Origin.RETRIEVED, Origin.DRAFT, Origin.DRAFT)


def test_a_request_that_does_not_ask_for_a_trace_gets_none():
    assert {chunk.trace for chunk in streamed("tree")} == {None}


def test_a_node_keeps_its_date_and_its_origin_while_the_tree_is_pruned_above_it():
    tree, trace = TokenTree(4, 1), Trace()
    a = tree.add(tree.root, 10, -0.1)
    trace.grew(tree, 100.0)
    b, guess = tree.add(a, 20, -0.9), tree.add(tree.root, 11, -2.0, OWN)
    c = tree.add(a, 21, -0.5)
    trace.grew(tree, 200.0)
    told = trace.seen(tree, Chosen([a, b], [10, 20], [-1, 0]), [0])(STATS)
    assert told.tokens == (10, 20, 21, 11)
    assert told.parents == (-1, 0, 0, -1)
    assert told.arrived_us == (100, 200, 200, 0)
    assert told.origins == (Origin.DRAFT, Origin.SIBLING, Origin.DRAFT, Origin.RETRIEVED)
    tree.advance([10, 21])
    late = tree.add(c, 30, -0.2)
    trace.grew(tree, 300.0)
    told = trace.seen(tree, Chosen([late], [30], [-1]), [0])(STATS)
    assert (told.tokens, told.parents, told.arrived_us, told.path) == ((30,), (-1,), (300,), (0,))
    assert guess.rank == OWN


def test_what_is_told_of_a_large_tree_is_bounded_and_hangs_together():
    tree, trace = TokenTree(4, 1), Trace()
    window, node = [], tree.root
    for depth in range(5):
        for other in range(1, 60):
            tree.add(node, 100 + other, -3.0 - other)
        node = tree.add(node, 10 + depth, -6.0)
        window.append(node)
    trace.grew(tree, 1.0)
    told = trace.seen(tree, Chosen(window, [n.token for n in window], [-1, 0, 1, 2, 3]), [])(STATS)
    assert len(told.tokens) == MAX_TRACED_NODES < tree.size
    assert told.tokens[:5] == (10, 11, 12, 13, 14)
    assert all(-1 <= parent < at for at, parent in enumerate(told.parents))

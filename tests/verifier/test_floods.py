"""A peer that takes more of the verifier's time than its share is not read for a while."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

from actors.verifier.floods import (
    BURST_S,
    CLIENT_SHARE,
    LEASE_SHARE,
    MAX_CHARGE_S,
    NEW_S,
    NEWCOMERS_BURST_S,
    SHARE,
    Floods,
)
from protocols.messages import (
    Chunk,
    Failed,
    FailureCode,
    Generate,
    Grow,
    Heartbeat,
    Role,
    Sampling,
    Status,
    StatusReport,
)
from tests.world.caller import Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import INFO, ToyLanguage

LANGUAGE = ToyLanguage()


def floods(leases: int = 0, clients: tuple[bytes, ...] = (), asked: bool = False) -> Floods:
    """One drafter, ``d``, with so many leases; ``asked``: for each of its messages."""
    drafter = SimpleNamespace(leases=leases, answers=lambda: asked, account=b"d")
    drafters = SimpleNamespace(by_peer={b"d": drafter})
    roles = {b"d": Role.DRAFTER, **dict.fromkeys(clients, Role.CLIENT)}
    return Floods(SimpleNamespace(drafters=drafters), roles.get)


def dropped(one: Floods, peer: bytes, share: float, seconds: float) -> int:
    """Messages dropped of one every millisecond, each of which takes that share of it."""
    found = 0
    for millisecond in range(round(seconds * 1000)):
        now = millisecond / 1000
        if one.drops(peer, now):
            found += 1
        else:
            one.charge(peer, share / 1000, now)
    return found


def test_who_keeps_to_its_share_is_always_heard():
    assert dropped(floods(leases=2), b"d", 0.05, seconds=20) == 0


def test_a_flood_is_dropped_for_most_of_the_time():
    assert dropped(floods(), b"d", 0.5, seconds=60) > 0.98 * 60_000
    assert dropped(floods(), b"nobody", 0.5, seconds=60) > 0.98 * 60_000


def test_a_flooder_is_heard_again_once_it_owes_nothing():
    one = floods(leases=1)
    messages = math.ceil(2 * BURST_S / MAX_CHARGE_S)
    for _ in range(messages):
        one.charge(b"d", 1.0, now=0.0)
    paid = messages * MAX_CHARGE_S / (SHARE + LEASE_SHARE)
    assert one.drops(b"d", 0.9 * paid)
    assert not one.drops(b"d", 1.1 * paid)


def test_one_message_that_takes_long_is_no_flood():
    one = floods()
    one.charge(b"d", 0.04, now=0.0)  # a newcomer's, for whom something is found out once
    assert not one.drops(b"d", 0.001)


def test_a_client_is_heard_beyond_a_drafters_share():
    assert dropped(floods(clients=(b"c",)), b"c", 0.9 * CLIENT_SHARE, seconds=60) == 0
    assert dropped(floods(clients=(b"c",)), b"c", 1.0, seconds=60) > 0.9 * 60_000


def test_a_clients_requests_are_always_heard_and_its_flood_of_questions_is_refused():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.01) as cluster:
            looks = iter(range(1 << 30))
            inbox = cluster.verifier.inbox
            inbox._timer = inbox._cpu_timer = lambda: next(looks) * 1e-3
            caller = await cluster.caller()
            answer = None
            while not isinstance(answer, Failed):
                caller.send(Status("s"))
                answer = await caller.until(lambda message: isinstance(message, StatusReport | Failed))
            chunks = await caller.generate((5, 9, 33), Sampling(max_tokens=8, ignore_eos=True))
            return answer, tokens_of(chunks), cluster.verifier.state.counters["flood"]

    answer, text, found = run(go())
    assert answer.code is FailureCode.OVERLOADED and answer.rid == "s"
    assert "ask again" in answer.detail
    assert len(text) == 8 and found == 1


def strangers(one: Floods, seconds: float) -> int:
    """Messages, one every millisecond, each from another and half of it to be read: how many were dropped."""
    return sum(dropped_once(one, b"%d" % number, number / 1000) for number in range(round(seconds * 1000)))


def dropped_once(one: Floods, peer: bytes, now: float) -> bool:
    if not one.drops(peer, now):
        one.charge(peer, 0.0005, now)
        return False
    return True


def test_a_flood_from_ever_new_peers_is_dropped_for_most_of_the_time():
    one = floods(leases=1, clients=(b"c",))
    one.charge(b"d", 0.0, now=-2 * NEW_S)  # the drafter has been here for longer
    assert strangers(one, seconds=20) > 0.85 * 20_000
    one.charge(b"another", 0.0005, now=20.0)
    assert one.drops(b"another", 20.0) and not one.drops(b"d", 20.0) and not one.drops(b"c", 20.0)
    assert not one.drops(b"another", 21.0), "a second later newcomers are heard again"


def test_what_new_clients_take_is_the_newcomers_debt_and_what_the_others_take_is_not():
    one = floods(clients=(b"c", b"new"))
    one.charge(b"c", 0.0, now=-2 * NEW_S)
    for _ in range(1_000):
        one.charge(b"c", 1.0, now=0.0)
    assert not one.drops(b"stranger", 0.0)
    for _ in range(round(NEWCOMERS_BURST_S / MAX_CHARGE_S)):
        one.charge(b"new", 1.0, now=0.0)
    assert one.drops(b"stranger", 0.0)


def test_many_clients_that_come_at_once_are_all_heard():
    clients = tuple(b"%d" % number for number in range(64))
    one = floods()
    for peer in clients:
        assert not one.drops(peer, 0.0)
        one.charge(peer, 0.0005, now=0.0)  # Hello
        one.charge(peer, MAX_CHARGE_S, now=0.0)  # Generate
    assert not one.drops(b"one more", 0.0)


def test_a_hundred_connections_of_a_key_owe_together():
    peers = [b"%d" % number for number in range(100)]
    drafters = SimpleNamespace(by_peer={})
    one = Floods(SimpleNamespace(drafters=drafters), dict.fromkeys(peers, Role.DRAFTER).get, lambda peer: b"key")
    for peer in peers:
        one.charge(peer, 0.0, now=-2 * NEW_S)
    found = 0
    for millisecond in range(20_000):
        peer, now = peers[millisecond % 100], millisecond / 1000
        if one.drops(peer, now):
            found += 1
        else:
            one.charge(peer, 0.0005, now)
    assert found > 0.98 * 20_000
    assert one.flooding == 100
    one.forget(now=20.0)
    assert one.flooding == 0


def test_connections_without_a_role_are_hung_up_on_when_their_own_account_owes():
    """Those of a key beyond its eight drafters, and a stranger; not a drafter, nor who comes while strangers owe."""
    roles = {b"d": Role.DRAFTER}
    accounts = {b"d": b"key", b"ninth": b"key"}
    one = Floods(
        SimpleNamespace(drafters=SimpleNamespace(by_peer={})), roles.get, lambda peer: accounts.get(peer, peer)
    )
    for peer in (b"d", b"stranger"):
        for _ in range(round(NEWCOMERS_BURST_S / MAX_CHARGE_S)):
            one.charge(peer, 1.0, now=0.0)
    peers = (b"d", b"ninth", b"stranger", b"newcomer")
    assert all(one.drops(peer, 0.0) for peer in peers)
    assert [peer for peer in peers if one.unwanted(peer)] == [b"ninth", b"stranger"]


def test_a_stranger_that_floods_is_hung_up_on():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.01) as cluster:
            looks = iter(range(1 << 30))
            inbox = cluster.verifier.inbox
            inbox._timer = inbox._cpu_timer = lambda: next(looks) * 50e-6
            stranger = Caller(cluster.network, "stranger")
            first = stranger.link.peer
            while stranger.link.peer == first:
                stranger.send(Heartbeat())
                await asyncio.sleep(0)
            return cluster.verifier.state.counters

    counters = run(go())
    assert counters["flood"] >= 1 and counters["unknown_peer"] > 1


def test_an_honest_drafter_of_one_stream_is_heard_where_messages_take_twice_as_long():
    """Rounds of 5 ms bring 400 messages a second, of 150 µs each on a slow core."""
    one, found = floods(leases=1), 0
    for number in range(8_000):
        now = number / 400
        found += one.drops(b"d", now)
        one.charge(b"d", 150e-6, now)
    assert found == 0


def test_nothing_is_remembered_of_peers_that_owe_nothing():
    one = floods()
    one.charge(b"a", 0.001, now=0.0)
    for _ in range(20):
        one.charge(b"b", 1.0, now=0.0)
    assert one.drops(b"b", 0.1)
    one.forget(now=10.0)
    assert not one.drops(b"a", 10.0) and one.drops(b"b", 10.0)
    one.forget(now=10_000.0)
    assert not one._debts and not one._dropped and not one._welcomed


def test_a_flooding_drafter_is_dropped_while_an_honest_one_drafts():
    sampling = Sampling(max_tokens=200)

    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.01) as cluster:
            cluster.start_drafter("honest")
            await cluster.connected("honest")
            looks = iter(range(1 << 30))
            inbox = cluster.verifier.inbox
            inbox._timer = inbox._cpu_timer = lambda: next(looks) * 50e-6  # for each look
            flooder = Caller(cluster.network, "flooder")
            digest, size = INFO.tokenizer_digest, INFO.vocab_size
            await flooder.hello(
                role=Role.DRAFTER, model_id="m", tokenizer_digest=digest, vocab_size=size, max_context=1
            )
            caller = await cluster.caller()
            caller.send(Generate("r", (5, 9, 33), sampling=sampling, method="sps"))
            chunks: list[Chunk] = []
            while not chunks or chunks[-1].finish_reason is None:
                for _ in range(10):
                    flooder.send(Grow("nobody's", 1, 1, (-1,), (7,), (0.0,)))
                message = await caller.next()
                if isinstance(message, Chunk):
                    chunks.append(message)
            return chunks, cluster.verifier.state.counters["flood"]

    chunks, flood = run(go())
    assert tokens_of(chunks) == LANGUAGE.continuation((5, 9, 33), sampling)
    assert flood > 100
    assert chunks[-1].stats.accepted_tokens > 50 and chunks[-1].stats.drafters == ("honest",)

"""What each key is for: nobody becomes what their key does not say, and a client sees its own work only."""

from __future__ import annotations

import pytest

from actors.verifier.peers import MAX_CLIENTS_OF_KEY, MAX_DRAFTERS_OF_KEY
from protocols.errors import RequestError
from protocols.messages import (
    Cancel,
    DrainActor,
    Failed,
    FailureCode,
    Generate,
    Refuse,
    RefuseCode,
    Role,
    Sampling,
    Status,
    StatusReport,
    Swap,
    Undo,
    Welcome,
)
from protocols.security import Holder, KeyRole
from tests.world.caller import ADDRESS, Caller, DrafterByHand
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.puppet import client_of

LONG = Sampling(max_tokens=400, ignore_eos=True)


def keyed(cluster: Cluster, **hosts: KeyRole) -> None:
    """Each host comes with a key of its own, for that role."""
    for name, role in hosts.items():
        cluster.network.holders[name] = Holder(name.encode().ljust(40), frozenset({role}))


async def report(caller: Caller) -> StatusReport:
    caller.send(Status())
    return await caller.until(lambda message: isinstance(message, StatusReport))


@pytest.mark.parametrize("role", [Role.DRAFTER, Role.CONTROLLER])
@pytest.mark.parametrize("own", [KeyRole.CLIENT, KeyRole.OPERATOR])
def test_a_key_for_another_role_is_refused_in_a_sentence(role: Role, own: KeyRole) -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            keyed(cluster, mallory=own)
            answer = await Caller(cluster.network, "mallory").hello(role=role)
            assert isinstance(answer, Refuse) and answer.code is RefuseCode.FORBIDDEN
            assert own in answer.detail and f"--role {role}" in answer.detail
            assert cluster.verifier.state.controller is None and not cluster.verifier.state.drafters.by_peer

    run(main())


def test_what_is_welcomed_as_a_drafter_has_named_its_model() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            answer = await DrafterByHand(cluster.network, "mallory").hello(model_id="")
            assert isinstance(answer, Refuse) and "model_id" in answer.detail
            assert not cluster.verifier.state.drafters.by_peer

    run(main())


@pytest.mark.parametrize(
    ("own", "role", "most"),
    [(KeyRole.DRAFTER, Role.DRAFTER, MAX_DRAFTERS_OF_KEY), (KeyRole.CLIENT, Role.CLIENT, MAX_CLIENTS_OF_KEY)],
)
def test_a_key_has_so_many_connections_and_no_more(own: KeyRole, role: Role, most: int) -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            keyed(cluster, mallory=own, honest=own)
            make = DrafterByHand if role is Role.DRAFTER else Caller
            for number in range(most):
                one = make(cluster.network, "mallory")
                assert isinstance(await one.hello(actor_id=f"m{number}"), Welcome)
            assert isinstance(await one.hello(actor_id=f"m{number}"), Welcome), "it takes its own place again"
            answer = await make(cluster.network, "mallory").hello(actor_id="one more")
            assert isinstance(answer, Refuse) and answer.code is RefuseCode.DUPLICATE
            assert f"{most} {role}s" in answer.detail and "duoactor keys" in answer.detail
            assert isinstance(await make(cluster.network, "honest").hello(), Welcome)

    run(main())


def test_more_drafters_than_a_status_can_tell_of_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.verifier.peers.MAX_DRAFTERS", 3)

    async def main() -> None:
        async with Cluster() as cluster:
            answers = [await DrafterByHand(cluster.network, f"d{number}").hello() for number in range(4)]
            assert [type(answer) for answer in answers] == [Welcome, Welcome, Welcome, Refuse]
            found = await report(await cluster.caller("alice"))
            assert len(found.drafters) == 3

    run(main())


def test_a_drafters_key_drafts_and_nothing_else() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            keyed(cluster, d1=KeyRole.DRAFTER, mallory=KeyRole.DRAFTER)
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            answer = await Caller(cluster.network, "mallory").hello()
            assert isinstance(answer, Refuse) and answer.code is RefuseCode.FORBIDDEN

    run(main())


def test_only_an_operator_swaps_drains_and_undoes() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            keyed(cluster, alice=KeyRole.CLIENT, admin=KeyRole.OPERATOR)
            cluster.start_drafter("d1")
            cluster.start_drafter("d2")
            await cluster.connected("d1", "d2")
            alice, admin = await cluster.caller("alice"), await cluster.caller("admin")
            for order in (Swap("1", "d1", "d2"), DrainActor("2", "d1"), Undo("4")):
                alice.send(order)
                answer = await alice.until(lambda message: isinstance(message, Failed))
                assert answer.code is FailureCode.FORBIDDEN and "--role operator" in answer.detail
            assert not any(d.reserve or d.draining for d in cluster.verifier.state.drafters.by_peer.values())
            admin.send(Swap("3", "d1", "d2"))
            await admin.until(lambda message: type(message).__name__ == "Done")

    run(main())


def test_status_shows_a_client_its_own_requests_and_an_operator_all() -> None:
    async def main() -> None:
        async with Cluster(forward_s=0.01) as cluster:
            keyed(cluster, alice=KeyRole.CLIENT, bob=KeyRole.CLIENT, admin=KeyRole.OPERATOR)
            alice, bob, admin = [await cluster.caller(name) for name in ("alice", "bob", "admin")]
            for caller in (alice, bob):
                caller.send(Generate(f"of-{caller.name}", (5, 6, 7), sampling=LONG))
                await caller.next()
            seen = {one.name: {r.rid for r in (await report(one)).requests} for one in (alice, bob, admin)}
            assert seen == {"alice": {"of-alice"}, "bob": {"of-bob"}, "admin": {"of-alice", "of-bob"}}

    run(main())


def test_who_claims_anothers_name_does_not_get_their_stream() -> None:
    async def main() -> None:
        async with Cluster(forward_s=0.01) as cluster:
            keyed(cluster, alice=KeyRole.CLIENT, mallory=KeyRole.CLIENT)
            alice = await cluster.caller("alice")
            alice.send(Generate("r", (5, 6, 7), sampling=LONG))
            await alice.next()
            mallory = Caller(cluster.network, "mallory")
            await mallory.hello(actor_id="alice")
            mallory.send(Generate("r", (5, 6, 7), sampling=LONG))
            answer = await mallory.until(lambda message: isinstance(message, Failed))
            assert answer.code is FailureCode.BAD_REQUEST
            await alice.collect("r")

    run(main())


def test_who_claims_a_drafters_name_neither_takes_its_place_nor_keeps_it_out() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            keyed(cluster, honest=KeyRole.DRAFTER, mallory=KeyRole.DRAFTER)
            first, drafters = DrafterByHand(cluster.network, "honest"), cluster.verifier.state.drafters
            assert isinstance(await first.hello(actor_id="d1", incarnation="i"), Welcome)
            (own,) = drafters.by_peer.values()
            thief = DrafterByHand(cluster.network, "mallory")
            assert isinstance(await thief.hello(actor_id="d1", incarnation="i"), Welcome)
            assert drafters.named("d1") is own and drafters.named("d1@mallory ")
            assert isinstance(await thief.hello(actor_id="d1", incarnation="i"), Welcome)
            assert len(drafters.by_peer) == 2
            early = DrafterByHand(cluster.network, "mallory")
            assert isinstance(await early.hello(actor_id="d2", incarnation="j"), Welcome)
            late = DrafterByHand(cluster.network, "honest")
            assert isinstance(await late.hello(actor_id="d2", incarnation="k"), Welcome)
            assert drafters.named("d1") is own and len(drafters.by_peer) == 4

    run(main())


def test_nobody_cancels_or_replaces_anothers_request_by_its_id() -> None:
    async def main() -> None:
        async with Cluster(forward_s=0.01) as cluster:
            keyed(cluster, alice=KeyRole.CLIENT, mallory=KeyRole.CLIENT)
            alice, mallory = await cluster.caller("alice"), await cluster.caller("mallory")
            alice.send(Generate("r", (5, 6, 7), sampling=LONG))
            await alice.next()
            mallory.send(Cancel("r"))
            mallory.send(Generate("r", (9,), sampling=LONG, generated=(5, 5, 5)))
            assert "in use by another client" in (await mallory.until(lambda one: isinstance(one, Failed))).detail
            chunks = (await alice.collect("r"))["r"]
            assert sum(len(chunk.token_ids) for chunk in chunks) > 300

    run(main())


def test_telemetry_is_announced_to_those_who_may_hear_it() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            keyed(cluster, client=KeyRole.CLIENT, admin=KeyRole.OPERATOR)
            admin = await Caller(cluster.network, "admin").hello()
            assert isinstance(admin, Welcome) and admin.telemetry == ADDRESS + ".telemetry"
            async with client_of(cluster) as client:
                with pytest.raises(RequestError, match="--role operator"):
                    await anext(client.telemetry())

    run(main())


def test_without_keys_everybody_may_do_everything() -> None:
    async def main() -> None:
        async with Cluster(forward_s=0.01) as cluster:
            alice, bob = await cluster.caller("alice"), await cluster.caller("bob")
            alice.send(Generate("r", (5, 6, 7), sampling=LONG))
            await alice.next()
            assert [one.rid for one in (await report(bob)).requests] == ["r"]
            bob.send(DrainActor("1", "d1"))
            answer = await bob.until(lambda message: isinstance(message, Failed))
            assert answer.code is FailureCode.NOT_FOUND

    run(main())

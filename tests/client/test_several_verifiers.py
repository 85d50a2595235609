"""A client of several verifiers: where a request goes, and that it goes on with the same text when one is lost."""

import asyncio
from dataclasses import replace

import pytest

from duoactor import AsyncClient, ConnectionLost, RequestError, Sampling
from duoactor.client.session import Session
from duoactor.client.verifiers import OPENING, Verifiers
from protocols.address import several
from protocols.handshake import Lost, Why
from protocols.messages import ChatTurn, Chunk, Failed, FailureCode, Generate, Welcome
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage, ToyTarget
from tests.world.network import MemoryNetwork

A, B = "memory://a", "memory://b"
PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
TRUTH = LANGUAGE.continuation(PROMPT, Sampling(max_tokens=300, ignore_eos=True))
LONG = {"max_tokens": 300, "ignore_eos": True}


def welcome(incarnation: str, **fields) -> Welcome:
    return Welcome(incarnation, 500, 2500, "", **{"model_id": "m", "dtype": "float32", **fields})


def both() -> Verifiers:
    verifiers = Verifiers((A, B))
    for address in (A, B):
        verifiers.welcomed(address, welcome(address))
    return verifiers


# --- where ----------------------------------------------------------------------------------------------------------


def test_the_one_with_the_fewest_streams_is_chosen():
    assert both().choose(Generate("r", "hello"), {A: 1}) == B


def test_a_conversation_goes_back_to_the_verifier_that_has_its_beginning():
    verifiers = both()
    first = (ChatTurn("system", "x" * OPENING), ChatTurn("user", "hello"))
    assert verifiers.choose(Generate("r", messages=first), {A: 1}) == B
    later = (*first, ChatTurn("assistant", "yes"), ChatTurn("user", "more"))
    assert verifiers.choose(Generate("s", messages=later), {B: 2}) == B
    assert verifiers.choose(Generate("t", messages=later), {B: 3}) == A  # clearly busier
    assert verifiers.choose(Generate("u", messages=later, cache_salt="other"), {A: 1}) == B
    verifiers.lost(A)
    assert verifiers.choose(Generate("t", messages=later), {}) == B


def test_a_short_prompt_binds_to_nothing():
    verifiers = both()
    short, long = tuple(range(OPENING - 1)), tuple(range(OPENING))
    assert [verifiers.choose(Generate("r", short), {A: n}) for n in (0, 1)] == [A, B]
    assert [verifiers.choose(Generate("r", long), {A: n}) for n in (0, 1)] == [A, A]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model_id": "other"}, "other in float32 and not m in float32"),
        ({"dtype": "bfloat16"}, "m in bfloat16 and not m in float32"),
        (
            {"max_context": 512},
            "m in float32 (context 512, vocabulary 0) and not m in float32 (context 0, vocabulary 0)",
        ),
        ({"identity": "0123456789abcdef"}, "m in float32 (files 01234567) and not m in float32 (files unknown)"),
    ],
)
def test_one_that_serves_another_model_is_left_out_with_a_warning(fields, told, caplog):
    verifiers = Verifiers((A, B))
    verifiers.welcomed(A, welcome("a"))
    verifiers.welcomed(B, welcome("b", **fields))
    assert verifiers.usable() == [A] and f"serves {told}, as the others do; it is not used" in caplog.text


def test_the_model_of_another_is_taken_once_no_verifier_has_the_one_in_force(caplog):
    verifiers = both()
    verifiers.welcomed(A, welcome("a2", model_id="new"))
    assert verifiers.usable() == [B]
    verifiers.leaves(B)
    assert verifiers.usable() == [A] and verifiers.served.model_id == "new"
    assert f"no verifier serves m in float32 any more; requests go to {A}, which serves new in float32" in caplog.text
    verifiers.welcomed(B, welcome("b2", model_id="new"))
    assert verifiers.usable() == [A, B]


def test_while_no_verifier_is_there_the_model_in_force_stays():
    verifiers = both()
    for address in (A, B):
        verifiers.lost(address)
    assert verifiers.usable() == [] and verifiers.served.model_id == "m"
    verifiers.welcomed(B, welcome("b"))
    assert verifiers.usable() == [B]


def test_addresses_may_be_a_list_or_have_commas_between_them():
    assert (
        several("tcp://a:1, tcp://b:2") == several(["tcp://a:1", "tcp://b:2,tcp://a:1"]) == ("tcp://a:1", "tcp://b:2")
    )


# --- the calls ------------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def started(**fields) -> tuple[Session, Clock]:
    clock = Clock()
    session = Session(False, (A, B), max_retries=2, clock=clock, spread=lambda: 0.0)
    for address in (A, B):
        session.receive(welcome(address), address)
    session.start(Generate("r", "x", **fields))
    assert [m.rid for m in sent(session, A)] == ["r"] and sent(session, B) == []
    return session, clock


def sent(session: Session, address: str) -> list:
    due = list(session.due(address))
    for rid, _ in due:
        session.sent(rid)
    return [message for _, message in due]


def chunk(offset: int, *tokens: int) -> Chunk:
    return Chunk("r", offset, tokens, ("",) * len(tokens), (False,) * len(tokens))


def full(retry_after_ms: float = 0.0) -> Failed:
    return Failed("r", FailureCode.OVERLOADED, "full", retry_after_ms)


@pytest.mark.parametrize(("event", "attempt"), [(Why.SILENT, 1), (Why.FORGOTTEN, 1), (Why.DRAINING, 0)])
def test_a_stream_goes_on_at_another_with_the_tokens_it_has(event, attempt):
    session, _ = started()
    session.receive(chunk(0, 7, 8), A)
    assert session.receive(Lost(event), A).news == ()
    ((message),) = sent(session, B)
    assert (message.generated, message.attempt) == ((7, 8), attempt)
    assert session.receive(chunk(2, 9), A).send is not None  # it came back, and is told that nobody wants that
    assert session.receive(chunk(2, 9), B).news[0][1].token_ids == (9,)


@pytest.mark.parametrize("addresses", [(A,), (A, B)])
def test_a_stream_ends_with_a_sentence_where_all_verifiers_were_redeployed_with_another_model(addresses):
    session = Session(True, addresses)
    for address in addresses:
        session.receive(welcome(address), address)
    session.start(Generate("r", "x"))
    place = next(address for address in addresses if sent(session, address))
    session.receive(chunk(0, 7, 8), place)
    ended = []
    for address in addresses:
        ended += session.receive(Lost(Why.SILENT), address).news
    for address in addresses:
        ended += session.receive(welcome("new", dtype="int8"), address).news
    ((_, error),) = ended
    assert isinstance(error, ConnectionLost) and session.calls == {}
    assert str(error) == (
        "the verifiers serve m in int8 and not m in float32 any more, with which this answer began; 2 tokens were "
        "received, ask again for all of them"
    )
    session.start(Generate("s", "x"))
    assert [message.rid for address in addresses for message in sent(session, address)] == ["s"]


def test_a_stream_ends_with_a_sentence_where_weights_of_the_same_name_were_replaced():
    session = Session(True, (A,))
    session.receive(welcome("a", identity="old"), A)
    session.start(Generate("r", "x"))
    assert sent(session, A)
    session.receive(chunk(0, 7), A)
    session.receive(Lost(Why.SILENT), A)
    ((_, error),) = session.receive(welcome("b", identity="new"), A).news
    assert "serve m in float32 (files new) and not m in float32 (files old) any more" in str(error)
    session.start(Generate("s", "x"))
    session.receive(Lost(Why.SILENT), A)
    assert not session.receive(welcome("c", identity="new"), A).news, "the same files go on"


def test_a_stream_ends_with_a_sentence_where_only_another_model_is_left():
    session, _ = started()
    session.receive(welcome("b2", max_context=512), B)
    session.receive(chunk(0, 7), A)
    ((_, error),) = session.receive(Lost(Why.DRAINING), A).news
    assert "serve m in float32 (context 512, vocabulary 0) and not m in float32 (context 0, vocabulary 0)" in str(error)


def test_a_stream_runs_on_at_its_verifier_while_new_requests_go_to_another_model():
    session, _ = started()
    session.receive(welcome("b2", model_id="new"), B)
    session.start(Generate("s", "x"))
    assert [message.rid for message in sent(session, A)] == ["s"]
    session.receive(Failed("s", FailureCode.DRAINING, "leaving"), A)
    session.start(Generate("t", "x"))
    assert [message.rid for message in sent(session, B)] == ["t"]
    assert session.receive(chunk(0, 7), A).news[0][1].token_ids == (7,)


def test_a_verifier_that_is_about_to_leave_gets_nothing_new():
    session, _ = started()
    session.receive(Failed("r", FailureCode.DRAINING, "leaving"), A)
    assert len(sent(session, B)) == 1
    session.start(Generate("s", "x"))
    assert sent(session, A) == [] and len(sent(session, B)) == 1


def test_a_request_without_room_is_tried_elsewhere_at_once_and_then_later():
    session, clock = started()
    session.receive(full(), A)
    assert len(sent(session, B)) == 1
    assert session.receive(full(3000.0), B).news == ()
    clock.now = 2.9
    assert sent(session, A) == sent(session, B) == []
    clock.now = 3.1
    assert len(sent(session, A) + sent(session, B)) == 1


def test_a_request_for_which_there_is_no_room_often_enough_fails_and_says_when_to_come_again():
    session, clock = started()
    while not (news := session.receive(full(200.0), session.place("r")).news):
        clock.now += 10
        for address in (A, B):
            sent(session, address)
    ((_, error),) = news
    assert isinstance(error, RequestError) and (error.code, error.retry_after_ms) == ("overloaded", 200.0)


def test_a_repetition_behind_the_deadline_is_none():
    session, _ = started(deadline_ms=1000.0)
    session.receive(full(), A)
    sent(session, B)
    assert session.receive(full(2000.0), B).news


def test_what_is_left_until_the_deadline_is_told_to_the_next_and_ends_a_stream_that_finds_none():
    session, clock = started(deadline_ms=1000.0)
    clock.now = 0.25
    session.receive(Lost(Why.SILENT), A)
    ((message),) = sent(session, B)
    assert message.deadline_ms == pytest.approx(750.0)
    session.receive(Lost(Why.SILENT), B)
    clock.now = 1.1
    ((_, error),) = session.expire().news
    assert error.code == "deadline_exceeded"


# --- the whole ------------------------------------------------------------------------------------------------------


class Pair:
    """Two verifiers on one network, and a client of both."""

    def __init__(self, slots: int = 1 << 14, **settings) -> None:
        self.network = MemoryNetwork()
        self.clusters = [
            Cluster(
                self.network,
                LANGUAGE,
                forward_s=0.01,
                target=ToyTarget(LANGUAGE, slots),
                address=address,
                **settings,
            )
            for address in (A, B)
        ]
        self.client = AsyncClient((A, B), network=self.network)

    async def __aenter__(self):
        for cluster in self.clusters:
            cluster.start_verifier()
        await self.client.connect()
        await asyncio.sleep(0.1)
        return self

    async def __aexit__(self, *exc) -> None:
        await self.client.aclose()
        for cluster in self.clusters:
            for stop in cluster.stops.values():
                stop.set()

    def loads(self) -> list[int]:
        return [len(cluster.verifier.state.requests) for cluster in self.clusters]


async def texts(client, count: int, after: int, event) -> list[list[int]]:
    """``count`` streams together; ``event`` happens when the first has so many tokens."""

    async def read(number: int) -> list[int]:
        got: list[int] = []
        async for one in client.stream(PROMPT, temperature=0.0, **LONG):
            got += one.token_ids
            if number == 0 and len(got) - len(one.token_ids) < after <= len(got):
                event()
        return got

    return list(await asyncio.gather(*(read(number) for number in range(count))))


def other(**fields: str) -> ToyTarget:
    target = ToyTarget(LANGUAGE, 1 << 14)
    target.info = replace(target.info, **fields)
    return target


@pytest.mark.parametrize("how", ["crash", "stop"])
@pytest.mark.parametrize("back", [(0,), (1, 0)])
@pytest.mark.parametrize("new", [{"model_id": "new"}, {"identity": "new"}])
def test_a_client_goes_on_after_its_verifiers_were_redeployed_with_another_model(how, back, new):
    """All of them, or one while the other stays away for good."""

    async def go():
        async with Pair() as pair:

            def event():
                for cluster in pair.clusters:
                    if how == "crash":
                        cluster.crash_verifier()
                        cluster.verifier.listener.close()
                    else:
                        cluster.stops["verifier"].set()

            reading = asyncio.create_task(texts(pair.client, 2, 50, event))
            await asyncio.sleep(5.0)
            for number in back:
                address = pair.clusters[number].settings.bind
                pair.clusters[number] = Cluster(
                    pair.network, LANGUAGE, forward_s=0.01, target=other(**new), address=address
                )
                pair.clusters[number].start_verifier()
            with pytest.raises(ConnectionLost, match="tokens were received"):
                await reading
            answer = await pair.client.generate(PROMPT, temperature=0.0, **LONG)
            welcome = pair.client.welcome
            return {name: getattr(welcome, name) for name in new}, list(answer.token_ids)

    assert run(go()) == (new, TRUTH)


@pytest.mark.parametrize("how", ["crash", "stop"])
def test_streams_are_spread_and_survive_one_verifier(how):
    async def go():
        async with Pair() as pair:
            seen = []

            def event():
                seen.extend(pair.loads())
                if how == "crash":
                    pair.clusters[0].crash_verifier()
                    pair.clusters[0].verifier.listener.close()
                else:
                    pair.clusters[0].stops["verifier"].set()

            got = await texts(pair.client, 6, 50, event)
            return seen, got

    seen, got = run(go())
    assert seen == [3, 3] and got == [TRUTH] * 6


def test_orders_go_to_the_verifier_that_has_the_drafter():
    async def go():
        async with Pair() as pair:
            with pytest.raises(RequestError, match="no drafter is named nobody"):
                await pair.client.drain("nobody")

    run(go())


def test_without_any_verifier_it_is_known_at_once():
    async def go():
        with pytest.raises(ConnectionLost, match="no verifier answers"):
            await AsyncClient([A, B], network=MemoryNetwork()).connect()

    run(go())


def test_a_full_verifier_is_made_up_for_by_the_other():
    async def go():
        async with Pair(slots=310, max_queued_requests=1) as pair:
            return await texts(pair.client, 4, 1, lambda: None)

    assert run(go()) == [TRUTH] * 4


def test_a_client_follows_a_verifier_to_the_address_that_its_file_holds(tmp_path):
    """As on a cluster, where a verifier is started again on another node."""
    place = tmp_path / "verifier-1"

    async def go():
        async with Pair() as pair:
            client = AsyncClient(f"file://{place}", network=pair.network, timeout=20.0)
            reading = asyncio.create_task(texts(client, 2, 50, lambda: place.write_text(B)))
            await asyncio.sleep(1.0)
            assert pair.loads() == [0, 0]  # there is no such file yet
            place.write_text(A)
            got = await reading
            loads = pair.loads()
            await client.aclose()
            return got, loads

    got, loads = run(go())
    assert got == [TRUTH] * 2 and loads == [0, 0]


def test_the_model_is_known_while_its_verifier_is_started_elsewhere(tmp_path):
    place = tmp_path / "verifier-1"
    place.write_text(A)

    async def go():
        async with Pair() as pair:
            client = AsyncClient(f"file://{place}", network=pair.network, timeout=20.0)
            await client.connect()
            before = client.welcome
            place.write_text("memory://loading")
            await asyncio.sleep(1.0)
            assert client.welcome == before
            await client.aclose()

    run(go())


def test_telemetry_follows_a_verifier_to_the_address_that_its_file_holds(tmp_path):
    place, heard = tmp_path / "verifier-1", []

    async def listen(client):
        async for message in client.telemetry():
            heard.append(message)

    async def go():
        async with Pair() as pair:
            client = AsyncClient(f"file://{place}", network=pair.network, timeout=20.0)
            place.write_text(A)
            listening = asyncio.create_task(listen(client))
            for address in (A, B):
                place.write_text("memory://loading")
                await asyncio.sleep(1.0)
                place.write_text(address)
                await asyncio.sleep(1.0)
                heard.clear()
                await client.generate(PROMPT, max_tokens=12)
                await asyncio.sleep(1.0)
                assert heard and not listening.done()
            await client.aclose()
            with pytest.raises(ConnectionLost, match="the client was closed"):
                await listening

    run(go())

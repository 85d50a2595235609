"""The handshake as a table: what happens, at what time, and what the peer sends and learns then."""

import pytest

from protocols.errors import RefusedError
from protocols.handshake import GREET_S, Handshake, Lost, Step, Why
from protocols.messages import Cancel, Close, Drain, Goodbye, Heartbeat, Hello, Refuse, RefuseCode, Role, Welcome

HELLO = Hello(Role.DRAFTER, "d1", "i1")
CLIENT = Hello(Role.CLIENT, "c1", "i1")
WELCOME = Welcome("v1", heartbeat_ms=500, ttl_ms=2500, telemetry="")
RESTARTED = Welcome("v2", heartbeat_ms=500, ttl_ms=2500, telemetry="")
SELDOM = Welcome("v1", heartbeat_ms=60_000, ttl_ms=60_000, telemetry="")
UNKNOWN = Refuse(RefuseCode.UNKNOWN_PEER, "who?")
DUPLICATE = Refuse(RefuseCode.DUPLICATE, "a namesake")
DRAINING = Refuse(RefuseCode.DRAINING, "shutting down")
MALFORMED = Refuse(RefuseCode.MALFORMED, "what?")
TICK = None
BEAT = Heartbeat()

# (when, what happens: a message or a tick, what is sent, what the peer is told)
MET = [(0.0, TICK, HELLO, None), (0.1, WELCOME, None, WELCOME)]
TABLE = {
    "Hello is repeated until it is answered": [
        (0.0, TICK, HELLO, None),
        (0.3, TICK, None, None),
        (GREET_S, TICK, HELLO, None),
        (0.6, WELCOME, None, WELCOME),
        (0.7, TICK, None, None),
    ],
    "heartbeats go on, and their echoes are no news": [
        *MET,
        (0.6, TICK, BEAT, None),
        (0.7, BEAT, None, None),
        (1.1, TICK, BEAT, None),
    ],
    "what concerns the peer is handed on": [*MET, (0.2, Close("r", 1), None, Close("r", 1))],
    "a repeated Welcome is no news": [*MET, (0.2, WELCOME, None, None)],
    "a Welcome of another incarnation is": [*MET, (0.2, RESTARTED, None, RESTARTED)],
    "a verifier that has forgotten us is greeted at once, once, and its Welcome is news": [
        *MET,
        (0.6, UNKNOWN, HELLO, Lost(Why.FORGOTTEN)),
        (0.6, UNKNOWN, None, None),
        (0.7, WELCOME, None, WELCOME),
    ],
    "silence for longer than the time to live is a loss, and Hello is said until it ends": [
        *MET,
        *((0.6 + 0.5 * n, TICK, BEAT, None) for n in range(5)),
        (3.1, TICK, HELLO, Lost(Why.SILENT)),
        (3.6, TICK, HELLO, None),
        (3.7, WELCOME, None, WELCOME),
    ],
    "any message ends a silence": [
        *MET,
        *((0.6 + 0.5 * n, TICK, BEAT, None) for n in range(5)),
        (3.0, Close("r", 1), None, Close("r", 1)),
        (3.1, TICK, BEAT, None),
    ],
    "time in which the peer itself did not run is not the verifier's silence": [
        *MET,
        (60.0, TICK, BEAT, None),
        (60.4, BEAT, None, None),
        (60.5, TICK, BEAT, None),
    ],
    "a verifier that shuts down is lost, and greeted again later": [
        *MET,
        (0.2, DRAINING, None, Lost(Why.DRAINING)),
        (0.6, TICK, HELLO, None),
        (0.7, DRAINING, None, None),
        (1.1, TICK, HELLO, None),
        (1.2, RESTARTED, None, RESTARTED),
    ],
    "one that shuts down is greeted again soon, however seldom it wanted to be heard": [
        (0.0, TICK, HELLO, None),
        (0.1, SELDOM, None, SELDOM),
        (0.2, DRAINING, None, Lost(Why.DRAINING)),
        (0.2 + GREET_S, TICK, HELLO, None),
    ],
    "a peer whose dead predecessor is still believed alive greets again": [
        (0.0, TICK, HELLO, None),
        (0.1, DUPLICATE, None, None),
        (0.5, TICK, HELLO, None),
        (0.6, DUPLICATE, None, None),
        (1.0, TICK, HELLO, None),
        (1.1, WELCOME, None, WELCOME),
    ],
    "a message that the verifier could not read is the peer's business": [*MET, (0.2, MALFORMED, None, MALFORMED)],
    "Drain asks a drafter to leave": [*MET, (0.2, Drain(), None, Drain())],
}


@pytest.mark.parametrize("name", TABLE)
def test_events_lead_to_what_the_table_says(name):
    machine = Handshake(HELLO, 0.0)
    for when, event, sent, news in TABLE[name]:
        step = machine.tick(when) if event is TICK else machine.receive(event, when)
        assert (step.send, step.news) == (sent, news), f"at {when}"


def test_drain_tells_a_client_that_the_verifier_leaves():
    machine = Handshake(CLIENT, 0.0)
    machine.receive(WELCOME, 0.1)
    assert machine.receive(Drain(), 0.2) == Step(Goodbye("drained"), Lost(Why.DRAINING))
    assert not machine.known
    assert machine.tick(0.3).send is None
    assert machine.tick(0.2 + GREET_S).send == CLIENT


@pytest.mark.parametrize("code", [RefuseCode.VERSION, RefuseCode.TOKENIZER])
def test_a_refused_peer_learns_it_with_the_verifiers_sentence(code):
    with pytest.raises(RefusedError, match="a sentence") as caught:
        Handshake(HELLO, 0.0).receive(Refuse(code, "a sentence"), 0.1)
    assert caught.value.code == code


@pytest.mark.parametrize("refusal", [DUPLICATE, MALFORMED])
def test_a_refusal_that_may_pass_is_learned_after_two_seconds(refusal):
    """A namesake may be our own dead predecessor, and a Hello may have been garbled on its way."""
    machine = Handshake(HELLO, 0.0)
    machine.receive(refusal, 0.1)
    machine.receive(refusal, 2.0)
    assert machine.tick(2.05).send == HELLO
    with pytest.raises(RefusedError, match=refusal.detail.replace("?", r"\?")):
        machine.receive(refusal, 2.2)


def test_a_hello_that_was_garbled_once_is_said_again():
    machine = Handshake(HELLO, 0.0)
    machine.receive(MALFORMED, 0.1)
    machine.receive(WELCOME, 0.7)
    assert machine.known


@pytest.mark.parametrize("stranger", [Cancel("r"), BEAT])
def test_a_message_before_the_welcome_makes_nobody_known(stranger):
    machine = Handshake(HELLO, 0.0)
    machine.receive(stranger, 0.1)
    assert not machine.known

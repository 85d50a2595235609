"""A request that was worked on whenever the verifier ended says so; one that only waited does not."""

import pytest

from duoactor.client.session import SETTLED_TOKENS, Session
from protocols.handshake import Lost, Why
from protocols.messages import Chunk, Generate, Welcome


def welcome(incarnation: str) -> Welcome:
    return Welcome(incarnation, 500, 2500, "")


def chunk(offset: int, tokens: int) -> Chunk:
    return Chunk("r", offset, (7,) * tokens, ("x",) * tokens, (False,) * tokens)


def asked(session: Session) -> list[int]:
    """The attempts of the requests that are sent now."""
    due = list(session.due())
    for rid, _ in due:
        session.sent(rid)
    return [message.attempt for _, message in due if isinstance(message, Generate)]


def crash(session: Session, incarnation: str, why: Why = Why.SILENT) -> list[int]:
    """The verifier ends, and another answers."""
    session.receive(Lost(why))
    session.receive(welcome(incarnation))
    return asked(session)


@pytest.fixture
def session() -> Session:
    session = Session(True)
    session.receive(welcome("v1"))
    session.start(Generate("r", "x"))
    assert asked(session) == [0]
    return session


def test_a_request_with_which_the_verifier_ended_twice_says_so(session):
    assert crash(session, "v2") == [1]
    session.receive(chunk(0, 0))  # it has begun
    assert crash(session, "v3") == [2]


def test_a_suspect_that_was_not_begun_is_no_more_suspect_than_before(session):
    assert crash(session, "v2") == [1]
    assert crash(session, "v3") == [1]


def test_a_request_that_got_on_meanwhile_begins_to_count_anew(session):
    assert crash(session, "v2") == [1]
    session.receive(chunk(0, SETTLED_TOKENS))
    assert crash(session, "v3") == [1]


def test_a_silence_of_the_network_is_not_the_verifiers_end(session):
    session.receive(Lost(Why.SILENT))
    session.receive(welcome("v1"))
    assert asked(session) == [0]


def test_an_orderly_end_is_nobodys_fault(session):
    assert crash(session, "v2", Why.DRAINING) == [0]

"""The client's calls as a state machine: what comes twice, late, or not at all."""

import itertools

import pytest

from duoactor.client.session import Session
from protocols.errors import ConnectionLost, RequestError
from protocols.handshake import Lost, Why
from protocols.messages import (
    Cancel,
    Chunk,
    Done,
    Failed,
    FailureCode,
    FinishReason,
    Generate,
    Refuse,
    RefuseCode,
    RequestStats,
    Status,
    Swap,
    Welcome,
)

TEXT = tuple(range(10, 16))
WELCOME = Welcome("v1", 500, 2500, "")
REQUEST = Generate("r", "x")


def chunk(start: int, end: int, rid: str = "r") -> Chunk:
    last = end == len(TEXT)
    ids = TEXT[start:end]
    return Chunk(
        rid,
        start,
        ids,
        tuple(chr(97 + i) for i in range(start, end)),
        (False,) * len(ids),
        FinishReason.STOP if last else None,
        stats=RequestStats() if last else None,
    )


def submit(session: Session) -> list:
    """Send what is due, as a driver does."""
    messages = list(session.due())
    for rid, _ in messages:
        session.sent(rid)
    return [message for _, message in messages]


def started(outlive_drain: bool = False) -> Session:
    session = Session(outlive_drain)
    session.start(REQUEST)
    assert submit(session) == [REQUEST]
    return session


def news(result) -> Chunk | None:
    return result.news[0][1] if result.news else None


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(1, 6), 2)))
@pytest.mark.parametrize("repeat_from", range(6))
def test_tokens_that_come_twice_are_dropped(cuts, repeat_from):
    session, ids, text = started(), [], ""
    pieces = [(0, cuts[0]), (cuts[0], cuts[1]), (min(repeat_from, cuts[1]), cuts[1]), (min(repeat_from, cuts[1]), 6)]
    for start, end in pieces:
        if (came := news(session.receive(chunk(start, end)))) is not None:
            ids += came.token_ids
            text += came.text
    assert tuple(ids) == TEXT and text == "abcdef"
    assert session.calls == {}


def test_missing_tokens_are_asked_for_again_with_what_is_there():
    session = started()
    session.receive(chunk(0, 2))
    assert news(session.receive(chunk(3, 5))) is None
    assert submit(session) == [Generate("r", "x", generated=TEXT[:2])]


@pytest.mark.parametrize("have", range(6))
@pytest.mark.parametrize("why", [Why.SILENT, Why.FORGOTTEN])
def test_a_new_verifier_is_sent_every_unfinished_stream(have, why):
    session = started()
    if have:
        session.receive(chunk(0, have))
    assert session.receive(Lost(why)).news == ()
    session.receive(Welcome("v2", 500, 2500, ""))
    assert submit(session) == [Generate("r", "x", generated=TEXT[:have])]
    assert news(session.receive(chunk(have, 6))).token_ids == TEXT[have:]


def test_what_could_not_be_sent_stays_due():
    session = Session(False)
    session.start(REQUEST)
    assert [message for _, message in session.due()] == [REQUEST] == [message for _, message in session.due()]
    assert submit(session) == [REQUEST]
    assert submit(session) == []


def test_a_question_is_asked_again_after_the_verifier_was_lost():
    session = Session(False)
    session.ask(Status("s"))
    assert submit(session) == [Status("s")]
    session.receive(Lost(Why.SILENT))
    assert submit(session) == [Status("s")]


def test_a_cancelled_stream_is_told_to_the_verifier_only_if_it_works_on_it():
    session = started()
    assert session.drop("r") == Cancel("r")
    assert session.drop("r") is None
    session.start(REQUEST)
    assert session.drop("r") is None


def test_a_stream_that_goes_on_although_it_was_cancelled_is_cancelled_again():
    session = started()
    session.drop("r")
    result = session.receive(chunk(0, 2))
    assert result.news == () and result.send == Cancel("r")
    assert session.receive(chunk(2, 6)).send is None


def test_a_failed_request_is_an_error_of_that_stream_alone():
    session = started()
    session.start(Generate("other", "y"))
    ((rid, error),) = session.receive(Failed("r", FailureCode.BAD_REQUEST, "the prompt is empty")).news
    assert rid == "r" and isinstance(error, RequestError) and error.code == "bad_request"
    assert set(session.calls) == {"other"}


@pytest.mark.parametrize("message", [Failed("r", FailureCode.DRAINING, "shutting down"), Lost(Why.DRAINING)])
def test_a_verifier_that_shuts_down_ends_its_streams_with_a_sentence_of_their_own(message):
    session = started()
    session.receive(chunk(0, 3))
    ((_, error),) = session.receive(message).news
    assert isinstance(error, ConnectionLost) and str(error) == "the verifier was shut down; 3 tokens were received"
    assert session.calls == {}


@pytest.mark.parametrize("message", [Failed("r", FailureCode.DRAINING, "shutting down"), Lost(Why.DRAINING)])
def test_a_stream_that_was_told_to_waits_for_the_successor_of_a_verifier_that_shuts_down(message):
    session = started(outlive_drain=True)
    session.receive(chunk(0, 3))
    assert session.receive(message).news == ()
    session.receive(WELCOME)
    assert submit(session) == [Generate("r", "x", generated=TEXT[:3])]


def test_a_message_that_the_verifier_could_not_read_fails_the_oldest_unanswered_call():
    session = started()
    session.receive(chunk(0, 2))
    for question in (Swap("a", "x", "y"), Status("b")):
        session.ask(question)
    submit(session)
    ((rid, error),) = session.receive(Refuse(RefuseCode.MALFORMED, "what?")).news
    assert rid == "a" and isinstance(error, RequestError) and str(error) == "what?"
    ((rid, _),) = session.receive(Refuse(RefuseCode.MALFORMED, "what?")).news
    assert rid == "b"
    assert session.receive(Refuse(RefuseCode.MALFORMED, "what?")).news == ()
    assert set(session.calls) == {"r"}


def test_an_answer_that_nobody_asked_for_is_no_news():
    assert Session(False).receive(Done("x")).news == ()


def test_a_chunk_that_only_ends_the_stream_is_delivered():
    session = started()
    session.receive(chunk(0, 5))
    end = Chunk("r", 5, (), (), (), FinishReason.STOP)
    assert news(session.receive(end)) == end
    assert session.calls == {}

"""The client's state machine without sockets: what comes twice, late, or not at all."""

import itertools

import pytest

from duoactor.client.resume import Session, StreamState
from protocols.errors import RefusedError, RequestError
from protocols.messages import (
    Chunk,
    Failed,
    FailureCode,
    FinishReason,
    Generate,
    Refuse,
    RefuseCode,
    RequestStats,
    Welcome,
)

TEXT = tuple(range(10, 16))
WELCOME = Welcome("v1", 500, 2500, "")


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


def started() -> Session:
    session = Session()
    session.receive(WELCOME)
    assert list(session.start(Generate("r", "x"))) == [Generate("r", "x")]
    return session


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(1, 6), 2)))
@pytest.mark.parametrize("repeat_from", range(6))
def test_tokens_that_come_twice_are_dropped(cuts, repeat_from):
    session, ids, text = started(), [], ""
    pieces = [(0, cuts[0]), (cuts[0], cuts[1]), (min(repeat_from, cuts[1]), cuts[1]), (min(repeat_from, cuts[1]), 6)]
    for start, end in pieces:
        news = session.receive(chunk(start, end)).news
        if news is not None:
            ids += news.token_ids
            text += news.text
    assert tuple(ids) == TEXT and text == "abcdef"
    assert session.streams == {}


def test_missing_tokens_are_asked_for_again_with_what_is_there():
    session = started()
    session.receive(chunk(0, 2))
    result = session.receive(chunk(3, 5))
    assert result.news is None
    assert list(result.send) == [Generate("r", "x", generated=TEXT[:2])]


@pytest.mark.parametrize("have", range(6))
def test_a_new_verifier_is_sent_every_unfinished_stream(have):
    session = started()
    if have:
        session.receive(chunk(0, have))
    result = session.receive(Refuse(RefuseCode.UNKNOWN_PEER, "who?"))
    assert result.greet and session.void
    result = session.receive(Welcome("v2", 500, 2500, ""))
    assert list(result.send) == [Generate("r", "x", generated=TEXT[:have])]
    assert session.receive(chunk(have, 6)).news.token_ids == TEXT[have:]


def test_a_second_welcome_of_the_same_verifier_submits_nothing_twice():
    session = started()
    assert list(session.receive(WELCOME).send) == []


def test_a_stream_started_while_nobody_listens_waits_for_the_welcome():
    session = Session()
    assert list(session.start(Generate("r", "x"))) == []
    assert list(session.receive(WELCOME).send) == [Generate("r", "x")]


def test_late_chunks_of_a_cancelled_stream_are_dropped():
    session = started()
    assert session.stop("r") is True
    assert session.receive(chunk(0, 2)).news is None
    assert session.stop("r") is False


def test_a_failed_request_is_an_error_of_that_stream_alone():
    session = started()
    session.start(Generate("other", "y"))
    result = session.receive(Failed("r", FailureCode.BAD_REQUEST, "the prompt is empty"))
    assert isinstance(result.news, RequestError) and result.rid == "r" and result.news.code == "bad_request"
    assert set(session.streams) == {"other"}


def test_a_verifier_that_shuts_down_does_not_end_the_stream():
    session = started()
    session.receive(chunk(0, 3))
    result = session.receive(Failed("r", FailureCode.DRAINING, "shutting down"))
    assert result.news is None and session.void and "r" in session.streams


def test_a_refusal_is_an_error_with_the_verifiers_sentence():
    result = Session().receive(Refuse(RefuseCode.VERSION, "protocol 2"))
    assert isinstance(result.news, RefusedError) and str(result.news) == "protocol 2"


def test_a_chunk_that_only_ends_the_stream_is_delivered():
    state = StreamState(Generate("r", "x"), list(TEXT))
    end = Chunk("r", 6, (), (), (), FinishReason.STOP)
    assert state.accept(end) is end and state.finish_reason is FinishReason.STOP

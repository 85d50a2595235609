"""A verifier that answers with what was not asked for: it is no answer, and the right one still counts."""

import pytest

from duoactor.client.session import ONLY, Session
from protocols.messages import (
    ActorStatus,
    Chunk,
    Detokenize,
    Done,
    DrainActor,
    FinishReason,
    Generate,
    Status,
    StatusReport,
    Swap,
    TargetStatus,
    Tokenize,
    Tokenized,
    Undo,
    Welcome,
)

REPORT = StatusReport("r", "auto", 0.0, TargetStatus("m", "cpu", "float32", 0, 0), ActorStatus("v"))
TOKENS = Tokenized("r", (5,), ("a",), "a")
DONE = Done("r", "moved")
RIGHT = {
    Status("r"): REPORT,
    Tokenize("r", "a"): TOKENS,
    Detokenize("r", (5,)): TOKENS,
    Swap("r", "a", "b"): DONE,
    DrainActor("r", "a"): DONE,
    Undo("r"): DONE,
}
UNEVEN = Tokenized("r", (5, 6), ("a",), "a")


def asked() -> Session:
    session = Session(True, (ONLY,), 0, lambda: 0.0)
    session.receive(Welcome("v", 500, 2500, ""))
    return session


@pytest.mark.parametrize("question", RIGHT, ids=lambda one: type(one).__name__)
def test_a_question_waits_for_an_answer_of_its_kind(question):
    session = asked()
    session.ask(question, None)
    others = [one for one in (DONE, TOKENS, REPORT) if one is not RIGHT[question]]
    for wrong in (UNEVEN, *others, Chunk("r", 0, (5,), ("a",), (False,))):
        assert not session.receive(wrong).news
    assert session.receive(RIGHT[question]).news == (("r", RIGHT[question]),)


def test_a_stream_is_no_question_and_its_chunks_are_whole():
    session = asked()
    session.start(Generate("r", (2, 3)))
    for wrong in (DONE, TOKENS, REPORT, Chunk("r", 0, (5, 6), ("a",), (False,)), Chunk("r", 0, (5,), ("a",), ())):
        assert not session.receive(wrong).news
    last = Chunk("r", 0, (5,), ("a",), (False,), finish_reason=FinishReason.LENGTH)
    assert session.receive(last).news == (("r", last),)
    assert not session.calls

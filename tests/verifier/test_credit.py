"""Who had named the draft tokens that a round accepted."""

import pytest

from actors.verifier.credit import NONE, Credit, Source, credited
from actors.verifier.rounds import Committed
from protocols.messages import Origin
from tests.verifier.test_trace import streamed

TEXT, MEMORY, DATASTORE = Source


def committed(named, forced=()):
    """A round that accepted so many draft tokens, behind which the target put one of its own."""
    tokens = list(range(len(named) + 1))
    return Committed(0, tokens, [True] * len(named) + [False], [], None, forced, None, named)


def test_each_token_counts_once_a_draft_models_apart_from_those_that_retrieval_had_as_well():
    assert credited(committed([True, True, False, False]), {TEXT: 1}, TEXT) == Credit(draft=1, both=1, text=2)


def test_of_the_sources_the_first_that_had_a_token_has_the_credit():
    found = credited(committed([False] * 6), {TEXT: 1, MEMORY: 3, DATASTORE: 6}, TEXT)
    assert found == Credit(text=1, memory=2, datastore=3)


def test_a_guess_that_only_an_older_round_had_made_is_the_usual_sources():
    assert credited(committed([False]), {TEXT: 0, MEMORY: 0}, TEXT) == Credit(text=1)
    assert credited(committed([False]), {}, DATASTORE) == Credit(datastore=1)


def test_what_a_grammar_forced_is_nobodys():
    assert credited(committed([False, True], forced=[True, False]), {TEXT: 1}, TEXT) == Credit(draft=1)


def test_a_round_without_drafts_has_none():
    assert credited(committed([]), {TEXT: 1}, TEXT) is NONE


@pytest.mark.parametrize("method", ["vanilla", "pld", "lookahead", "sps", "duodecoding", "tree", "auto"])
def test_every_accepted_token_of_an_answer_is_somebodys(method):
    total = [0] * len(Credit._fields)
    for chunk in streamed(method, trace=True, sequences=3)[1:]:
        stats, trace = chunk.trace.stats, chunk.trace
        told = [getattr(stats, f"from_{source}") for source in Credit._fields]
        retrieved = sum(trace.origins[at] is Origin.RETRIEVED for at in trace.path[: stats.accepted])
        assert (sum(told), sum(told[2:])) == (stats.accepted, retrieved)
        total = [one + more for one, more in zip(total, told, strict=True)]
    found = Credit(*total)
    assert found.memory == found.datastore == 0
    if method in ("sps", "duodecoding", "tree"):
        assert found.draft and not found.both and not found.text
    elif method == "auto":
        assert found.draft or found.both
    else:
        assert not found.draft and not found.both

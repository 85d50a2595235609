"""The system in virtual time, with toy models: no torch."""

import dataclasses

import pytest

from actors.proposers.draft_model import build_proposer_draft
from actors.records import LoggedRequest
from actors.replay.clock import Metered
from actors.replay.measured import RoundTimes
from actors.replay.system import Policy, Times, measured, replay
from protocols.errors import RequestError
from protocols.messages import FinishReason, Sampling
from tests.world.fakes import ToyDraft, ToyLanguage

LANGUAGE = ToyLanguage(eos_rate=0.01)
FLAT = Times({1: 10_000.0, 32: 10_400.0}, {1: 500.0, 8: 700.0}, message=100.0, round=RoundTimes(100.0, 100.0))
DEAR = Times({1: 10_000.0, 2: 20_000.0, 32: 320_000.0}, {1: 500.0}, message=100.0, round=RoundTimes(100.0, 100.0))


def logged(count=6, tokens=120, **fields):
    found = []
    for number in range(count):
        sampling = Sampling(max_tokens=tokens, temperature=float(number % 2), seed=number, **fields)
        text = LANGUAGE.continuation([5, 9, 10 + number], sampling)
        reason = FinishReason.LENGTH if len(text) == tokens else FinishReason.STOP
        found.append(
            LoggedRequest(prompt=(5, 9, 10 + number), text=tuple(text), sampling=sampling, finish_reason=reason)
        )
    return found


def ms_a_token(replayed):
    return sum(one.decode_ms for one in replayed) / sum(one.tokens for one in replayed)


class Idle:
    """A target beside a replay that computes nothing, or what it is told."""

    def __init__(self, work=lambda: None):
        self.work, self.rows, self.spare, self.prompts = work, [], [], []

    def begin(self, tokens):
        self.prompts.append(tokens)

    def __call__(self, rows):
        self.rows.append(rows)
        self.work()

    def use_spare_cpus(self, used):
        self.spare.append(used)


def test_the_target_alone_takes_a_forward_and_the_overhead_for_each_token():
    found = replay(logged(), ToyDraft(LANGUAGE), FLAT, Policy("vanilla"))
    assert ms_a_token(found) == pytest.approx(10.1, rel=0.01)
    assert all(set(one.accepted) <= {0} and len(one.accepted) == one.tokens for one in found)


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree", "auto"])
def test_good_drafts_make_every_method_faster_and_each_text_is_replayed_to_its_end(method):
    requests = [*logged(3), *logged(4, 120, ignore_eos=True)]
    found = replay(requests, ToyDraft(LANGUAGE, 0.85), FLAT, Policy(method))
    assert ms_a_token(found) < 10.1 / 1.4
    assert [one.stats.completion_tokens for one in found] == [len(one.text) for one in requests]


def test_a_drafter_that_only_retrieves_can_be_replayed():
    again = tuple(range(10, 30)) * 4
    request = LoggedRequest(prompt=again[:25], text=again[25:], finish_reason=FinishReason.LENGTH)
    [found] = replay([request], build_proposer_draft("sam"), FLAT, Policy("sps", 4))
    assert sum(found.accepted) > 0.6 * len(request.text)


def test_the_same_replay_twice_says_the_same():
    one, other = (replay(logged(), ToyDraft(LANGUAGE, 0.7), FLAT, Policy("auto")) for _ in range(2))
    assert one == other


def test_what_the_verifiers_own_code_takes_is_measured_without_target_and_drafts(monkeypatch):
    ticks = [0]  # a microsecond for each look at the clock

    def passes(count=1):
        ticks[0] += count
        return ticks[0] * 1e-6

    monkeypatch.setattr(Metered.__init__, "__defaults__", (passes,))
    beside = Idle(lambda: passes(1_000_000))
    told = measured(logged(9), ToyDraft(LANGUAGE), FLAT, Policy("vanilla"), beside)
    assert 1 < told.code < 1000 and told.code == told.code_drafts  # of the million that each round's model took
    assert set(beside.rows) == {1} and beside.spare == [] and set(beside.prompts) == {3}
    assert 300 < len(beside.rows) < 600, "a few requests tell it"


def test_rounds_take_what_was_measured_of_them():
    slow = dataclasses.replace(FLAT, round=RoundTimes(code=2_000.0, forward=1.2))
    assert ms_a_token(replay(logged(), ToyDraft(LANGUAGE), slow, Policy("vanilla"))) == pytest.approx(14.0, rel=0.01)


def decoded(times, requests=4):
    """Milliseconds of a token, of drafts between forwards; and draft tokens that were verified."""
    own = dataclasses.replace(times, step={1: 50_000.0}, inline_step={1: 500.0, 8: 700.0})  # no drafter is of use
    found = replay(logged(requests, ignore_eos=True), ToyDraft(LANGUAGE, 0.85), own, Policy("auto"))
    return ms_a_token(found), sum(one.stats.draft_tokens for one in found)


def test_what_rounds_with_drafts_take_beyond_their_steps_is_seen_in_their_time():
    usual_ms, _ = decoded(FLAT)
    for costly in (RoundTimes(100.0, 100.0, forward_drafted=1.3), RoundTimes(100.0, 100.0, step=3.0)):
        assert decoded(dataclasses.replace(FLAT, round=costly))[0] > 1.05 * usual_ms, costly


def test_where_rounds_with_drafts_take_longer_there_is_less_to_gain():
    (usual_ms, _), (ms, _) = decoded(FLAT), decoded(dataclasses.replace(FLAT, round=RoundTimes(100.0, 4_000.0)))
    assert ms > 1.05 * usual_ms


def test_a_path_beside_the_first_has_its_price():
    branchy, plain = (decoded(dataclasses.replace(FLAT, branch=part), requests=12) for part in (0.2, 0.0))
    assert branchy[0] > plain[0] and branchy[1] < plain[1]


@pytest.mark.parametrize("inline", [None, {1: 500.0, 8: 700.0}], ids=["drafter", "between forwards"])
def test_a_source_that_is_taken_away_drafts_nothing(inline):
    copied = LoggedRequest(prompt=tuple(range(10, 41)), text=(*range(10, 40), 7), finish_reason=FinishReason.LENGTH)
    times = dataclasses.replace(FLAT, inline_step=inline)

    def accepted(requests, **off):
        found = replay(requests, ToyDraft(LANGUAGE, 0.9), times, dataclasses.replace(Policy("auto"), **off))
        return sum(sum(one.accepted) for one in found)

    assert accepted([copied], retrieval=False) < 3 < 20 < accepted([copied])
    new = logged(2, ignore_eos=True)
    assert accepted(new, draft=False) < 10 < 100 < accepted(new)


def test_a_target_alone_has_the_cpus_that_resting_drafters_leave():
    lent = dataclasses.replace(FLAT, lent={1: 6_000.0, 32: 6_400.0})
    found = replay(logged(), ToyDraft(LANGUAGE), lent, Policy("vanilla"))
    assert ms_a_token(found) == pytest.approx(6.1, rel=0.01)
    with_drafter = replay(logged(), ToyDraft(LANGUAGE), lent, Policy("sps"))
    alone = replay(logged(), ToyDraft(LANGUAGE), FLAT, Policy("sps"))
    # its CPUs are its own meanwhile, but for the first round: it is lent a text once the prompt is computed
    assert ms_a_token(with_drafter) == pytest.approx(ms_a_token(alone), rel=0.1)


def test_the_target_beside_a_replay_has_the_cpus_that_its_rounds_would_have():
    beside = Idle()
    lent = dataclasses.replace(FLAT, lent={1: 6_000.0, 32: 6_400.0})
    measured(logged(1), ToyDraft(LANGUAGE), lent, Policy("vanilla"), beside)
    assert beside.spare == [False, True]


def test_auto_rests_where_drafts_do_not_pay():
    long = logged(4, 400, ignore_eos=True)
    resting = replay(long, ToyDraft(LANGUAGE, 0.2), DEAR, Policy("auto"))
    assert ms_a_token(resting) < 1.1 * 10.1


@pytest.mark.parametrize("sampling", [Sampling(stop=("x",)), Sampling(ignore_eos=True), Sampling(stop_token_ids=(7,))])
def test_a_text_that_something_else_ended_is_replayed_to_its_end_as_well(sampling):
    text = (7, 8, 9, 7, 8, 7, 11, 7)
    request = LoggedRequest(prompt=(5,), text=text, sampling=sampling, finish_reason=FinishReason.STOP)
    [found] = replay([request], ToyDraft(LANGUAGE), FLAT, Policy("sps"))
    assert found.stats.completion_tokens == len(text)


def test_a_method_that_needs_what_a_log_does_not_hold_is_refused_in_a_sentence():
    with pytest.raises(RequestError, match="datastore"):
        replay(logged(1), ToyDraft(LANGUAGE), FLAT, Policy("rest"))

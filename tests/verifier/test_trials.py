"""The one judge: does a source pay for a stream? Streams whose gain is known, in virtual rounds."""

import random
from collections import Counter

import pytest

from actors.backoff import LONGEST, Backoff
from actors.verifier.drafter_status import drafter_status
from actors.verifier.drafters import DrafterPeer
from actors.verifier.results import Group
from actors.verifier.rounds import Part, Round, Share
from actors.verifier.totals import MAX_KNOWN, Totals
from actors.verifier.trial import DRAFTS
from actors.verifier.trials import Trials
from protocols.messages import Hello, Role

GROUP, SAMPLED = Group("auto", False, 1), Group("auto", True, 1)
PLAIN_US = 1000.0


class Someone:
    """A stream, as far as trials know one."""

    def __init__(self) -> None:
        self.rounds, self.trials = 0, {}


def judged(trials: Trials, stream: Someone, gain: float, source: str = "inline", group=GROUP) -> bool:
    """A round with a source that gains so much over decoding without it. Returns whether it rests from now on."""
    stream.rounds += 1
    tokens = 4
    own_us = tokens / gain * PLAIN_US
    share = Share(source, 3, 1, 0.0)
    part = Part(stream, group, stream.rounds, tokens, own_us, (share,), None)
    done = Round(1, 4, 0, 1, own_us, 0.0, own_us, 0.0, False, tokens, (part,))
    return bool(trials.learn(done, PLAIN_US, 10.0))


def rounds_with(trials: Trials, stream: Someone, gain, rounds: int, source: str = "inline") -> int:
    """In how many of so many rounds the source was used."""
    used = 0
    for _ in range(rounds):
        if trials.rests(source, GROUP, stream, stream.rounds):
            stream.rounds += 1
            part = Part(stream, GROUP, stream.rounds, 1, PLAIN_US, (), None)
            trials.learn(Round(1, 1, 0, 1, PLAIN_US, 0.0, PLAIN_US, 0.0, False, 1, (part,)), PLAIN_US, 10.0)
        else:
            used += 1
            judged(trials, stream, gain() if callable(gain) else gain, source)
    return used


def test_a_source_that_pays_is_used_in_every_round():
    assert rounds_with(Trials(), Someone(), 1.3, 500) == 500


def test_a_source_that_loses_is_used_in_one_round_of_twenty():
    assert rounds_with(Trials(), Someone(), 0.8, 2000) < 100


def test_a_stream_begins_with_what_its_kind_has_shown():
    trials = Trials()
    for _ in range(20):
        rounds_with(trials, Someone(), 0.7, 60)
    assert rounds_with(trials, Someone(), 0.7, 60) <= DRAFTS.look + 2


def test_one_text_that_gains_nothing_rests_where_others_gain():
    trials = Trials()
    for _ in range(20):
        rounds_with(trials, Someone(), 1.5, 60)
    assert rounds_with(trials, Someone(), 0.7, 600) < 120
    assert rounds_with(trials, Someone(), 1.5, 60) == 60


def test_luck_does_not_put_a_source_to_rest_that_pays():
    chance, trials = random.Random(1), Trials()
    used = 0
    for _ in range(20):
        stream = Someone()
        for _ in range(100):
            stream.rounds += 1
            if trials.rests("inline", GROUP, stream, stream.rounds):
                continue
            used += 1
            tokens = 1 + sum(chance.random() < 0.6 for _ in range(3))  # in 1.8 times a plain round
            share = Share("inline", 3, 1, 0.0)
            part = Part(stream, GROUP, stream.rounds, tokens, 1800.0, (share,), None)
            done = Round(1, 4, 0, 1, 1800.0, 0.0, 1800.0, 0.0, False, tokens, (part,))
            trials.learn(done, PLAIN_US, 10.0)
    assert used > 1900


@pytest.mark.parametrize("streams", [1, 4, 32])
def test_a_kind_is_judged_by_as_many_rounds_however_many_streams_share_them(streams):
    """One slow forward is one sample, not one for each of its streams."""
    chance, trials = random.Random(streams), Trials()
    share = Share("inline", 3, 1, 0.0)

    def shared_round(own_us: float) -> bool:
        crowd = [Someone() for _ in range(streams)]
        parts = tuple(Part(one, GROUP, 1, 2, own_us, (share,), None) for one in crowd)
        done = Round(streams, 4 * streams, 0, 1, own_us, 0.0, own_us, 0.0, False, 2 * streams, parts)
        trials.learn(done, PLAIN_US, 10.0)
        return trials.of_group("inline", GROUP).resting(trials._rounds[GROUP])

    until = next(number for number in range(1, 500) if shared_round(5000.0))
    assert DRAFTS.look / 5 <= until <= DRAFTS.look
    trials = Trials()
    rests = sum(shared_round(chance.choice((600.0, 3000.0))) for _ in range(200))  # 1.1 of decoding without it
    assert rests == 0


def test_a_rest_is_as_many_rounds_however_many_streams_share_them():
    trials, crowd = Trials(), [Someone() for _ in range(32)]
    while not trials.rests("inline", GROUP, crowd[0], 0):
        for one in crowd:
            judged(trials, one, 0.5)
    left = trials.left("inline", GROUP, Someone(), 0)
    parts = tuple(Part(one, GROUP, 1, 1, PLAIN_US, (), None) for one in crowd)
    trials.learn(Round(32, 32, 0, 1, PLAIN_US, 0.0, PLAIN_US, 0.0, False, 32, parts), PLAIN_US, 10.0)
    assert trials.left("inline", GROUP, Someone(), 0) == left - 1


def test_a_text_that_begins_to_copy_is_noticed_within_a_longest_rest_of_retrieval():
    trials, stream = Trials(), Someone()
    assert rounds_with(trials, stream, 0.9, 1000, "text") < 150
    assert rounds_with(trials, stream, 3.0, 100, "text") > 60


@pytest.mark.parametrize("streams", [1, 4, 8])
def test_retrieval_that_loses_rests_for_as_many_rounds_as_streams_wait_for_it(streams):
    trials, group, crowd = Trials(), Group("auto", True, streams.bit_length()), [Someone() for _ in range(streams)]
    share, kind, rounds = Share("text", 0, 1, 0.1 * PLAIN_US), trials.of_group("text", group), 0
    while not kind.until and rounds < 100:
        rounds += 1
        parts = tuple(Part(stream, group, rounds, 1, PLAIN_US, (share,), None) for stream in crowd)
        done = Round(streams, streams, 0, 1, PLAIN_US, 0.0, PLAIN_US, 0.0, False, streams, parts)
        trials.learn(done, PLAIN_US, 10.0)
    assert kind.until - (rounds - 1) == streams


def test_a_source_that_names_nothing_rests_whatever_the_time_of_its_rounds():
    trials, stream, chance, asked = Trials(), Someone(), random.Random(1), list[int]()
    for at in range(4000):
        asks, own_us = not trials.rests("text", GROUP, stream, stream.rounds), PLAIN_US * chance.uniform(0.8, 1.2)
        stream.rounds += 1
        shares = (Share("text", 0, 1, 5.0),) if asks else ()
        part = Part(stream, GROUP, stream.rounds, 1, own_us, shares, None)
        trials.learn(Round(1, 1, 0, 1, own_us, 0.0, own_us, 0.0, False, 1, (part,)), PLAIN_US, 10.0)
        asked += [at] * asks
    assert sum(at >= 2000 for at in asked) < 2000 / 16


def test_a_paused_drafters_gain_is_that_of_the_streams_for_which_it_pauses():
    trials, one, other, drafter = Trials(), Someone(), Someone(), DrafterPeer(b"p", Hello(Role.DRAFTER, "d", "i"), 0.0)
    for _ in range(100):
        judged(trials, one, 1.5, drafter.source)
    while not any(rests for _, rests in trials.all_of(drafter.source)):
        judged(trials, other, 0.5, drafter.source, SAMPLED)
    shown = drafter_status(drafter, None, trials, Totals(Counter()))
    assert shown.state == "paused" and shown.speedup < 1.0


def test_the_time_of_a_round_is_divided_by_what_each_source_should_have_cost():
    trials, stream = Trials(), Someone()
    cheap, dear = Share("text", 1, 2, 0.0), Share("inline", 1, 2, 990.0)
    for _ in range(60):
        stream.rounds += 1
        part = Part(stream, GROUP, stream.rounds, 3, 2000.0, (cheap, dear), None)
        trials.learn(Round(1, 3, 0, 1, 1000.0, 0.0, 2000.0, 990.0, False, 3, (part,)), PLAIN_US, 10.0)
    assert trials.expected("text", GROUP) == pytest.approx(3 / 2, rel=0.1)
    assert trials.expected("inline", GROUP) == pytest.approx(3 / 3, rel=0.1)


def test_a_source_that_an_operator_wants_is_judged_anew():
    trials, stream = Trials(), Someone()
    for _ in range(50):
        rounds_with(trials, Someone(), 0.5, 40, "drafter a")
    trials.forget("drafter a")
    assert not any(rests for _, rests in trials.all_of("drafter a")) and stream.rounds == 0


def test_what_is_known_of_sources_is_bounded():
    trials = Trials()
    for number in range(3000):
        trials.of_group(f"drafter {number}", GROUP)
    assert len(trials._groups) <= MAX_KNOWN


def test_drafters_that_come_and_go_do_not_make_a_source_in_use_forgotten():
    trials, stream = Trials(), Someone()
    for number in range(3000):
        if not number % 100:
            judged(trials, stream, gain=2.0, source="text")
        trials.of_group(f"drafter {number}", GROUP)
    assert trials.expected("text", GROUP) > 1.5


def test_rests_double_while_what_follows_them_fails():
    backoff, now, rests = Backoff(1), 0.0, []
    for _ in range(8):
        backoff.rest(now)
        rests.append(backoff.left(now))
        now = backoff.until
    assert rests == [1, 2, 4, 8, 16, LONGEST, LONGEST, LONGEST] and not backoff.resting(now)
    backoff.succeed()
    backoff.rest(now)
    assert backoff.left(now) == 1

"""Telemetry and status reports become a picture: what is shown is what the actors measured."""

import pytest

from duoactor.monitor.monitor import LATELY_S, Monitor
from protocols.messages import (
    ActorDown,
    DrafterStatus,
    DraftStats,
    DraftTotals,
    Method,
    RequestStatus,
    Role,
    RoundStats,
    StatusReport,
)

ROUND_US = 10_000.0


def stats(number: int, rid: str = "q1", **fields) -> RoundStats:
    """A round of 10 ms: 8 ms of forward, of which the drafter works 4, and 1 before it."""
    begin = number * ROUND_US
    told = {
        "drafter": "d1", "window": 4, "accepted": 3, "committed": 4, "rows": 5, "forward_us": 8000.0, "wait_us": 1000.0,
        "wall_us": ROUND_US, "gamma": 6, "sequences": 2, "started_us": begin + 1000.0, "waited_from_us": begin,
        "draft_forwards": ((int(begin), 1000), (int(begin) + 2000, 4000)),
    }  # fmt: skip
    return RoundStats(rid, number, Method.AUTO, **{**told, **fields})


def report(*rids: str, **fields) -> StatusReport:
    told = {
        "pid": 7, "host": "gpu-box", "controller": "controller", "controller_host": "gpu-box",
        "requests": tuple(RequestStatus(rid, "auto", "decode", 12, "d1") for rid in rids),
        "drafters": (DrafterStatus("d1", "org/draft", "active", 1, 500.0, 100, 60, 0, "laptop", 77),),
        "totals": (DraftTotals("auto", "d1", 9, 90, 60, (), 1.9),),
    }  # fmt: skip
    return StatusReport("r", "org/model", "cpu", "float32", "auto", 60_000.0, 1000, 100, **{**told, **fields})


def playing(rounds: int = 100, *rids: str) -> tuple[Monitor, float]:
    """A monitor that has heard so many rounds of each stream, a round every 10 ms, and the time now."""
    monitor = Monitor("ipc:///v")
    monitor.answered(report(*rids or ("q1",)), 0.0)
    for number in range(rounds):
        for rid in rids or ("q1",):
            monitor.hear(stats(number, rid), (number + 1) * ROUND_US / 1e6)
    return monitor, rounds * ROUND_US / 1e6


def test_a_stream_shows_its_own_measured_rate_and_acceptance():
    monitor, now = playing()
    [stream] = monitor.picture(now).streams
    assert stream.tokens_per_second == pytest.approx(400)
    assert (stream.acceptance, stream.gamma, stream.sequences) == (0.75, 6, 2)
    assert monitor.picture(now).tokens_per_second == pytest.approx(400)


def test_streams_that_share_a_forward_are_counted_once_in_the_verifiers_time():
    monitor, now = playing(100, "q1", "q2")
    picture = monitor.picture(now)
    assert picture.tokens_per_second == pytest.approx(800)
    verifier = picture.actors[0]
    assert (verifier.host, verifier.state) == ("gpu-box", "decoding")
    assert verifier.busy == pytest.approx(0.8) and verifier.step_us == pytest.approx(8000)


def test_drafters_show_what_they_tell_and_nothing_once_they_stopped_telling():
    monitor, now = playing()
    monitor.hear(DraftStats("d1", ((1, 450.0),), 0.5), now)
    drafter = monitor.picture(now).actors[1]
    assert (drafter.host, drafter.leases, drafter.busy, drafter.acceptance) == ("laptop", 1, 0.5, 0.75)
    assert monitor.picture(now + LATELY_S + 1).actors[1].busy is None
    monitor.hear(ActorDown(Role.DRAFTER, "d1", "no heartbeat"), now)
    assert monitor.picture(now).actors[1].busy is None


def test_the_strip_is_of_measured_times_and_says_how_much_overlapped():
    monitor, now = playing()
    strip = monitor.picture(now).strip
    assert strip is not None and strip.rounds == 12
    assert strip.end - strip.begin == pytest.approx(12 * ROUND_US)
    assert strip.end == 98 * ROUND_US + 9000  # the last round but one
    assert sum(b - a for a, b in strip.verify) == pytest.approx(12 * 8000)
    assert sum(b - a for a, b in strip.wait) == pytest.approx(12 * 1000)
    assert strip.draft_us == pytest.approx(12 * 5000) and strip.overlap_us == pytest.approx(12 * 4000)
    assert list(strip.draft) == ["d1"]


def test_without_rounds_there_is_no_rate_and_no_strip():
    monitor = Monitor("ipc:///v")
    monitor.answered(report("q1"), 0.0)
    picture = monitor.picture(1.0)
    assert (picture.tokens_per_second, picture.strip, picture.speedup) == (0, None, None)
    assert picture.streams[0].tokens_per_second is None and picture.streams[0].acceptance is None
    assert picture.actors[0].state == "busy"  # in prefill, or at a forward that takes long


def test_what_is_long_ago_is_forgotten():
    monitor, now = playing()
    picture = monitor.picture(now + LATELY_S + 1)
    assert (picture.tokens_per_second, picture.strip) == (0, None)


def test_the_speed_up_is_of_the_methods_that_run_now():
    monitor, now = playing()
    assert monitor.picture(now).speedup == pytest.approx(1.9)
    assert monitor.picture(now + LATELY_S + 1).speedup is None


def test_a_verifier_that_does_not_answer_is_silent_since_its_last_answer():
    monitor, _ = playing()
    monitor.answered(report("q1"), 10.0)
    monitor.failed("it does not answer", 12.0)
    picture = monitor.picture(14.0)
    assert (picture.silent_s, picture.problem, picture.model_id) == (4.0, "it does not answer", "org/model")
    monitor.answered(report("q1"), 15.0)
    assert monitor.picture(15.0).silent_s is None


def test_before_the_first_answer_there_is_an_address_and_a_reason():
    monitor = Monitor("ipc:///v")
    monitor.failed("no verifier answers at ipc:///v", 5.0)
    picture = monitor.picture(8.0)
    assert (picture.address, picture.silent_s, picture.actors) == ("ipc:///v", 3.0, ())


def test_a_verifier_that_restarted_has_a_clock_of_its_own():
    monitor, now = playing(600)
    monitor.answered(report("q1", pid=8), now)
    for number in range(1, 5):
        monitor.hear(stats(number), now + number / 100)
    strip = monitor.picture(now + 0.05).strip
    assert strip is not None and strip.end == 3 * ROUND_US + 9000

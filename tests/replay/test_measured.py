"""What is told of rounds that were measured in a replay."""

import pytest

from actors.replay.clock import Metered
from actors.replay.measured import FEW, Measuring, RoundTimes


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Slow:
    """A target whose forwards take so long, on a clock that only models move."""

    def __init__(self, clock, forward_us):
        self.clock, self.forward_us, self.prompts = clock, forward_us, []

    def begin(self, tokens):
        self.prompts.append(tokens)

    def __call__(self, rows):
        self.clock.now += self.forward_us * 1e-6

    def use_spare_cpus(self, used):
        raise AssertionError("there are none")


def measuring(forward_us=1000.0):
    clock, process = Clock(), Metered()
    return Measuring(process, Slow(clock, forward_us), clock), process, clock


def rounds(found, process, windows, drafted=False, calibrated_us=1000.0):
    """The verifier's code takes 200 us, and 300 more where there are drafts."""
    for drafts in windows:
        found.forward(1 + drafts, calibrated_us, drafted)
        process.own_s += (500 if drafts else 200) * 1e-6


def test_the_verifiers_code_is_told_of_rounds_with_and_without_drafts():
    found, process, _ = measuring()
    rounds(found, process, [0, 4, 8] * 10)
    told = found.found()
    assert (told.code, told.code_drafts) == pytest.approx((200, 500))


def test_where_hardly_any_round_is_of_a_kind_it_is_taken_for_one_of_all():
    found, process, _ = measuring()
    rounds(found, process, [0] * (FEW - 1) + [1] * 100)
    told = found.found()
    assert told.code_drafts == pytest.approx(500) and 450 < told.code < 500


def test_what_comes_between_two_requests_is_no_rounds_and_texts_are_as_long_as_theirs():
    found, process, _ = measuring()
    for number in range(3):
        found.prompt(100 + number)
        process.own_s += 1.0
        rounds(found, process, [0] * 5)
    assert found.found().code == pytest.approx(200)
    assert found.beside.prompts == [100, 101, 102]


def test_forwards_behind_draft_steps_are_told_apart():
    found, process, _ = measuring(1200.0)
    rounds(found, process, [0] * FEW)
    rounds(found, process, [2] * FEW, drafted=True, calibrated_us=800.0)
    told = found.found()
    assert (told.forward, told.forward_drafted) == pytest.approx((1.2, 1.5))
    assert found.found(1.1).forward == 1.1, "it was measured elsewhere"


def test_too_few_samples_say_nothing():
    found, process, _ = measuring(3000.0)
    assert found.found() == RoundTimes()
    rounds(found, process, [0] * (FEW - 1))
    rounds(found, process, [1] * (FEW - 1), drafted=True)
    told = found.found(1.1)
    assert (told.forward, told.forward_drafted, told.step) == (1.1, 1.1, 1.0)


def test_steps_are_told_as_parts_of_the_calibrated_ones_and_reading_by_token():
    found, _, clock = measuring()

    def work(result, seconds):
        clock.now += seconds
        return result

    for _ in range(FEW):
        assert found.step(lambda: work("leaves", 300e-6), 200.0) == "leaves"
    assert found.reading(lambda: work(40, 800e-6)) == 40
    assert found.reading(lambda: work(0, 1.0)) == 0, "there was no room"
    told = found.found()
    assert (told.step, told.read) == pytest.approx((1.5, 20.0))


def test_a_models_work_in_the_middle_of_a_step_is_no_code_of_the_steps_before():
    clock = Clock()
    process, seen = Metered(clock), []

    def pass_by(seconds):
        clock.now += seconds

    def step():
        pass_by(1.0)
        process.aside(lambda: pass_by(5.0))
        seen.append(process.own_s)
        pass_by(1.0)

    for _ in range(2):
        process.counted(step)
    assert seen == [0.0, 2.0] and process.own_s == 4.0

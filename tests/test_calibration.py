import random

import pytest

from actors.calibration import MEMORY, Calibration, TextBias, TextCalibration


def teach(calibration: Calibration, truth, rounds: int, seed: int) -> None:
    """``truth(rank, p)`` is the chance that the candidate of that rank is the target's token."""
    chance = random.Random(seed)
    for _ in range(rounds):
        top = chance.uniform(0.2, 0.95)
        probs = (top, (1 - top) * 0.6, (1 - top) * 0.2)
        draw, hit = chance.random(), -1
        for rank, p in enumerate(probs):
            draw -= truth(rank, p)
            if draw < 0:
                hit = rank
                break
        calibration.observe(probs, hit)


def test_before_any_evidence_the_drafts_own_probability_speaks():
    assert Calibration().probability(0, 0.37) == pytest.approx(0.37)


def test_a_calibration_recovers_a_known_map():
    calibration = Calibration()
    teach(calibration, lambda rank, p: min(0.95, p**0.5) if rank == 0 else p * 0.3, 6000, seed=1)
    for p in (0.3, 0.5, 0.7, 0.9):
        assert calibration.probability(0, p) == pytest.approx(min(0.95, p**0.5), abs=0.1)
    assert calibration.probability(1, 0.2) == pytest.approx(0.06, abs=0.05)


def test_a_calibration_follows_a_change_of_agreement():
    calibration = Calibration()
    teach(calibration, lambda rank, p: 0.9 if rank == 0 else 0.0, 3000, seed=2)
    assert calibration.probability(0, 0.6) > 0.8
    teach(calibration, lambda rank, p: 0.2 if rank == 0 else 0.0, 3000, seed=3)
    assert calibration.probability(0, 0.6) < 0.3


def test_the_memory_of_a_calibration_is_bounded():
    calibration = Calibration()
    teach(calibration, lambda rank, p: 0.5, 5000, seed=4)
    assert max(calibration.weights) == MEMORY


def test_a_text_that_agrees_less_bends_the_shared_map_for_itself_alone():
    shared = Calibration()
    teach(shared, lambda rank, p: 0.8 if rank == 0 else 0.0, 3000, seed=5)
    before = shared.probability(0, 0.6)
    text = TextCalibration(shared)
    assert text.probability(0, 0.6) == pytest.approx(before)
    for _ in range(24):
        text.observe((0.6, 0.2), hit=-1)
    assert text.probability(0, 0.6) < 0.5 * before
    assert TextCalibration(shared).probability(0, 0.6) > 0.85 * before
    assert text.probability(1, 0.2) == shared.probability(1, 0.2)


def test_a_text_is_never_believed_to_be_certain():
    text = TextCalibration(Calibration())
    for _ in range(200):
        text.observe((0.5,), hit=0)
    assert 0.97 < text.probability(0, 0.95) <= 0.99


def test_what_a_text_was_like_long_ago_fades():
    bias, even = TextBias(), 0.5
    for _ in range(1000):
        bias.observe(even, True)
    assert bias.chance(even) > 0.9
    for _ in range(300):
        bias.observe(even, False)
    assert bias.chance(even) < 0.1


def test_a_text_that_copies_a_few_short_matches_is_not_believed_to_copy_long_ones_for_certain():
    bias = TextBias()
    for _ in range(15):  # half of what is usually right once in five times
        bias.observe(0.2, True)
        bias.observe(0.2, False)
    assert 0.35 < bias.chance(0.2) < 0.5
    assert 0.6 < bias.chance(0.6) < 0.9
    assert bias.chance(0.999) < 1.0


def test_what_a_new_text_is_expected_to_be_like_is_what_others_were():
    shared = Calibration()
    assert TextCalibration(shared).agreement == pytest.approx(0.6)
    one = TextCalibration(shared)
    for number in range(2000):
        one.observe((0.7, 0.2), 0 if number % 10 < 4 else -1)
    assert TextCalibration(shared).agreement == pytest.approx(0.4, abs=0.02)
    assert TextCalibration(Calibration()).agreement == pytest.approx(0.6)

import random

import pytest

from actors.estimate import Estimate


def test_an_estimate_starts_as_a_plain_mean():
    estimate = Estimate()
    for sample in (1.0, 2.0, 6.0):
        estimate.add(sample)
    assert estimate.mean == pytest.approx(3.0)
    assert estimate.weight == 3


def test_a_prior_counts_as_so_many_samples():
    estimate = Estimate(0.5, weight=4)
    estimate.add(1.0)
    assert estimate.mean == pytest.approx(0.6)


def test_old_samples_fade_once_the_memory_is_full():
    estimate = Estimate(memory=10)
    for _ in range(1000):
        estimate.add(1.0)
    for _ in range(30):
        estimate.add(0.0)
    assert estimate.mean < 0.05


def test_the_error_of_an_estimate_is_that_of_the_mean():
    chance, means, errors = random.Random(1), [], []
    for _ in range(300):
        estimate = Estimate(memory=64)
        for _ in range(50):
            estimate.add(chance.gauss(3.0, 2.0))
        means.append(estimate.mean)
        errors.append(estimate.error)
    spread = (sum((mean - 3.0) ** 2 for mean in means) / len(means)) ** 0.5
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.15)


def test_an_estimate_without_samples_has_an_infinite_error():
    assert Estimate(5.0).error == float("inf")
    assert not Estimate(5.0).known


def test_what_is_discounted_gives_way_to_what_comes_next():
    estimate = Estimate(memory=100)
    for _ in range(100):
        estimate.add(1.0)
    estimate.discount(2)
    for _ in range(6):
        estimate.add(0.0)
    assert estimate.mean == pytest.approx(0.25)


def test_a_ratio_of_sums_weighs_its_parts():
    estimate = Estimate(memory=100)
    estimate.add_ratio(3.0, 1.0)
    estimate.add_ratio(1.0, 3.0)
    estimate.add_ratio(1.0, 0.0)
    assert estimate.mean == pytest.approx(1.0)


def test_an_estimate_is_drawn_to_a_prior_by_the_priors_strength():
    estimate = Estimate()
    estimate.add(1.0)
    assert estimate.towards(0.0, 3.0) == pytest.approx(0.25)

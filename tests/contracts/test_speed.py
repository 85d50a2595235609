"""Four speed contracts in virtual time: what a user would notice if a change of policy lost it."""

from dataclasses import replace

import pytest

from tests.contracts.deployments import DEPLOYMENTS, rates
from tests.contracts.figures import TEMPERATURES, recorded

OF_RECORDED, OF_VANILLA = 0.97, 0.98


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_auto_is_as_fast_as_it_was_and_never_slower_than_vanilla(name, temperature):
    found = rates(DEPLOYMENTS[name], temperature)
    assert found["auto"] >= OF_RECORDED * recorded()[name][str(temperature)]
    assert found["auto"] >= OF_VANILLA * found["vanilla"]


@pytest.mark.parametrize("name", ["486M", "eight streams"])
def test_drafts_that_are_never_right_cost_next_to_nothing(name):
    deployment = replace(DEPLOYMENTS[name], skill=0.01)
    found = rates(deployment, 1.0)
    assert found["auto"] >= OF_VANILLA * found["vanilla"]


@pytest.mark.parametrize(("streams", "skill"), [(16, 0.65), (32, 0.01)])
def test_sampled_texts_of_many_streams_are_not_slower_than_plain_decoding(streams, skill):
    deployment = replace(DEPLOYMENTS["eight streams"], streams=streams, requests=6 * streams, skill=skill)
    found = rates(deployment, 1.0)
    assert found["auto"] >= OF_VANILLA * found["vanilla"]


def test_a_run_can_be_repeated_to_the_last_digit():
    short = replace(DEPLOYMENTS["91M"], requests=2)
    assert rates(short, 0.0) == rates(short, 0.0)

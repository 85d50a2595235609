"""Streams that share a forward, on virtual time: what drafts are worth there, and what a row costs all of them."""

import pytest

from tests.controller.compare_loads import SKILLS, ratio
from tests.world.pairs import every_pair
from tests.world.simulation import Simulation, World

COSTLY_ROWS = World(skill=0.5, forward=2_700.0, row=700.0, step=100.0, leaf=15.0)


def rate(method: str, streams: int) -> float:
    sim = Simulation(COSTLY_ROWS, method, seed=7, inline=True)
    ((begin, end),) = sim.play((COSTLY_ROWS, 80, streams))
    return sim.rate(begin + 20 * streams, end)


@pytest.mark.parametrize("streams", [1, 4, 8])
def test_where_rows_are_costly_a_tree_is_not_slower_than_plain_decoding(streams: int):
    assert rate("tree", streams) > 0.97 * rate("vanilla", streams)


@pytest.mark.parametrize(
    ("machine", "temperature", "streams"), every_pair(["two cores", "useless drafts"], [*SKILLS], [1, 4, 16])
)
def test_auto_never_loses(machine: str, temperature: float, streams: int):
    assert ratio(machine, temperature, streams) >= 0.98

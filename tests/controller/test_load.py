"""Streams that share a forward, on virtual time: what drafts are worth there, and what a row costs all of them."""

import pytest

from tests.world.simulation import Simulation, World

COSTLY_ROWS = World(skill=0.5, forward=2_700.0, row=700.0, step=100.0, leaf=15.0)


def rate(method: str, streams: int) -> float:
    sim = Simulation(COSTLY_ROWS, method, seed=7, inline=True)
    ((begin, end),) = sim.play((COSTLY_ROWS, 80, streams))
    return sim.rate(begin + 20 * streams, end)


@pytest.mark.parametrize("method", ["tree", "auto"])
@pytest.mark.parametrize("streams", [1, 4, 8])
def test_where_rows_are_costly_streams_with_drafts_are_not_slower_than_plain_decoding(method, streams):
    assert rate(method, streams) > 0.97 * rate("vanilla", streams)

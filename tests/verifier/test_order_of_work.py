"""What has arrived is filed before a round is committed, wherever the forward runs."""

import pytest
from simulation import Fixed, Simulation, World

METHODS = ["pearl", "duodecoding", "tree"]


def played(method: str, inline: bool) -> tuple[float, list[int]]:
    """Tokens per second, and of every round the rank of the token that came among the drafted ones (0: none)."""
    sim = Simulation(World(), method, Fixed(method, 8), inline=inline)
    ((_, end),) = sim.play((World(), 300, 1))
    return sim.rate(30, end), [stats.needed_sequences for _, stats in sim.trace.rounds[30:]]


@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_that_came_during_a_forward_are_seen_when_it_is_committed(method, inline):
    _, ranks = played(method, inline)
    assert sum(rank > 0 for rank in ranks) > 0.2 * len(ranks)


@pytest.mark.parametrize("method", METHODS)
def test_a_forward_in_the_event_loop_costs_no_drafts(method):
    inline, _ = played(method, inline=True)
    thread, _ = played(method, inline=False)
    assert inline > 0.97 * thread

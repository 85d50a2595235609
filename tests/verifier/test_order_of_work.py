"""What has arrived is filed before a round is committed, wherever the forward runs."""

import pytest

from actors.verifier.commit import Committer
from tests.world.simulation import Fixed, Simulation, World

METHODS = ["pearl", "duodecoding", "tree"]


def rate(method: str, inline: bool) -> float:
    """Tokens per second."""
    sim = Simulation(World(), method, Fixed(method, 8), inline=inline)
    ((_, end),) = sim.play((World(), 300, 1))
    return sim.rate(30, end)


@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_that_came_during_a_forward_are_seen_when_it_is_committed(method, inline, monkeypatch):
    foreseen: list[bool] = []  # for each round whether its last token stood below the accepted ones
    extend = Committer._extend

    def watched(self, stream, chosen, outcome):
        tip = chosen.nodes[outcome.path[-1]] if outcome.path else stream.tree.root
        foreseen.append(tip.child(outcome.tokens[-1]) is not None)
        return extend(self, stream, chosen, outcome)

    monkeypatch.setattr(Committer, "_extend", watched)
    rate(method, inline)
    assert sum(foreseen) > 0.2 * len(foreseen)


@pytest.mark.parametrize("method", METHODS)
def test_a_forward_in_the_event_loop_costs_no_drafts(method):
    assert rate(method, inline=True) > 0.97 * rate(method, inline=False)

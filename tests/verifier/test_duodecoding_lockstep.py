"""``duodecoding-lockstep`` against the published rule, written out, on real actors and a virtual clock.

In lock-step the rounds do not depend on how fast either side is: the drafter drafts its phase, the target verifies
what the phase before left, and the slower one ends the step (DuoDecoding, arXiv 2503.00784).
"""

from dataclasses import dataclass, replace

import pytest

from tests.world.models import Guesses, Text
from tests.world.simulation import Simulation, World

METHOD = "duodecoding-lockstep"
ROUNDS = 60


@dataclass(frozen=True)
class Step:
    """How many tokens the target verified, and how many were right."""

    window: int
    accepted: int


class Published:
    """The paper's loop, without processes: text and luck are a function of the position."""

    def __init__(self, text: Text, world: World, gamma: int) -> None:
        self.text, self.world, self.gamma = text, world, gamma

    def phase(self, position: int, right: bool) -> list[list[int]]:
        """The k sequences drafted from there on; k by the theta rule, gamma tokens in all."""
        tokens, first = self.guesses(position, right)
        main_right = right and tokens[0] == self.text.tokens[position]
        _, second = self.guesses(position + 1, main_right)
        k = 1
        if self.gamma > 1:
            theta = first[0] * second[0]
            k = max(1, min(sum(p > theta for p in first), self.gamma, len(tokens)))
        share, extra = divmod(self.gamma, k)
        quota = [share + (j < extra) for j in range(k)]
        quota[0] = max(quota[0], min(2, self.gamma))  # theta needed the main sequence's second token: it is there
        return [self.greedy(position, right, tokens[j], quota[j]) for j in range(k)]

    def guesses(self, position: int, right: bool) -> Guesses:
        return self.text.guesses(position, right, self.world.skill)

    def greedy(self, position: int, right: bool, token: int, length: int) -> list[int]:
        sequence = [token]
        while len(sequence) < length:
            right = right and sequence[-1] == self.text.tokens[position]
            position += 1
            sequence.append(self.guesses(position, right)[0][0])
        return sequence

    def steps(self, position: int) -> list[Step]:
        """ROUNDS rounds behind ``position`` tokens of text. In the first, the target processes the prompt."""
        found: list[Step] = []
        chosen: list[int] = []  # what is left of the sequence that the target's token selected
        while len(found) < ROUNDS + 1:
            # both sides at once
            true_chain = (*chosen,) == self.text.tokens[position : position + len(chosen)]
            drafted = self.phase(position + len(chosen), true_chain)
            accepted = 0
            while accepted < len(chosen) and chosen[accepted] == self.text.tokens[position + accepted]:
                accepted += 1
            own = self.text.tokens[position + accepted]  # the target's own token, after what it accepted
            found.append(Step(len(chosen), accepted))
            # both are done: the target's token selects, or the drafts were for nothing
            position += accepted + 1
            if accepted == len(chosen):
                chosen = next((sequence[1:] for sequence in drafted if sequence[0] == own), [])
            else:
                chosen = []
        return found[1:]


def played(world: World, gamma: int) -> tuple[list[Step], Simulation]:
    sim = Simulation(world, METHOD)
    sim.gamma = gamma
    sim.play((world, 4 * ROUNDS, 1))
    rounds = [stats for _, stats in sim.trace.rounds][:ROUNDS]
    return [Step(stats.window, stats.accepted) for stats in rounds], sim


@pytest.mark.parametrize("gamma", [1, 2, 5, 8])
@pytest.mark.parametrize("step_us", [100.0, 1300.0, 9000.0])
def test_every_round_is_the_published_one_whichever_side_is_slower(gamma, step_us):
    world = World(skill=0.7, step=step_us)
    steps, sim = played(world, gamma)
    assert steps == Published(sim.text, world, gamma).steps(sim.at)


def test_a_step_takes_as_long_as_the_slower_side():
    for step_us, slower in ((200.0, 10_000.0), (4000.0, 24_000.0)):
        world = World(skill=0.7, step=step_us, leaf=0.0)
        _, sim = played(world, 6)
        walls = [stats.wall_us for _, stats in sim.trace.rounds[5:ROUNDS] if stats.drafting.sequences == 1]
        assert 0.9 * slower < sum(walls) / len(walls) < 1.25 * slower


def test_the_drafter_never_drafts_beyond_its_phase():
    world = World(skill=0.9, step=50.0)
    _, sim = played(world, 4)
    for _, stats in sim.trace.rounds[1:ROUNDS]:
        # catching up on tokens that it did not foresee takes the drafter one forward beside the phase's
        assert len(stats.drafting.forwards) <= 4 + 1


def test_asynchronous_duodecoding_is_not_slower_where_the_drafter_is_the_slower_side():
    def rate(method):
        world = World(skill=0.7, step=2500.0)
        sim = Simulation(world, method)
        sim.gamma = 8
        sim.play((world, 400, 1))
        return sim.rate(10, len(sim.trace.rounds))

    assert rate("duodecoding") > rate(METHOD)


def test_a_lost_drafter_ends_the_wait():
    world = World(skill=0.7, step=1000.0)
    sim = Simulation(world, METHOD)
    sim.gamma = 8
    # a drafter a hundred times slower than it said it was: waits are bounded, and given up after three
    [_, (begin, end)] = sim.play((world, 60, 1), (replace(world, step=100_000.0), 60, 1))
    waits = [stats.wait_us for _, stats in sim.trace.rounds[begin:end]]
    assert sum(wait > 1000.0 for wait in waits) <= 12

"""What may change under a stream, and the fixed settings that a controller is compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.world.simulation import Comparison, Fixed, compare
from tests.world.timed import World

WORLD = World()


@dataclass(frozen=True)
class Scenario:
    after: World = WORLD
    streams: int = 1
    copying: bool = False  # from the change on, the text repeats itself


SCENARIOS = {
    "the drafter slows down 5 times": Scenario(replace(WORLD, step_us=5 * WORLD.step_us)),
    "acceptance falls": Scenario(replace(WORLD, skill=0.45)),
    "the drafts are random": Scenario(replace(WORLD, skill=0.0, boast=0.5)),
    "the verifier gets 10 times faster": Scenario(replace(WORLD, verify_us=WORLD.verify_us / 10, row_us=10.0)),
    "messages are slow": Scenario(replace(WORLD, message_us=2500.0)),
    "the text begins to copy": Scenario(copying=True),
    "a second stream joins": Scenario(streams=2),
    "an eighth stream joins": Scenario(streams=8),
}
METHODS = ("sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree", "auto")


def settings(method: str, streams: int) -> list[Fixed]:
    """The grid that a brute search goes through: what a user could fix by hand. Eight streams take eight times as long
    to simulate, so that it is coarser there."""
    if streams > 4:
        if method in ("tree", "auto"):
            return [Fixed(method, gamma, 4, None, 0.0) for gamma in (4, 8)]
        return [Fixed(method, gamma) for gamma in (3, 6, 10)]
    if method in ("tree", "auto"):
        waits = [(4, 4, None), (4, 4, 0.0), (8, 1, None), (8, 4, None), (8, 4, 0.0), (16, 4, None)]
        found = [Fixed(method, gamma, leaves, None, wait) for gamma, leaves, wait in waits]
        return [*found, Fixed("sam")] if method == "auto" else found  # what auto does while its drafter rests
    return [Fixed(method, gamma) for gamma in (1, 2, 3, 4, 6, 8, 12)]


def tried(method: str, scenario: Scenario, seed: int, inline: bool) -> Comparison:
    return compare(
        method,
        WORLD,
        scenario.after,
        scenario.streams,
        settings(method, scenario.streams),
        tokens=300 if scenario.streams <= 4 else 100,
        seed=seed,
        inline=inline,
        copying=scenario.copying,
    )

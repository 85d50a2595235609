"""What a drafter that means harm costs a stream of method auto, against the same text without drafts, on virtual time.

python -m tests.world.hostile_drafters [--seeds 0-4]
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable
from dataclasses import replace

import msgspec

from actors.drafter.loop import Drafter
from protocols.messages import DraftStats, Grow
from tests.world.models import VOCAB
from tests.world.simulation import Simulation, World

ROUNDS = 100
TOKENS = 600
WORLDS = {
    "GPU": World(),
    "CPU": World(4_400.0, 400.0, step=300.0, leaf=45.0),
}
RANDOM = {"skill": 0.0, "boast": 0.5}


def grows(change: Callable[[Grow], Grow | None]) -> Callable[[Drafter], None]:
    """Sends its drafts as ``change`` makes them; None: not at all."""

    def tamper(drafter: Drafter) -> None:
        send = drafter.line.send

        def lying(message) -> bool:
            if isinstance(message, DraftStats):  # and steps take no time
                message = msgspec.structs.replace(message, step_us=((1, 1.0), (8, 1.0)))
            elif isinstance(message, Grow):
                message = change(message)
            return message is None or send(message)

        drafter.line.send = lying

    return tamper


def absent(drafter: Drafter) -> None:
    """Its model holds too little text: it is lent nothing."""
    handshake = drafter.line._handshake
    handshake.hello = msgspec.structs.replace(handshake.hello, max_context=1)


def sure(message: Grow) -> Grow:
    """Every token is certain."""
    return msgspec.structs.replace(message, logprobs=(0.0,) * len(message.logprobs))


def rubbish(message: Grow) -> Grow:
    """A certain chain of as many tokens as a window can hold, all wrong."""
    return msgspec.structs.replace(
        message, parents=tuple(range(-1, 31)), tokens=tuple(range(2, 34)), logprobs=(0.0,) * 32, complete=False
    )


def everywhere(message: Grow) -> Grow:
    """Every token that may come next, and below each a certain chain of what does not."""
    first = tuple(range(2, VOCAB))
    parents, tokens = [-1] * len(first), list(first)
    for place, token in enumerate(first):
        above = place
        for _ in range(7):
            parents.append(above)
            above = len(tokens)
            tokens.append(2 + (tokens[parents[-1]] + token + 1) % (VOCAB - 2))
    return msgspec.structs.replace(
        message, parents=tuple(parents), tokens=tuple(tokens), logprobs=(0.0,) * len(tokens), complete=True
    )


def sometimes(share: float, change: Callable[[Grow], Grow | None]) -> Callable[[Grow], Grow | None]:
    """An honest drafter but for that share of its messages."""
    chance = random.Random(1)
    return lambda message: change(message) if chance.random() < share else message


ATTACKS: dict[str, tuple[dict[str, float], Callable[[Grow], Grow | None]]] = {
    "plausible rubbish": (RANDOM, lambda message: message),
    "rubbish below every next token": (RANDOM, everywhere),
    "long chains of rubbish": (RANDOM, rubbish),
    "silence": ({}, lambda message: None),
    "silence half of the time": ({}, sometimes(0.5, lambda message: None)),
    "certain, and right as often as it can": ({"skill": 0.3}, sure),
    "rubbish half of the time": ({}, sometimes(0.5, rubbish)),
    "rubbish nine times in ten": ({"skill": 0.5}, sometimes(0.9, rubbish)),
}


@functools.cache
def without(world: World, seed: int, inline: bool, method: str, tokens: int) -> Simulation:
    """The same text without drafts."""
    plain = Simulation(world, method, seed=seed, inline=inline)
    plain.tamper = absent
    plain.play((world, tokens, 1))
    return plain


def shares(
    world: World,
    attack: str,
    seed: int,
    inline: bool,
    controlled: bool,
    method: str = "auto",
    tokens: int = TOKENS,
) -> list[float]:
    """Tokens per second over those without drafts: of the first hundred rounds, and behind them."""
    changes, change = ATTACKS[attack]
    plain = without(world, seed, inline, method, tokens)
    other = Simulation(replace(world, **changes), method, seed=seed, inline=inline)
    other.tamper = grows(change)
    other.play((replace(world, **changes), tokens, 1, controlled))
    first = other.tokens(ROUNDS)
    found = []
    for begin, end in ((1, first), (first, tokens - 20)):
        found.append(other.rate_over(begin, end) / plain.rate_over(begin, end))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-1")
    first, last = map(int, parser.parse_args().seeds.split("-"))
    for attack in ATTACKS:
        for name, world in WORLDS.items():
            for inline in (False, True):
                for controlled in (True, False):
                    found = [shares(world, attack, seed, inline, controlled) for seed in range(first, last + 1)]
                    early, late = (min(one[i] for one in found) for i in (0, 1))
                    how = f"{name} {'inline' if inline else 'thread'} {'controller' if controlled else 'no controller'}"
                    print(f"{attack:40}{how:28} first {ROUNDS} rounds {early:.3f}, then {late:.3f}", flush=True)


if __name__ == "__main__":
    main()

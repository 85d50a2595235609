"""Which requests a cell has, and when they come."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from duoactor.bench.load.cells import LONG, Cell
from duoactor.bench.load.summary import busy_ms
from duoactor.bench.runner import by_turns
from duoactor.bench.suites import Prompt
from protocols.errors import ConfigError

CLOSED = "closed"  # so many streams, each of which asks again as soon as it was answered
POISSON = "poisson"  # each request comes by itself
BURSTS = "bursts"  # as many at once as there would be streams
ARRIVALS = (CLOSED, POISSON, BURSTS)
PER_STREAM = 3  # requests: for two thirds of a cell every stream is at work, and ends fall apart as in a service
LONG_EVERY, LONG_AT = 32, 8  # one request in so many is long: a third of all tokens of prompts; the first comes soon


def choose_arrivals(names: str) -> list[str]:
    """Of a comma list. The closed loop is always first: it tells at which rate the others come."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in ARRIVALS:
            raise ConfigError(f"arrivals {name!r} are not known; choose some of {', '.join(ARRIVALS)}")
    return [name for name in ARRIVALS if name in asked or name == CLOSED]


def choose_streams(numbers: str) -> list[int]:
    """Of a comma list, the smallest first."""
    asked = [number.strip() for number in numbers.split(",") if number.strip()]
    if not asked or not all(number.isdecimal() and 1 <= int(number) <= 1024 for number in asked):
        raise ConfigError(f"--streams takes numbers from 1 to 1024 by commas, such as 1,4,16; not {numbers!r}")
    return sorted({int(number) for number in asked})


def requests(prompts: Sequence[Prompt], streams: int) -> list[str]:
    """Ids of a cell's prompts in the order in which they are asked: every prompt, enough for every stream, and the
    long one now and then."""
    ordered = [prompt.id for prompt in by_turns(prompts)]
    count = max(len(ordered), PER_STREAM * streams)
    short = itertools.cycle(ordered)
    return [LONG if place % LONG_EVERY == LONG_AT else next(short) for place in range(count)]


def starts(arrivals: str, count: int, streams: int, rate: float, seed: int) -> list[float]:
    """Seconds from a cell's begin at which its ``count`` requests come, ``rate`` a second on the average; not for the
    closed loop. The same for every method."""
    if arrivals == BURSTS:
        return [place // streams * streams / rate for place in range(count)]
    noise = random.Random(seed)
    return list(itertools.accumulate(noise.expovariate(rate) for _ in range(count)))


def rate_of(cells: Sequence[Cell], method: str, streams: int) -> float:
    """Requests a second that a method answers in the closed loop with so many streams; 0: not measured."""
    closed = [c for c in cells if (c.arrivals, c.method, c.streams) == (CLOSED, method, streams)]
    spent = sum(busy_ms(cell) for cell in closed)
    answered = sum(told.ended <= busy_ms(cell) for cell in closed for told in cell.answers if not told.error)
    return 1000 * answered / spent if spent else 0.0

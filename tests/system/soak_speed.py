"""Whether streams are at their normal speed when drafters have returned: see ``soak.py``.

Some streams that all need drafters repeat their texts and nothing else happens; then every drafter is killed, or
stopped until the verifier has given it up. Speed is that of all these streams together, in tokens/s.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duoactor import AsyncClient
from protocols.messages import Method
from tests.system.soak_missing import Missing
from tests.system.soak_returns import BACK_S, LOOK_S, PROMISED_S

if TYPE_CHECKING:
    from tests.system.soak import Job, Soak

STREAMS = 4
WARM_S = 1.0  # until the streams run
NORMAL_S = 4.0  # in which the normal speed is measured
STOPPED_S = 4.0  # longer than the time to live
AFTER_S = 4.0  # in which the speed after the return is
WINDOW_S, STEP_S = 1.0, 0.1
NORMAL = 0.9  # share of the normal speed that is taken for it: seconds differ by some per cent in peace, too


@dataclass
class Pace:
    """Tokens of streams, and the times at which they came."""

    chunks: list[tuple[float, int]] = field(default_factory=list)

    def add(self, now: float, tokens: int) -> None:
        self.chunks.append((now, tokens))

    def rate(self, begin: float, end: float) -> float:
        return sum(tokens for at, tokens in self.chunks if begin <= at < end) / (end - begin)


@dataclass(frozen=True)
class Comeback:
    """Speeds in tokens/s."""

    how: str
    normal: float
    without: float  # time between the strike and as many drafters again
    after: tuple[float, ...]  # rate of each half second from then on
    seconds: float | None  # time until the first second at normal speed; None: there was none

    @property
    def late(self) -> bool:
        return self.seconds is None or self.seconds > PROMISED_S


def comeback(pace: Pace, how: str, began: float, struck: float, returned: float, ended: float) -> Comeback:
    """``began``: the streams ran at their normal speed from then on."""
    normal = pace.rate(began, struck)
    starts = [returned + STEP_S * step for step in range(int((ended - returned - WINDOW_S) / STEP_S + 1e-6) + 1)]
    fast = (at for at in starts if pace.rate(at, at + WINDOW_S) >= NORMAL * normal)
    seconds = next((round(at - returned, 2) for at in fast), None)
    halves = [returned + 0.5 * half for half in range(int((ended - returned) / 0.5 + 1e-6))]
    after = tuple(round(pace.rate(at, at + 0.5)) for at in halves)
    return Comeback(how, round(normal), round(pace.rate(struck, returned)), after, seconds)


async def measure(soak: Soak, how: str) -> bool:
    """``how``: "killed" or "stopped". Whether there were drafters, and as many again."""
    async with soak.rest(), soak.client() as client:
        pids = await _listed(client)
        if not pids:
            return False
        pace = Pace()
        async with _streaming(soak, pace):
            await asyncio.sleep(WARM_S)
            began = time.monotonic()
            await asyncio.sleep(NORMAL_S)
            struck = time.monotonic()
            if how == "stopped":
                await soak.troubles.freeze("drafter", seconds=STOPPED_S, every=True)
            elif not await soak.troubles.kill("drafter", every=True):
                return False
            gone = pids if how == "killed" else set()
            until = time.monotonic() + BACK_S
            while len(back := await _listed(client) - gone) < len(pids):
                if time.monotonic() > until:
                    others = soak.troubles.drafters_but(back)
                    soak.found.missing.append(Missing(how, len(pids), len(back), others))
                    return False
                await asyncio.sleep(LOOK_S)
            returned = time.monotonic()
            await asyncio.sleep(AFTER_S)
            soak.found.comebacks.append(comeback(pace, how, began, struck, returned, time.monotonic()))
        return True


async def _listed(client: AsyncClient) -> set[int]:
    """Processes of the drafters that the verifier has."""
    return {one.pid for one in (await client.status()).drafters if one.state != "draining"}


@contextlib.asynccontextmanager
async def _streaming(soak: Soak, pace: Pace) -> AsyncIterator[None]:
    jobs = itertools.islice(itertools.cycle(soak.jobs), STREAMS)
    streams = [asyncio.create_task(_repeat(soak, job, pace)) for job in jobs]
    try:
        yield
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def _repeat(soak: Soak, job: Job, pace: Pace) -> None:
    async with soak.client() as client:
        while True:
            await soak.answer(client, job, Method.PEARL, told=pace.add)


def summary(comebacks: Sequence[Comeback]) -> dict[str, object]:
    """For the report."""
    return {
        "late": sum(one.late for one in comebacks),
        "each": [
            {
                "drafters": one.how,
                "normal": one.normal,
                "without": one.without,
                "after, each half second": list(one.after),
                "normal again after s": one.seconds,
            }
            for one in comebacks
        ],
    }


def problems(comebacks: Sequence[Comeback]) -> list[str]:
    """Most must be in time. One that is not may be the machine's fault, and is in the report."""
    late = sum(one.late for one in comebacks)
    if 2 * late > len(comebacks):
        return [f"{late} of {len(comebacks)} times streams were slow {PROMISED_S} s after drafters had returned"]
    return []

"""Keeps a monitor up to date from a running verifier, through its silences and restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from actors.tasks import until_one_ends
from duoactor.client.async_client import AsyncClient
from duoactor.monitor.monitor import Monitor
from protocols.errors import ConnectionLost, RefusedError, RequestError

STATUS_S = 0.5  # between two questions: what telemetry does not tell (requests in the queue, drafters) changes slowly
ANSWER_S = 2.0  # a verifier answers between two forwards; longer than those of the slowest target


class Reader:
    def __init__(self, client: AsyncClient, monitor: Monitor, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._monitor, self._clock = client, monitor, clock

    async def run(self) -> None:
        """For ever. ConfigError for an address or keys that cannot work."""
        await until_one_ends(self._ask(), self._listen())

    async def _ask(self) -> None:
        while True:
            try:
                report = await asyncio.wait_for(self._client.status(), ANSWER_S)
            except TimeoutError:
                self._monitor.failed(f"the verifier at {self._client.address} does not answer", self._clock())
            except (ConnectionLost, RefusedError) as error:
                self._monitor.failed(str(error), self._clock())
            else:
                self._monitor.answered(report, self._clock())
            await asyncio.sleep(STATUS_S)

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._client.telemetry()) as messages:
                    async for message in messages:
                        self._monitor.hear(message, self._clock())
            except (ConnectionLost, RefusedError, RequestError):  # a key that may not watch: reports are all there is
                await asyncio.sleep(STATUS_S)

"""The gateway's line to the verifier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from duoactor.client.async_client import AsyncClient
from protocols.errors import ConnectionLost, DuoactorError, RefusedError

log = logging.getLogger("duoactor.serve")
AGAIN_S = 1.0


class Connection:
    """Keeps a client connected: a gateway may start before its verifier, and outlive it."""

    def __init__(self, connect: Callable[[], AsyncClient]) -> None:
        """``connect`` makes a client that is not connected yet."""
        self._connect = connect
        self._client: AsyncClient | None = None
        self._trouble: DuoactorError = ConnectionLost("the gateway is not connected to a verifier yet")
        self._lost = asyncio.Event()

    @property
    def client(self) -> AsyncClient:
        """Raises ConnectionLost or RefusedError while there is none."""
        if self._client is None:
            raise self._trouble
        return self._client

    def report(self, error: DuoactorError) -> None:
        """A client that was refused never recovers by itself (another version of duoactor, say): make a new one."""
        if isinstance(error, RefusedError):
            self._trouble = error
            self._lost.set()

    async def run(self) -> None:
        """Connect, again and again, for ever."""
        while True:
            client = self._connect()
            try:
                await client.connect()
            except DuoactorError as error:
                if str(error) != str(self._trouble):
                    log.warning("%s", error)
                self._trouble = error
                await asyncio.sleep(AGAIN_S)
                continue
            self._client = client
            self._lost.clear()
            try:
                await self._lost.wait()
            finally:
                self._client = None
                await client.aclose()

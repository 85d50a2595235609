"""Server-sent events by hand, and a check for readers that are gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
SEND_TIMEOUT_S = 30.0  # a client without a read for this long is gone
DONE = b"data: [DONE]\n\n"


def event(data: bytes, name: bytes = b"") -> bytes:
    """One event; ``data`` holds no line break (JSON escapes them)."""
    return b"event: " + name + b"\ndata: " + data + b"\n\n" if name else b"data: " + data + b"\n\n"


class ClientGone(Exception):
    """The client closed the connection, or does not read."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled, with ClientGone, once the client closes the connection.

    The body must have been read.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_closed(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends ``events`` as they come: (what is sent together, whether it is the last). They are closed at their end, and
    at once when the client leaves."""

    def __init__(
        self,
        first: bytes,
        is_last: bool,
        events: AsyncGenerator[tuple[bytes, bool], None],
        headers: Mapping[str, str] = MappingProxyType({}),
        media_type: str = "text/event-stream",
    ) -> None:
        # no cache, and no proxy that gathers events before it hands them on
        sent = {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        super().__init__(headers=sent, media_type=media_type)
        del self.headers["content-length"]
        self._first, self._events = (first, is_last), events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientGone, OSError, TimeoutError):
                await unless_gone(receive, self._send(send))
        finally:  # also if the client left before a single byte was sent
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _body(send, *self._first)
        async for events, are_last in self._events:
            await _body(send, events, are_last)


async def _body(send: Send, events: bytes, are_last: bool) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await send({"type": "http.response.body", "body": events, "more_body": not are_last})

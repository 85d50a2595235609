"""Limits on what a connection may send before a request is known; uvicorn's own protocol has none.

h11, the other parser of uvicorn, bounds a head's size and nothing else here. Measured against httptools: a request took
180 µs instead of 37, a chunk of a stream 4.4 µs instead of 0.9. A body of 240 KB in one-byte chunks, which needs no
key, held the event loop for 305 ms instead of 11."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, NoReturn

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from duoactor.serve.errors import ApiError, answered

MAX_HEAD = 16 * 1024  # bytes of a head and its trailers, as Node.js has it
MAX_TARGET = 8 * 1024  # bytes of a URL; RFC 9110 asks for 8,000
MAX_FIELDS = 100  # Apache's limit
HEAD_S = 20.0  # seconds from a connection, or from a later request's first byte, to the whole head
IDLE_S = 60  # seconds from an answer to the next request
MOST_CONNECTIONS = 4096  # four for each request that a verifier lets wait; with half-sent heads they hold 100 MB
MOST_UNREAD = 16 * 1024  # bytes of an answer that wait here for the client's system: some sixty tokens' events
LINGER_S = 2.0  # seconds in which a refused client may read the reason


class UntilClose(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: a stream ends with its connection."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))  # uvicorn compares each part with it
        await super().send(message)


class LimitedProtocol(HttpToolsProtocol):
    """One connection, which serves one request at a time.

    A request that is sent before the answer to the last one is not looked at: that answer ends the connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = self.limit_concurrency or MOST_CONNECTIONS
        self.limit_concurrency = None  # uvicorn would let connections be, and refuse their requests
        self._size = self._fields = 0  # size and fields of the present head
        self._unseen = 0  # bytes since the parser's last event, all of which it may hold
        self._in_head = False
        self._fault = ApiError(400, "this is no HTTP request")  # reason of the parser's next error
        self._deaf = False  # drops what comes
        self._timer: asyncio.TimerHandle | None = None  # runs until the next whole head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=MOST_UNREAD)
        self._await_head()
        beyond = len(self.connections) - self._most
        if beyond > self._most // 8:  # too much to be answered with a reason
            transport.abort()
        elif beyond > 0:
            self._refuse(ApiError(503, "the gateway has no room for more connections: try again in a moment"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and not self._answering:
            self._await_head()
        for start in range(0, len(data), MAX_HEAD):
            if self._deaf:
                return
            piece = data[start : start + MAX_HEAD]
            self._unseen += len(piece)
            super().data_received(piece)
            if self._unseen >= MAX_HEAD and not self._deaf:
                self._refuse(_too_large())

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection until a read is answered.

        A closed client looks like a client that only stops sending, so a POST ends: its text may have no reader."""
        if not self._answering or self.cycle.scope["method"] not in ("GET", "HEAD"):
            return False
        self.cycle.keep_alive = False
        return True

    # --- events of the parser, which takes an exception for an error in what it reads ---------------------------------

    def on_message_begin(self) -> None:
        if self._answering:
            self._fail(ApiError(400, "send a request after the answer to the last one"))
        self._in_head, self._size, self._fields, self._unseen = True, 0, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._unseen = 0
        self._size += len(url)
        if self._size > MAX_TARGET:
            self._fail(ApiError(414, f"the URL is longer than {MAX_TARGET} bytes"))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unseen = 0
        self._size += len(name) + len(value)
        self._fields += 1
        if self._size > MAX_HEAD or self._fields > MAX_FIELDS:
            self._fail(_too_large())
        if self._in_head:  # trailers are dropped: no handler reads them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._in_head, self._unseen = False, 0
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UntilClose  # before its first answer
            self.cycle.chunked_encoding = False

    def on_body(self, body: bytes) -> None:
        self._unseen = 0
        super().on_body(body)

    def _fail(self, fault: ApiError) -> NoReturn:
        self._fault = fault
        raise fault

    def send_400_response(self, msg: str) -> None:
        """Called for an error of the parser."""
        self._refuse(self._fault)

    # --- time --------------------------------------------------------------------------------------------------------

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._in_head:
            self._refuse(ApiError(408, f"the head of the request did not arrive within {HEAD_S:.0f} s"))
        else:  # nothing came, or a body without an end after its answer
            self.transport.close()

    # --- refusals ----------------------------------------------------------------------------------------------------

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, fault: ApiError) -> None:
        """Answer with the fault, if no other answer is under way, and end the connection."""
        self._deaf = True
        self._stop_waiting()
        if self._answering:
            if self.cycle.response_started or not self.cycle.more_body:
                self.cycle.keep_alive = False  # its end closes the connection
                return
            self.cycle.disconnected = True  # its body is broken: the app need not wait for more
            self.cycle.message_event.set()
        answer = answered(fault, "")
        status = HTTPStatus(answer.status_code)
        lines = [f"HTTP/1.1 {status} {status.phrase}".encode(), b"connection: close"]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.write_eof()
        # A connection that is closed while its client still sends is reset, and the answer is lost.
        self.loop.call_later(LINGER_S, self.transport.close)


def _too_large() -> ApiError:
    return ApiError(431, f"the head of the request has more than {MAX_FIELDS} fields or {MAX_HEAD} bytes")

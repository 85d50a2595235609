"""Reading a request's body: JSON, of bounded size, within a bounded time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from duoactor.serve.errors import ApiError

MAX_BODY = 16 * 1024 * 1024  # bytes: the text of some million tokens
BODY_TIMEOUT_S = 30.0


async def read_body(request: Request) -> bytes:
    """The JSON body. ApiError when it is no JSON by its own word (415), too large (413) or too slow (408)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the body must be sent as Content-Type: application/json{kind and f', not {kind}'}")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY:
                    raise ApiError(413, f"the body is larger than {MAX_BODY} bytes")
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    return b"".join(parts)

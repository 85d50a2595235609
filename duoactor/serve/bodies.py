"""Reading a request's body: JSON, of bounded size, within a bounded time."""

from __future__ import annotations

import asyncio
import zlib
from codecs import BOM_UTF8
from typing import Any

from starlette.requests import Request

from duoactor.serve.errors import ApiError

MAX_BODY = 16 * 1024 * 1024  # bytes: the text of some million tokens
TOO_LARGE = f"the body is larger than {MAX_BODY} bytes"
BODY_TIMEOUT_S = 30.0


async def read_body(request: Request) -> bytes:
    """The JSON body. It is not kept: an answer may take long, and many may be under way.

    ApiError when it is no JSON by its own word (415), too large (413) or too slow (408)."""
    kept: dict[str, Any] = request.scope.get("state", {})
    body: bytes = kept.pop("body") if "body" in kept else await _received(request)
    return body


async def look_into_body(request: Request) -> bytes:
    """The body, which the app behind us reads again by :func:`read_body`, with the same errors."""
    body = await _received(request)
    request.scope.setdefault("state", {})["body"] = body
    return body


async def _received(request: Request) -> bytes:
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("identity", "gzip"):
        raise ApiError(415, f"the body may be sent as Content-Encoding: gzip or as it is, not {packed}")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # curl and others name a form's type, or none. A browser always sends its page's origin, and asks us first where the
    # type is JSON's: without that any page could make this host compute.
    loose = kind in ("", "application/x-www-form-urlencoded") and "origin" not in request.headers
    if kind != "application/json" and not loose:
        raise ApiError(415, f"the body must be sent as Content-Type: application/json{kind and f', not {kind}'}")
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > MAX_BODY:
        raise ApiError(413, TOO_LARGE)  # before it comes
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY:
                    raise ApiError(413, TOO_LARGE)
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    body = b"".join(parts)
    return (body if packed == "identity" else _unpacked(body)).removeprefix(BOM_UTF8)  # RFC 8259, 8.1


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        body = unpacking.decompress(packed, MAX_BODY)
    except zlib.error as error:
        raise ApiError(400, f"the body is not gzip, as its Content-Encoding says: {error}") from None
    if unpacking.unconsumed_tail:
        raise ApiError(413, TOO_LARGE)
    return body

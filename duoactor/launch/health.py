"""Asking a gateway on this host whether it is well."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

TIMEOUT_S = 1.0
LONGEST = 1 << 16  # bytes of an answer


class _Health(msgspec.Struct):
    pid: int


async def healthy_pid(host: str, port: int) -> int:
    """The process id that a healthy gateway answers with; 0 if none answers, or one without a verifier."""
    with contextlib.suppress(OSError, TimeoutError, msgspec.DecodeError):
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                answer = await reader.read(LONGEST)
                while part := await reader.read(LONGEST):
                    answer += part
            finally:
                writer.close()
                await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] == [b"200"]:
            return msgspec.json.decode(body, type=_Health).pid
    return 0

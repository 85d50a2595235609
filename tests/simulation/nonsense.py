"""Callers of a gateway that ask for what comes to their mind, and leave when they like."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from tests.simulation.readers import scope_of
from tests.world.garbage import mutated

EVERY_S = 0.1  # such a caller comes
LONGEST_S = 2.0  # time that it stays
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/health", "/v1/nothing")
FAILED = b"the gateway failed"  # what it answers after an exception of its own
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 3, 60, 1 << 40, 0.5, 1e300, "", "text", [], [5, 9, 33], {}, [{}])
MESSAGES = [{"role": "user", "content": "text"}]
BODY: dict[str, Any] = {"max_tokens": 20, "stream": True}  # to which values are added, or which they take the place of
FIELDS = ("prompt", "messages", "input", "max_tokens", "n", "stop", "logprobs", "temperature", "stream", "method")


async def rave(app: Any, chance: random.Random, seconds: float) -> list[str]:
    """Answers that tell of an exception in the gateway."""
    end = asyncio.get_running_loop().time() + seconds
    calls: list[asyncio.Task[bytes]] = []
    while asyncio.get_running_loop().time() < end:
        calls.append(asyncio.create_task(_call(app, chance.choice(PATHS), _body(chance), chance.uniform(0, LONGEST_S))))
        await asyncio.sleep(EVERY_S)
    return [f"a gateway says {answer!r}" for answer in await asyncio.gather(*calls) if FAILED in answer]


def _body(chance: random.Random) -> bytes:
    fields = dict(BODY)
    fields |= chance.choice(({"prompt": [5, 9, 33]}, {"messages": MESSAGES}, {"input": "text"}))
    for _ in range(chance.randrange(3)):
        fields[chance.choice(FIELDS)] = chance.choice(VALUES)
    body = json.dumps(fields).encode()
    return mutated(body, chance) if chance.random() < 0.3 else body


async def _call(app: Any, path: str, body: bytes, stays_s: float) -> bytes:
    """What it answers before the caller leaves."""
    leaves_at = asyncio.get_running_loop().time() + stays_s
    asked, heard = False, bytearray()

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.sleep(leaves_at - asyncio.get_running_loop().time())
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        heard.extend(message.get("body", b""))

    await app(scope_of(path, "GET" if path == "/health" else "POST"), receive, send)
    return bytes(heard)

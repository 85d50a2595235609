"""The HTTP gateway on a socket of its own, before a verifier with toy models in the same event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import httpx2
from openai import AsyncOpenAI

from duoactor import AsyncClient
from duoactor.serve.app import make_app
from duoactor.serve.gateway import Gateway
from duoactor.serve.start import listen, serve
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage

LANGUAGE = ToyLanguage()
TURNS = [{"role": "user", "content": "Hello"}]


@dataclass
class Served:
    cluster: Cluster
    gateway: Gateway
    listener: socket.socket
    stop: asyncio.Event
    serving: asyncio.Task[None]

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, key: str = "none") -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=self.url, verify=False, timeout=120) as http:
            return await http.request(method, path, json=body, **options)

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self.request("POST", path, body)

    async def chat(self, **body: Any) -> httpx2.Response:
        return await self.post("/v1/chat/completions", **{"messages": TURNS, "max_tokens": 8, **body})

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The data of every event but ``[DONE]``, which must be the last where it is used."""
        answer = await self.post(path, stream=True, **body)
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
        assert "[DONE]" not in lines[:-1]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    async def idle(self) -> None:
        """Until the verifier holds no request."""
        while self.cluster.verifier.state.requests:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(
    cluster: Cluster | None = None,
    *,
    beside: Sequence[Cluster] = (),
    names=(),
    keys=(),
    origins=(),
    patience=60.0,
    share_caches=False,
    tracing=None,
    escape=False,
) -> AsyncIterator[Served]:
    """``beside``: further verifiers on the cluster's network, which the caller starts and stops. ``patience``: seconds
    after which the gateway takes the verifier for gone."""
    cluster = cluster or Cluster(language=LANGUAGE)
    addresses = [one.settings.bind for one in (cluster, *beside)]
    client = AsyncClient(addresses, network=cluster.network.host("gateway"), timeout=patience, reconnect_timeout=60)
    gateway = Gateway(client, names, tracing, escape)
    stop = asyncio.Event()
    with patch("duoactor.serve.gateway.HEALTH_TIMEOUT_S", patience), listen("127.0.0.1:0") as listener:
        app = make_app(gateway, keys=keys, origins=origins, share_caches=share_caches)
        serving = asyncio.create_task(serve(gateway, app, listener, stop))
        async with cluster:
            served = Served(cluster, gateway, listener, stop, serving)
            while (await served.request("GET", "/health")).status_code != 200:
                await asyncio.sleep(0.01)
            yield served
            stop.set()
            await serving

"""Clients: what each stream of a plan was told, over the Python client or over the gateway's HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from duoactor import AsyncClient
from duoactor.serve.app import make_app
from duoactor.serve.gateway import Gateway
from protocols.errors import DuoactorError
from protocols.messages import Sampling
from tests.simulation.clocked_network import ClockedNetwork
from tests.simulation.hosts import Host
from tests.simulation.plans import GATEWAYS, Stream
from tests.world.models import EOS, ToyCodec, ToyLanguage

PATIENCE_S = 1000.0  # no client gives up before the simulation is over


@dataclass
class Told:
    """``over``: the stream ended as its reader wants it to; ``gone``: its reader was killed."""

    stream: Stream
    text: list[int] = field(default_factory=list)
    rid: str = ""
    begun: bool = False
    over: bool = False
    gone: bool = False
    error: str = ""
    gaps: list[str] = field(default_factory=list)

    def sampling(self) -> Sampling:
        stream = self.stream
        return Sampling(
            temperature=stream.temperature,
            seed=stream.seed,
            max_tokens=stream.tokens,
            ignore_eos=stream.ignore_eos,
        )

    def truth(self, language: ToyLanguage) -> list[int]:
        """What decoding one token at a time gives; HTTP tells text, and an end-of-text token has none."""
        tokens = language.continuation(self.stream.prompt, self.sampling())
        return [token for token in tokens if token != EOS] if self.stream.host in GATEWAYS else tokens

    def problem(self, language: ToyLanguage, may_fail: bool) -> str:
        truth = self.truth(language)
        if self.gaps:
            return self.gaps[0]
        if self.text != truth[: len(self.text)]:
            return f"the text differs from the target's: {self.text} and not {truth}"
        if self.gone or (self.error and may_fail):
            return ""
        if self.error:
            return self.error
        if not self.over:
            return f"hangs after {len(self.text)} of {len(truth)} tokens"
        return "" if self.stream.leave_at or len(self.text) == len(truth) else "ended before its text did"

    @property
    def settled(self) -> bool:
        return self.over or self.gone or bool(self.error)


class ClientHost:
    """One process with one client, of one or several verifiers, and all its streams."""

    def __init__(self, network: ClockedNetwork, name: str, told: list[Told], addresses: Sequence[str]) -> None:
        self.told, self.addresses = told, addresses
        self.client: AsyncClient | None = None
        self.app: Any = None  # a gateway's
        self.host = Host(name, network, self._main)

    async def _main(self, host: Host) -> None:
        self.client = AsyncClient(
            self.addresses, network=host.network.host(host.name), timeout=PATIENCE_S, reconnect_timeout=PATIENCE_S
        )
        read = self._over_http(self.client) if host.name in GATEWAYS else self._streamed
        reading = [asyncio.create_task(self._read(read, told)) for told in self.told if not told.begun]
        try:
            await host.stop.wait()
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            await self.client.aclose()

    async def _read(self, read: Any, told: Told) -> None:
        await asyncio.sleep(max(0.0, told.stream.at - asyncio.get_running_loop().time()))
        told.begun = True
        try:
            await read(told)
            told.over = True
        except DuoactorError as error:
            told.error = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            told.gone = True
            raise

    async def _streamed(self, told: Told) -> None:
        assert self.client is not None
        wanted = told.stream
        options = {"sampling": told.sampling(), "method": wanted.method, "num_speculative_tokens": wanted.gamma}
        paused = False
        async with self.client.stream(wanted.prompt, **options) as stream:
            told.rid = stream.request.rid
            async for chunk in stream:
                if chunk.offset != len(told.text):
                    told.gaps.append(f"a chunk begins at {chunk.offset} and not at {len(told.text)}")
                told.text += chunk.token_ids
                if wanted.leave_at and len(told.text) >= wanted.leave_at:
                    return
                if wanted.pause_at and len(told.text) >= wanted.pause_at and not paused:
                    paused = True
                    await asyncio.sleep(wanted.pause_s)

    def _over_http(self, client: AsyncClient) -> Any:
        self.app = app = make_app(Gateway(client))

        async def read(told: Told) -> None:
            wanted, sampling = told.stream, told.sampling()
            body = {
                "prompt": list(wanted.prompt),
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed,
                "method": wanted.method,
                "num_speculative_tokens": wanted.gamma or None,
                "stream": True,
            }
            await post(app, {name: value for name, value in body.items() if value is not None}, told)

        return read


async def post(app: Any, body: dict[str, Any], told: Told) -> None:
    """Ask an ASGI application for a streamed completion, and note its tokens."""
    codec = ToyCodec()
    sent, closed, paused = False, asyncio.Event(), False
    heard = bytearray()
    stream = told.stream

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await closed.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal paused
        heard.extend(message.get("body", b""))
        while (end := heard.find(b"\n\n")) >= 0:
            event, heard[: end + 2] = bytes(heard[:end]), b""
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                continue
            document = json.loads(data)
            if "error" in document:
                told.error = str(document["error"])
            for choice in document.get("choices", ()):
                told.text += codec.encode(choice["text"])
        if stream.leave_at and len(told.text) >= stream.leave_at:
            closed.set()
        if stream.pause_at and len(told.text) >= stream.pause_at and not paused:
            paused = True
            await asyncio.sleep(stream.pause_s)  # what its socket holds is full

    await app(scope_of("/v1/completions"), receive, send)
    if heard:
        told.error = heard.decode()


def scope_of(path: str, method: str = "POST") -> dict[str, Any]:
    headers = [(b"content-type", b"application/json"), (b"host", b"simulation")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    return scope | {"server": ("simulation", 80), "client": ("simulation", 1), "root_path": ""}

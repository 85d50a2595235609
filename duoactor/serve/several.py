"""Several models behind one port. A request names its model, and one model is loaded at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from duoactor.serve.answers import now
from duoactor.serve.app import json, refused
from duoactor.serve.bodies import look_into_body
from duoactor.serve.errors import ApiError
from protocols.errors import DuoactorError

log = logging.getLogger("duoactor.serve")
# The paths that load a model. What else names a model, such as /tokenize, needs it to be loaded.
GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
Load = Callable[[], AbstractAsyncContextManager[ASGIApp]]


class _Named(msgspec.Struct):
    model: str = ""


class Models:
    """An ASGI app in front of the models' apps.

    A request for another model waits until the answers under way have ended. A model without a request for
    ``idle_s`` is unloaded; 0: never."""

    def __init__(self, loads: Mapping[str, Load], idle_s: float) -> None:
        self._loads, self._idle_s = loads, idle_s
        self._name = ""  # of the model that is loaded
        self._app: ASGIApp | None = None
        self._loaded = AsyncExitStack()
        self._changing = asyncio.Lock()
        self._open = 0  # requests to the model
        self._free = asyncio.Event()  # there is none
        self._free.set()
        self._resting: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        async with self._changing:
            await self._unload()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = request.url.path.rstrip("/")
        try:
            if path == "/v1/models":
                data = [
                    {"id": name, "object": "model", "created": now(), "owned_by": "duoactor"} for name in self._loads
                ]
                await json({"object": "list", "data": data})(scope, receive, send)
            elif path in ("/health", "/ping"):
                await json({"status": "ok", "loaded": self._name or None})(scope, receive, send)
            elif request.method == "POST" and path in GENERATING:
                async with self._using(self._wanted(await look_into_body(request))) as app:
                    await app(scope, receive, send)
            elif self._app is None:
                raise ApiError(503, f"no model is loaded; ask one for text: {', '.join(self._loads)}")
            else:
                await self._app(scope, receive, send)
        except ApiError as error:
            await refused(request, error)(scope, receive, send)
        except ClientDisconnect:
            return

    def _wanted(self, body: bytes) -> str:
        """The model that the body names; without a name the loaded one, or the first. ApiError (404) for no such."""
        try:
            name = msgspec.json.decode(body, type=_Named).model
        except msgspec.MsgspecError:
            name = ""  # whichever app it is refuses it
        if name and name not in self._loads:
            detail = f"The model `{name}` does not exist; there is {', '.join(self._loads)}."
            raise ApiError(404, detail, param="model", code="model_not_found")
        return name or self._name or next(iter(self._loads))

    @asynccontextmanager
    async def _using(self, name: str) -> AsyncIterator[ASGIApp]:
        async with self._changing:
            if name != self._name:
                await self._free.wait()
                await self._unload()
                await self._load(name)
            self._open += 1
            self._free.clear()
            app = self._app
            assert app is not None
        try:
            yield app
        finally:
            self._open -= 1
            if not self._open:
                self._free.set()
                if self._resting is not None:
                    self._resting.cancel()
                self._resting = asyncio.create_task(self._rest()) if self._idle_s else None

    async def _load(self, name: str) -> None:
        log.info("loading %s", name)
        stack = AsyncExitStack()
        try:
            self._app = await stack.enter_async_context(self._loads[name]())
        except DuoactorError as error:
            raise ApiError(503, f"the model {name} cannot be loaded: {error}") from None
        self._name, self._loaded = name, stack

    async def _unload(self) -> None:
        if self._app is not None:
            log.info("unloading %s", self._name)
            self._name, self._app = "", None
            await self._loaded.aclose()

    async def _rest(self) -> None:
        """Unload the model once it is idle. Cancelled by the end of a later request."""
        await asyncio.sleep(self._idle_s)
        async with self._changing:
            if self._free.is_set():
                await self._unload()

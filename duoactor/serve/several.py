"""Several models behind one port. A request names its model, and one model is loaded at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NamedTuple

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from duoactor.serve.answers import card, listing
from duoactor.serve.app import GENERATING, json, open_to, refused
from duoactor.serve.auth import KeyGuard, LocalGuard
from duoactor.serve.bodies import look_into_body
from duoactor.serve.errors import ApiError
from duoactor.serve.gateway import named
from duoactor.serve.ollama import models as ollama
from duoactor.serve.settings import GatewaySettings
from duoactor.serve.stream import ClientGone, unless_gone
from protocols.errors import DuoactorError

log = logging.getLogger("duoactor.serve")
TURN_S = 10.0  # about what a change of the model takes: nobody waits for much more than two of them
Load = Callable[[], AbstractAsyncContextManager[ASGIApp]]


def guarded(app: ASGIApp, settings: GatewaySettings, keys: Sequence[str]) -> ASGIApp:
    """An app for all models behind what a gateway of one has: its keys, or the guard without keys, and its origins.
    Browsers ask first whether a page may call, also while no model is loaded."""
    if keys:
        app = KeyGuard(app, keys, settings.share_caches)
    else:
        app = LocalGuard(app, settings.allowed_host, settings.cors_origin)
    return open_to(app, settings.cors_origin) if settings.cors_origin else app


class _Named(msgspec.Struct):
    model: str = ""


class _Waiting(NamedTuple):
    """A request that waits for a model."""

    name: str
    since: float
    let_in: asyncio.Future[ASGIApp]


class Models:
    """An ASGI app in front of the models' apps.

    A request for another model waits until the answers under way have ended. Requests for the loaded model go first,
    for ``TURN_S`` at most. A model without a request for ``idle_s`` is unloaded; 0: never."""

    def __init__(self, loads: Mapping[str, Load], idle_s: float) -> None:
        self._loads, self._idle_s = loads, idle_s
        self._name = ""  # name of the model that is loaded
        self._app: ASGIApp | None = None
        self._loaded = AsyncExitStack()
        self._waiting: list[_Waiting] = []  # the oldest first
        self._changing: asyncio.Task[None] | None = None  # loads or unloads
        self._open = 0  # requests to the model
        self._resting: asyncio.TimerHandle | None = None

    async def aclose(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        while self._changing is not None:
            await asyncio.wait({self._changing})
        await self._unload()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = request.url.path.rstrip("/")
        try:
            if path in ("/v1/models", "/models"):
                await json(listing([card(name) for name in self._loads]))(scope, receive, send)
            elif path == "/api/tags":
                await json(ollama.unloaded(self._loads))(scope, receive, send)
            elif path == "/api/version":
                await json({"version": ollama.SPOKEN})(scope, receive, send)
            elif path == "/api/ps" and self._app is None:
                await json({"models": []})(scope, receive, send)
            elif request.method == "POST" and path == "/api/show":
                name = self._wanted(await look_into_body(request))
                app = self._app if name == self._name else None
                await (app or json(ollama.shown_unloaded(name)))(scope, receive, send)
            elif path in ("/health", "/ping"):
                await json({"status": "ok", "loaded": self._name or None})(scope, receive, send)
            elif request.method == "POST" and path in GENERATING:
                name = self._wanted(await look_into_body(request))
                app = await unless_gone(receive, self._turn(name))
                try:
                    await app(scope, receive, send)
                finally:
                    self._leave()
            elif self._app is None:
                raise ApiError(503, f"no model is loaded; ask one for text: {', '.join(self._loads)}")
            else:
                await self._app(scope, receive, send)
        except ApiError as error:
            await refused(request, error)(scope, receive, send)
        except (ClientDisconnect, ClientGone):
            return

    def _wanted(self, body: bytes) -> str:
        """The model that the body names; without a name the loaded one, or the first. ApiError (404) for no such."""
        try:
            name = msgspec.json.decode(body, type=_Named).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            name = ""  # whichever app it is refuses it
        known = named(name, self._loads)
        if name and not known:
            detail = f"The model `{name}` does not exist; there is {', '.join(self._loads)}."
            raise ApiError(404, detail, param="model", code="model_not_found")
        return known or self._name or next(iter(self._loads))

    async def _turn(self, name: str) -> ASGIApp:
        """The model's app, once it is this request's turn, which :meth:`_leave` ends. A waiting request may be
        cancelled: nothing is loaded for it then."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(name, loop.time(), loop.create_future())
        self._waiting.append(waiting)
        self._go_on()
        try:
            return await waiting.let_in
        except asyncio.CancelledError:
            if not waiting.let_in.cancelled() and waiting.let_in.exception() is None:
                self._open -= 1
            self._go_on()
            raise

    def _leave(self) -> None:
        self._open -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Let in whoever may go in now, or change the model for the one that waits longest."""
        self._waiting = [one for one in self._waiting if not one.let_in.done()]  # without those that left
        if self._changing is not None:
            return
        if self._resting is not None:
            self._resting.cancel()
        loop = asyncio.get_running_loop()
        others = [one for one in self._waiting if one.name != self._name]
        late = bool(others) and loop.time() - others[0].since > TURN_S
        for one in self._waiting:
            if one.name == self._name and not (late and one.since > others[0].since):
                self._open += 1
                assert self._app is not None
                one.let_in.set_result(self._app)
        if others and not self._open:
            self._change(others[0].name)
        elif self._name and not self._open and self._idle_s:
            self._resting = loop.call_later(self._idle_s, self._change, "")

    def _change(self, name: str) -> None:
        """Load another model; "": none."""
        self._changing = asyncio.create_task(self._changed(name))

    async def _changed(self, name: str) -> None:
        try:
            await self._unload()
            if name:
                await self._load(name)
        except Exception as error:  # any kind: the requests for it wait
            log.error("%s", error)
            for one in self._waiting:
                if one.name == name and not one.let_in.done():
                    one.let_in.set_exception(error)
        finally:
            self._changing = None
            self._go_on()

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

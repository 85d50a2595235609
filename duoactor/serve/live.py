"""The live page at ``/``: its files, the state that it shows, and its two buttons (swap and drain).

The answer that it shows is an ordinary one of ``/v1/chat/completions`` or ``/v1/completions`` with ``trace``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duoactor import embedded
from duoactor.serve.auth import check_operates
from duoactor.serve.bodies import read_body
from duoactor.serve.errors import ApiError
from duoactor.serve.gateway import Gateway
from duoactor.serve.parameters import decode
from protocols.messages import OWN_HEAD, DrafterStatus, StatusReport

KINDS = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    # whatever a model writes, no page but ours runs, and ours talks to this gateway alone
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
FRESH_S = 0.5  # pages share one answer of the verifier for this long: many of them cost it no more than one
LEAST_PLAIN = 32  # tokens: the rate of fewer is a matter of chance, also where a page shows it in large figures
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class SwapOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old: str
    new: str


class DrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    actor_id: str


class Live:
    def __init__(self, gateway: Gateway, keyed: bool, origins: Sequence[str]) -> None:
        """``keyed``: requests carry a key, which no other site has; ``origins``: sites with pages that may call."""
        self._gateway, self._keyed, self._origins = gateway, keyed, frozenset(origins)
        folder = files("duoactor.serve") / "page"
        self._files = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
        self._asking = asyncio.Lock()
        self._state: tuple[float, bytes] | None = None

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/page/{name}", self.file),
            Route("/live/state", self.state),
            Route("/live/swap", self.swap, methods=["POST"]),
            Route("/live/drain", self.drain, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        return self._file("index.html")

    async def file(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        return Response(self._files[name], headers={"content-type": KINDS[name.rpartition(".")[2]], **HEADERS})

    async def state(self, request: Request) -> Response:
        async with self._asking:
            now = time.monotonic()
            if self._state is None or now - self._state[0] > FRESH_S:
                report, model = await self._gateway.status(), await self._gateway.model()
                self._state = (now, msgspec.json.encode(page_state(report, model.names[0])))
            return Response(self._state[1], headers={"cache-control": "no-store"}, media_type="application/json")

    async def swap(self, request: Request) -> Response:
        self._check_right(request)
        order = decode(await read_body(request), SwapOrder)[0]
        if order.old == OWN_HEAD:  # also where a drafter is called so: at another verifier, or a moment later, none is
            raise ApiError(404, "head is no drafter here; an operator loads another head by `duoactor swap head`")
        return self._done(await self._gateway.asked(lambda client: client.swap(order.old, order.new)))

    async def drain(self, request: Request) -> Response:
        self._check_right(request)
        order = decode(await read_body(request), DrainOrder)[0]
        return self._done(await self._gateway.asked(lambda client: client.drain(order.actor_id)))

    def _done(self, detail: str) -> Response:
        self._state = None  # it has changed
        return JSONResponse({"detail": detail})

    def _check_right(self, request: Request) -> None:
        """Refuse one of several keys, which is no operator's, and another site's page by ApiError (403). Without keys a
        site can also point a name of its own at this host's loopback and so call itself by our name: there the name
        must be the host's own."""
        check_operates(request.scope, "use `duoactor swap` or `duoactor drain`")
        origin = request.headers.get("origin")
        if origin is None or origin in self._origins:
            return  # no browser, or an allowed one
        host = request.headers.get("host", "")
        own = urlsplit(origin).netloc == host
        if own and not self._keyed and (request.scope.get("server") or ("",))[0] in LOOPBACK:
            own = urlsplit(f"//{host}").hostname in LOOPBACK
        if not own:
            raise ApiError(403, f"a page of {origin} may not do this; --cors-origin names those that may")


def page_state(report: StatusReport, name: str) -> dict[str, Any]:
    """The page's state of the verifier and its drafters, as JSON."""
    waiting = sum(request.state == "queued" for request in report.requests)
    return {
        "model": name,
        "about": f"{embedded.ABOUT}. {embedded.A_REAL_ONE}." if embedded.is_bundled(report.target.model_id) else "",
        "device": report.target.device,
        "dtype": report.target.dtype,
        "method": report.method,
        "running": len(report.requests) - waiting,
        "waiting": waiting,
        "drafters": [_drafter(one) for one in report.drafters],
        "inline": report.inline.model_id if report.inline is not None else "",
        "plain": _plain(report),
    }


def _plain(report: StatusReport) -> dict[str, float]:
    """The rate of one stream without drafts since the verifier's start, and the tokens that it rests on.

    With few tokens it is what forwards promise, and rests on none."""
    tokens, us = (report.counters.get(f"plain_{name}", 0) for name in ("tokens", "us"))
    if tokens < LEAST_PLAIN:
        return {"tokens": 0, "per_second": report.target.tokens_per_second}
    return {"tokens": tokens, "per_second": tokens / us * 1e6}


def _drafter(one: DrafterStatus) -> dict[str, Any]:
    names = ("actor_id", "model_id", "state", "leases", "step_us", "drafted", "accepted", "host")
    return {name: getattr(one, name) for name in names}

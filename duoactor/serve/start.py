"""Puts the gateway together from its settings: socket, connection, routes, server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from actors.process import run_actor
from actors.tasks import until_one_ends
from duoactor.client.async_client import AsyncClient
from duoactor.serve.app import make_app
from duoactor.serve.auth import LocalGuard, read_keys
from duoactor.serve.gateway import Gateway
from duoactor.serve.http_limits import IDLE_S, MOST_CONNECTIONS, MOST_UNREAD, LimitedProtocol
from duoactor.serve.otel import from_environment
from duoactor.serve.settings import GRACE_S, Defaults, GatewaySettings, parse_http
from duoactor.serve.stream import SEND_TIMEOUT_S
from protocols.doors import room_for_connections
from protocols.errors import ConfigError, ConnectionLost, DuoactorError

log = logging.getLogger("duoactor.serve")
RESTART_S = 300.0  # streams outlive a verifier that loads a large target anew
LAST_S = 1  # seconds to hand out the last events


def run_gateway(settings: GatewaySettings) -> int:
    """Serve HTTP until a signal. Returns the process's exit code."""

    async def main(stop: asyncio.Event) -> None:
        keyed = bool(read_keys(settings))
        with listen(settings.http) as listener:
            host, port = listener.getsockname()[:2]
            if not keyed and host not in ("127.0.0.1", "::1"):
                log.warning("whoever reaches %s port %d may use it: --api-key asks for a key", host, port)
            gateway, app = make_gateway(settings)
            if not keyed:
                app = LocalGuard(app, settings.allowed_host, settings.cors_origin)
            await serve(gateway, app, listener, stop, settings.shutdown_timeout)

    return run_actor(main)


def make_gateway(settings: GatewaySettings) -> tuple[Gateway, ASGIApp]:
    """A gateway, not connected yet, and the app that serves it. ConfigError for API keys that cannot be read."""
    client = AsyncClient(
        settings.connect,
        key=settings.key,
        server_key=settings.server_key,
        max_retries=0,  # HTTP clients have their own rules for trying again
        reconnect_timeout=RESTART_S,
    )
    gateway = Gateway(
        client,
        settings.served_model_name,
        from_environment(),
        settings.escape_special_tokens,
        settings.generation_config is Defaults.AUTO,
    )
    app = make_app(gateway, keys=read_keys(settings), origins=settings.cors_origin, share_caches=settings.share_caches)
    return gateway, app


async def serve(
    gateway: Gateway, app: ASGIApp, listener: socket.socket, stop: asyncio.Event, grace_s: float | None = None
) -> None:
    """Serve ``app`` on ``listener`` until ``stop`` is set; answers under way are given ``grace_s``, else GRACE_S."""
    server = Server(app)

    async def announce() -> None:
        """Connect before the first request comes; a gateway may start before its verifier."""
        told = ""
        while True:
            try:
                await gateway.client.connect()
                break
            except ConnectionLost:
                news = f"waiting for a verifier at {gateway.client.address}"
            except ConfigError:
                raise  # waiting mends no address and no key
            except DuoactorError as error:
                news = str(error)
            if news != told:
                told = news
                log.info("%s", told)
            await asyncio.sleep(1.0)
        model = await gateway.model()
        host, port = listener.getsockname()[:2]
        log.info("serving %s at http://%s:%d/v1", model.names[0], f"[{host}]" if ":" in host else host, port)
        await asyncio.Event().wait()

    async def drain() -> None:
        await stop.wait()
        await gateway.aclose(
            GRACE_S if grace_s is None else grace_s
        )  # until then the port answers: with 503, and with what is under way
        server.should_exit = True
        await asyncio.Event().wait()

    try:
        await until_one_ends(server.serve(sockets=[listener]), announce(), drain())
    finally:
        await gateway.aclose()


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has its own."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                limit_concurrency=min(room_for_connections(), MOST_CONNECTIONS),  # counts connections there
                loop="none",
                lifespan="off",
                ws="none",
                log_config=None,
                log_level=logging.ERROR,  # each bad request would be a warning, and fill a disk
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=LAST_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(address: str) -> socket.socket:
    """A listening socket. ConfigError if that cannot be."""
    host, port = parse_http(address)
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, at = known[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these: an unread answer does not fill megabytes of the system's memory before it is
        # noticed, and a client that vanished without a word is noticed, whether we send or wait.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_UNREAD)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SEND_TIMEOUT_S * 1000))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(SEND_TIMEOUT_S / 2))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(SEND_TIMEOUT_S / 6))
        listener.bind(at)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address} ({error.strerror}): choose another with --http") from None
    return listener

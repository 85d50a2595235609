"""The address on which the gateway of ``up`` listens by default."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from typing import NamedTuple

from filelock import FileLock, Timeout

from duoactor.launch.wanted import NO_HTTP
from duoactor.serve.settings import DEFAULT_PORT, LOCALHOST
from protocols.address import default_address, parse
from protocols.extras import install

TRIED = 100  # ports in a row: more than one host's users start
MODULES = ("starlette", "uvicorn", "httptools", "prometheus_client")  # modules of the extra `serve`


class Usual(NamedTuple):
    """The address to listen on, or ``none``; a sentence to tell about it, or ""; and what keeps it from others."""

    address: str
    news: str = ""
    claim: FileLock | None = None


def default_http(*, asked: bool, keyed: bool) -> Usual:
    """``asked``: options ask for a gateway; ``keyed``: the verifier admits those who have a key, and a gateway without
    API keys would let in everybody on this host."""
    missing = next((name for name in MODULES if find_spec(name) is None), "")
    if missing and not asked:
        return Usual(NO_HTTP, f"no HTTP, which needs {missing}: {install('serve')}")
    if keyed and not asked:
        return Usual(NO_HTTP, "no HTTP, since the verifier asks for keys: --http 8000 --api-key KEY serves it, too")
    for port in range(DEFAULT_PORT, DEFAULT_PORT + TRIED):
        claim = _claim(port)
        if claim is not None and _is_free(port):
            news = f"port {DEFAULT_PORT} is taken: HTTP is at port {port}" if port != DEFAULT_PORT else ""
            return Usual(f"{LOCALHOST}:{port}", news, claim)
    return Usual(f"{LOCALHOST}:{DEFAULT_PORT}")  # the gateway says that it is taken


def _claim(port: int) -> FileLock | None:
    """A lock on the port among this user's: the gateway listens only once its process has started. None: taken."""
    directory = parse(default_address()).path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        claim = FileLock(directory / f"http-{port}.lock", timeout=0, mode=0o600)
        claim.acquire()
    except (Timeout, OSError):
        return None
    return claim


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the gateway does so: old connections block none
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True

"""Where the gateway of ``up`` listens if nobody says so."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from duoactor.launch.wanted import NO_HTTP
from duoactor.serve.settings import DEFAULT_PORT, LOCALHOST

TRIED = 100  # ports in a row: more than one host's users start
MODULES = ("starlette", "uvicorn", "httptools", "prometheus_client")  # of the extra `serve`


def default_http(*, asked: bool, keyed: bool) -> tuple[str, str]:
    """The address to listen on, or ``none``, and a sentence to tell about it, or "".

    ``asked``: options ask for a gateway; ``keyed``: the verifier admits those who have a key, and a gateway without
    API keys would let in everybody on this host."""
    missing = next((name for name in MODULES if find_spec(name) is None), "")
    if missing and not asked:
        return NO_HTTP, f"no HTTP, which needs {missing}: pip install 'duoactor[serve]'"
    if keyed and not asked:
        return NO_HTTP, "no HTTP, since the verifier asks for keys: --http 8000 --api-key KEY serves it, too"
    port = next(filter(_is_free, range(DEFAULT_PORT, DEFAULT_PORT + TRIED)), DEFAULT_PORT)
    news = f"port {DEFAULT_PORT} is taken: HTTP is at port {port}" if port != DEFAULT_PORT else ""
    return f"{LOCALHOST}:{port}", news


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway does: old connections block none
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True

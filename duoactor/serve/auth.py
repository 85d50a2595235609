"""API keys, compared in constant time."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from duoactor.serve.errors import ApiError, answered
from duoactor.serve.settings import API_KEYS, GatewaySettings
from protocols.errors import ConfigError
from protocols.validation import SHARED_SALT

# Of use to machines that hold no key; they tell no text. The page asks its reader for a key. POST opens only /ping.
OPEN = frozenset({"/health", "/v1/health", "/ping", "/version", "/api/version", "/metrics", "/openapi.json", "/"})
OPEN_FOLDER = "/page/"
READING = frozenset({"GET", "HEAD"})
ASKING = READING | {"OPTIONS"}  # change nothing
MOST_TOLD = 200  # characters of an origin in a sentence


def read_keys(settings: GatewaySettings) -> tuple[str, ...]:
    """Every key that opens the gateway. ConfigError if the file cannot be read or holds none, or a key is empty."""
    if "" in settings.api_key:  # a request without a key would be taken to carry it
        raise ConfigError("an API key is empty: give --api-key a text, or leave it out")
    given = (*settings.api_key, *filter(None, os.environ.get(API_KEYS, "").splitlines()))
    if not settings.api_key_file:
        return _sendable(given)
    path = Path(settings.api_key_file)
    try:
        listed = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read ({reason}): give --api-key-file a file of keys") from None
    keys = [line for line in listed if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path} holds no key: write one on each line")
    return _sendable((*given, *keys))


def _sendable(keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys, if a header can carry each of them as it is."""
    for number, key in enumerate(keys, 1):
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(
                f"API key {number} holds a space or a character beyond ASCII, which clients cannot send in a header: "
                "make it of ASCII's letters, digits and signs"
            )
    return keys


def cache_salt(scope: Scope, own: str) -> str:
    """The salt by which the verifier parts a request's cache entries from those of this gateway's other API keys:
    made of its API key and the salt that it names itself. A ``share:`` salt is handed on, to be shared by."""
    if own.startswith(SHARED_SALT):
        return own
    state = scope.get("state", {})
    holder = "" if state.get("shares_caches") else state.get("key_digest", "")
    return sha256(f"{holder} {own}".encode()).hexdigest() if holder or own else ""


def check_operates(scope: Scope, instead: str) -> None:
    """ApiError (403) for one of several keys: what a gateway may as an operator, it does for an only key's holder."""
    if not scope.get("state", {}).get("only_key", True):
        raise ApiError(403, f"several API keys use this gateway, so that none is an operator's: {instead}")


class KeyGuard:
    """Answers 401 to requests without one of ``keys``, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], share_caches: bool = False) -> None:
        """``share_caches``: those of all keys, see :func:`cache_salt`."""
        self._app = app
        self._share_caches = share_caches
        # digests: comparing keys of different lengths would tell the length
        self._digests = list({sha256(key.encode()).digest() for key in keys})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope) or self._admits(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(401, "Incorrect API key provided; give it as a bearer token.", code="invalid_api_key")
        await answered(error, scope["path"])(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        given = [sha256(key.encode()).digest() for key in (bearer, headers.get("x-api-key", ""))]
        admitted = [one for one in given if sum(hmac.compare_digest(one, key) for key in self._digests)]  # all compared
        if admitted:
            scope.setdefault("state", {}).update(
                key_digest=admitted[0].hex(), shares_caches=self._share_caches, only_key=len(self._digests) == 1
            )
        return bool(admitted)


class LocalGuard:
    """For a gateway without keys: answers 403 to requests over loopback that a web page from elsewhere may have sent.

    A page can point its own name at loopback: the browser then takes the gateway for the page's site. So a request has
    to name this host. And a page may send what browsers let any page send, without reading the answer. So what is no
    reading request must not come from a page of another host."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], origins: Iterable[str] = ()) -> None:
        """``hosts``: further names of this host; ``origins``: of pages that may call."""
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = {*map(_host_of, hosts), *(_host_of(one.partition("://")[2]) for one in self._origins)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_loopback((scope.get("server") or ("",))[0]):
            headers = Headers(scope=scope)
            hosts, origins = headers.getlist("host"), headers.getlist("origin")
            fault = ""
            if not all(map(self._is_here, map(_host_of, hosts))):
                fault = (
                    "without keys this host is called localhost here; give --allowed-host the name that was asked for"
                )
            elif scope["method"] not in ASKING and not all(self._may_call(one, hosts) for one in origins):
                fault = f"a page of {origins[0][:MOST_TOLD]} may not do this; --cors-origin names those that may"
            if fault:
                await answered(ApiError(403, fault), scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_here(self, host: str) -> bool:
        return host in self._hosts or _is_local(host) or _is_address(host)

    def _may_call(self, origin: str, hosts: Sequence[str]) -> bool:
        """Whether it is named, or its page was served by this gateway or by another server of this host."""
        netloc = origin.partition("://")[2]
        return origin in self._origins or netloc in hosts or _is_local(_host_of(netloc))


def _is_local(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost") or _is_loopback(host)


def _host_of(netloc: str) -> str:
    """The name without a port; "" for what is none."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return _is_address(address) and ip_address(address).is_loopback


def _is_open(scope: Scope) -> bool:
    method, path = scope["method"], scope["path"]
    if method == "OPTIONS" or (method, path) == ("POST", "/ping"):
        return True
    return method in READING and (path in OPEN or path.startswith(OPEN_FOLDER))

"""The gateway's options; :mod:`duoactor.config` makes flags, ``duo.toml`` keys and the reference from them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from actors.settings import KeySettings
from protocols.errors import ConfigError

API_KEYS = "DUOACTOR_API_KEYS"  # an environment variable of further keys, one per line
LOCALHOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_HTTP = f"{LOCALHOST}:{DEFAULT_PORT}"
GRACE_S = 2.5  # part of the five seconds that the supervisor gives


class Defaults(StrEnum):
    """Source of the sampling of requests that name none."""

    AUTO = "auto"  # generation_config.json
    NONE = "none"  # the APIs' own defaults


class GatewaySettings(KeySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serves OpenAI's and Anthropic's HTTP APIs, and metrics, of one or several verifiers of the same model. Several
    gateways may serve one verifier."""

    connect: Annotated[
        tuple[str, ...], Meta(description="a verifier's address; may be repeated; none: this user's default")
    ] = ()
    server_key: Annotated[str, Meta(description="the verifiers' CURVE public key file, where they have one")] = ""
    http: Annotated[str, Meta(description="HOST:PORT to listen on, or a port of this host")] = DEFAULT_HTTP
    api_key: Annotated[
        tuple[str, ...],
        Meta(description="a key that requests must carry; may be repeated; none: whoever reaches the port may use it"),
    ] = ()
    api_key_file: Annotated[
        str,
        Meta(description="a file of such keys, one per line, which `ps` does not show; $DUOACTOR_API_KEYS holds more"),
    ] = ""
    share_caches: Annotated[
        bool,
        Meta(description="requests of all keys share caches: faster, but answer times then tell what other keys asked"),
    ] = False
    escape_special_tokens: Annotated[
        bool,
        Meta(description="special tokens' names in messages are plain text: nobody can write a turn of another role"),
    ] = False
    cors_origin: Annotated[
        tuple[str, ...],
        Meta(description="web origin whose pages may call, such as https://app.example; may be repeated"),
    ] = ()
    allowed_host: Annotated[
        tuple[str, ...],
        Meta(
            description="without keys: a name beside localhost by which requests on this host may call; may be repeated"
        ),
    ] = ()
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(description="name of the model in requests and answers; may be repeated; none: the target's"),
    ] = ()
    generation_config: Annotated[
        Defaults,
        Meta(description="auto: requests that name no temperature, top-p, top-k … get those of generation_config.json"),
    ] = Defaults.AUTO
    unload_after: Annotated[
        float,
        Meta(
            description="with several [models]: unload one after so many seconds without a request; 0: never",
            ge=0,
            le=1e9,
        ),
    ] = 600.0
    shutdown_timeout: Annotated[
        float, Meta(description="seconds that answers under way get to finish after SIGTERM", ge=0, le=86_400)
    ] = GRACE_S


def parse_http(address: str) -> tuple[str, int]:
    """``HOST:PORT``, ``[HOST]:PORT`` of IPv6, or a port of this host. ConfigError otherwise."""
    found = re.fullmatch(r"(?:(\[[0-9a-fA-F:.]+\]|[^:\[\]/]+):)?(\d{1,5})", address)
    if found is None or int(found[2]) > 65535:
        raise ConfigError(f"{address!r} is no HTTP address: give --http a HOST:PORT such as 127.0.0.1:8000")
    return (found[1] or LOCALHOST).strip("[]"), int(found[2])

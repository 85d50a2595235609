"""Addresses: how they are parsed, which of them other machines can reach, and a user's default address."""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from protocols.errors import ConfigError

EXAMPLES = "ipc:///run/user/1000/duoactor/verifier.ipc or tcp://127.0.0.1:7601"
TELEMETRY_SUFFIX = ".telemetry"
IPC_PATH_MAX = 103  # bytes; macOS has the smallest sun_path


@dataclass(frozen=True)
class Address:
    """A parsed address: ``path`` with ipc; ``host`` and ``port`` (0: any free one) with tcp."""

    scheme: Literal["ipc", "tcp"]
    path: Path = Path()
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.scheme == "ipc":
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port or '*'}"

    @property
    def local(self) -> bool:
        """Whether other machines cannot reach it."""
        return self.scheme == "ipc" or _is_loopback(self.host)

    @property
    def telemetry(self) -> Address:
        """The address of its publishing socket; with tcp the next port, which is only the first one tried."""
        if self.scheme == "ipc":
            return replace(self, path=self.path.with_name(self.path.name + TELEMETRY_SUFFIX))
        return replace(self, port=self.port + 1 if self.port else 0)


def parse(text: str, *, bind: bool = False) -> Address:
    """Return the address in ``text``. With ``bind`` the port may be 0 or ``*``. Raises ConfigError with an example."""
    if len(several(text)) > 1:
        raise ConfigError(f"{text!r} holds several addresses: give one, and start another actor for each of the others")
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "ipc":
        return _parse_ipc(text, rest, bind)
    if separator and scheme == "tcp":
        return _parse_tcp(text, rest, bind)
    raise ConfigError(f"{text!r} is not an address; write one such as {EXAMPLES}")


def several(text: str | Iterable[str]) -> tuple[str, ...]:
    """The distinct addresses in ``text``, which may be a list, and may separate them by commas."""
    parts = [text] if isinstance(text, str) else list(text)
    return tuple(dict.fromkeys(one for part in parts for one in re.split(r",\s*(?=\w+://)", part.strip()) if one))


def reachable(announced: str, connected: str) -> str:
    """Return the address at which a peer that has connected to ``connected`` reaches the address ``announced``.

    A verifier that is bound to every interface announces the host 0.0.0.0 or [::]; the peer replaces that by the host
    that it has connected to.
    """
    if not announced.startswith("tcp://") or not connected.startswith("tcp://"):
        return announced
    there = parse(announced, bind=True)
    return str(replace(there, host=parse(connected).host)) if there.host in ("0.0.0.0", "::") else announced


def _parse_ipc(text: str, rest: str, bind: bool) -> Address:
    if "\0" not in rest:
        rest = os.path.expanduser(rest)  # leaves ~NAME if there is no such user
    if not rest or rest.startswith(("@", "*", "~")) or rest.endswith("/") or "\0" in rest:
        raise ConfigError(f"{text!r} names no socket file; write a path, such as {EXAMPLES}")
    path = Path(os.path.abspath(rest))
    is_telemetry = path.name.endswith(TELEMETRY_SUFFIX) and not bind
    longest = IPC_PATH_MAX - (0 if is_telemetry else len(TELEMETRY_SUFFIX))  # the verifier appends it
    if len(os.fsencode(path)) > longest:
        raise ConfigError(f"{text!r} is too long: a socket path may have {longest} bytes; choose a shorter directory")
    return Address("ipc", path=path)


def _parse_tcp(text: str, rest: str, bind: bool) -> Address:
    host, separator, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""
    number = 0 if port == "*" else int(port) if port.isascii() and port.isdigit() else -1
    if not host or not separator or not 0 <= number <= 65535 or any(c.isspace() or c in "/;" for c in host):
        raise ConfigError(f"{text!r} is not tcp://HOST:PORT; write one such as tcp://127.0.0.1:7601")
    if not bind and (number == 0 or host == "*"):
        raise ConfigError(f"{text!r} leaves host or port open; to connect, name both, such as tcp://127.0.0.1:7601")
    if host == "*":
        host = "0.0.0.0"
    elif bind and host == "localhost":
        host = "127.0.0.1"  # libzmq binds to numeric addresses and interface names only
    return Address("tcp", host=host, port=number)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_address() -> str:
    """The address of this user's verifier if none is given: in ``$XDG_RUNTIME_DIR/duoactor``, or in a directory of the
    user's own under the temporary directory."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        directory = Path(base) / "duoactor"
    else:
        directory = Path(tempfile.gettempdir()) / f"duoactor-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    return f"ipc://{directory / 'verifier.ipc'}"

"""CURVE keys: who may connect across a network. ``SPEC.md`` section 8 is the normative text.

Every actor has a key pair. ``NAME.key`` holds the secret half (mode 0600), ``NAME.pub`` the public one, each 40
characters of Z85. The second line of ``NAME.pub`` names the roles that the key is for. The verifier admits the public
keys in its allow-list directory, and its own; because these files are on its host, no peer can claim another role.

``zmq.auth`` asks at each handshake whether a key is admitted (see :mod:`protocols.zeromq`). Its certificate files are
not used: it writes secret keys that everybody can read, and reads a directory only once.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import zmq

from protocols.errors import ConfigError

SECRET_SUFFIX = ".key"
PUBLIC_SUFFIX = ".pub"
KEY_LENGTH = 40  # Z85 characters of 32 bytes
_MAKE = "make a pair with `duoactor keys`"


class KeyRole(StrEnum):
    """What a CURVE key is issued for; only key files have it. An operator may do what a client may; also swap and drain
    drafters, hear the telemetry and see everybody's requests."""

    CLIENT = "client"
    DRAFTER = "drafter"
    CONTROLLER = "controller"
    LEARNER = "learner"
    OPERATOR = "operator"


_DEFAULT_ROLES = frozenset({KeyRole.CLIENT})  # roles of a key that names none
WATCHERS = frozenset({KeyRole.CONTROLLER, KeyRole.LEARNER, KeyRole.OPERATOR})  # who may hear the telemetry


@dataclass(frozen=True)
class Holder:
    """The key of a connection, and its roles. Without CURVE there is none, and everybody may do
    everything."""

    key: bytes = b""
    roles: frozenset[KeyRole] = frozenset(KeyRole)

    def may_be(self, role: str) -> bool:
        """Whether the key is for that role, a value of :class:`KeyRole`."""
        return role in self.roles or (role == KeyRole.CLIENT and KeyRole.OPERATOR in self.roles)

    def account(self, connection: bytes) -> bytes:
        """Who pays for the messages of a connection with this key: the key; the connection itself if there is none, or
        if it is an operator's, which several actors share."""
        return connection if self.may_be(KeyRole.OPERATOR) else self.key

    @property
    def watches(self) -> bool:
        """Whether it may hear the telemetry."""
        return bool(self.roles & WATCHERS)


ANYBODY = Holder()


@dataclass(frozen=True)
class KeyPair:
    """A CURVE25519 key pair, both halves as 40 Z85 characters."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(public, secret)

    def write(self, directory: Path, name: str, roles: Iterable[KeyRole] = ()) -> tuple[Path, Path]:
        """Write ``name.key`` and ``name.pub``, a key for ``roles`` (for a client if there are none), and return their
        paths. Raises ConfigError rather than overwrite."""
        if not name or Path(name).name != name:
            raise ConfigError(f"{name!r} cannot name a key; use a plain name such as verifier")
        secret, public = directory / (name + SECRET_SUFFIX), directory / (name + PUBLIC_SUFFIX)
        for path in (secret, public):
            if path.exists():
                raise ConfigError(f"{path} exists already; choose another name, or remove it if no actor uses it")
        made: list[Path] = []  # a secret without its public half would be in the way of the next try
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # the mode is set at creation: there is no moment at which others could read it
            with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                made.append(secret)
                file.write(self.secret + b"\n")
            made.append(public)
            public.write_bytes(self.public + b"\n" + " ".join(sorted(roles) or _DEFAULT_ROLES).encode() + b"\n")
        except OSError as error:
            for path in made:
                path.unlink(missing_ok=True)
            raise ConfigError(
                f"the keys cannot be written to {directory} ({error.strerror}): name another directory, or make room"
            ) from error
        return secret, public


class AllowedKeys:
    """The public keys in a directory. Each file is read again once it has changed: adding, changing or removing one
    takes effect at once, and a handshake does not read them all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, tuple[tuple[int, ...], bytes, frozenset[KeyRole]]] = {}  # state and content by name

    def roles(self, key: bytes) -> frozenset[KeyRole]:
        self._look()
        return frozenset().union(*(roles for _, known, roles in self._read.values() if known == key))

    def _look(self) -> None:
        before, self._read = self._read, {}
        try:
            with os.scandir(self._directory) as entries:
                found = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(PUBLIC_SUFFIX)]
        except OSError:  # it is being replaced, or a file leaves meanwhile: admit no new peer for the moment
            return
        for name, status in found:
            state = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
            if name in before and before[name][0] == state:
                self._read[name] = before[name]
                continue
            path = self._directory / name
            try:
                self._read[name] = state, read_key(path, "public"), read_roles(path)
            except ConfigError:
                continue  # perhaps half-written: it admits no peer. load_security reports bad files at the start


@dataclass(frozen=True)
class Security:
    """A network's keys for CURVE. ``server_key`` is for connecting, ``allowed`` for listening."""

    public_key: bytes
    secret_key: bytes = field(repr=False)
    server_key: bytes | None = None
    allowed: AllowedKeys | None = None

    def holder(self, key: bytes) -> Holder:
        """The present rights of a public key's holder."""
        if key == self.public_key:
            return Holder(key)
        return Holder(key, self.allowed.roles(key) if self.allowed is not None else frozenset())


def read_key(path: Path, half: str) -> bytes:
    """Return the 40 Z85 characters in ``path``. Raises ConfigError; ``half`` is "secret" or "public"."""
    try:
        if half == "secret" and _open_to_others(path.stat()):
            raise ConfigError(f"{path} is readable by other users; run `chmod 600 {path}`")
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8).partition(b"\n")[0].strip()
    except FileNotFoundError:
        raise ConfigError(f"there is no {half} key file {path}; {_MAKE}") from None
    except OSError as error:
        raise ConfigError(f"the {half} key file {path} cannot be read: {error.strerror}") from error
    try:
        zmq.curve_public(text)  # a check of the form only: it accepts public keys too
    except (ValueError, zmq.ZMQError):
        raise ConfigError(f"{path} does not hold a {half} key ({KEY_LENGTH} characters of Z85); {_MAKE}") from None
    return text


def _open_to_others(status: os.stat_result) -> bool:
    """Whether other users can read the file. One of root's may be readable by its group, as secrets that Kubernetes
    mounts are; libpq has the same rule."""
    return bool(status.st_mode & (0o037 if status.st_uid == 0 else 0o077))


def read_roles(path: Path) -> frozenset[KeyRole]:
    """The roles in the second line of a public key file. Raises ConfigError."""
    words = path.read_bytes().partition(b"\n")[2].decode("utf-8", "replace").split()
    try:
        return frozenset(map(KeyRole, words)) or _DEFAULT_ROLES
    except ValueError:
        known = ", ".join(KeyRole)
        raise ConfigError(f"{path} names a role that there is not; its second line may hold {known}") from None


def load_security(
    key_path: Path | str, server_key_path: Path | str | None = None, allow_dir: Path | str | None = None
) -> Security:
    """Read this actor's secret key, and check the keys that it trusts. Raises ConfigError for what is missing or
    malformed."""
    if not key_path:
        raise ConfigError(f"a server key or an allow-list needs a key of our own too; {_MAKE} and pass it as --key")
    secret = read_key(Path(key_path), "secret")
    directory = Path(allow_dir) if allow_dir else None
    if directory is not None:
        if not directory.is_dir():
            raise ConfigError(f"{directory} is not a directory; put the .pub files of those who may connect into one")
        for path in sorted(directory.glob("*" + PUBLIC_SUFFIX)):
            read_key(path, "public")
            read_roles(path)
    return Security(
        public_key=zmq.curve_public(secret),
        secret_key=secret,
        server_key=read_key(Path(server_key_path), "public") if server_key_path else None,
        allowed=AllowedKeys(directory) if directory is not None else None,
    )

"""Addresses: what may be bound or connected to, and the files behind an ``ipc`` address."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from protocols.errors import ConfigError

EXAMPLES = "ipc:///run/user/1000/duoactor/verifier.sock or tcp://127.0.0.1:7601"
TELEMETRY_SUFFIX = ".telemetry"
LOCK_SUFFIX = ".lock"
IPC_PATH_MAX = 103  # bytes; macOS has the smallest sun_path


@dataclass(frozen=True)
class Address:
    """A parsed address; ``path`` belongs to ipc, ``host`` and ``port`` (0: any free one) to tcp."""

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
        """Whether no other machine can reach it."""
        return self.scheme == "ipc" or _is_loopback(self.host)

    @property
    def telemetry(self) -> Address:
        """Where the publishing socket goes by default; on tcp the first try, the next port."""
        if self.scheme == "ipc":
            return replace(self, path=self.path.with_name(self.path.name + TELEMETRY_SUFFIX))
        return replace(self, port=self.port + 1 if self.port else 0)


def parse(text: str, *, bind: bool = False) -> Address:
    """Return the address in ``text``; with ``bind`` the port may be 0 or ``*``. Raises ConfigError with an example."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "ipc":
        return _parse_ipc(text, rest)
    if separator and scheme == "tcp":
        return _parse_tcp(text, rest, bind)
    raise ConfigError(f"{text!r} is not an address; write one such as {EXAMPLES}.")


def reachable(announced: str, connected: str) -> str:
    """Return where a peer that connected to ``connected`` finds ``announced``.

    A verifier bound to every interface announces the host 0.0.0.0 or [::]: it stands for the host that the peer used.
    """
    if not announced.startswith("tcp://") or not connected.startswith("tcp://"):
        return announced
    there = parse(announced, bind=True)
    return str(replace(there, host=parse(connected).host)) if there.host in ("0.0.0.0", "::") else announced


def _parse_ipc(text: str, rest: str) -> Address:
    if not rest or rest.startswith(("@", "*")) or rest.endswith("/") or "\0" in rest:
        raise ConfigError(f"{text!r} names no socket file; write a path, such as {EXAMPLES}.")
    path = Path(os.path.abspath(Path(rest).expanduser()))
    if len(os.fsencode(path)) + len(TELEMETRY_SUFFIX) > IPC_PATH_MAX:
        longest = IPC_PATH_MAX - len(TELEMETRY_SUFFIX)
        raise ConfigError(f"{text!r} is too long: a socket path may have {longest} bytes; choose a shorter directory.")
    return Address("ipc", path=path)


def _parse_tcp(text: str, rest: str, bind: bool) -> Address:
    host, separator, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""
    number = 0 if port == "*" else int(port) if port.isascii() and port.isdigit() else -1
    if not host or not separator or not 0 <= number <= 65535 or any(c.isspace() or c in "/;" for c in host):
        raise ConfigError(f"{text!r} is not tcp://HOST:PORT; write one such as tcp://127.0.0.1:7601.")
    if not bind and (number == 0 or host == "*"):
        raise ConfigError(f"{text!r} leaves host or port open; to connect, name both, such as tcp://127.0.0.1:7601.")
    if host == "*":
        host = "0.0.0.0"
    elif bind and host == "localhost":
        host = "127.0.0.1"  # libzmq binds numbers and interface names only
    return Address("tcp", host=host, port=number)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_directory(path: Path, *, create: bool) -> None:
    """Raise ConfigError if anybody else could put a socket of their own at ``path``, or take ours away."""
    directory = path.parent
    if create:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{directory} cannot be made a directory ({error.strerror}); choose another.") from error
    try:
        found = directory.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{directory} cannot be used ({error.strerror}); choose another directory.") from error
    me = os.geteuid()
    trusted = {me} if create else {me, 0}
    if found.st_uid not in trusted and (create or me != 0):
        raise ConfigError(f"{directory} belongs to another user; choose a directory of your own for the socket.")
    if found.st_mode & 0o022:
        raise ConfigError(
            f"{directory} is writable by others, who could replace the socket; "
            f"use a directory inside it, such as ipc://{directory / 'duoactor' / path.name}."
        )


class IpcClaim:
    """Ownership of an ipc address, from before binding until close.

    libzmq takes a socket file over without a word, be its owner alive or not, and unlinks it from another thread some
    time after close. So the files are made and removed here, and an flock on ``PATH.lock`` says who is alive: it ends
    with the process, however that ends, and a stale socket file never blocks a restart.
    """

    def __init__(self, address: Address) -> None:
        check_directory(address.path, create=True)
        self._files = (address.path, address.telemetry.path)
        self._lock_path = address.path.with_name(address.path.name + LOCK_SUFFIX)
        self._lock: int | None = self._acquire(address)
        try:
            for path in self._files:
                _clear_stale(path, address)
        except BaseException:
            self._unlock()
            raise

    def _acquire(self, address: Address) -> int:
        import fcntl  # not on Windows, which has no ipc either

        while True:
            try:
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ConfigError(f"{self._lock_path} cannot be written ({error.strerror}); choose another.") from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise in_use(address) from None
            # the owner before us may have unlinked the file between our open and our flock
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._lock_path).st_ino == os.fstat(lock).st_ino:
                    return lock
            os.close(lock)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def open_sockets(self) -> tuple[socket.socket, socket.socket]:
        """Return two listening sockets, for the address and its telemetry, that only our own user can connect to."""
        opened: list[socket.socket] = []
        try:
            for path in self._files:
                opened.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                opened[-1].setblocking(False)
                opened[-1].bind(os.fspath(path))
                os.chmod(path, 0o600)  # before listen: nobody can have connected yet
                opened[-1].listen(128)
        except OSError as error:
            for one in opened:
                one.close()
            raise ConfigError(f"ipc://{self._files[0]} cannot be bound: {error.strerror}.") from error
        return opened[0], opened[1]

    def release(self) -> None:
        """Remove the socket files and the lock."""
        if self._lock is not None:
            for path in self._files:
                path.unlink(missing_ok=True)
            self._unlock()


def in_use(address: Address) -> ConfigError:
    return ConfigError(f"address {address} is in use: another verifier runs there; stop it or choose another --bind.")


def _clear_stale(path: Path, address: Address) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; remove it or choose another --bind.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:
            raise in_use(address) from None  # somebody listens, with a full backlog
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise in_use(address)

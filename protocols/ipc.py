"""The files of an ``ipc`` address: its sockets, and a lock that tells whether their owner is alive."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from filelock import FileLock, Timeout

from protocols.address import Address
from protocols.errors import ConfigError

LOCK_SUFFIX = ".lock"


def check_directory(path: Path, *, create: bool) -> None:
    """Raise ConfigError if another user could put a socket of their own at ``path``, or remove ours."""
    directory = path.parent
    if create:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{directory} cannot be made a directory ({error.strerror}); choose another") from error
    try:
        found = directory.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{directory} cannot be used ({error.strerror}); choose another directory") from error
    me = os.geteuid()
    trusted = {me} if create else {me, 0}
    if found.st_uid not in trusted and (create or me != 0):
        raise ConfigError(f"{directory} belongs to another user; choose a directory of your own for the socket")
    if found.st_mode & 0o022:
        raise ConfigError(
            f"{directory} is writable by others, who could replace the socket; "
            f"use a directory inside it, such as ipc://{directory / 'duoactor' / path.name}"
        )


class IpcClaim:
    """Ownership of an ipc address, from before binding until close. Raises ConfigError if another verifier has it.

    libzmq binds over an existing socket file silently, whether its owner is alive or not, and unlinks it from another
    thread some time after close. So the files are made and removed here, and an flock on ``PATH.lock`` tells whether
    the owner is alive: it ends with the process, however that ends, so that a stale file never blocks a restart.
    """

    def __init__(self, address: Address) -> None:
        check_directory(address.path, create=True)
        self._files = (address.path, address.telemetry.path)
        lock_path = address.path.with_name(address.path.name + LOCK_SUFFIX)
        self._lock = FileLock(lock_path, timeout=0, mode=0o600)
        try:
            self._lock.acquire()
        except Timeout:
            raise in_use(address) from None
        except OSError as error:
            raise ConfigError(f"{lock_path} cannot be written ({error.strerror}); choose another") from error
        try:
            for path in self._files:
                _clear_stale(path, address)
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        # in this order: whoever gets the lock next notices that its file was unlinked, and tries again
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    def open_sockets(self) -> tuple[socket.socket, socket.socket]:
        """Return two listening sockets, for the address and its telemetry, that only our own user can connect to."""
        opened: list[socket.socket] = []
        try:
            for path in self._files:
                opened.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                opened[-1].setblocking(False)
                opened[-1].bind(os.fspath(path))
                os.chmod(path, 0o600)  # before listen: no peer can have connected yet
                opened[-1].listen(128)
        except OSError as error:
            for one in opened:
                one.close()
            raise ConfigError(f"ipc://{self._files[0]} cannot be bound: {error.strerror}") from error
        return opened[0], opened[1]

    def release(self) -> None:
        """Remove the socket files and the lock."""
        if self._lock.is_locked:
            for path in self._files:
                path.unlink(missing_ok=True)
            self._unlock()


def in_use(address: Address) -> ConfigError:
    return ConfigError(f"address {address} is in use: is another verifier up? Stop it, or choose another --bind")


def _clear_stale(path: Path, address: Address) -> None:
    """Remove a socket file without a listener. Raises ConfigError if it has one, or is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; remove it or choose another --bind")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:
            raise in_use(address) from None  # there is a listener, with a full backlog
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise in_use(address)

"""A client's connection as it comes and goes: made at the first use, and anew once the last has ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from actors.settings import PEER_VARIABLES
from duoactor.client.connection import Connection
from protocols.address import default_address, several
from protocols.errors import ConnectionLost, DuoactorError
from protocols.messages import Welcome
from protocols.transport import Network


class Opening:
    """Belongs to one process, and while it is connected to one event loop. Arguments are those of
    :class:`duoactor.AsyncClient`."""

    def __init__(
        self,
        address: str | Sequence[str],
        key: str,
        server_key: str,
        timeout: float | None,
        reconnect_timeout: float | None,
        max_retries: int,
        network: Network | None,
    ) -> None:
        if not address:
            address, key, server_key = _from_environment(key, server_key)
        self.addresses = several(address)
        self.address = ", ".join(self.addresses)
        self._max_retries = max_retries
        self._timeouts = (timeout, reconnect_timeout)
        self.keys = (key, server_key)  # files
        self._network = network
        self._task: asyncio.Task[Connection] | None = None
        self._closed = False
        self._pid = os.getpid()

    async def connected(self) -> Connection:
        """The connection, made anew if there is none or the last has ended."""
        self._check_place()
        if self._task is None or _is_over(self._task):
            self._task = asyncio.create_task(self._open())
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # told to who waits
        try:
            connection = await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._closed:
                raise closed() from None
            raise
        await connection.ready()
        return connection

    def made(self) -> Connection | None:
        """The connection that was made last, if one was."""
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    @property
    def welcome(self) -> Welcome:
        """Raises ConnectionLost if there was no connection yet."""
        connection = self.made()
        if connection is None:
            raise ConnectionLost(f"no verifier at {self.address} has answered yet")
        return connection.welcome

    async def close(self) -> None:
        """For good."""
        self._closed = True
        task, self._task = self._task, None
        if task is None or task.get_loop() is not asyncio.get_running_loop() or os.getpid() != self._pid:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await task.result().close()

    def _check_place(self) -> None:
        if self._closed:
            raise closed()
        if os.getpid() != self._pid:
            raise forked()
        home = None if self._task is None else self._task.get_loop()
        if home is not None and home is not asyncio.get_running_loop() and not home.is_closed():
            raise ConnectionLost("this client is connected in another event loop; make one client for each loop")

    async def _open(self) -> Connection:
        network, leave = self._network, _nothing
        if network is None:
            from protocols.security import load_security
            from protocols.zeromq import ZmqNetwork

            key, server_key = self.keys
            network = ZmqNetwork(load_security(key, server_key) if key or server_key else None)
            leave = network.close
        try:
            connection = Connection(network, self.addresses, *self._timeouts, leave, self._max_retries)
        except DuoactorError:
            leave()
            raise
        try:
            await connection.ready()
        except BaseException:
            await connection.close()
            raise
        return connection


def closed() -> ConnectionLost:
    return ConnectionLost("the client was closed; make a new one")


def forked() -> ConnectionLost:
    return ConnectionLost("a client does not survive a fork; make a new one in this process")


def _from_environment(key: str, server_key: str) -> tuple[str, str, str]:
    """Address and keys for a client that is given no address."""
    said = {name: os.environ.get(variable, "") for name, variable in PEER_VARIABLES.items()}
    return said["connect"] or default_address(), key or said["key"], server_key or said["server_key"]


def _nothing() -> None: ...


def _is_over(opening: asyncio.Task[Connection]) -> bool:
    if not opening.done():
        return opening.get_loop().is_closed()
    return opening.cancelled() or opening.exception() is not None or opening.result().over is not None

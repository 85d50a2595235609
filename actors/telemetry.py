"""A subscription to the verifier's telemetry, for the controller and for clients that watch."""

from __future__ import annotations

import asyncio
import logging

from protocols import wire
from protocols.address import reachable
from protocols.errors import ConfigError, ConnectionLost, ProtocolError
from protocols.messages import Message, Telemetry, Welcome
from protocols.transport import Feed, Network

log = logging.getLogger("duoactor")


class Subscription:
    """Follows the verifier's telemetry to the address of its latest Welcome: after a restart it may be another one."""

    def __init__(self, network: Network, connected: str, welcome: Welcome) -> None:
        """``connected``: the verifier's address, as this peer has connected to it."""
        self._network, self._connected = network, connected
        self._decoder = wire.Decoder(Telemetry)
        self._announced = ""
        self._feed: Feed | None = None
        self._moved = asyncio.Event()
        self._closed = False
        self.follow(welcome)

    def follow(self, welcome: Welcome) -> None:
        """Subscribe at the address in ``welcome`` from now on."""
        if welcome.telemetry == self._announced or self._closed:
            return
        old, self._announced = self._feed, welcome.telemetry
        self._feed = self._subscribe(welcome.telemetry)
        if old is not None:
            old.close()
        self._moved.set()

    def _subscribe(self, announced: str) -> Feed | None:
        try:
            return self._network.subscribe(reachable(announced, self._connected)) if announced else None
        except ConfigError as error:  # the verifier's fault; its successor's address may be a good one
            log.warning("the verifier's telemetry cannot be heard: %s", error)
            return None

    async def receive(self) -> Message:
        """The next message. Cancelling it loses nothing. Raises ConnectionLost once closed."""
        while True:
            feed = self._feed
            if self._closed:
                raise ConnectionLost("the subscription was closed")
            if feed is None:  # this verifier publishes nothing
                self._moved.clear()
                await self._moved.wait()
                continue
            try:
                return self._decoder.decode(await feed.receive())
            except ProtocolError:
                continue
            except ConnectionLost:
                if feed is self._feed:
                    raise

    def close(self) -> None:
        self._closed = True
        if self._feed is not None:
            self._feed.close()
        self._moved.set()

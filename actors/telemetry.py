"""What the verifier publishes, for whoever listens: the controller, and clients that watch."""

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
    """The verifier's telemetry, wherever its newest Welcome says: one that is restarted may publish at another port."""

    def __init__(self, network: Network, connected: str, welcome: Welcome) -> None:
        """``connected``: the address of the verifier, as this peer reached it."""
        self._network, self._connected = network, connected
        self._decoder = wire.Decoder(Telemetry)
        self._announced = ""
        self._feed: Feed | None = None
        self._moved = asyncio.Event()
        self._closed = False
        self.follow(welcome)

    def follow(self, welcome: Welcome) -> None:
        """Listen where ``welcome`` says from now on."""
        if welcome.telemetry == self._announced or self._closed:
            return
        left, self._announced = self._feed, welcome.telemetry
        self._feed = self._heard_at(welcome.telemetry)
        if left is not None:
            left.close()
        self._moved.set()

    def _heard_at(self, announced: str) -> Feed | None:
        try:
            return self._network.subscribe(reachable(announced, self._connected)) if announced else None
        except ConfigError as error:  # the verifier's fault, and the next Welcome may be a better one's
            log.warning("the verifier's telemetry cannot be heard: %s", error)
            return None

    async def receive(self) -> Message:
        """The next message. Cancelling it loses nothing. ConnectionLost once closed."""
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

"""The budget controller: hears the telemetry, thinks, publishes budgets. Never on the token path."""

from __future__ import annotations

import asyncio

from actors.actor import Line, work_until
from actors.speculation.controlling import Control
from protocols import wire
from protocols.address import reachable
from protocols.errors import ProtocolError
from protocols.messages import DraftStats, Drain, Hello, RoundStats, Telemetry, ToController
from protocols.transport import Feed, Network

PERIOD_S = 0.1


class Controller:
    def __init__(self, network: Network, address: str, hello: Hello) -> None:
        self.network = network
        self.line = Line(network, address, hello, wire.Decoder(ToController))
        self.control = Control()
        self.decoder = wire.Decoder(Telemetry)
        self.fresh = False

    async def run(self, stop: asyncio.Event) -> None:
        """Control until ``stop`` is set or the verifier asks us to leave."""
        try:
            await work_until(stop, self._serve())
        finally:
            self.line.close("leaving")

    async def _serve(self) -> None:
        welcome = await self.line.open()
        feed = self.network.subscribe(reachable(welcome.telemetry, self.line.address))
        try:
            await work_until(asyncio.Event(), self._listen(feed), self._decide(), self._converse(), self.line.beat())
        finally:
            feed.close()

    async def _listen(self, feed: Feed) -> None:
        while True:
            try:
                message = self.decoder.decode(await feed.receive())
            except ProtocolError:
                continue
            match message:
                case RoundStats():
                    self.control.observe_round(message)
                    self.fresh = True
                case DraftStats():
                    self.control.observe_draft(message)
                case _:
                    pass

    async def _decide(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            if self.fresh:
                self.fresh = False
                for budget in self.control.decide():
                    self.line.send(budget)

    async def _converse(self) -> None:
        while not isinstance(await self.line.next(), Drain):
            pass

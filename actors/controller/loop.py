"""The budget controller: reads the telemetry and publishes budgets. Never on the token path."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from actors.controller.climb import Control
from actors.peer import Line
from actors.telemetry import Subscription
from protocols import wire
from protocols.messages import DraftStats, Drain, Hello, Kind, RoundStats, ToController, Welcome
from protocols.transport import Network

PERIOD_S = 0.05  # time between decisions


class Controller:
    def __init__(self, network: Network, address: str, hello: Hello) -> None:
        self.line = Line(network, address, hello, wire.Decoder(ToController))
        self.control = Control()
        self.said: dict[Kind, tuple[object, float]] = {}  # settings, and when they are to be repeated

    async def run(self, stop: asyncio.Event) -> None:
        """Control until ``stop`` is set or the verifier asks us to leave."""
        await self.line.serve(stop, self._work)

    def _work(self, welcome: Welcome) -> Sequence[Coroutine[Any, Any, None]]:
        self.control.calibrated(welcome.forward_us)
        return self._listen(self.line.subscribe()), self._decide(), self._converse()

    async def _listen(self, telemetry: Subscription) -> None:
        while True:
            match message := await telemetry.receive():
                case RoundStats():
                    self.control.observe_round(message)
                case DraftStats():
                    self.control.observe_draft(message)

    async def _decide(self) -> None:
        """A changed budget leaves at once; an unchanged one as often as a heartbeat, to keep it and its rates alive."""
        while True:
            await asyncio.sleep(PERIOD_S)
            assert self.line.welcome is not None
            now = asyncio.get_running_loop().time()
            self.said = {kind: told for kind, told in self.said.items() if now < told[1]}
            for budget in self.control.decide():
                setting = budget.gamma, budget.sequences, budget.window, budget.wait_us
                if self.said.get(budget.kind, (None, now))[0] != setting:
                    self.said[budget.kind] = setting, now + self.line.welcome.heartbeat_ms / 1000
                    self.line.send(budget)

    async def _converse(self) -> None:
        while not isinstance(news := await self.line.next(), Drain):
            if isinstance(news, Welcome):  # a verifier that has restarted
                self.control.calibrated(news.forward_us)

"""The budget controller: reads the telemetry and publishes budgets. Never on the token path."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from actors.controller.climb import Control
from actors.peer import Line
from actors.telemetry import Subscription
from protocols import wire
from protocols.messages import Budget, DraftStats, Drain, Hello, Kind, RoundStats, ToController, Welcome
from protocols.transport import Network

PERIOD_S = 0.05  # time between decisions


class Controller:
    def __init__(self, network: Network, address: str, hello: Hello) -> None:
        self.line = Line(network, address, hello, wire.Decoder(ToController))
        self.control = Control()
        self.said: dict[Kind, tuple[Budget, float]] = {}

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
                case _:
                    pass

    async def _decide(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PERIOD_S)
            for budget in self.control.decide():
                self._say(budget, loop.time())

    def _say(self, budget: Budget, now: float) -> None:
        """A changed budget leaves at once; an unchanged one as often as a heartbeat, to keep it and its rates alive."""
        assert self.line.welcome is not None
        kind = budget.kind
        known, until = self.said.get(kind, (None, 0.0))
        if known is None or now >= until or _setting(known) != _setting(budget):
            self.said = {one: told for one, told in self.said.items() if now < told[1]}
            self.said[kind] = (budget, now + self.line.welcome.heartbeat_ms / 1000)
            self.line.send(budget)

    async def _converse(self) -> None:
        while not isinstance(news := await self.line.next(), Drain):
            if isinstance(news, Welcome):  # a verifier that has restarted
                self.control.calibrated(news.forward_us)


def _setting(budget: Budget) -> tuple[object, ...]:
    return (budget.gamma, budget.sequences, budget.window, budget.wait_us)

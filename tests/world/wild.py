"""A hostile peer of a live verifier, which also says what is no message."""

from __future__ import annotations

from dataclasses import dataclass

from actors.models import ModelInfo
from protocols import wire
from protocols.messages import Role
from protocols.zeromq import ZmqNetwork
from tests.world.garbage import garbled
from tests.world.hostile import Hostile

GARBLED = 0.4  # share of what is sent


@dataclass
class There:
    """A network that leads to one address, whatever is asked for."""

    network: ZmqNetwork
    address: str

    def host(self, name: str) -> There:
        return self

    def connect(self, address: str):
        return self.network.connect(self.address)


class Wild(Hostile):
    """Much of what it says is no message. A stranger (no role) never says Hello on purpose."""

    def __init__(self, where: There, role: Role | None, seed: int, info: ModelInfo) -> None:
        self.sent, self.stranger = 0, role is None
        super().__init__(where, role or Role.CLIENT, seed, info, f"hostile-{seed:x}")
        self.extremes.fresh = 0.1

    def greet(self) -> None:
        if not self.stranger:
            super().greet()

    def say(self, message) -> None:
        frames = wire.encode(message)
        dice = self.extremes.random
        self.sent += self.link.send(garbled(frames, dice) if dice.random() < GARBLED else frames)

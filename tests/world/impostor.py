"""A verifier on a real socket that says what comes to its mind, to whoever connects to it."""

from __future__ import annotations

import asyncio
import typing
from collections import deque
from collections.abc import Callable

import msgspec

from protocols import messages, wire
from protocols.messages import Grow, Heartbeat, Hello, Message, Refuse, RefuseCode, Resync, Role, ToVerifier, Welcome
from protocols.zeromq import ZmqNetwork
from tests.world.extremes import Extremes
from tests.world.garbage import garbled
from tests.world.wild import GARBLED

UNDERSTANDS = {Role.DRAFTER: messages.ToDrafter, Role.CONTROLLER: messages.ToController, Role.CLIENT: messages.ToClient}
# A verifier may send its actors away, or say that it speaks another version, and they go. Of what it can refuse these
# say "not now" or "say Hello again".
STAY = (RefuseCode.UNKNOWN_PEER, RefuseCode.DRAINING, RefuseCode.MALFORMED)
BURST = 1000  # frames between two looks whether the peer has read them all: as many as its socket's queue holds
ANSWER_S = 300.0  # for a peer to say Hello again; only one that hangs, or a machine that sleeps, takes so long


class Impostor:
    def __init__(self, network: ZmqNetwork, role: Role, seed: int) -> None:
        """``role`` of the peers that are spoken to."""
        self.listener = network.listen("tcp://127.0.0.1:0")
        self.role = role
        self.extremes = Extremes(seed)
        self.extremes.fresh = 0.1
        self.kinds = [one for one in typing.get_args(UNDERSTANDS[role]) if one.__name__ != "Drain"]
        self.heard: deque[Message] = deque(maxlen=8)  # questions and offers
        self.sent = 0
        self._peer = b""
        self._greeted = asyncio.Event()
        self._decoder = wire.Decoder(ToVerifier)

    @property
    def port(self) -> int:
        return int(self.listener.address.rsplit(":", 1)[1])

    @property
    def telemetry(self) -> str:
        return self.listener.telemetry

    async def rave(self, count: int, over: Callable[[], bool] = lambda: False) -> int:
        """Send so many frames unless it is ``over`` before, and return how many; all were read then. Raises
        TimeoutError when nobody is there."""
        listening = asyncio.create_task(self._listen())
        try:
            began = self.sent
            until = began + count
            await self._hello()
            while self.sent < until and not over():
                for _ in range(min(BURST, until - self.sent)):
                    async with asyncio.timeout(ANSWER_S):
                        while not self._say():
                            await asyncio.sleep(0.001)  # its queue is full, or it has left and another one comes
                await self._hello()
            return self.sent - began
        finally:
            listening.cancel()

    async def _hello(self) -> None:
        """Until a peer has read all and said Hello, as after a restart of its verifier."""
        self._greeted.clear()
        async with asyncio.timeout(ANSWER_S):
            while not self._greeted.is_set():
                if self._peer:
                    self.listener.send(self._peer, wire.encode(Refuse(RefuseCode.UNKNOWN_PEER, "say Hello")))
                try:
                    await asyncio.wait_for(self._greeted.wait(), 0.5)
                except TimeoutError:
                    continue

    async def _listen(self) -> None:
        while True:
            peer, frames = await self.listener.receive()
            message = self._decoder.decode(frames)  # its peers say nothing but what can be decoded
            if isinstance(message, Hello):
                self._peer = peer
                self.listener.send(peer, wire.encode(Welcome("impostor", 500, 2500, self.telemetry)))
                self._greeted.set()
            elif not isinstance(message, Heartbeat):
                self.heard.append(message)

    def _say(self) -> bool:
        dice = self.extremes.random
        if self.role is Role.CONTROLLER and dice.random() < 0.9:  # it has little to hear but the telemetry
            message = self.extremes.message(typing.get_args(messages.Telemetry))
            frames = self._frames(message)
            self.listener.publish(type(message).__name__.encode(), frames)
            self.sent += 1
            return True
        sent = self.listener.send(self._peer, self._frames(self._aimed(self.extremes.message(self.kinds))))
        self.sent += sent
        return sent

    def _frames(self, message: Message) -> list[bytes]:
        frames = wire.encode(message)
        if self.extremes.random.random() < GARBLED:
            frames = garbled(frames, self.extremes.random)
        return frames if not wire.is_other_version(frames) else [wire.HEADER, *frames[1:]]

    def _aimed(self, message: Message) -> Message:
        """Half of what can concern something that is open does."""
        dice = self.extremes.random
        if isinstance(message, Refuse) and self.role is not Role.CLIENT:
            return msgspec.structs.replace(message, code=dice.choice(STAY))
        if isinstance(message, Welcome):  # a peer that believed in a heartbeat a minute would not be heard for one
            message = msgspec.structs.replace(message, heartbeat_ms=dice.randrange(1, 1000))
            return message if dice.random() < 0.1 else msgspec.structs.replace(message, telemetry=self.telemetry)
        if not self.heard or dice.random() < 0.5:
            return message
        about = dice.choice(self.heard)
        fields = {"rid": getattr(about, "rid", None), "epoch": getattr(about, "epoch", None)}
        if isinstance(about, Grow | Resync):
            fields["base_len"] = about.base_len if isinstance(about, Grow) else about.have_len
        known = {name: value for name, value in fields.items() if value is not None and hasattr(message, name)}
        return msgspec.structs.replace(message, **known)

"""A peer's line to the verifier: Hello until Welcome, then heartbeats. Drafter, controller and client share it."""

import asyncio
import os
import uuid

import msgspec
import wire
import zmq.asyncio
from wire import Heartbeat, Hello, Message, Refuse, Welcome

GREET_S = 0.5  # between two Hellos to a verifier that has not answered


class Line:
    def __init__(self, address: str, role: str, union, actor_id: str = "", model=None) -> None:
        """``union``: the messages that this peer understands. ``model``: a drafter's."""
        self.socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self.socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a verifier that is not there
        self.socket.set(zmq.LINGER, 500)
        self.socket.connect(address)
        facts = (model.model_id, model.vocab_size, model.digest, model.max_context) if model else ()
        self.hello = Hello(role, actor_id or f"{role}-{os.getpid()}", uuid.uuid4().hex[:12], *facts)
        self.decoder = msgspec.msgpack.Decoder(union)
        self.welcome: Welcome | None = None  # None: the verifier does not know this peer

    def send(self, message: Message) -> None:
        """Send at once or not at all: whoever misses a message asks for it."""
        self.socket.send_multipart(wire.encode(message), zmq.DONTWAIT).exception()

    async def beat(self) -> None:
        while True:
            self.send(Heartbeat() if self.welcome else self.hello)
            await asyncio.sleep(self.welcome.heartbeat_ms / 1000 if self.welcome else GREET_S)

    async def receive(self) -> Message:
        """The next message. After a Welcome all that was leased or asked before is void."""
        while True:
            message = wire.decode(await self.socket.recv_multipart(), self.decoder)
            match message:
                case Welcome():
                    known, self.welcome = self.welcome, message
                    if known is None or known.incarnation != message.incarnation:
                        return message
                case Refuse(code="unknown_peer"):  # the verifier restarted, or took this peer for dead
                    self.welcome = None
                    self.send(self.hello)
                case Refuse(code="version" | "tokenizer" | "forbidden" | "duplicate"):
                    raise SystemExit(f"the verifier refuses this {self.hello.role}: {message.detail}")
                case None | Heartbeat() | Refuse():
                    pass
                case _:
                    return message

    def close(self) -> None:
        self.send(wire.Goodbye())
        self.socket.close()

"""Receives: reads what arrives at the verifier's socket, decodes it, and hands it to the part that it is for.

It never waits and never computes, so that it may be called between any two steps of the loop. Where forwards run in
the event loop, the socket is not read during one: what has arrived is handled between two steps, up to a bound, and no
flood keeps the loop from its work. A malformed message is counted, dropped and answered with a Refuse. So is one
whose sender has not said Hello, or is of a role that does not send such messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.verifier.context import Context
from actors.verifier.floods import CLIENT_SHARE, Floods
from actors.verifier.peers import Peers
from protocols import messages, wire
from protocols.errors import ProtocolError
from protocols.limits import clipped
from protocols.messages import Cancel, Failed, FailureCode, Goodbye, Heartbeat, Hello, Message, Refuse, RefuseCode, Role
from protocols.transport import Listener

log = logging.getLogger("duoactor.verifier")
STRANGER = Refuse(RefuseCode.UNKNOWN_PEER, "this verifier does not know you; say Hello first")
# Messages handled between two pieces of work. A round brings one Grow per stream, so drafters that follow the protocol
# stay far below it.
MAX_HANDLED = 256
# Messages of a flood that are dropped between two pieces of work, some 4 µs each; and so many that each flooding
# connection has had a turn. libzmq reads connections in turns, so every other peer has had a message read by then.
MIN_DROPPED, MAX_DROPPED = 4, 128
FLOOD_PAUSE_S = 0.001  # before the next ones are dropped
# Names of messages that are never dropped
REQUESTS = {one.__name__ for one in (messages.Generate, messages.Cancel, messages.Tokenize, messages.Detokenize)}
BUSY = f"answers to this client take more than {CLIENT_SHARE:.0%} of the verifier's time; ask again in a second"


# By the class of a message: the role that sends it, and what takes it with the peer's routing id.
Routes = Mapping[type[Message], tuple[Role, Callable[[bytes, Any], None]]]


class Inbox:
    def __init__(self, context: Context, listener: Listener, peers: Peers, routes: Routes) -> None:
        self.context, self.state, self.listener = context, context.state, listener
        self.peers, self.routes = peers, routes
        self.floods, self._timer = Floods(context.state, peers.role, peers.account), context.equipment.timer
        self._cpu_timer = context.equipment.cpu_timer
        self._decoder = wire.Decoder(messages.ToVerifier)
        self.handled = 0  # messages so far

    async def run(self) -> None:
        while True:
            dropped = not self._handle(*await self.listener.receive())
            read_all = self.read()
            self.context.wake()
            if not read_all:  # a flood does not keep the loop to itself
                await asyncio.sleep(FLOOD_PAUSE_S if dropped else 0)

    def read(self) -> bool:
        """Handle the messages that have arrived, up to a bound; return whether those were all.

        Drafts that arrived during a forward must be merged before the next step of the loop, or they would be used a
        round late and look as if they came too late."""
        dropped = 0
        for _ in range(MAX_HANDLED):
            item = self.listener.receive_nowait()
            if item is None:
                return True
            dropped += not self._handle(*item)
            if dropped >= min(max(MIN_DROPPED, self.floods.flooding), MAX_DROPPED):
                break
        return False

    def look_after(self) -> bool:
        """Call it now and then. Returns whether all messages are read."""
        self.floods.forget(self._timer())
        return self.read()

    def _handle(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Return False if the message was dropped unread. A client's question is not left without an answer."""
        is_client = self.peers.role(peer) is Role.CLIENT
        exempt = is_client and wire.kind(frames) in REQUESTS
        if not exempt and self.floods.drops(peer, self._timer()):
            self.state.counters["flood"] += 1
            if is_client and (rid := wire.request_id(frames)) is not None:
                self.context.send(peer, Failed(rid, FailureCode.OVERLOADED, BUSY, retry_after_ms=1000))
            if self.floods.unwanted(peer):
                self.listener.hang_up(peer)
            return False
        self.handled += 1
        begin = self._cpu_timer()
        self.receive(peer, frames)
        self.floods.charge(peer, self._cpu_timer() - begin, self._timer(), exempt)
        return True

    def receive(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """Decode a message and hand it to the part that it is for."""
        try:
            message = self._decoder.decode(frames)
        except ProtocolError as error:
            self._malformed(peer, frames, clipped(str(error)))
            return
        role = self.peers.role(peer)
        try:
            if isinstance(message, Hello):
                self.peers.hello(peer, message)
            elif role is None:
                self.state.counters["unknown_peer"] += 1
                self.context.send(peer, STRANGER)
            else:
                self.peers.seen(peer, message)
                self._deliver(peer, role, message)
        except Exception as error:  # our own code's, about one message
            self._failed(peer, message, error)

    def _failed(self, peer: bytes, message: Message, error: Exception) -> None:
        """A message could not be handled: its sender loses what it asked for, or its connection; nobody else does."""
        kind, role = type(message).__name__, self.peers.role(peer)
        why = f"{type(error).__name__}: {error}"
        detail = clipped(f"the verifier failed on this {kind} ({why}); its log has the details")
        log.error("a %s of a %s could not be handled", kind, role or "stranger", exc_info=error)
        self.state.counters["failed_messages"] += 1
        rid = getattr(message, "rid", None)
        if not self._fail(peer, rid, FailureCode.INTERNAL, detail):
            self.context.send(peer, Refuse(RefuseCode.MALFORMED, detail))
            if role is not None:
                self.peers.bar(peer, f"its {kind} could not be handled")

    def _fail(self, peer: bytes, rid: str | None, code: FailureCode, why: str) -> bool:
        """End the request of a client that waits for an answer. Returns False if the peer is no such client."""
        if rid is None or self.peers.role(peer) is not Role.CLIENT:
            return False
        self.routes[Cancel][1](peer, Cancel(rid))  # no chunk of a request may follow its Failed
        self.context.send(peer, Failed(rid, code, why))
        return True

    def _deliver(self, peer: bytes, role: Role, message: Message) -> None:
        route = self.routes.get(type(message))
        if isinstance(message, Heartbeat):
            self.context.send(peer, message)
        elif isinstance(message, Goodbye):
            self.peers.gone(peer, message.reason or "said goodbye")
        elif route is not None and route[0] is role:
            route[1](peer, message)
        else:
            self.state.counters["out_of_role"] += 1
            detail = f"a {role} does not send {type(message).__name__}"
            self.context.send(peer, Refuse(RefuseCode.MALFORMED, detail))

    def _malformed(self, peer: bytes, frames: Sequence[bytes], why: str) -> None:
        """Count, drop and answer it: a client that waits for an answer must not wait for ever."""
        self.state.counters["malformed"] += 1
        if self._fail(peer, wire.request_id(frames), FailureCode.BAD_REQUEST, why):
            return
        stranger = self.peers.role(peer) is None
        if stranger and wire.is_foreign(frames):
            self.context.send(peer, Refuse(RefuseCode.VERSION, why))
        elif stranger and wire.kind(frames) not in ("", "Hello"):
            self.context.send(peer, STRANGER)
        else:
            self.context.send(peer, Refuse(RefuseCode.MALFORMED, why))

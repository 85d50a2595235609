"""Who is connected: what a newcomer must be, who has left, and who has not been heard of for too long."""

from __future__ import annotations

from collections.abc import Callable

from actors.verifier.admission import Admission
from actors.verifier.book import HEARTBEAT_MS, TTL_MS, Book, ClientPeer, ControllerPeer
from actors.verifier.leases import Leases
from actors.verifier.preflight import tokenizers_differ
from protocols.messages import ActorDown, ActorUp, Goodbye, Heartbeat, Hello, Message, Refuse, RefuseCode, Role, Welcome

TTL_S = TTL_MS / 1000
CLIENT_TTL_S = 4 * TTL_S  # a client that is busy is no reason to give up its work
# While messages lie unread their senders may be alive. Nobody's are unread for ever: under a flood of messages a peer
# is given up after this many times its time to live.
UNREAD = 4


class Peers:
    def __init__(
        self,
        book: Book,
        leases: Leases,
        admission: Admission,
        send: Callable[[bytes, Message], bool],
        publish: Callable[[Message], None],
        clock: Callable[[], float],
        telemetry: str,
    ) -> None:
        self.book, self.leases, self.admission = book, leases, admission
        self.send, self.publish, self.clock = send, publish, clock
        self.telemetry = telemetry

    def known(self, peer: bytes) -> bool:
        return self.role(peer) is not None

    def role(self, peer: bytes) -> Role | None:
        """What the sender has said Hello as."""
        book = self.book
        if peer in book.clients:
            return Role.CLIENT
        if peer in book.drafters.by_peer:
            return Role.DRAFTER
        return Role.CONTROLLER if book.controller is not None and book.controller.peer == peer else None

    def seen(self, peer: bytes, message: Message) -> None:
        book = self.book
        now = self.clock()
        if (drafter := book.drafters.of(peer)) is not None:
            drafter.heard(now, message.busy_ms / 1000 if isinstance(message, Heartbeat) else 0.0)
        for one in (book.clients.get(peer), book.controller):
            if one is not None and one.peer == peer:
                one.last_seen = now

    # --- Hello -------------------------------------------------------------------------------------------------------

    def hello(self, peer: bytes, hello: Hello) -> None:
        """The preflight: what does not fit is said here, not found out later as a poor acceptance rate."""
        now = self.clock()
        refusal = self._misfit(hello)
        if refusal is not None:
            self.book.counters["refused"] += 1
            self.send(peer, refusal)
            return
        if (was := self.role(peer)) is not None and was is not hello.role:
            self.gone(peer, f"said Hello as a {hello.role}")
        self._welcome(peer)
        match hello.role:
            case Role.DRAFTER:
                for stale in (self.book.drafters.named(hello.actor_id), self.book.drafters.of(peer)):
                    if stale is not None:
                        self.leases.lose(stale, now)  # the same actor, restarted or reconnected
                self.book.drafters.add(peer, hello, now)
                self.leases.offer(now)
            case Role.CONTROLLER:
                self.book.controller = ControllerPeer(peer, hello, now)
            case _:
                self.book.clients[peer] = ClientPeer(peer, hello.actor_id, now)
        if hello.role is not Role.CLIENT:
            self.publish(ActorUp(hello.role, hello.actor_id, hello.model_id))

    def _misfit(self, hello: Hello) -> Refuse | None:
        if self.book.draining:
            return Refuse(RefuseCode.DRAINING, "this verifier is shutting down; connect to another")
        if hello.role is Role.VERIFIER:
            return Refuse(RefuseCode.MALFORMED, "a verifier says Hello to nobody; connect as a client or a drafter")
        if hello.role is not Role.DRAFTER:
            return None
        if (detail := tokenizers_differ(hello, self.book.info)) is not None:
            return Refuse(RefuseCode.TOKENIZER, detail)
        named = self.book.drafters.named(hello.actor_id)
        if named is not None and named.hello.incarnation != hello.incarnation and self._alive(named.last_seen):
            detail = f"a drafter named {hello.actor_id} is connected already; choose another --actor-id"
            return Refuse(RefuseCode.DUPLICATE, detail)
        return None

    def _alive(self, last_seen: float) -> bool:
        return self.clock() - last_seen < 2 * HEARTBEAT_MS / 1000

    def _welcome(self, peer: bytes) -> None:
        book, info = self.book, self.book.info
        welcome = Welcome(
            book.incarnation,
            HEARTBEAT_MS,
            TTL_MS,
            self.telemetry,
            info.model_id,
            info.vocab_size,
            info.max_context,
            book.cost.calibration(),
        )
        self.send(peer, welcome)

    # --- farewell ----------------------------------------------------------------------------------------------------

    def goodbye(self, peer: bytes, message: Goodbye) -> None:
        self.gone(peer, message.reason or "said goodbye")

    def gone(self, peer: bytes, reason: str) -> None:
        """A peer left, or is not heard of any more."""
        book = self.book
        match self.role(peer):
            case Role.DRAFTER:
                drafter = book.drafters.by_peer[peer]
                self.leases.lose(drafter, self.clock())
                self.publish(ActorDown(Role.DRAFTER, drafter.actor_id, reason))
            case Role.CONTROLLER if book.controller is not None:
                self.publish(ActorDown(Role.CONTROLLER, book.controller.actor_id, reason))
                book.controller = None
            case Role.CLIENT:
                del book.clients[peer]
                self.admission.client_gone(peer)

    def expire(self, late_s: float, read_all: bool) -> None:
        """Peers that were silent for too long are gone. ``late_s``: how much later this is called than was planned,
        because the event loop computed; nobody could be heard then. ``read_all``: no message lies unread."""
        book, now = self.book, self.clock()
        controller = () if book.controller is None else (book.controller,)
        for one in (*book.drafters.by_peer.values(), *book.clients.values(), *controller):
            one.last_seen = min(now, one.last_seen + late_s)
        patience = 1 if read_all else UNREAD
        lost = [
            d.peer for d in book.drafters.by_peer.values() if now - max(d.last_seen, d.silent_until) > patience * TTL_S
        ]
        lost += [c.peer for c in book.clients.values() if now - c.last_seen > patience * CLIENT_TTL_S]
        lost += [c.peer for c in controller if now - c.last_seen > patience * TTL_S]
        for peer in lost:
            self.gone(peer, "no heartbeat")

"""Connected peers: welcome, leave, and silence for too long."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from msgspec.structs import replace

from actors.models import KeptStates
from actors.preflight import differs
from actors.verifier.admission import Admission
from actors.verifier.context import Context
from actors.verifier.drafters import DrafterPeer, Peer
from actors.verifier.leases import Leases
from actors.verifier.state import HEARTBEAT_MS, TTL_MS
from protocols.limits import MAX_ACTOR_ID, MAX_DRAFTERS
from protocols.messages import ActorDown, ActorUp, Drain, Heartbeat, Hello, Message, Refuse, RefuseCode, Role, Welcome
from protocols.security import Holder
from protocols.transport import Listener

TTL_S = TTL_MS / 1000
CLIENT_TTL_S = 4 * TTL_S  # longer, because a busy client may be late and its request is worth keeping
# While messages lie unread, a silent peer's heartbeat may be among them: its time to live is then multiplied by this.
# Not more, or a flood of messages would keep dead peers alive.
UNREAD = 4
MARK = 8  # characters of a key that tell a drafter from another of its name
MOST_BARRED = 64  # peers that are remembered as parted with
# Connections of one key. Each drafter may take a share of the verifier's time, see floods.py: eight take 1.6% unlent.
MAX_DRAFTERS_OF_KEY, MAX_CLIENTS_OF_KEY = 8, 256


class Peers:
    def __init__(self, context: Context, leases: Leases, admission: Admission, listener: Listener) -> None:
        self.context, self.state, self.leases, self.admission = context, context.state, leases, admission
        self.send, self.publish, self.clock = context.send, context.publish, context.clock
        self.telemetry, self.holder = listener.telemetry, listener.holder
        self._barred: deque[str] = deque(maxlen=MOST_BARRED)  # incarnations

    def role(self, peer: bytes) -> Role | None:
        """The role that a peer was welcomed in; None: it has not said Hello, or is gone."""
        known = self.state.peer(peer)
        return known.hello.role if known is not None else None

    def account(self, peer: bytes) -> bytes:
        """Who pays for the messages of a connection, see :meth:`Holder.account`."""
        return self.holder(peer).account(peer)

    def seen(self, peer: bytes, message: Message) -> None:
        """A message of the peer, which has a role, has arrived: it is alive."""
        known, now = self.state.peer(peer), self.clock()
        assert known is not None
        known.last_seen = now
        if isinstance(known, DrafterPeer) and isinstance(message, Heartbeat):
            known.silent_until = max(known.silent_until, now + message.busy_ms / 1000)
            if known.draining:
                self.send(peer, Drain())  # the first may have been lost

    def hello(self, peer: bytes, hello: Hello) -> None:
        """Welcome the peer or refuse it: a model that does not fit would show as a low acceptance rate later."""
        now, holder = self.clock(), self.holder(peer)
        hello = self._renamed(hello, holder)
        refusal = self._refusal(hello, holder) or self._too_many(peer, hello)
        if refusal is not None:
            self.state.counters["refused"] += 1
            self.send(peer, refusal)
            return
        if (was := self.role(peer)) is not None and was is not hello.role:
            self.gone(peer, f"said Hello as a {hello.role}")
        self._welcome(peer, holder)
        match hello.role:
            case Role.DRAFTER:
                for stale in (self.state.drafters.named(hello.actor_id), self.state.drafters.by_peer.get(peer)):
                    if stale is not None:
                        self.leases.lose(stale)  # the same actor, restarted or reconnected
                drafter = self.state.drafters.by_peer[peer] = DrafterPeer(peer, hello, now, holder)
                if hello.states:
                    self._give_states(drafter)
                self.leases.offer()
            case Role.CLIENT:
                self.state.clients[peer] = Peer(peer, hello, now, holder)
            case single:
                self.state.singles[single] = Peer(peer, hello, now, holder)
        if hello.role is not Role.CLIENT:
            self.publish(ActorUp(hello.role, hello.actor_id, hello.model_id))

    def _renamed(self, hello: Hello, holder: Holder) -> Hello:
        """A Hello. A drafter's name that one with another key has gets the beginning of its key: it bars nobody."""
        named = self.state.drafters.named(hello.actor_id) if hello.role is Role.DRAFTER else None
        if named is None or self.holder(named.peer).key == holder.key:
            return hello
        mark = "@" + holder.key[:MARK].decode()
        return replace(hello, actor_id=hello.actor_id[: MAX_ACTOR_ID - len(mark)] + mark)

    def _give_states(self, drafter: DrafterPeer) -> None:
        """From now on the target keeps the states that its head reads."""

        def given(asked: asyncio.Future[KeptStates]) -> None:
            if asked.cancelled():
                return
            if self.state.drafters.by_peer.get(drafter.peer) is drafter:
                drafter.states = asked.result()
            else:  # it has left already
                self.leases.leave_states(asked.result())

        keeping = partial(self.context.target.keep_states, drafter.hello.states)
        self.context.equipment.compute.start(keeping).add_done_callback(given)

    def _refusal(self, hello: Hello, holder: Holder) -> Refuse | None:
        """Why a peer is not welcomed; None: it is."""
        if self.state.draining:
            return Refuse(RefuseCode.DRAINING, "this verifier is shutting down; connect to another")
        if hello.incarnation in self._barred:
            why = f"this verifier failed on a message of {hello.actor_id}; its log says why"
            return Refuse(RefuseCode.FORBIDDEN, why)
        if hello.role is Role.VERIFIER:
            return Refuse(RefuseCode.MALFORMED, "a verifier says Hello to nobody; connect as a client or a drafter")
        if not holder.may_be(hello.role):
            own = " and ".join(sorted(holder.roles)) or "nobody"
            sentence = f"this key is for {own}; make one with `duoactor keys NAME --role {hello.role}` for that"
            return Refuse(RefuseCode.FORBIDDEN, sentence)
        if hello.role is Role.DRAFTER and not hello.model_id:
            sentence = "a drafter has to name what it drafts with; give its Hello a model_id, or connect as a client"
            return Refuse(RefuseCode.MALFORMED, sentence)
        has_model = hello.role in (Role.DRAFTER, Role.LEARNER)
        if has_model and (detail := differs(hello, self.context.info)) is not None:
            return Refuse(RefuseCode.TOKENIZER, detail)
        if max(hello.states, default=0) > (layers := self.context.info.layers):
            detail = f"draft head {hello.model_id} reads layer {max(hello.states)} and the target has {layers}"
            return Refuse(RefuseCode.TOKENIZER, f"{detail}; choose the head that was made for this target")
        return self._second(hello)

    def _second(self, hello: Hello) -> Refuse | None:
        """A name is one drafter's; and two controllers, or two learners, would undo each other's work."""
        drafts = hello.role is Role.DRAFTER
        known = self.state.drafters.named(hello.actor_id) if drafts else self.state.singles.get(hello.role)
        if known is None or known.hello.incarnation == hello.incarnation:
            return None
        if self.clock() - known.last_seen >= 2 * HEARTBEAT_MS / 1000:
            return None  # it is dead
        detail = f"a drafter named {hello.actor_id} is connected already; choose another --actor-id"
        if not drafts:
            process = f"{known.actor_id}, process {known.hello.pid}"
            detail = f"this verifier has a {hello.role} already ({process}); stop that one first"
        return Refuse(RefuseCode.DUPLICATE, detail)

    def bar(self, peer: bytes, reason: str) -> None:
        """Part for good with a peer whose message could not be handled: it would send another like that at once."""
        known = self.state.peer(peer)
        if known is not None and known.hello.role is not Role.CLIENT:
            self._barred.append(known.hello.incarnation)
        self.gone(peer, reason)

    def _too_many(self, peer: bytes, hello: Hello) -> Refuse | None:
        """Whether as many are connected as may; who says Hello again takes its own place."""
        drafts, account = hello.role is Role.DRAFTER, self.account(peer)
        known = self.state.drafters.by_peer if drafts else self.state.clients
        others = [one for one in known.values() if one.peer != peer and not (drafts and one.actor_id == hello.actor_id)]
        if drafts and len(others) >= MAX_DRAFTERS:
            detail = f"this verifier has {MAX_DRAFTERS} drafters already; connect to another"
            return Refuse(RefuseCode.DUPLICATE, detail)
        most = MAX_DRAFTERS_OF_KEY if drafts else MAX_CLIENTS_OF_KEY
        if sum(one.account == account for one in others) < most:
            return None
        detail = f"{most} {hello.role}s are connected with this key already; make another with `duoactor keys NAME`"
        return Refuse(RefuseCode.DUPLICATE, detail)

    def _welcome(self, peer: bytes, holder: Holder) -> None:
        info = self.context.info
        welcome = Welcome(
            incarnation=self.state.incarnation,
            heartbeat_ms=HEARTBEAT_MS,
            ttl_ms=TTL_MS,
            telemetry=self.telemetry if holder.watches else "",
            model_id=info.model_id,
            vocab_size=info.vocab_size,
            max_context=info.max_context,
            forward_us=self.context.price.target.calibration(),
            tool_form=info.tool_form,
            response_template=info.response_template,
            dtype=info.dtype,
            thinking=info.thinking,
            sampling=info.sampling,
            identity=info.identity,
        )
        self.send(peer, welcome)

    def gone(self, peer: bytes, reason: str) -> None:
        """A peer has left, or is taken for dead: its leases, budgets or requests end."""
        state, known = self.state, self.state.peer(peer)
        if known is None:
            return
        role = known.hello.role
        if role is Role.CLIENT:
            del state.clients[peer]
            self.admission.client_gone(peer)
            return
        if isinstance(known, DrafterPeer):
            self.leases.lose(known)
        else:
            del state.singles[role]
            if role is Role.CONTROLLER:
                state.budgets.forget()
        self.publish(ActorDown(role, known.actor_id, reason))

    def expire(self, late_s: float, read_all: bool) -> None:
        """Give up peers that were silent for longer than their time to live. ``late_s``: how late this is called, as
        the event loop was computing, which is not the peers' silence. ``read_all``: no message lies unread."""
        now, patience = self.clock(), 1 if read_all else UNREAD
        for one in self.state.peers():
            one.last_seen = min(now, one.last_seen + late_s)
            ttl_s = CLIENT_TTL_S if one.hello.role is Role.CLIENT else TTL_S
            if now - max(one.last_seen, one.silent_until) > patience * ttl_s:
                self.gone(one.peer, "no heartbeat")

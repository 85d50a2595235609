"""Decodes each message that arrives and hands it to the part of the verifier that it is for.

Messages that are malformed, from a peer that has not said Hello, or not among those of the sender's role are counted,
dropped and answered with a Refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.verifier.admission import Admission
from actors.verifier.learning import Learning
from actors.verifier.operations import Operations
from actors.verifier.peers import Peers
from actors.verifier.sources.remote import Drafts
from actors.verifier.state import State
from actors.verifier.tokenization import Tokenization
from protocols import wire
from protocols.errors import ProtocolError
from protocols.limits import clipped
from protocols.messages import (
    Budget,
    Cancel,
    Decline,
    Detokenize,
    DraftStats,
    DrainActor,
    Failed,
    FailureCode,
    Generate,
    Goodbye,
    Grow,
    Heartbeat,
    Hello,
    Message,
    Promote,
    Refuse,
    RefuseCode,
    Resync,
    Role,
    Status,
    Swap,
    Tokenize,
    ToVerifier,
    Undo,
)

STRANGER = Refuse(RefuseCode.UNKNOWN_PEER, "this verifier does not know you; say Hello first")


class Dispatcher:
    """It never waits and never computes, so that it may be called between any two steps of the loop."""

    def __init__(
        self,
        state: State,
        peers: Peers,
        admission: Admission,
        drafts: Drafts,
        tokenization: Tokenization,
        operations: Operations,
        learning: Learning,
        send: Callable[[bytes, Message], bool],
    ) -> None:
        self.state, self.peers, self.admission = state, peers, admission
        self.drafts, self.tokenization, self.operations = drafts, tokenization, operations
        self.learning = learning
        self.send = send
        self._decoder = wire.Decoder(ToVerifier)

    def receive(self, peer: bytes, frames: Sequence[bytes]) -> None:
        try:
            message = self._decoder.decode(frames)
        except ProtocolError as error:
            self._malformed(peer, frames, clipped(str(error)))
            return
        role = self.peers.role(peer)
        if isinstance(message, Hello):
            self.peers.hello(peer, message)
        elif role is None:
            self.state.counters["unknown_peer"] += 1
            self.send(peer, STRANGER)
        else:
            self.peers.seen(peer, message)
            self._deliver(peer, role, message)

    def _deliver(self, peer: bytes, role: Role, message: Message) -> None:
        match role, message:
            case _, Heartbeat():
                self.send(peer, message)
            case _, Goodbye():
                self.peers.goodbye(peer, message)
            case Role.DRAFTER, Grow():
                self.drafts.grow(peer, message)
            case Role.DRAFTER, Resync():
                self.drafts.resync(peer, message)
            case Role.DRAFTER, Decline():
                self.drafts.decline(peer, message)
            case Role.DRAFTER, DraftStats():
                self.drafts.stats(peer, message)
            case Role.CONTROLLER, Budget():
                self.operations.budget(message)
            case Role.LEARNER, Promote():
                self.learning.promote(message)
            case Role.CLIENT, Generate():
                self.admission.ask(peer, message)
            case Role.CLIENT, Cancel():
                self.admission.drop(message.rid, peer)
            case Role.CLIENT, Tokenize() | Detokenize():
                self.tokenization.ask(peer, message)
            case Role.CLIENT, Status():
                self.operations.status(peer, message)
            case Role.CLIENT, Swap() | DrainActor() | Undo():
                self.operations.order(peer, message)
            case _:
                self.state.counters["out_of_role"] += 1
                self.send(peer, Refuse(RefuseCode.MALFORMED, f"a {role} does not send {type(message).__name__}"))

    def _malformed(self, peer: bytes, frames: Sequence[bytes], why: str) -> None:
        """Count, drop and answer it: a client that waits for an answer must not wait for ever."""
        self.state.counters["malformed"] += 1
        role = self.peers.role(peer)
        if role is Role.CLIENT and (rid := wire.request_id(frames)) is not None:
            self.admission.drop(rid, peer)  # no chunk of a request may follow its Failed
            self.send(peer, Failed(rid, FailureCode.BAD_REQUEST, why))
        elif role is None and wire.is_foreign(frames):
            self.send(peer, Refuse(RefuseCode.VERSION, why))
        elif role is None and wire.kind(frames) not in ("", "Hello"):
            self.send(peer, STRANGER)
        else:
            self.send(peer, Refuse(RefuseCode.MALFORMED, why))

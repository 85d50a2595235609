"""A peer that sends what comes to its mind: any message that can be decoded, often near what is live."""

from __future__ import annotations

import typing

import msgspec

from protocols import messages, wire
from protocols.messages import (
    Close,
    Decline,
    Generate,
    Goodbye,
    Grow,
    Hello,
    Message,
    Open,
    Promote,
    Refuse,
    Resync,
    Role,
    Sampling,
    ToClient,
    ToController,
    ToDrafter,
    ToLearner,
    ToVerifier,
    Verdict,
)
from tests.world.caller import Caller
from tests.world.extremes import Extremes
from tests.world.models import INFO

DECODERS = {
    Role.CLIENT: ToClient,
    Role.DRAFTER: ToDrafter,
    Role.CONTROLLER: ToController,
    Role.LEARNER: ToLearner,
}
KINDS = typing.get_args(ToVerifier)
# What a role may send comes more often than what it may not, and to leave is an exception.
USUAL = {
    Role.CLIENT: ("Generate", "Cancel", "Status", "Tokenize", "Detokenize", "Swap", "DrainActor", "Heartbeat"),
    Role.DRAFTER: ("Grow", "Grow", "Grow", "Resync", "Decline", "DraftStats", "Heartbeat"),
    Role.CONTROLLER: ("Budget", "Heartbeat"),
    Role.LEARNER: ("Promote", "Heartbeat"),
}


class Hostile(Caller):
    """A peer that sends what comes to its mind, and checks that whatever it is sent can be decoded."""

    def __init__(self, network, role: Role, seed: int, info=INFO, name: str = "") -> None:
        """``info`` of the verifier's model."""
        super().__init__(network, name or f"hostile-{role}")
        self.role, self.info = role, info
        self.decoder = wire.Decoder(DECODERS[role])
        self.extremes = Extremes(seed)
        self.usual = [getattr(messages, name) for name in USUAL[role]]
        self.leases: dict[str, tuple[int, int]] = {}  # epoch and length of what was lent to it
        self.greet()

    def greet(self) -> None:
        digest, size = self.info.tokenizer_digest, self.info.vocab_size
        self.send(
            Hello(self.role, self.name, "1", model_id="hostile", tokenizer_digest=digest, vocab_size=size, step_us=1.0)
        )

    def rave(self, count: int) -> None:
        for _ in range(count):
            luck = self.extremes.random.random()
            message = self._aimed(self.extremes.message(self.usual if luck < 0.97 else KINDS))
            if not isinstance(message, Goodbye) or luck > 0.999:
                self.say(message)

    def say(self, message: Message) -> None:
        self.send(message)

    def _aimed(self, message: Message) -> Message:
        """Half of what a drafter sends concerns a lease that it holds, half of a learner's weights are for drafters
        that are there, and many a request can be served."""
        dice = self.extremes.random
        if isinstance(message, Generate) and dice.random() < 0.3:
            prompt = tuple(dice.randrange(2, 64) for _ in range(dice.randrange(1, 20)))
            sampling = Sampling(seed=message.sampling.seed, temperature=1.0, max_tokens=60)
            method = dice.choice(["sps", "pearl", "duodecoding", "tree", "auto"])
            fields = {"prompt": prompt, "messages": (), "sampling": sampling, "method": method, "generated": ()}
            return msgspec.structs.replace(message, rid=f"v{dice.randrange(40)}", attempt=message.attempt % 2, **fields)
        if isinstance(message, Promote) and self.role is Role.LEARNER and dice.random() < 0.5:
            return msgspec.structs.replace(message, model_id=self.info.model_id)
        if not isinstance(message, Grow | Resync | Decline) or not self.leases or dice.random() < 0.5:
            return message
        rid, (epoch, length) = dice.choice(list(self.leases.items()))
        message = msgspec.structs.replace(message, rid=rid, epoch=epoch)
        if isinstance(message, Grow) and dice.random() < 0.8:
            message = msgspec.structs.replace(message, base_len=length, tokens=tuple(t % 64 for t in message.tokens))
        return message

    def listen(self) -> None:
        stranger = False  # it said Goodbye, or Hello as something else
        while (frames := self.link.receive_nowait()) is not None:
            try:
                match self.decoder.decode(frames):
                    case Open(rid=rid, epoch=epoch, prefix=prefix):
                        self.leases[rid] = (epoch, len(prefix))
                    case Verdict(rid=rid, epoch=epoch, base_len=base, tokens=tokens):
                        self.leases[rid] = (epoch, base + len(tokens))
                    case Close(rid=rid):
                        self.leases.pop(rid, None)
                    case Refuse():
                        stranger = True
            except wire.ProtocolError as error:
                # It may be welcomed in another role: then it hears what that role understands.
                assert "Invalid value" in str(error), error
                stranger = True
        if stranger and self.extremes.random.random() < 0.5:
            self.leases.clear()
            self.greet()

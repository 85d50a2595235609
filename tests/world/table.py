"""A verifier without sockets and without a loop: its parts are called one by one, and its messages lie in a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.cost import CostModel
from actors.models import TargetModel
from actors.settings import VerifierSettings
from actors.verifier.compute import InlineCompute
from actors.verifier.context import Equipment
from actors.verifier.drafters import DrafterPeer
from actors.verifier.forward import compute
from actors.verifier.loop import Verifier
from actors.verifier.rounds import Round
from actors.verifier.sources.lookup import Library
from actors.verifier.streams import Stage, Stream
from protocols import wire
from protocols.messages import Hello, Message, Role, ToDrafter
from tests.world.models import ToyCodec
from tests.world.streams import toy_stream

COST = {1: 1000.0, 8: 1200.0, 16: 1500.0}  # microseconds by rows


class Deaf:
    """A listener that hears nothing; what it is given for the drafter is kept."""

    telemetry, watched = "", False

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self._decoder = wire.Decoder(ToDrafter)

    def holder(self, peer: bytes) -> None: ...

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        if peer == Table.DRAFTER:
            self.sent.append(self._decoder.decode(frames))
        return True

    def publish(self, topic: bytes, frames: Sequence[bytes]) -> None: ...


class Table:
    """One stream, whose prompt is to be computed."""

    DRAFTER = b"drafter"

    def __init__(
        self,
        target: TargetModel,
        stream: Stream,
        library: Library | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        cost: CostModel | None = None,
        measure_again: Callable[[], None] = lambda: None,
    ) -> None:
        self.listener, self.stream = Deaf(), stream
        equipment = Equipment(
            target, ToyCodec(), cost or CostModel(COST), InlineCompute(),
            library=library or Library(), measure_again=measure_again, clock=clock, timer=lambda: 0.0,
        )  # fmt: skip
        self.verifier = Verifier(VerifierSettings(bind="memory://table"), equipment, self.listener)
        stream.wait.max_window = min(target.max_window, stream.strategy.nodes)
        self.verifier.state.requests.add(stream)

    def connect(self, **hello) -> None:
        """A drafter is there, which is lent the stream with its next forward."""
        fields = {
            "role": Role.DRAFTER,
            "model_id": "toy-draft",
            "actor_id": "d1",
            "incarnation": "1",
            "step_us": 100.0,
            **hello,
        }
        self.verifier.state.drafters.by_peer[self.DRAFTER] = DrafterPeer(self.DRAFTER, Hello(**fields), 0.0)

    def forward(self) -> Round | None:
        """Plan, compute and commit the next forward; None: the stream waits, or has ended."""
        verifier = self.verifier
        batch = verifier.scheduler.plan()
        if batch is None:
            return None
        computed = compute(verifier.context.target, batch, lambda _: False, lambda: 0.0)
        begun = verifier.context.clock() - 0.001
        done = verifier.committer.commit(batch, computed._replace(forward_us=1000.0), begun, 0.0)
        verifier.context.price.observe(done)
        return done

    @property
    def over(self) -> bool:
        return self.stream.status in (Stage.FINISHING, Stage.ENDED)

    def finish(self) -> list[int]:
        """The whole output."""
        while not self.over:
            self.forward()
        text = self.stream.text
        return text.committed[text.prompt_len :]


def asked(prompt: Sequence[int], method: str, **fields) -> Stream:
    """A stream that waits for room."""
    stream = toy_stream(prompt, method, **fields)
    stream.status = Stage.QUEUED
    return stream

"""Any messages that can be decoded, from peers of every role, in any order: nothing ends, nothing grows.

``python tests/system/test_hostile_peers.py 1000000`` sends a million from each role and says what they cost.
"""

from __future__ import annotations

import asyncio
import sys
import time
import typing
from collections import deque
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from cluster import Caller, Cluster, tokens_of  # noqa: E402
from desk import Desk  # noqa: E402
from extremes import Extremes  # noqa: E402
from virtual_time import run  # noqa: E402

from actors.controller.loop import Controller  # noqa: E402
from fakes import INFO, ToyLanguage  # noqa: E402
from protocols import messages, wire  # noqa: E402
from protocols.messages import (  # noqa: E402
    Close,
    Decline,
    Generate,
    Goodbye,
    Grow,
    Hello,
    Message,
    Open,
    Refuse,
    Resync,
    Role,
    Sampling,
    Status,
    StatusReport,
    Telemetry,
    ToClient,
    ToController,
    ToDrafter,
    ToVerifier,
    Verdict,
)

BURST = 50  # messages sent before the verifier has a turn
LANGUAGE = ToyLanguage(eos_rate=0.02)
SMALL = replace(INFO, max_context=120)
DECODERS = {Role.CLIENT: ToClient, Role.DRAFTER: ToDrafter, Role.CONTROLLER: ToController}
KINDS = typing.get_args(ToVerifier)
# What a role may send comes more often than what it may not, and to leave is an exception.
USUAL = {
    Role.CLIENT: ("Generate", "Cancel", "Status", "Tokenize", "Detokenize", "Swap", "DrainActor", "Heartbeat"),
    Role.DRAFTER: ("Grow", "Grow", "Grow", "Resync", "Decline", "DraftStats", "Heartbeat"),
    Role.CONTROLLER: ("Budget", "Heartbeat"),
}


class Hostile(Caller):
    """A peer that sends what comes to its mind, and checks that whatever it is sent can be decoded."""

    def __init__(self, network, role: Role, seed: int) -> None:
        super().__init__(network, f"hostile-{role}")
        self.role = role
        self.decoder = wire.Decoder(DECODERS[role])
        self.extremes = Extremes(seed)
        self.usual = [getattr(messages, name) for name in USUAL[role]]
        self.leases: dict[str, tuple[int, int]] = {}  # epoch and length of what was lent to it
        self.greet()

    def greet(self) -> None:
        digest, size = INFO.tokenizer_digest, INFO.vocab_size
        self.send(Hello(self.role, self.name, "1", tokenizer_digest=digest, vocab_size=size, step_us=1.0))

    def rave(self, count: int) -> None:
        for _ in range(count):
            luck = self.extremes.random.random()
            message = self._aimed(self.extremes.message(self.usual if luck < 0.97 else KINDS))
            if not isinstance(message, Goodbye) or luck > 0.999:
                self.send(message)

    def _aimed(self, message: Message) -> Message:
        """Half of what a drafter sends concerns a lease that it holds, and many a request can be served."""
        dice = self.extremes.random
        if isinstance(message, Generate) and dice.random() < 0.3:
            prompt = tuple(dice.randrange(2, 64) for _ in range(dice.randrange(1, 20)))
            sampling = Sampling(seed=message.sampling.seed, temperature=1.0, max_tokens=60)
            method = dice.choice(["sps", "pearl", "duodecoding", "tree", "auto"])
            fields = {"prompt": prompt, "messages": (), "sampling": sampling, "method": method, "generated": ()}
            return msgspec.structs.replace(message, rid=f"v{dice.randrange(40)}", attempt=message.attempt % 2, **fields)
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


async def rant(count: int, seed: int, roles=tuple(DECODERS), report=lambda sent: None) -> dict[str, int]:
    """So many messages from each role. Returns what the verifier counted."""
    cluster = Cluster(language=LANGUAGE, forward_s=0.001)
    cluster.target.slots, cluster.target.info = 4000, SMALL
    cluster.target.batches = deque(maxlen=10)  # what grows is to be the verifier's
    async with cluster:
        cluster.start_drafter("d1")
        cluster.start_controller()
        await cluster.connected("d1")
        feed = cluster.network.subscribe(cluster.verifier.listener.telemetry)
        telemetry = wire.Decoder(Telemetry)
        hostile = [Hostile(cluster.network, role, seed + i) for i, role in enumerate(roles)]
        for sent in range(0, count, BURST):
            for peer in hostile:
                peer.rave(min(BURST, count - sent))
            await asyncio.sleep(0.01)
            for peer in hostile:
                peer.listen()
            while len(feed.inbox):
                telemetry.decode(await feed.receive())
            for name, task in cluster.tasks.items():
                assert not task.done() or name == "d1", f"{name} ended"  # the drafter may have been drained
            report(sent)
        for peer in hostile:
            peer.send(Goodbye())
        await asyncio.sleep(20.0)  # until the honest ones are known again and the rest has ended
        caller = await cluster.caller()
        chunks = await caller.generate((5, 9, 33), Sampling(max_tokens=30, ignore_eos=True), "sps")
        assert tokens_of(chunks) == LANGUAGE.continuation((5, 9, 33), Sampling(max_tokens=30, ignore_eos=True))
        await asyncio.sleep(1.0)
        caller.send(Status("s"))
        status = await caller.until(lambda m: isinstance(m, StatusReport))
        assert not status.requests and cluster.target.kv_used == 0
        return status.counters


@pytest.mark.parametrize("seed", range(3))
def test_whatever_can_be_decoded_ends_nobody_and_every_answer_can_be_decoded(seed):
    counters = run(rant(1500, 10 * seed))
    assert counters["out_of_role"] > 0 and counters["fenced_lease"] > 0 and counters["generation_tokens"] > 100


def test_a_drafter_survives_whatever_a_verifier_says():
    async def go():
        async with Desk() as desk:
            extremes = Extremes(5)
            kinds = [one for one in typing.get_args(ToDrafter) if one.__name__ not in ("Refuse", "Drain", "Welcome")]
            for _ in range(60):
                desk.send(*(extremes.message(kinds) for _ in range(BURST)))
                await desk.settle(0.01)
                assert not desk.running.done()
            assert len(desk.drafter.leases) <= 5 and len(desk.drafter.declined) <= 1000

    run(go())


def test_the_controller_survives_whatever_is_published():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            controller: Controller = cluster.start_controller()
            await asyncio.sleep(1.0)
            extremes = Extremes(6)
            for _ in range(60):
                for _ in range(BURST):
                    message: Message = extremes.message(typing.get_args(Telemetry))
                    cluster.verifier.committer.publish(message)
                await asyncio.sleep(0.05)
                assert not cluster.tasks["controller"].done(), "the controller ended"
            return controller

    run(go())


def resident() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main(count: int) -> None:
    began, at_first, most = time.monotonic(), 0, 0

    def report(sent: int) -> None:
        nonlocal at_first, most
        if sent == 1000 - 1000 % BURST:  # imports and first allocations are over
            at_first = resident()
        most = max(most, resident() - at_first if at_first else 0)
        if sent % 50_000 == 0:
            print(f"{sent:9,} from each role, {most / 1e6:6.1f} MB more, {time.monotonic() - began:5.0f} s", flush=True)

    counters = run(rant(count, 1, report=report))
    print(f"{count:,} messages from each role: at most {most / 1e6:.1f} MB more than after the first thousand")
    print(dict(sorted(counters.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]))

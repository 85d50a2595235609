"""The system in virtual time: verifier, drafter and controller as they are, a target that knows its texts.

What is predicted is decoding, one stream at a time. sps is exact: its rounds accept what they would in a running
system, because verifier and drafter take turns. What the other methods accept depends on who is ready when, and so on
how true the measured times are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from actors.controller.loop import Controller
from actors.cost import CostModel
from actors.drafter.loop import Drafter
from actors.models import DraftModel, ModelInfo
from actors.peer import Line
from actors.proposers.memory import Memory
from actors.records import LoggedRequest
from actors.replay.clock import Metered, run
from actors.replay.measured import CALIBRATED, Beside, Measuring, RoundTimes
from actors.replay.models import InlineVirtualDraft, LoggedTarget, NoText, VirtualCompute, VirtualDraft, asked
from actors.replay.network import ADDRESS, MemoryListener, MemoryNetwork
from actors.settings import VerifierSettings
from actors.verifier.loop import Verifier
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.retrieval import FallbackProposer, Sources
from protocols import wire
from protocols.errors import RequestError
from protocols.messages import Chunk, Failed, Generate, Hello, RequestStats, Role, ToClient

MEASURED = 400  # tokens of requests by which the verifier's own code is measured: its rounds differ by a tenth
SETTLED_S = 0.01  # by then everybody has said hello


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds: of a forward by rows, of a draft step by leaves, and of a message either way between verifier and
    drafter."""

    forward: Mapping[int, float]
    step: Mapping[int, float]
    message: float = 0.0
    round: RoundTimes = CALIBRATED
    inline_step: Mapping[int, float] | None = None  # of the verifier's own draft model; None: it has none
    lent: Mapping[int, float] | None = None  # of a forward with the CPUs that resting drafters leave; None: the same
    branch: float = 0.0  # what a path of a window beside the first adds, as a part of a forward of one row


@dataclass(frozen=True, slots=True)
class Policy:
    """What requests ask for; 0: the system decides. ``memory``: of `duoactor verifier --memory`."""

    method: str
    num_speculative_tokens: int = 0
    sequences: int = 0
    memory: int = 0
    branches: bool = True  # of the target
    draft: bool = True  # a draft model; without one, only what the verifier retrieves
    retrieval: bool = True  # beside the draft model


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request. ``accepted``: draft tokens of each round; ``tokens`` and ``decode_ms`` behind the first token."""

    request: LoggedRequest
    accepted: tuple[int, ...]
    stats: RequestStats

    @property
    def tokens(self) -> int:
        return len(self.request.text) - 1

    @property
    def decode_ms(self) -> float:
        return self.stats.decode_ms


def replay(logged: Sequence[LoggedRequest], draft: DraftModel, times: Times, policy: Policy) -> list[Replayed]:
    """Every request in turn. RequestError where the method is none, or needs what a replay does not have."""
    return run(_replay(logged, draft, times, policy, Metered()))


def measured(
    logged: Sequence[LoggedRequest],
    draft: DraftModel,
    times: Times,
    policy: Policy,
    beside: Beside,
    forward: float | None = None,
) -> RoundTimes:
    """What rounds take here and now, in a replay of a few requests. ``beside`` computes what the target would.
    ``forward``: see :meth:`Measuring.found`. Sockets are not in it: what the memory network takes is in their place."""
    few, tokens = [], 0
    for request in logged:
        few.append(request)
        tokens += len(request.text)
        if tokens >= MEASURED:
            break
    if times.lent:
        beside.use_spare_cpus(False)  # as the verifier begins
    process = Metered()
    measuring = Measuring(process, beside)
    run(_replay(few, draft, times, policy, process, measuring))
    return measuring.found(forward)


async def _replay(
    logged: Sequence[LoggedRequest],
    draft: DraftModel,
    times: Times,
    policy: Policy,
    process: Metered,
    measuring: Measuring | None = None,
) -> list[Replayed]:
    listener, stop = MemoryListener(), asyncio.Event()
    cost, loop = CostModel(times.forward, times.branch, times.lent), asyncio.get_running_loop()
    target = LoggedTarget(_info(logged, draft.info), logged, cost, policy.branches, times.round, measuring)
    verifier = Verifier(
        VerifierSettings(bind=ADDRESS),
        target,
        NoText(),
        cost,
        listener,
        VirtualCompute(target, process, overlaps=times.inline_step is None),
        "replay",
        clock=process.clock,
        timer=lambda: target.spent_s,
        sources=_sources(policy),
        inline=_inline(draft, target, times, process, measuring) if policy.draft else None,
    )
    virtual, info = VirtualDraft(draft, CostModel(times.step)), target.info
    hello = Hello(
        Role.DRAFTER, "drafter", "replay", info.model_id, draft.info.vocab_size or info.vocab_size,
        info.tokenizer_digest, draft.info.max_context, step_us=times.step[min(times.step)],
    )  # fmt: skip
    drafter = Drafter(
        virtual,
        MemoryNetwork(listener, times.message / 1e6),
        ADDRESS,
        hello,
        dict(times.step),
        clock=virtual.process.clock,
        timer=lambda: virtual.spent_s,
    )
    controller = Controller(MemoryNetwork(listener), ADDRESS, Hello(Role.CONTROLLER, "controller", "replay"))
    client = Line(MemoryNetwork(listener), ADDRESS, Hello(Role.CLIENT, "client", "replay"), wire.Decoder(ToClient))
    actors = [
        process.run(verifier.run(stop)),
        loop.create_task(controller.run(stop)),
        *([virtual.process.run(drafter.run(stop))] if policy.draft else []),
    ]
    await client.open()
    beating = loop.create_task(client.beat())
    await asyncio.sleep(SETTLED_S + 2 * times.message / 1e6)
    try:
        return [await _ask(client, request, policy, f"r{number}") for number, request in enumerate(logged)]
    finally:
        beating.cancel()
        stop.set()
        await asyncio.gather(beating, *actors, return_exceptions=True)


def _sources(policy: Policy) -> Sources:
    if not policy.retrieval:
        return NoSources()
    return Sources(memory=Memory(policy.memory) if policy.memory else None)


class NoSources(Sources):
    """Beside a draft model nothing is retrieved."""

    def fallbacks(self, sampled: bool, cache_salt: str = "") -> list[FallbackProposer]:
        return []


def _inline(
    draft: DraftModel, target: LoggedTarget, times: Times, process: Metered, measuring: Measuring | None
) -> InlineDraft | None:
    if times.inline_step is None:
        return None
    model = InlineVirtualDraft(draft, CostModel(times.inline_step), target, process, times.round, measuring)
    info = target.info
    return InlineDraft(model, times.inline_step, info.vocab_size, info.eos_token_ids, lambda: target.spent_s)


async def _ask(client: Line, request: LoggedRequest, policy: Policy, rid: str) -> Replayed:
    client.send(
        Generate(
            rid,
            request.prompt,
            sampling=asked(request),
            method=policy.method,
            num_speculative_tokens=policy.num_speculative_tokens,
            sequences=policy.sequences,
        )
    )
    accepted: list[int] = []
    while True:
        match await client.next():
            case Failed(code=code, detail=detail):
                raise RequestError(code, detail)
            case Chunk() as chunk if chunk.token_ids:
                accepted.append(sum(chunk.accepted))
                if chunk.stats is not None:
                    return Replayed(request, tuple(accepted[1:]), chunk.stats)  # the first token is the prefill's


def _info(logged: Sequence[LoggedRequest], draft: ModelInfo) -> ModelInfo:
    """The target's, as far as a log tells: it has no end tokens but those that the requests name."""
    vocabulary = max(draft.vocab_size, 1 + max(max(*one.prompt, *one.text) for one in logged))
    context = 1 + max(len(one.prompt) + max(len(one.text), one.sampling.max_tokens) for one in logged)
    return replace(draft, vocab_size=vocabulary, max_context=context, eos_token_ids=frozenset(), tokenizer=None)

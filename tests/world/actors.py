"""The actors as tests start them: the one place that knows how each is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actors.controller.loop import Controller
from actors.cost import CostModel
from actors.draft_timing import WIDTHS
from actors.drafter.loop import Drafter
from actors.models import Codec, DraftModel, TargetModel
from actors.peer import Line
from actors.settings import VerifierSettings
from actors.verifier.compute import Compute
from actors.verifier.context import Equipment
from actors.verifier.loop import Verifier
from actors.verifier.sources.inline import InlineDraft
from protocols.messages import Hello, Role, ToDrafter
from protocols.transport import Listener, Network
from protocols.wire import Decoder
from tests.world.caller import ADDRESS
from tests.world.models import Costs, ToyCodec

ROWS = (1, 2, 4, 8, 16, 32)


def timed_verifier(
    target: TargetModel,
    listener: Listener,
    compute: Compute,
    costs: Costs,
    timer: Callable[[], float],
    clock: Callable[[], float] | None = None,
    draft: DraftModel | None = None,
    codec: Codec | None = None,
) -> Verifier:
    """A verifier that measured ``costs`` at its start. ``draft``: drafts between its forwards."""
    lent = {rows: costs.lent * costs.rows(rows) for rows in ROWS} if costs.lent < 1 else None
    inline = None
    if draft is not None:
        info = target.info
        steps = {leaves: costs.steps(leaves) for leaves in WIDTHS}
        inline = InlineDraft(draft, steps, info.vocab_size, info.eos_token_ids, timer)
    cost = CostModel({rows: costs.rows(rows) for rows in ROWS}, lent=lent)
    equipment = Equipment(target, codec or ToyCodec(), cost, compute, inline=inline, clock=clock, timer=timer)
    return Verifier(VerifierSettings(bind=ADDRESS), equipment, listener)


def timed_drafter(
    name: str,
    draft: DraftModel,
    network: Network,
    costs: Costs,
    timer: Callable[[], float],
    clock: Callable[[], float],
    **hello: Any,
) -> Drafter:
    info = draft.info
    said = Hello(
        Role.DRAFTER, name, "d", f"toy-{name}", info.vocab_size, info.tokenizer_digest, info.max_context,
        step_us=costs.step, **hello,
    )  # fmt: skip
    steps: Mapping[int, float] = {leaves: costs.steps(leaves) for leaves in WIDTHS}
    return Drafter(draft, drafter_line(network, said, clock=clock), dict(steps), timer)


def drafter_line(
    network: Network, hello: Hello, address: str = ADDRESS, clock: Callable[[], float] | None = None
) -> Line:
    return Line(network, address, hello, Decoder(ToDrafter), clock)


def controller(network: Network) -> Controller:
    return Controller(network, ADDRESS, Hello(Role.CONTROLLER, "controller", "c"))

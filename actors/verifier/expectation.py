"""What a user may expect before anything is known of a text: how the CPUs are used, who drafts, at what rates.

It is told, and decides nothing. The rates are those that the decisions are made by: :meth:`Budgets.promise` for a
drafter and :meth:`InlineDraft.promise` for drafts between forwards, as :meth:`State.worth_lending` compares them.
"""

from __future__ import annotations

from actors.controller.goodput import PRIOR_RANKS
from actors.process import own_cpus
from actors.settings import MAX_THREADS
from actors.tree.calibration import USUAL
from actors.tree.methods import strategy_for
from actors.verifier.drafters.standing import PAYS
from actors.verifier.state import State
from protocols.limits import Mean, within
from protocols.messages import Expectation


def expectation(state: State) -> Expectation:
    """Of a stream alone by the default method."""
    settings = state.settings
    drafts, promised, agreement = _drafts(state)
    plain = state.budgets.plain() * 1e6
    on_cpu = state.info.device == "cpu"
    return Expectation(
        threads=(settings.threads or min(MAX_THREADS, own_cpus())) if on_cpu else 0,
        cpus=settings.cpus if on_cpu else "",
        spare_cpus=settings.spare_cpus if state.cost.lends else "",
        drafts=drafts,
        plain_tokens_per_second=within(plain, Mean),
        tokens_per_second=within(plain * promised, Mean),
        agreement=agreement,
    )


def _drafts(state: State) -> tuple[str, float, float]:
    """(actor id of who drafts, speed-up that it promises, agreement assumed in that); zeros: nobody with a draft model.
    What a drafter without one retrieves depends on the text alone, and is not predicted."""
    method = state.settings.method
    strategy = strategy_for(method)
    chosen = ("", 0.0, 0.0)
    if not strategy.drafter:
        return chosen
    if strategy.inline and state.inline is not None:
        chosen = (state.settings.actor_id, state.own_drafts.promised, USUAL)
    _, own, _ = chosen
    for drafter in state.drafters.by_peer.values():
        if not drafter.hello.max_context or drafter.draining:
            continue
        promised = state.budgets.promise(method, drafter, 1)
        if promised >= max(PAYS * own, chosen[1]):
            chosen = (drafter.actor_id, promised, PRIOR_RANKS[0])
    return chosen

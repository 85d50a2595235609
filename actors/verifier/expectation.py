"""What a user may expect before anything is known of a text: how the CPUs are used, who drafts, at what rates.

It is only reported. The rates are those that decisions are made by: :meth:`Budgets.promise` of a drafter and
:meth:`InlineDraft.promise` of the verifier's own draft model, compared as :meth:`State.worth_lending` does.
"""

from __future__ import annotations

from actors.calibration import USUAL
from actors.controller.goodput import PRIOR_RANKS
from actors.methods import strategy_for
from actors.process import own_cpus
from actors.settings import MAX_THREADS
from actors.verifier.standing import PAYS
from actors.verifier.state import State
from protocols.limits import Mean, within
from protocols.messages import Expectation


def expectation(state: State) -> Expectation:
    """The expectation for a single stream of the default method."""
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
    """(actor id of who drafts, predicted speed-up, agreement assumed in it); ("", 0, 0) if nobody has a draft model.

    Drafters that retrieve are left out: what they find depends on the text alone and cannot be predicted."""
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

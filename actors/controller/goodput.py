"""Goodput: which gamma and how many sequences give the most tokens per second. Pure arithmetic.

Everything is in microseconds and in probabilities that a draft token is the target's, given that all before it were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.tree.window import Cost
from protocols.messages import Method

MAX_GAMMA = 32


def hardware_gamma(cost: Cost, step_us: float) -> int:
    """The paper's hardware-aware budget: the draft length that takes as long as its own verification."""
    for gamma in range(1, MAX_GAMMA):
        if gamma * step_us >= cost(1 + gamma):
            return gamma
    return MAX_GAMMA


@dataclass(frozen=True, slots=True)
class Belief:
    """What the controller has learned.

    ``acceptance[i]``: chance that the draft token at depth i + 1 is right, given those above it; the last one holds
    for everything deeper. ``heads[k - 1]``: chance that the next token is among the first tokens of k sequences.
    """

    acceptance: Sequence[float]
    heads: Sequence[float]
    step_us: float
    width_penalty: float = 0.15  # a step of k sequences costs 1 + width_penalty * (k - 1) single steps
    overhead_us: float = 300.0
    message_us: float = 0.0  # to the drafter and back

    def at(self, depth: int) -> float:
        return self.acceptance[min(depth, len(self.acceptance) - 1)]

    def head(self, sequences: int) -> float:
        return self.heads[min(sequences, len(self.heads)) - 1]

    def expected(self, length: int) -> tuple[float, float]:
        """(expected accepted tokens of a chain of that length, chance that all of it is accepted)."""
        total, alive = 0.0, 1.0
        for depth in range(length):
            alive *= self.at(depth)
            total += alive
        return total, alive


def goodput(method: str, gamma: int, sequences: float, belief: Belief, cost: Cost) -> float:
    """Tokens per microsecond that the method should reach with that draft length, shared by so many sequences (a mean:
    the theta rule chooses anew in every phase)."""
    if gamma <= 0 or method == Method.VANILLA:
        return 1.0 / (cost(1) + belief.overhead_us)
    if method == Method.SPS:
        accepted, _ = belief.expected(gamma)
        return (1 + accepted) / (gamma * belief.step_us + belief.message_us + cost(1 + gamma) + belief.overhead_us)
    # Parallel drafting (PEARL, DuoDecoding) alternates between an empty tree, where the target decodes one token while
    # the drafter drafts (pre-verify), and a chain of length gamma / k (post-verify). ``stay`` and ``enter`` are the
    # chances that the next round has a chain; their stationary mix weighs tokens and time.
    # The verifier looks at what there is when its forward ends: a slow drafter makes chains shorter, not rounds longer,
    # but for the first token, which it waits for.
    k = max(1.0, min(sequences, gamma))
    step = belief.step_us * (1 + belief.width_penalty * (k - 1))
    if method == Method.DUODECODING_LOCKSTEP:  # here the verifier waits until the whole phase is there
        length = max(0, round(gamma / k) - 1)
        first = gamma / k * step + belief.message_us
    else:
        in_time = (cost(1 + round(gamma / k)) - belief.message_us) / step
        length = max(0, round(min(gamma / k, max(1.0, in_time))) - 1)
        first = step + belief.message_us
    accepted, whole = belief.expected(length)
    enter = belief.head(round(k))
    stay = whole * enter
    chain_share = enter / (1 - stay + enter) if stay < 1 else 1.0
    empty_share = 1 - chain_share
    tokens = empty_share + chain_share * (1 + accepted)
    time = empty_share * max(cost(1), first) + chain_share * max(cost(1 + length), first) + belief.overhead_us
    return tokens / time


def best_setting(method: str, belief: Belief, cost: Cost, sequences: float = 1.0) -> tuple[int, float]:
    """(gamma of at least 1, tokens per microsecond) with the highest predicted goodput."""
    rates = {gamma: goodput(method, gamma, sequences, belief, cost) for gamma in range(1, MAX_GAMMA + 1)}
    gamma = max(rates, key=lambda one: rates[one])
    return gamma, rates[gamma]


def initial_gamma(cost: Cost, step_us: float, method: str) -> int:
    """Before anything is known of the acceptance: the hardware's budget, but no longer than pays at 0.7 a token.

    Where verifying is flat in the number of tokens (a GPU) this is the paper's budget; where every row costs, as on a
    CPU, a longer chain would lose what it gains.
    """
    belief = Belief(acceptance=(0.7,), heads=(0.7,), step_us=step_us)
    gamma, _ = best_setting(method, belief, cost)
    return min(hardware_gamma(cost, step_us), gamma)

"""From a setting to the budget that commands it, for the controller and for the verifier that is without one."""

from __future__ import annotations

from actors.controller.goodput import (
    ALONE,
    MAX_GAMMA,
    TREES,
    Belief,
    Setting,
    chain_window,
    dimensions,
    tree_window,
)
from actors.methods import strategy_for
from protocols.limits import WaitMicroseconds, within
from protocols.messages import Budget, Method

# Settings come from mean chances. Where a draft is sure of itself a tree pays twice as deep and a window twice as large
# as they say, where it is unsure twice as many leaves (in simulation a tree of just that depth loses 10% where steps
# are slow); a wait that takes twice as long as it should is given up.
MARGIN = 2
COPIED = 16  # draft tokens of a window that text which copies is worth (FALLBACK_NODES of the verifier's retrieval)


def command(method: str, setting: Setting, belief: Belief) -> Budget:
    """What is None is the method's own: how long a chain waits belongs to its rules, and where the sides take turns or
    go in step its window is its chain."""
    shared = belief.streams > ALONE
    if method not in TREES:
        sequences = setting.sequences if "sequences" in dimensions(method) else None
        parallel = strategy_for(method).waits == "survivor"
        window = chain_window(belief) if parallel else None
        wait_us = 0.0 if shared and parallel else None
        return Budget(0, 0, method, gamma=setting.gamma, sequences=sequences, window=window, wait_us=wait_us)
    copied = COPIED if method == Method.AUTO else 0
    # A stream alone knows best itself when a wait pays; streams that share a forward miss it when they wait.
    longest_us = MARGIN * (belief.message_us + max(1, setting.wait) * belief.draft(setting.sequences))
    return Budget(
        0,
        0,
        method,
        gamma=min(MAX_GAMMA, MARGIN * max(2, setting.gamma)),
        sequences=MARGIN * setting.sequences,
        window=min(MAX_GAMMA, MARGIN * tree_window(setting, belief) + copied),
        wait_us=0.0 if shared else within(longest_us, WaitMicroseconds),
    )

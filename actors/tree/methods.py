"""Every method of the field as a setting of one loop (DESIGN section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from actors.proposers.ngram_pool import Lookahead
from protocols.errors import RequestError
from protocols.messages import FailureCode, Method

DEFAULT_NODES = 31  # 32 rows with the root
REST_NODES = 63


class Kind(NamedTuple):
    """Requests that the controller learns from together: of one method, alike in what they fix by themselves, and with
    one drafter. Empty or 0: any."""

    method: str
    fixed_gamma: int = 0
    fixed_sequences: int = 0
    drafter: str = ""  # actor id


@dataclass(frozen=True, slots=True)
class Strategy:
    method: Method
    drafter: bool = False  # a drafter process grows the tree
    window: str = "root"  # "root", "chain", "priced" or "proposal" (whatever the verifier's own proposer says)
    waits: str = "never"  # "phase": until gamma is drafted; "survivor": briefly, when drafts should have survived;
    #                       "priced": as long as drafts come faster than tokens do now; "lockstep": until the phase
    #                       drafted during the round is over, and the drafter hears of the round no sooner
    proposer: str = ""  # the verifier's own guesses: alone (window "proposal") or beside a drafter's
    inline: bool = False  # a draft model of the verifier's own may draft it between two forwards
    may_rest: bool = False  # a method that a user names drafts; only ``auto`` may find that drafts do not pay
    nodes: int = DEFAULT_NODES  # most nodes of a window; the engine may allow fewer


STRATEGIES: dict[Method, Strategy] = {
    s.method: s
    for s in (
        Strategy(Method.VANILLA),
        Strategy(Method.SPS, drafter=True, window="chain", waits="phase"),
        Strategy(Method.PEARL, drafter=True, window="chain", waits="survivor"),
        Strategy(Method.DUODECODING, drafter=True, window="chain", waits="survivor"),
        Strategy(Method.DUODECODING_LOCKSTEP, drafter=True, window="chain", waits="lockstep"),
        Strategy(Method.TREE, drafter=True, window="priced", waits="priced"),
        Strategy(
            Method.AUTO, drafter=True, window="priced", waits="priced", proposer="sam", inline=True, may_rest=True
        ),
        Strategy(Method.PLD, window="proposal", proposer="pld"),
        Strategy(Method.PLD_EARLIEST, window="proposal", proposer="pld-earliest"),
        Strategy(Method.SAM, window="proposal", proposer="sam"),
        Strategy(Method.REST, window="proposal", proposer="rest", nodes=REST_NODES),
        Strategy(Method.LOOKAHEAD, window="proposal", proposer="lookahead", nodes=Lookahead().max_rows),
    )
}


def strategy_for(method: str) -> Strategy:
    """The strategy of that name; RequestError(unsupported) names those there are."""
    try:
        return STRATEGIES[Method(method)]
    except (ValueError, KeyError):
        names = ", ".join(STRATEGIES)
        detail = f"method {method!r} is not one this verifier knows; choose one of {names}"
        raise RequestError(FailureCode.UNSUPPORTED, detail) from None

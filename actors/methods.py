"""Every method as a setting of one loop: a drafter grows a tree per request, the verifier verifies a window of it. How
the drafter grows it is :mod:`actors.drafter.growth`'s; the rest is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from actors.models import DEFAULT_NODES
from actors.proposers.ngram_pool import Lookahead
from protocols.errors import RequestError
from protocols.messages import FailureCode, Method

REST_NODES = 63

# Which nodes of the tree are verified in a round: none, so that the root alone is; the likeliest path; those that are
# worth their time; or all that the verifier's own proposer has proposed.
WindowRule = Literal["root", "chain", "priced", "proposal"]
# What a round waits for before it begins:
# - "phase": until the drafter has drafted gamma tokens (SpS, where verifier and drafter take turns);
# - "survivor": for one draft token, if the whole last window was accepted and nothing is left below it;
# - "priced": for as many draft tokens as come faster than tokens do without them;
# - "lockstep": until the phase that was drafted during the last round is over; only then is the drafter told of that
#   round (DuoDecoding as published).
WaitRule = Literal["never", "phase", "survivor", "priced", "lockstep"]


class Kind(NamedTuple):
    """Requests that share one setting of the controller: of one method, with the same numbers fixed by the request, and
    with one drafter. Empty or 0: any."""

    method: str
    fixed_gamma: int = 0
    fixed_sequences: int = 0
    drafter: str = ""  # actor id


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the verifier decodes a request of one method."""

    method: Method
    drafter: bool = False  # a drafter process grows the tree
    window: WindowRule = "root"
    waits: WaitRule = "never"
    proposer: str = ""  # of the verifier's own guesses: the whole window ("proposal"), or nodes beside a drafter's
    inline: bool = False  # the verifier's own draft model may draft for it between two forwards
    may_rest: bool = False  # drafting stops where it does not pay; a method that a user names always drafts
    nodes: int = DEFAULT_NODES  # most nodes of a window; the target may allow fewer


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
    """The strategy of a method. Raises RequestError ("unsupported"), which lists the methods that there are."""
    try:
        return STRATEGIES[Method(method)]
    except (ValueError, KeyError):
        names = ", ".join(STRATEGIES)
        detail = f"method {method!r} is not one this verifier knows; choose one of {names}"
        raise RequestError(FailureCode.UNSUPPORTED, detail) from None

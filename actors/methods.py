"""Every method as a setting of one loop: a drafter grows a tree per request, the verifier verifies a window of it. How
the drafter grows it is :mod:`actors.drafter.growth`'s; the rest is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.models import DEFAULT_NODES
from protocols.errors import RequestError
from protocols.messages import FailureCode, Method

EVERY_SOURCE = ("text", "memory", "datastore", "recycling", "drafter", "inline", "head")

# Which nodes of the tree are verified in a round: none, so that the root alone is; the likeliest path; those that are
# worth their time; or all that the verifier's own proposer has proposed.
WindowRule = Literal["root", "chain", "priced", "proposal"]
# What a round waits for before it begins:
# - "phase": until the drafter has drafted gamma tokens (SpS, where verifier and drafter take turns);
# - "survivor": for one draft token, if the whole last window was accepted and nothing is left below it;
# - "priced": for as many draft tokens as come faster than tokens do without them;
# - "lockstep": until the phase that was drafted during the last round is over; only then does the drafter learn how
#   that round ended (DuoDecoding as published).
WaitRule = Literal["never", "phase", "survivor", "priced", "lockstep"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """Decoding by one method: a row of the table below."""

    method: Method
    sources: tuple[str, ...] = ()  # sources of drafts, in the order in which they are asked
    window: WindowRule = "root"
    waits: WaitRule = "never"
    may_rest: bool = False  # drafting stops where it does not pay; a method that a user names always drafts
    nodes: int = DEFAULT_NODES  # most nodes of a window; the target may allow fewer

    @property
    def drafter(self) -> bool:
        """Whether a drafter process grows the tree."""
        return "drafter" in self.sources

    @property
    def proposer(self) -> str:
        """The proposer that proposes the whole window; empty: it is not."""
        return self.sources[0] if self.window == "proposal" else ""


STRATEGIES: dict[str, Strategy] = {
    s.method: s
    for s in (
        Strategy(Method.VANILLA),
        Strategy(Method.SPS, ("drafter",), "chain", "phase"),
        Strategy(Method.PEARL, ("drafter",), "chain", "survivor"),
        Strategy(Method.DUODECODING, ("drafter",), "chain", "survivor"),
        Strategy(Method.DUODECODING_LOCKSTEP, ("drafter",), "chain", "lockstep"),
        Strategy(Method.TREE, ("drafter",), "priced", "priced"),
        Strategy(Method.AUTO, EVERY_SOURCE, "priced", "priced", may_rest=True),
        Strategy(Method.PLD, ("pld",), "proposal"),
        Strategy(Method.PLD_EARLIEST, ("pld-earliest",), "proposal"),
        Strategy(Method.SAM, ("sam",), "proposal"),
        Strategy(Method.REST, ("rest",), "proposal", nodes=63),
        # a window of 4 levels and 7 columns without the root, and 7 n-grams of 4 tokens
        Strategy(Method.LOOKAHEAD, ("lookahead",), "proposal", nodes=55),
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

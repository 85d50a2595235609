"""Who had named the draft tokens that a round accepted: a draft model, or the verifier's own proposers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from actors.verifier.rounds import Committed


class Source(Enum):
    """What the verifier itself retrieves from, what costs least first."""

    TEXT = "text"  # the request's own: prompt and output
    MEMORY = "memory"  # texts of requests that have ended
    DATASTORE = "datastore"


class Credit(NamedTuple):
    """Accepted draft tokens, each counted once. Those that a grammar forced are left out."""

    draft: int = 0  # a draft model alone had named them
    both: int = 0  # a draft model, and a proposer as well
    text: int = 0  # no draft model: the request's own text had them, ...
    memory: int = 0  # ... it had not, but the memory had ...
    datastore: int = 0  # ... or else the datastore


NONE = Credit()


def credited(committed: Committed, matched: Mapping[Source, int], usual: Source) -> Credit:
    """``matched``: how many of the round's tokens, from the first on, the newest proposal of each source had, in the
    order of :class:`Source`. ``usual``: whose what no draft model and no newest proposal has named is taken to be; the
    tree may hold guesses of rounds before."""
    if not committed.named:
        return NONE
    draft = both = 0
    retrieved = dict.fromkeys(Source, 0)
    for place, named in enumerate(committed.named):
        if committed.forced and committed.forced[place]:
            continue
        found = next((source for source, tokens in matched.items() if place < tokens), None)
        if named:
            draft += found is None
            both += found is not None
        else:
            retrieved[found or usual] += 1
    return Credit(draft, both, *retrieved.values())

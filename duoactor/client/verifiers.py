"""The verifiers that a client knows, and the choice of one for each stream. No sockets, no clock."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from protocols.messages import Generate, Welcome

log = logging.getLogger("duoactor.client")
ONLY = ""  # the address of the only verifier, where there are no others
# Rows of a batch cost less than rounds of their own: twice the streams are at most twice as slow, and a prompt that is
# in the verifier's cache already is worth more than that.
CALM = 2
OPENING = 1024  # characters or tokens of a prompt that tell one conversation from another
CONVERSATIONS = 4096  # conversations that are remembered


class Served(NamedTuple):
    """What a verifier serves: a stream begins and ends on the same."""

    model_id: str
    dtype: str
    max_context: int
    vocab_size: int
    identity: str = ""

    @classmethod
    def by(cls, welcome: Welcome) -> Served:
        return cls(welcome.model_id, welcome.dtype, welcome.max_context, welcome.vocab_size, welcome.identity)

    def told_from(self, other: Served) -> str:
        """A name that differs from the other's; sizes are named only where nothing else tells the two apart."""
        name = f"{self.model_id} in {self.dtype}"
        if name != f"{other.model_id} in {other.dtype}":
            return name
        if (self.max_context, self.vocab_size) != (other.max_context, other.vocab_size):
            return f"{name} (context {self.max_context}, vocabulary {self.vocab_size})"
        return f"{name} (files {self.identity[:8] or 'unknown'})"


class Verifiers:
    """The verifiers that a client knows by address, and which of them a stream goes to.

    They serve one model: a stream must be able to go on at any of them with the same text. One with another model is
    left out as long as any has the model in force; once none has, the first that is there decides what is served.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._welcomes: dict[str, Welcome | None] = dict.fromkeys(addresses)  # None: it is not there
        self._leaving: set[str] = set()  # they take nothing new
        self.served: Served | None = None  # the model in force; None: no verifier has answered yet
        self._conversations: OrderedDict[int, str] = OrderedDict()  # the address that served each, by its opening

    def welcomed(self, address: str, welcome: Welcome) -> None:
        self._welcomes[address] = welcome
        self._leaving.discard(address)
        self._elect()
        theirs, ours = Served.by(welcome), self.served
        if ours is not None and theirs != ours:
            names = theirs.told_from(ours), ours.told_from(theirs)
            log.warning("the verifier at %s serves %s and not %s, as the others do; it is not used", address, *names)

    def lost(self, address: str) -> None:
        self._welcomes[address] = None
        self._elect()

    def leaves(self, address: str) -> None:
        self._leaving.add(address)
        self._elect()

    def _elect(self) -> None:
        """Take another model where no verifier has the one in force any more, and one has another."""
        there = {one: Served.by(said) for one, said in self._welcomes.items() if said and one not in self._leaving}
        if not there or self.served in there.values():
            return
        address, found = next(iter(there.items()))
        if self.served is not None:
            names = self.served.told_from(found), address, found.told_from(self.served)
            log.warning("no verifier serves %s any more; requests go to %s, which serves %s", *names)
        self.served = found

    def incarnation(self, address: str | None) -> str:
        welcome = self._welcomes.get(address or ONLY)
        return welcome.incarnation if welcome is not None else ""

    def serves(self, address: str) -> bool:
        """Whether that verifier, as far as it is known, has the model in force."""
        welcome = self._welcomes.get(address)
        return len(self._welcomes) == 1 if welcome is None else Served.by(welcome) == self.served

    def usable(self, but: Collection[str] = ()) -> list[str]:
        """The ones that take requests. An only one counts as there: its requests wait for it."""
        return [one for one in self._welcomes if one not in self._leaving and one not in but and self.serves(one)]

    def choose(self, request: Generate, streams: Mapping[str, int], but: Collection[str] = ()) -> str | None:
        """The address for a request; None while there is none. ``streams``: how many each serves for this client.

        The one with the fewest; a conversation goes back to the verifier that has it in its cache, unless clearly
        busier.
        """
        usable = self.usable(but)
        if len(usable) < 2:
            return usable[0] if usable else None
        chosen = min(usable, key=lambda address: streams.get(address, 0))
        opening = _opening(request)
        if opening is not None:
            before = self._conversations.pop(opening, chosen)
            if before in usable and streams.get(before, 0) <= CALM * (streams.get(chosen, 0) + 1):
                chosen = before
            self._conversations[opening] = chosen
            if len(self._conversations) > CONVERSATIONS:
                self._conversations.popitem(last=False)
        return chosen


def _opening(request: Generate) -> int | None:
    """A name for how a conversation begins; None for a prompt too short to be worth a cache."""
    text: str | tuple[int, ...] = request.prompt
    if request.messages:
        text = request.tools + "".join(f"{turn.role}\0{turn.content}\0" for turn in request.messages)
    return hash((request.cache_salt, text[:OPENING])) if len(text) >= OPENING else None

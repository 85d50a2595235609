"""The verifiers that a client knows, and the choice of one for each stream. No sockets, no clock."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from protocols.messages import Generate, Welcome

log = logging.getLogger("duoactor.client")
ONLY = ""  # the address of the only verifier, where it need not be told from others
# Rows of a batch cost less than rounds of their own: twice the streams are at most twice as slow, and a prompt that is
# in the verifier's cache already is worth more than that.
CALM = 2
OPENING = 1024  # characters or tokens of a prompt that tell one conversation from another
CONVERSATIONS = 4096  # that are remembered


class Verifiers:
    """The verifiers that a client knows by address, and which of them a stream goes to.

    A verifier with another model or dtype than the first to answer is left out: a stream must be able
    to go on at any of them with the same text.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._welcomes: dict[str, Welcome | None] = dict.fromkeys(addresses)  # None: it is not there
        self._leaving: set[str] = set()  # they take nothing new
        self._model: Welcome | None = None  # what the first that answered serves
        self._conversations: OrderedDict[int, str] = OrderedDict()  # the address that served each, by its opening

    def welcomed(self, address: str, welcome: Welcome) -> None:
        if self._model is None or len(self._welcomes) == 1:
            self._model = welcome
        # Names and dtypes are enough to tell most apart; the same name may stand for models of other sizes, too.
        for told in (
            "{0.model_id} in {0.dtype}",
            "{0.model_id} in {0.dtype} (context {0.max_context}, vocabulary {0.vocab_size})",
        ):
            theirs, ours = told.format(welcome), told.format(self._model)
            if theirs != ours:
                log.warning(
                    "the verifier at %s serves %s and not %s, as the others do; it is not used", address, theirs, ours
                )
                return
        self._welcomes[address] = welcome
        self._leaving.discard(address)

    def lost(self, address: str) -> None:
        self._welcomes[address] = None

    def leaves(self, address: str) -> None:
        self._leaving.add(address)

    def incarnation(self, address: str | None) -> str:
        welcome = self._welcomes.get(address or ONLY)
        return welcome.incarnation if welcome is not None else ""

    def usable(self, but: Collection[str] = ()) -> list[str]:
        """The ones that take requests. An only one counts as there: its requests wait for it."""
        return [
            address
            for address, welcome in self._welcomes.items()
            if address not in self._leaving and address not in but and (welcome is not None or len(self._welcomes) == 1)
        ]

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

"""Which verifier serves which request, where a client knows several. No sockets, no clock.

A prefix cache holds whole chunks of a prompt, 256 tokens, of the requests that one verifier has served. So a request
goes to where most of its beginning went before, a conversation back to its verifier, unless that one is clearly busier;
else to the one with the fewest streams of this client.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocols.messages import Generate, Welcome

log = logging.getLogger("duoactor.client")
BLOCK_TOKENS, BLOCK_CHARACTERS = 256, 1024  # of a prompt, about a chunk of a prefix cache
MAX_BLOCKS = 4096  # remembered of each verifier: a million tokens


@dataclass(slots=True)
class _Verifier:
    welcome: Welcome | None = None  # None: it is not there
    leaving: bool = False  # it takes nothing new
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)  # of prompts that went there, the oldest first

    def known(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's first blocks went there before."""
        return next((i for i, block in enumerate(blocks) if block not in self.blocks), len(blocks))

    def remember(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > MAX_BLOCKS:
            self.blocks.popitem(last=False)


class Verifiers:
    """All that serve another model than the first that answered, or in another dtype, are left out: a stream must be
    able to go on at any of them with the same text."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._all = {address: _Verifier() for address in addresses}
        self._model: Welcome | None = None  # what the first that answered serves

    def welcomed(self, address: str, welcome: Welcome) -> None:
        if self._model is None or len(self._all) == 1:
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
        self._all[address].welcome, self._all[address].leaving = welcome, False

    def lost(self, address: str) -> None:
        self._all[address].welcome = None

    def leaves(self, address: str) -> None:
        self._all[address].leaving = True

    def usable(self, but: Collection[str] = ()) -> list[str]:
        """Those that take requests. Of an only one it is not asked whether it is there: its requests wait for it."""
        return [
            address
            for address, one in self._all.items()
            if not one.leaving and address not in but and (one.welcome is not None or len(self._all) == 1)
        ]

    def choose(self, request: Generate, streams: Mapping[str, int], but: Collection[str] = ()) -> str | None:
        """Where a request goes; None while there is nowhere. ``streams``: how many each serves for this client."""
        usable = self.usable(but)
        if len(usable) < 2:
            return usable[0] if usable else None
        blocks = list(_blocks(request))
        least = min(usable, key=lambda address: streams.get(address, 0))
        warm = max(usable, key=lambda address: (self._all[address].known(blocks), -streams.get(address, 0)))
        # Rows of a batch cost less than rounds of their own, so that twice the streams are at most twice as slow: below
        # that, a prompt that is there already is worth more.
        calm = streams.get(warm, 0) <= 2 * streams.get(least, 0) + 2
        chosen = warm if calm and self._all[warm].known(blocks) else least
        self._all[chosen].remember(blocks)
        return chosen


def _blocks(request: Generate) -> Iterator[int]:
    """A name for each beginning of a prompt, block by block; what is left after the last whole block has none."""
    text: Sequence[object] = request.prompt
    if request.messages:
        text = request.tools + "".join(f"{turn.role}\0{turn.content}\0" for turn in request.messages)
    size = BLOCK_CHARACTERS if isinstance(text, str) else BLOCK_TOKENS
    name = hash(request.cache_salt)
    for end in range(size, len(text) + 1, size):
        name = hash((name, text[end - size : end]))
        yield name

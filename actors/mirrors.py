"""A draft model's mirrors of texts: those of open requests, and those of the latest that ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from actors.models import DraftModel, common_prefix
from protocols.errors import PoolFull
from protocols.messages import Sampling

MAX_KEPT = 8  # what is kept is given up as soon as a request needs its room


class Mirrors:
    """A text that ends often comes back: to a drafter that was taken for dead, after a swap there and back, with a
    client that resumes, or as the next turn of a chat. What was computed of it is not computed again then."""

    def __init__(self, model: DraftModel) -> None:
        self.model = model
        self._kept: OrderedDict[int, tuple[Sequence[int], str]] = OrderedDict()  # handle -> text, salt; the latest last

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling, cache_salt: str = "") -> int:
        """The handle of a mirror. Raises PoolFull or CannotDraft."""
        arguments = (prefix, prompt_len, sampling)
        while True:
            handle = self._closest(prefix, cache_salt)
            try:
                if handle is None:
                    return self.model.open(*arguments)
                self._kept.move_to_end(handle)  # the last to be given up
                self.model.reopen(handle, *arguments)
                del self._kept[handle]
                return handle
            except PoolFull:
                if not self._kept:
                    raise
                self._give_up_oldest()

    def keep(self, handle: int, text: Sequence[int], cache_salt: str = "") -> None:
        """The request of ``text`` has ended. Only requests of the same salt may find it."""
        self._kept[handle] = text, cache_salt
        while len(self._kept) > MAX_KEPT:
            self._give_up_oldest()

    def close(self, handle: int) -> None:
        self.model.close(handle)

    def _give_up_oldest(self) -> None:
        handle, _ = self._kept.popitem(last=False)
        self.model.close(handle)

    def _closest(self, prefix: Sequence[int], cache_salt: str) -> int | None:
        """The kept mirror that has most in common with a text, if that is at least half of what it holds."""
        kept = ((handle, text) for handle, (text, salt) in self._kept.items() if salt == cache_salt)
        common = {handle: common_prefix(text, prefix) for handle, text in kept}
        handle = max(common, key=lambda handle: common[handle], default=None)
        if handle is None or 2 * common[handle] < len(self._kept[handle][0]):
            return None
        return handle

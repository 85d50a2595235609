"""A draft model's mirrors of texts, which are kept for a while after their requests have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from actors.models import DraftModel, common_prefix
from protocols.errors import PoolFull
from protocols.messages import Sampling

MAX_KEPT = 8  # mirrors without a request; they are given up as soon as a request needs their room


class Mirrors:
    """Texts come back: to a drafter that seemed dead, after a swap there and back, with a client that resumes, as the
    next turn of a chat. Their computed keys and values are reused."""

    def __init__(self, model: DraftModel) -> None:
        self.model = model
        self._kept: OrderedDict[int, tuple[Sequence[int], str]] = OrderedDict()  # text and salt, by handle

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling, cache_salt: str = "") -> int:
        """A mirror of ``prefix``, made of a kept one if that helps. Returns its handle. Raises PoolFull or
        CannotDraft."""
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
        """The request with that mirror has ended, and its text is ``text``. Only requests with the same salt may use
        it."""
        self._kept[handle] = text, cache_salt
        while len(self._kept) > MAX_KEPT:
            self._give_up_oldest()

    def close(self, handle: int) -> None:
        """Close a mirror that is not to be kept."""
        self.model.close(handle)

    def _give_up_oldest(self) -> None:
        handle, _ = self._kept.popitem(last=False)
        self.model.close(handle)

    def _closest(self, prefix: Sequence[int], cache_salt: str) -> int | None:
        """The kept mirror with the longest common prefix, if that is at least half of its text."""
        kept = ((handle, text) for handle, (text, salt) in self._kept.items() if salt == cache_salt)
        common = {handle: common_prefix(text, prefix) for handle, text in kept}
        handle = max(common, key=lambda handle: common[handle], default=None)
        if handle is None or 2 * common[handle] < len(self._kept[handle][0]):
            return None
        return handle

"""Recurrent states of texts, cached for later prompts in addition to keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engines.flat_batch import TextState
from actors.models import common_prefix

BORDER = 512  # tokens of a prompt between two snapshots of recurrent layers
LEAST = 64  # tokens that two texts share without a snapshot, for one where they part


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after a text."""

    text: tuple[int, ...]
    salt: object
    state: TextState

    def serves(self, text: tuple[int, ...]) -> int:
        """How much of a text's beginning it can be the state of."""
        shared = common_prefix(text, self.text)
        return shared if shared >= len(self.text) - self.state.back else 0


class Snapshots:
    """The least recently used goes first."""

    def __init__(self) -> None:
        self._kept: list[Snapshot] = []

    def keep(self, text: Sequence[int], salt: object, state: TextState) -> None:
        """``state`` is no one else's from now on."""
        whole = tuple(text)
        self._kept = [known for known in self._kept if known.salt != salt or known.text != whole]
        self._kept.append(Snapshot(whole, salt, state))

    def longest(self, text: Sequence[int], salt: object) -> tuple[TextState | None, int]:
        """The state after the longest beginning of a text that has one, and the beginning's length."""
        whole = tuple(text)
        known = [(one.serves(whole), one) for one in self._kept if one.salt == salt]
        length, best = max(known, key=lambda each: each[0], default=(0, None))
        if best is None or not length:
            return None, 0
        self._kept.remove(best)
        self._kept.append(best)
        return best.state.copy(len(best.text) - length), length

    def leave(self, room: int) -> None:
        """Keep no more than that."""
        del self._kept[: max(0, len(self._kept) - max(0, room))]


def next_border(done: int, shared: int, apart: int) -> int:
    """Next place of a prompt to snapshot: every ``apart`` tokens, and where its text leaves an earlier, cached one."""
    border = (done // apart + 1) * apart
    return shared if done < shared < border else border

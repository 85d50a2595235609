"""States of recurrent layers that are kept for later prompts, beside the keys and values of the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engines.flat_batch import RecurrentState

BORDER = 512  # tokens of a prompt between two snapshots
LEAST = 64  # tokens without one that two texts have in common, for a snapshot where they part


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state behind a text."""

    text: tuple[int, ...]
    salt: object
    state: RecurrentState


class Snapshots:
    """The least recently used goes first."""

    def __init__(self) -> None:
        self._kept: list[Snapshot] = []

    def keep(self, text: Sequence[int], salt: object, state: RecurrentState) -> None:
        """``state`` is no one else's from now on."""
        whole = tuple(text)
        self._kept = [known for known in self._kept if known.salt != salt or known.text != whole]
        self._kept.append(Snapshot(whole, salt, state))

    def longest(self, text: Sequence[int], salt: object) -> tuple[RecurrentState | None, int]:
        """A state to go on from behind the longest beginning of a text that has one, and that one's length."""
        whole = tuple(text)
        known = [one for one in self._kept if one.salt == salt and whole[: len(one.text)] == one.text]
        if not known:
            return None, 0
        best = max(known, key=lambda one: len(one.text))
        self._kept.remove(best)
        self._kept.append(best)
        return best.state.copy(), len(best.text)

    def leave(self, room: int) -> None:
        """Keep no more than that."""
        del self._kept[: max(0, len(self._kept) - max(0, room))]


def next_border(done: int, shared: int) -> int:
    """Where the state of a prompt is worth keeping: each ``BORDER`` tokens, and where its text left an earlier one's
    whose keys are known."""
    border = (done // BORDER + 1) * BORDER
    return shared if done < shared < border else border

"""Which of several shapes is trained to the end: each is trained for a while, and the fastest here goes on.

How often a draft will agree with its target cannot be told from its shape. A draft cut from the target begins with
a third of its places right; a narrower one begins with none, and its steps are shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from actors.training.start import Shape
from actors.training.workspace import Workspace, write_whole

SHARE = 1 / 16  # of the training time, for each shape: three that lose take less than a fifth of it


class Choice(msgspec.Struct, frozen=True):
    """The shape, and the speed-up that was predicted for each that was tried."""

    shape: str
    tried: dict[str, float]


def chosen(work: Workspace) -> Choice | None:
    """What an earlier run has decided. It stays, whatever would be measured now."""
    return msgspec.json.decode(work.shape.read_bytes(), type=Choice) if work.shape.is_file() else None


def decide(shapes: Sequence[Shape], work: Workspace, attempt: Callable[[Shape], float]) -> Choice:
    """``attempt`` trains a draft of a shape, leaves its checkpoint in ``work.trial(shape)`` and returns the speed-up
    that it would bring. The best one's checkpoint becomes that of the training. Of equals the last is taken: the
    cheapest, where none helps yet. A shape without a rival is not tried. What an interrupted run has left of this is
    done again."""
    work.forget_trials()
    gains = {shape: attempt(shape) for shape in shapes} if len(shapes) > 1 else {}
    best = max(reversed(shapes), key=lambda shape: gains.get(shape, 0.0))
    if gains:
        work.trial(best).replace(work.checkpoint)
        work.forget_trials()
    choice = Choice(str(best), {str(shape): gain for shape, gain in gains.items()})
    write_whole(work.shape, msgspec.json.encode(choice))
    return choice

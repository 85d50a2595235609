"""The shape of a new draft, by one rule: its steps fit into a round of the target on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from actors.engines.targets.target import Target
from actors.target_timing import Shape, rounds_us
from actors.training.covered import head_tokens
from actors.training.start import HEAD, DraftShape, draft_config, empty_draft, is_cut

STEPS = 25  # a narrow draft's steps in a round: it begins with no place right, so a tree must be large
CUT_STEPS = 6  # steps of a draft that is cut from the target: it begins with a third of its places right
FRACTIONS = (2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 8)  # shares of the target's width
LAYERS = (4, 2, 1)
WINDOW = 15  # draft tokens of a usual round


def narrower(target: Any) -> list[DraftShape]:
    """Shapes narrower than a target of this configuration, the largest step first."""
    text = target.get_text_config()
    widths = {int(text.hidden_size * f) // HEAD * HEAD for f in FRACTIONS} - {0}
    shapes = [DraftShape(width, n) for width in widths for n in LAYERS if n <= max(1, text.num_hidden_layers // 2)]

    def weights(shape: DraftShape) -> int:
        return shape.width * (head_tokens(draft_config(target, shape)) + 12 * shape.width * shape.layers)

    return sorted(shapes, key=weights, reverse=True)


def choose_shape(
    target: Any,
    tokenizer: Any,
    round_us: float,
    step_us: Callable[[str], float],
    note: Callable[[str], None],
) -> DraftShape:
    """One layer cut from the target if ``CUT_STEPS`` fit into a round; else the largest narrower shape of which
    ``STEPS`` do; else the cheapest."""
    cut = DraftShape(target.get_text_config().hidden_size, 1)
    shapes = narrower(target)
    for shape in [cut, *shapes] if is_cut(target, cut) else shapes:
        with tempfile.TemporaryDirectory() as directory:
            config = draft_config(target, shape)
            empty_draft(config, head_tokens(config)).save_pretrained(directory)  # type: ignore[operator]
            tokenizer.save_pretrained(directory)
            took = step_us(directory)
        note(f"{shape}: a step takes {took / 1000:.2f} ms, {round_us / took:.0f} fit into a round")
        if round_us / took >= (CUT_STEPS if shape == cut else STEPS):
            return shape
    return shapes[-1] if shapes else cut


def round_us(target: Target, timer: Callable[[], float]) -> float:
    """Microseconds of a round with ``WINDOW`` draft tokens, or of one row where so many have no room."""
    shapes = Shape(1), Shape(1 + min(WINDOW, target.max_window))
    found = rounds_us(target, timer, shapes, needed=shapes)
    return found[max(found)]


def stopwatch(device: torch.device, threads: int) -> Callable[[], float]:
    """The clock for measuring models: the thread's own time if it computes alone, since other processes interrupt long
    rounds more than short steps."""
    return time.thread_time if device.type == "cpu" and threads == 1 else time.perf_counter

"""Which shapes of a draft this machine can afford: shapes with steps that fit into a round of the target."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from actors.draft_timing import measure_draft
from actors.engines.build import build_draft
from actors.training.head import head_tokens
from actors.training.start import HEAD, Shape, draft_config, empty_draft, is_cut

STEPS = 25  # of the draft in a round: with fewer the tree stays small, with more most of it is never verified
FEWEST = 6  # of a draft that is cut from the target: with fewer a chain of three takes half of a round
FRACTIONS = (1, 2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 8)  # of the target's width
LAYERS = (4, 2, 1)


def candidates(target: Any) -> list[Shape]:
    """Shapes for a target of this configuration, the largest step first."""
    text = target.get_text_config()
    widths = {int(text.hidden_size * f) // HEAD * HEAD for f in FRACTIONS}
    if is_cut(target, Shape(text.hidden_size, 1)):
        widths.add(text.hidden_size)
    layers = [n for n in LAYERS if n <= max(1, text.num_hidden_layers // 2)]
    shapes = [Shape(width, n) for width in widths if width for n in layers]

    def weights(shape: Shape) -> int:
        return shape.width * (head_tokens(draft_config(target, shape)) + 12 * shape.width * shape.layers)

    return sorted(shapes, key=weights, reverse=True)


def stopwatch(device: torch.device, threads: int) -> Callable[[], float]:
    """What models are measured with. The thread's own time, if it computes alone: on a busy machine other processes
    interrupt the target's rounds, and hardly a draft's steps, which are shorter than the scheduler's slices. With ten
    processes on one core, a round of 9 ms of the bundled target took 76 ms, and a step of 1.0 ms still 1.0. (The
    process's time has the target's spare thread in it, which looks for work for a while.)"""
    return time.thread_time if device.type == "cpu" and threads == 1 else time.perf_counter


def step_us(directory: str, device: str, timer: Callable[[], float]) -> float:
    """Microseconds of a step for one leaf, of the draft in ``directory`` as a drafter would build it."""
    return measure_draft(build_draft(directory, device, "auto", 0, 1), timer)[1]


def contenders(
    target: Any, tokenizer: Any, round_us: float, step_us: Callable[[str], float], note: Callable[[str], None]
) -> list[Shape]:
    """Shapes that are worth a trial, the largest first: those of the target's own width of which ``FEWEST`` steps fit
    into a round, and the largest of all of which ``STEPS`` do (if none, the cheapest)."""
    own, steps = list[Shape](), dict[Shape, float]()
    for shape in candidates(target):
        with tempfile.TemporaryDirectory() as directory:
            config = draft_config(target, shape)
            empty_draft(config, head_tokens(config)).save_pretrained(directory)  # type: ignore[operator]
            tokenizer.save_pretrained(directory)
            steps[shape] = step_us(directory)
        fit = round_us / steps[shape]
        note(f"{shape}: a step takes {steps[shape] / 1000:.2f} ms, {fit:.0f} fit into a round")
        if fit >= STEPS:
            return [*own, shape]
        if fit >= FEWEST and is_cut(target, shape):
            own.append(shape)
    cheapest = min(steps, key=steps.__getitem__)
    return [*(shape for shape in own if shape != cheapest), cheapest]

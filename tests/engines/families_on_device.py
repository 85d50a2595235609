"""Runs every description on a device and compares it with transformers' logits on the CPU: a step of docs/gpu.sh.

``python -m tests.engines.families_on_device [--device cuda]`` prints one line a family, and exits with the number of
those that are wrong.
"""

from __future__ import annotations

import argparse
import sys

import torch

from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.flat_batch import FlatBatch, causal
from tests.engines.families import described, model_of
from tests.engines.recorded_rounds import tree_round
from tests.engines.tiny import info

LENGTH, BASE = 70, 448
IDS = [2 + (7 * i * i + 3 * i) % 150 for i in range(LENGTH)]
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}  # relative difference of logits that rounding explains


def looked_at(name: str, device: str, dtype: torch.dtype) -> tuple[bool, str]:
    """Whether a family is right there, and what was seen."""
    model = model_of(name)
    with torch.inference_mode():
        plain = model(torch.tensor([[*IDS, 4, 5]]), use_cache=False).logits[0, -3:].float()
    model = model.to(device, dtype)
    engine = GpuEngine(model, info(model), 1024)
    state = None if engine.recurrence is None else engine.recurrence.new()
    batch, places = FlatBatch(), range(LENGTH - 1)
    segment = batch.add(BASE, IDS[:-1], [*places], [BASE + place for place in places], causal(0, LENGTH - 1))
    segment.prompt, segment.state = True, state
    engine.forward(batch, [LENGTH - 2])
    if state is not None:
        state.keep(range(LENGTH - 1))
    both = tree_round(engine, BASE, LENGTH, [IDS[-1], 3, 4], [-1, -1], state).cpu()
    alone = tree_round(engine, BASE, LENGTH, [IDS[-1], 4], [-1], state).cpu()
    if state is not None:
        state.keep([0, 1])
    behind = tree_round(engine, BASE, LENGTH + 2, [5], [], state).cpu()  # takes in what recurrent layers have recorded
    error = float((torch.cat([both[[0, 2]], behind]) - plain).norm() / plain.norm())
    own = torch.equal(alone, both[[0, 2]])
    recorded = "recorded" if engine.graphs is not None else "launched"
    right = error < CLOSE[dtype] and (own or device == "cpu")  # torch's loops on a CPU end in other instructions
    return right, f"{recorded}, off by {error:.1e}, {'bits of its own' if own else 'OTHER BITS'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    device, wrong = parser.parse_args().device, 0
    for name in described():
        for dtype in (torch.float32, torch.bfloat16) if device != "cpu" else (torch.float32,):
            try:
                right, seen = looked_at(name, device, dtype)
            except Exception as error:  # the table goes on, whatever a family does
                right, seen = False, f"{type(error).__name__}: {error}".splitlines()[0]
            wrong += not right
            print(f"{'right' if right else 'WRONG'}  {name} ({str(dtype).removeprefix('torch.')}): {seen}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())

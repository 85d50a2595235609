"""Rounds of a 7B-shaped target with random weights, against the time that reading its weights takes.

By hand: ``python -m tests.engines.time_rounds``, and with ``--blocks Q4_K`` of weights in a GGUF file's blocks. It runs
on a CPU, too, with ``--device cpu --small``, but those figures mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from actors.engines.cache.kv_cache import CHUNK
from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.weights.blocks import Blocks
from actors.engines.weights.formats import FORMS, GROUP, KINDS, SUPER, Codes
from actors.engines.weights.source import StoredSource
from actors.engines.weights.stored import StoredModel
from actors.models import ModelInfo

ROUNDS = [(1, rows) for rows in (1, 2, 4, 8, 16, 32, 64)] + [(8, 1), (8, 4), (32, 1), (32, 4)]  # streams, rows of each
PROMPT = 512  # tokens
LONG_ROUNDS = [(1, 1), (1, 8), (8, 1), (8, 4)]
SHORT, LONG = 500, 4000  # tokens of each stream
Measured = list[tuple[int, list[tuple[int, int]]]]
TIMED: Measured = [(SHORT, ROUNDS), (LONG, LONG_ROUNDS)]
TRIED: Measured = [(64, [(1, 1), (1, 8), (2, 1)])]  # with small shapes

FORMATS = ("Q8_0", "Q4_K", "Q4_0", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4")


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int = 32_000

    @property
    def heads(self) -> int:
        return self.hidden // 64 if self.hidden < 4096 else 32


FULL, SMALL = Shape(32, 4096, 11008), Shape(2, 512, 1024, 2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small shapes: to see that it runs")
    parser.add_argument("--blocks", default="", help="the kind of a GGUF file's blocks; empty: 16 bits")
    parser.add_argument("--formats", action="store_true", help="four layers in each kind of blocks, in one table")
    options = parser.parse_args()
    device, shape = torch.device(options.device), SMALL if options.small else FULL
    print(formats(device, shape) if options.formats else rounds(device, shape, options.blocks))


@dataclass(frozen=True)
class RandomBlocks:
    """A matrix in blocks, see :class:`actors.engines.weights.source.StoredWeight`: its rows repeat one another."""

    shape: tuple[int, ...]
    form: int

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        form, groups = FORMS[self.form - 1], self.shape[1] // GROUP
        chance = np.random.default_rng(0)
        codes = chance.integers(0, 1 << form.bits, self.shape[1], dtype=np.uint8)
        steps = np.full((groups // SUPER if form.scaled else groups, 1 + form.minima), 1e-3, np.float16)
        kinds = (2 if form.halves else 1) + form.minima
        scales = np.ones((groups, kinds), np.uint8) if form.scaled else None
        return Codes(
            self.form,
            *(
                one if one is None else np.broadcast_to(one, (len(rows), *one.shape)).copy()
                for one in (codes, steps, scales)
            ),
        )

    def values(self) -> NDArray[np.float32]:
        return self.codes(np.arange(self.shape[0])).values()

    def blocks(self) -> list[Blocks]:
        return [Blocks([(self, None)])]


def in_blocks(config: LlamaConfig, kind: str, device: torch.device, dtype: torch.dtype) -> StoredModel:
    form = next(one.form for one in KINDS.values() if one.name == kind)
    with torch.device("meta"):
        shapes = {name: tuple(one.shape) for name, one in LlamaForCausalLM(config).named_parameters()}
    stored = {
        name: RandomBlocks(shape, form) if len(shape) > 1 else torch.ones(shape) for name, shape in shapes.items()
    }
    source = StoredSource("7B", stored, dtype, device)
    return StoredModel(config, source, kind)


def engine_of(device: torch.device, shape: Shape, blocks: str, slots: int) -> GpuEngine:
    """Random weights: the time of a round does not depend on them."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, max_position_embeddings=8192,
    )  # fmt: skip
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = in_blocks(config, blocks, device, dtype) if blocks else LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return GpuEngine(model, ModelInfo("7B", shape.vocabulary, 8192, frozenset(), "none"), slots)


def formats(device: torch.device, shape: Shape) -> str:
    """A table as it grows: whatever stops the next kind, this one's figures are there."""
    print(f"| weights | GB | 1 row, ms | share of bandwidth | 4 rows | 16 rows | {PROMPT} rows of a prompt, "
          "share of what bfloat16 multiplies | bits of the first row |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|", flush=True)
    bandwidth, rate = measured_bandwidth(device), measured_rate(device)
    shape = replace(shape, layers=min(4, shape.layers))
    wrong = []
    for kind in ("", *FORMATS):
        try:
            engine = engine_of(device, shape, kind, slots_of(SHORT))
            one, *more = (median(device, lambda e=engine, r=rows: decode(e, 1, r, SHORT)) for rows in (1, 4, 16))
            seconds, share = prompt(engine, rate)
            alone, *among = (decode(engine, 1, rows, SHORT)[0].clone() for rows in (1, 4, 16))
        except Exception as error:  # the table goes on, whatever a kind does
            wrong.append(kind)
            print(f"| {kind or 'plain'} | {str(error).partition(chr(10))[0]} | | | | | | |", flush=True)
            continue
        read, equal = engine.reading().read_bytes, all(torch.equal(alone, other) for other in among)
        wrong += [] if equal else [kind]
        times = " | ".join(f"{each * 1e3:.2f}" for each in more)
        figures = f"{one * 1e3:.2f} | {read / bandwidth / one:.0%} | {times} | {seconds * 1e3:.1f} ms, {share:.2f}"
        bits = "its own" if equal else "OTHERS"
        print(f"| {kind or 'plain'} | {read / 1e9:.2f} | {figures} | {bits} |", flush=True)
    return f"\n{len(wrong)} kinds were not right."


def rounds(device: torch.device, shape: Shape, blocks: str = "") -> str:
    measured = TIMED if shape is FULL else TRIED
    slots = max(max(streams for streams, _ in asked) * slots_of(context) for context, asked in measured)
    slots = max(slots, PROMPT)
    engine = engine_of(device, shape, blocks, slots)
    read = engine.reading().read_bytes
    bandwidth = measured_bandwidth(device)
    floor = read / bandwidth
    lines = [
        f"{read / 1e9:.2f} GB of weights a round; reading runs at {bandwidth / 1e9:.0f} GB/s: {floor * 1e3:.2f} ms."
    ]
    seconds, share = prompt(engine, measured_rate(device))
    lines.append(f"{PROMPT} rows of a prompt: {seconds * 1e3:.1f} ms, {share:.2f} of what bfloat16 multiplies.")
    return "\n\n".join([*lines, timed(engine, measured, floor)])


def timed(engine: GpuEngine, measured: Measured, floor: float) -> str:
    lines = ["| context | streams | rows of each | ms | times one row | share of bandwidth |"]
    lines.append("|---|---|---|---|---|---|")
    for context, asked in measured:
        one = 0.0
        for streams, rows in asked:
            seconds = median(engine.device, lambda s=streams, r=rows, c=context: decode(engine, s, r, c))
            one = one or seconds
            figures = f"{seconds * 1e3:.2f} | {seconds / one:.2f} | {floor / seconds:.0%}"
            lines.append(f"| {context} | {streams} | {rows} | {figures} |")
    return "\n".join(lines)


def slots_of(context: int) -> int:
    return -(-(context + 64) // 64) * 64


def decode(engine: GpuEngine, streams: int, rows: int, context: int) -> torch.Tensor:
    slots_each = slots_of(context)
    visible = np.arange(slots_each)[None, :] <= np.arange(context, context + rows)[:, None]
    at, batch = list(range(context, context + rows)), FlatBatch()
    for base in range(0, streams * slots_each, slots_each):
        batch.add(base, [7] * rows, at, [base + place for place in at], visible)
    logits = engine.forward(batch)
    (engine.best if engine.best is not None else logits.argmax(-1)).tolist()
    return logits


def prompt(engine: GpuEngine, rate: float) -> tuple[float, float]:
    """Seconds of a prompt in pieces as a target computes them, and the share of ``rate`` that its products are."""

    def pieces() -> None:
        for begin in range(0, PROMPT, CHUNK):
            at, batch = range(begin, begin + CHUNK), FlatBatch()
            batch.add(0, [7] * CHUNK, [*at], [*at], causal(begin, begin + CHUNK)).prompt = True
            engine.forward(batch, [CHUNK - 1]).argmax(-1).tolist()

    seconds, read = median(engine.device, pieces), engine.reading()
    return seconds, 2 * PROMPT * 8 * read.read_bytes / read.bits / seconds / rate


def measured_rate(device: torch.device) -> float:
    """Operations per second of a large product in bfloat16."""
    size = 1 << 13 if device.type == "cuda" else 1 << 8
    one = torch.ones(size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / median(device, lambda: (one @ one)[0, 0].item())


def measured_bandwidth(device: torch.device) -> float:
    """Bytes per second of a large sum, which reads and hardly writes."""
    size = 1 << 30 if device.type == "cuda" else 1 << 28
    data = torch.ones(size // 4, device=device)
    return size / median(device, lambda: data.sum().item())


def median(device: torch.device, work: Callable[[], object], repeats: int = 15) -> float:
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return sorted(times[2:])[len(times[2:]) // 2]  # the first ones set kernels up


if __name__ == "__main__":
    main()

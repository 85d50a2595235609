"""Everything that should be tried on the first machine with a GPU, in about ten minutes, and a report of it.

    pip install -e '.[dev]' && python examples/gpu_check.py --out gpu-check

1. the machine; 2. the tests that need a device; 3. every method's texts against the target's own, bundled pair;
4. one decode round of a 7B-shaped target against the time that reading its weights takes, for both ways to attend; 5.
the speed of every method on the bundled pair inflated to that cost, drafter on the CPU, beside the paper's 2.61 (best)
and 1.58 (over vanilla speculative sampling). Each step stands for itself: what fails is reported and the next one runs.
``--rehearse`` goes through all of it with small shapes, also on a CPU; its figures mean nothing.

Not run by the tests: it needs a GPU.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actors.engines.decoder.engine import LlamaEngine
from actors.engines.decoder.gpu.gathered import Gathered
from actors.engines.decoder.gpu.graphs import CudaRecorder, Graphs
from actors.engines.decoder.gpu.in_place import in_place
from actors.engines.decoder.gpu.round_buffer import Layout
from actors.engines.flat_batch import FlatBatch
from actors.models import ModelInfo

METHODS = "sps,pearl,duodecoding-lockstep,duodecoding,pld,tree,auto"
ROUNDS = [(1, rows) for rows in (1, 2, 4, 8, 16, 32, 64)] + [(8, 1), (8, 4), (32, 1), (32, 4)]  # streams, rows of each
LONG_ROUNDS = [(1, 1), (1, 8), (8, 1), (8, 4)]
SHORT, LONG = 500, 4000  # tokens of each stream
TIMED = [(SHORT, ROUNDS), (LONG, LONG_ROUNDS)]


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int = 32_000

    @property
    def heads(self) -> int:
        return self.hidden // 64 if self.hidden < 4096 else 32


FULL, SMALL = Shape(32, 4096, 11008), Shape(2, 384, 1024, 2048)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    parser.add_argument("--rehearse", action="store_true", help="small shapes: to see that the script runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device, shape = torch.device(options.device), SMALL if options.rehearse else FULL
    limit = ["--limit", "1"] if options.rehearse else ["--limit", "2"]
    steps: list[tuple[str, Callable[[], str]]] = [
        ("The machine", lambda: machine(device)),
        ("Tests that need a device", tests),
        ("Texts of every method against the target's own", lambda: bench(options.out / "bundled", device, *limit)),
        ("One round against reading the weights", lambda: rounds(device, shape)),
        ("Speed at the cost of a 7B target", lambda: inflated(options.out, device, shape, *limit)),
    ]
    report, failed = ["# What this machine's device does", f"Command: `{' '.join(sys.argv)}`"], 0
    for title, step in steps:
        print(f"{title} ...", flush=True)
        began = time.monotonic()
        try:
            found = step()
        except Exception as error:
            failed += 1
            found = f"**Failed**: {type(error).__name__}: {error}"
        report += [f"## {title}", found, f"({time.monotonic() - began:.0f} s)"]
        (options.out / "report.md").write_text("\n\n".join(report) + "\n")
    print(f"{len(steps) - failed} of {len(steps)} steps succeeded; read {options.out / 'report.md'}")
    return 1 if failed else 0


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    lines = [f"device: {name}", f"torch {torch.__version__}, Python {platform.python_version()}"]
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        lines.append(f"memory: {free / 1e9:.0f} of {total / 1e9:.0f} GB free")
    return "\n".join(f"- {line}" for line in lines)


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


def tests() -> str:
    root = Path(__file__).parent.parent
    said = run(sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-rs", "-c", str(root / "pyproject.toml"),
               str(root / "tests" / "engines"))  # fmt: skip
    return f"```\n{said[-800:].strip()}\n```"


def bench(out: Path, device: torch.device, *options: str) -> str:
    """The command ends with 1, which is an error here, if any text differs from the target's own."""
    run(sys.executable, "-m", "duoactor", "bench", "--methods", METHODS, "--repeats", "1", "--max-tokens", "80",
        "--device", str(device), "--out", str(out), "--quiet", *options)  # fmt: skip
    report = (out / "report.md").read_text()
    return report[report.index("## In short") :].split("\n## ")[0].removeprefix("## In short").strip()


def inflated(out: Path, device: torch.device, shape: Shape, *options: str) -> str:
    big = out / "big"
    if not big.exists():
        layers, hidden = max(shape.layers, 8), max(shape.hidden, 384)
        run(sys.executable, "-m", "duoactor", "inflate", "bundled", str(big), "--layers", str(layers), "--hidden",
            str(hidden), "--intermediate", str(max(shape.intermediate, 1024)), "--dtype", "bfloat16")  # fmt: skip
    return bench(out / "inflated", device, "--target", str(big), *options)


def rounds(device: torch.device, shape: Shape) -> str:
    """Random weights: the time of a round does not depend on them."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, max_position_embeddings=8192,
    )  # fmt: skip
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    read = (
        sum(p.numel() * p.element_size() for p in model.parameters()) - shape.vocabulary * shape.hidden * dtype.itemsize
    )
    slots = max(max(streams for streams, _ in asked) * slots_of(context) for context, asked in TIMED)
    engine = LlamaEngine(model, ModelInfo("7B", shape.vocabulary, 8192, frozenset(), "none"), slots)
    bandwidth = measured_bandwidth(device)
    floor = read / bandwidth
    lines = [
        f"{read / 1e9:.2f} GB of weights a round; reading runs at {bandwidth / 1e9:.0f} GB/s: {floor * 1e3:.2f} ms."
    ]
    for name, layout in layouts(engine):
        if layout is not None:
            assert engine.graphs is not None
            engine.graphs = Graphs(engine.graphs.body, CudaRecorder(device), shape.vocabulary, False, layout)
        lines.append(timed(engine, device, name, floor))
    return "\n\n".join(lines)


def layouts(engine: LlamaEngine) -> list[tuple[str, Layout | None]]:
    """Ways in which recorded rounds attend; on a CPU nothing is recorded."""
    if engine.graphs is None:
        return [("as usual", None)]
    body = engine.graphs.body
    found: list[tuple[str, Layout | None]] = [("gathered", Gathered(body))]
    if (triton := in_place(body)) is not None:
        found.insert(0, ("in place, by Triton", triton))
    return found


def timed(engine: LlamaEngine, device: torch.device, name: str, floor: float) -> str:
    lines = [f"Attention {name}:\n", "| context | streams | rows of each | ms | times one row | share of bandwidth |"]
    lines.append("|---|---|---|---|---|---|")
    for context, asked in TIMED:
        one = 0.0
        for streams, rows in asked:
            seconds = median(device, lambda s=streams, r=rows, c=context: decode(engine, s, r, c))
            one = one or seconds
            figures = f"{seconds * 1e3:.2f} | {seconds / one:.2f} | {floor / seconds:.0%}"
            lines.append(f"| {context} | {streams} | {rows} | {figures} |")
    return "\n".join(lines)


def slots_of(context: int) -> int:
    return -(-(context + 64) // 64) * 64


def decode(engine: LlamaEngine, streams: int, rows: int, context: int) -> None:
    slots_each = slots_of(context)
    visible = np.arange(slots_each)[None, :] <= np.arange(context, context + rows)[:, None]
    at, batch = list(range(context, context + rows)), FlatBatch()
    for base in range(0, streams * slots_each, slots_each):
        batch.add(base, [7] * rows, at, [base + place for place in at], visible)
    logits = engine.forward(batch)
    (engine.best if engine.best is not None else logits.argmax(-1)).tolist()


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
    sys.exit(main())

"""What our Triton kernels need of GPUs that are not here: a step of docs/gpu.sh, and the figures of its tests.

``python -m tests.engines.compiled_kernels [CAPABILITY…]`` compiles each, reads the machine code and prints registers,
shared memory, the warps that a multiprocessor holds, and instructions a weight of the inner loop. Nothing runs. Behind
the table stands what asks too much of a capability, and the exit code is the number of such kernels.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from actors.engines.decoder.gpu.groups import Float8Matrix
from actors.engines.decoder.gpu.triton_kernels import attention, between, choice, float8, gpu, groups, linear, prompts
from actors.engines.weights.formats import GROUP, KINDS, NVFP4

CAPABILITIES = (80, 86, 89, 90, 100, 120)
# Of a multiprocessor (CUDA C++ programming guide, technical specifications per compute capability): warps and programs
# at most, and bytes of shared memory, of which each program takes RESERVED beside its own
LIMITS = {
    80: (64, 32, 164),
    86: (48, 16, 100),
    89: (48, 24, 100),
    90: (64, 32, 228),
    100: (64, 32, 228),
    120: (48, 24, 100),
}
REGISTERS, RESERVED = 1 << 16, 1 << 10
# Products of 16 bits that tensor cores of a multiprocessor add up in float32 at a clock, from the rates and clocks that
# NVIDIA states of A100, A10, L40S, H100, B200 and RTX PRO 6000. GeForce cards of 8.6, 8.9 and 12.0 have half.
TENSOR = {80: 1024, 86: 512, 89: 512, 90: 2048, 100: 4096, 120: 512}
SCHEDULERS = 4  # schedulers of a multiprocessor, each with an instruction of a warp at a clock
Kinds = dict[str, str]
# A kind of blocks for each that the kernels tell apart
GROUPED = [*{str(groups.form_options(kind.form)): kind.name for kind in KINDS.values() if kind.form}.values(), "NVFP4"]
SPANS = {"float8": 0, "MXFP8": 1, "float8 in blocks": 4}  # groups of float8 with a scale; 0: all


def of(kind: Any, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, kind)


@dataclass(frozen=True)
class Needs:
    """What a compiled kernel takes. ``instructions`` and ``spilled``: of its inner loop, or all where it has none."""

    registers: int
    spilled: int
    shared: int
    warps: int
    capability: int
    instructions: int
    weights: float  # a thread's in an iteration of the inner loop, or 0
    tensor: int = 0  # instructions of tensor cores among those
    rows: int = 0  # those of a prompt that a program multiplies with a weight

    @property
    def each(self) -> float:
        """Instructions for a weight."""
        return self.instructions / self.weights if self.weights else 0.0

    @property
    def share(self) -> float:
        """Share of tensor cores' rate that the instructions leave, if nothing else waits. Computed, not measured."""
        clocks = self.weights * self.warps * 32 * self.rows / TENSOR[self.capability]
        return min(1.0, clocks * SCHEDULERS / (self.instructions * self.warps))

    @property
    def resident(self) -> int:
        """Warps that a multiprocessor holds."""
        most, programs, shared = LIMITS[self.capability]
        each = -(-self.registers // 8) * 8 * 32  # registers come in steps of 8 a thread
        programs = min(programs, REGISTERS // each // self.warps, (shared << 10) // (self.shared + RESERVED))
        return min(most, programs * self.warps)

    @property
    def fault(self) -> str:
        """What asks too much; empty: nothing does."""
        if not self.resident:
            return "finds no room"
        return f"spills {self.spilled} times" if self.spilled > 1 else ""  # words of an iteration's own memory: one


@dataclass(frozen=True, eq=False)
class Kernel:
    """One that is compiled. ``weights``: see :class:`Needs`. ``fours``: how many times a weight is multiplied by dp4a,
    four at a time, which tells them where a compiler has unrolled the loop further."""

    name: str
    kernel: Any
    kinds: Kinds
    sizes: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)
    weights: float = 0.0
    fours: int = 0
    rows: int = 0  # see :class:`Needs`
    sixteens: tuple[str, ...] = ("outputs", "whole", "columns", "depth")  # numbers that are multiples of it

    def compiled(self, capability: int) -> Any:
        names = self.kernel.arg_names
        signature = {name: self.kinds.get(name, "constexpr") for name in names}
        # as at a launch: memory begins at multiples of 16 bytes
        attrs = {
            (at,): [["tt.divisibility", 16]]
            for at, name in enumerate(names)
            if signature[name].startswith("*") or name in self.sixteens
        }
        source = ASTSource(self.kernel, signature=signature, constexprs=self.sizes, attrs=attrs)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=self.options)

    def needs(self, capability: int) -> Needs:
        return _needs(self, capability)


@cache
def _needs(kernel: Kernel, capability: int) -> Needs:
    found = kernel.compiled(capability)
    usage, code = read(found.asm["cubin"])
    loops = [
        [here for here in code if target <= here[0] <= place]
        for place, text in code
        if (target := _target(text)) is not None and target < place
    ]
    if products := [loop for loop in loops if _tensor(loop)]:
        loop = min(products, key=len)  # not one around it
    else:
        loop = max(loops, key=lambda loop: (_fours(loop), len(loop)), default=[])  # not what is left of an unrolled one
    return Needs(
        int(usage["REG"]),
        sum(text.startswith(("STL", "LDL")) for _, text in loop or code),
        found.metadata.shared,
        found.metadata.num_warps,
        capability,
        len(loop),
        4 * _fours(loop) / kernel.fours if kernel.fours else kernel.weights,
        _tensor(loop),
        kernel.rows,
    )


def read(cubin: bytes) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """How much of what a kernel uses, and its instructions by their addresses."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        usage, code = (
            subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\d+ )?(.*?);", code, re.MULTILINE)
    return dict(re.findall(r"(\w+):(\d+)", usage)), [(int(place, 16), text) for place, text in lines]


def _fours(loop: list[tuple[int, str]]) -> int:
    return sum(text.startswith("IDP.4A") for _, text in loop)


def _tensor(loop: list[tuple[int, str]]) -> int:
    return sum(re.match(r"(H|HG|UTCH|I)MMA", text) is not None for _, text in loop)


def _target(text: str) -> int | None:
    found = re.match(r"BRA\S* .*?(0x[0-9a-f]+)", text)
    return int(found[1], 16) if found else None


@cache
def products(name: str, rows: int) -> Kernel:
    """Rows times weights in the groups of a kind of blocks."""
    form = NVFP4 if name == "NVFP4" else next(kind.form for kind in KINDS.values() if kind.name == name)
    kernel, options = groups.product_of(form, rows, 4096)
    stages = {"num_stages": options.pop("num_stages", 3)}
    paired = options["MINIMA"] or options["HALVES"]
    kinds = of("*i32", "x", "words", "high") | {"factors": "*i32" if paired else "*fp16"}
    kinds |= of("i32", "rows", "apart", "outputs", "whole", "groups", "reach")
    kinds |= {"bias": "*bf16"} | of("*fp32", "out", "scales")
    sizes, times = options | {"BIASED": True}, 2 if options["TABLE"] and rows == 1 else rows
    title = f"{name}, {rows} row{'s' * (rows > 1)}"
    if rows in groups.TILES:  # a warp's are a group of each output
        return Kernel(title, kernel, kinds, sizes, stages, options["COLUMNS"])
    return Kernel(title, kernel, kinds, sizes, fours=times)


def whole_numbers(rows: int, capability: int, gated: bool = False) -> Kernel:
    """Rows times weights in bfloat16."""
    own = "*bf16"
    cut = linear.cut_of(rows, 4096, 4096, 2, gated, LIMITS[capability][2] - 1 << 10)
    kinds = of(own, "x", "bias", "weight") | {"out": own if gated else "*fp32"}
    kinds |= of("i32", "rows", "columns", "depth", "reach")
    sizes = {"BIASED": True, "GATED": gated, "EVEN": True}
    sizes |= {"ROWS": rows, "COLUMNS": linear.COLUMNS, "DEPTH": cut.depth}
    weights = linear.COLUMNS * cut.depth * (1 + gated) / 128
    sixteens = ("columns", "depth", "reach")
    options = {"num_stages": cut.stages}
    return Kernel(f"bfloat16, {rows} rows", linear._multiply, kinds, sizes, options, weights, sixteens=sixteens)


@cache
def in_float8(rows: int, span: int, kind: torch.dtype = torch.bfloat16) -> Kernel:
    """Rows times float8 with a scale for so many groups, or for all."""
    own = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[kind]
    kinds = of(own, "x") | {"bias": "*bf16", "words": "*i32"} | of("*fp32", "scales", "out")
    kinds |= of("i32", "rows", "outputs", "depth", "groups", "blocks", "reach")
    matrix = Float8Matrix(torch.empty(0), span=span)
    sizes = float8.product_options(matrix, torch.empty(1, 4096, dtype=kind), rows) | {"BIASED": True}
    weights, options = 2 * GROUP, {"num_stages": 1}  # a warp's are 64 outputs of a group
    name = next(name for name, each in SPANS.items() if each == span)
    return Kernel(f"{name}, {rows} rows", float8._multiply, kinds, sizes, options, weights)


def noisy_tokens() -> Kernel:
    kinds = of("*fp32", "logits", "tops") | of("*i32", "told", "ids") | of("i32", "vocabulary", "apart")
    return Kernel("tokens with noise", choice._choose, kinds, {"BLOCK": choice.BLOCK})


@cache
def of_prompts(name: str, capability: int, rows: int = prompts.ROWS[-1], kind: torch.dtype = torch.bfloat16) -> Kernel:
    """Many rows times weights in the groups of a kind of blocks, or in float8."""
    own = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[kind]
    if name in SPANS:
        form, factors = prompts.form_of_float8(SPANS[name]), "*fp32"
    else:
        form = prompts.form_of_groups(
            NVFP4 if name == "NVFP4" else next(each.form for each in KINDS.values() if each.name == name)
        )
        factors = "*i32" if form["MINIMA"] or form["HALVES"] else "*fp16"
    wide = capability // 10 in gpu.WIDE
    sizes = prompts.product_options(form, kind, 4096, rows, wide) | {"BIASED": True}
    options = {each: sizes.pop(each) for each in ("num_warps", "num_stages")}
    kinds = of(own, "x", "bias", "out") | of("*i32", "words", "high") | {"factors": factors, "scales": "*fp32"}
    kinds |= of("i32", "rows", "outputs", "whole", "depth", "groups", "steps", "reach")
    weights = sizes["COLUMNS"] * sizes["GROUPS"] / options["num_warps"]
    title = f"{name}, {rows} rows of a prompt"
    return Kernel(title, prompts._multiply_prompt, kinds, sizes, options, weights, rows=rows)


def every(capability: int) -> Iterator[Kernel]:
    """Those of a round of a model in bfloat16, in float8 and in blocks."""
    own = "*bf16"
    for rows in (*groups.STEPS, *groups.TILES):
        for name in GROUPED:
            yield products(name, rows)
    for span, rows in itertools.product((0, 4, 1), float8.ROWS):
        yield in_float8(rows, span)
    for name in (*GROUPED, *SPANS):
        yield of_prompts(name, capability)
    for rows in linear.ROWS:
        yield whole_numbers(rows, capability)
    heads = {"HEADS": 32, "WIDTH": 128, "DEPTH": 128}
    numbers = of("*i32", "count", "items", "starts", "bases", "prefixes", "lengths", "tails")
    kinds = of(own, "query", "keys", "values") | numbers | of("*fp32", "seen", "tops", "sums")
    kinds |= {"head_stride": "i32", "scale": "fp32", "cap": "fp32"}
    sizes = {"GROUP": 4, "TAIL": 64, "TILE": attention.TILE, "SPLIT": attention.SPLIT, "CAPPED": False, "WINDOW": 0}
    sizes |= heads | {"CHUNKED": False}
    yield Kernel("attention", attention._attend, kinds, sizes, {"num_stages": 1}, sixteens=("head_stride",))
    kinds = of(own, "x", "behind", "behind_bias", "then", "then_bias", "out") | {"parts": "*fp32", "records": "*i32"}
    kinds |= of("i32", "rows", "size", "apart", "groups") | of("fp32", "scale", "eps")
    sizes = of(False, "BEHIND", "BEHIND_BIASED", "THEN_BIASED", "CENTRED") | of(True, "THEN", "ROUNDED")
    sizes |= {"SPLITS": 4, "BLOCK": 4096}
    yield Kernel("sum and norm", between._join, kinds, sizes, {"num_warps": 8})
    kinds = {"x": own, "out": "*i32"} | of("i32", "rows", "apart", "depth", "groups")
    yield Kernel("rounding to 8 bits", groups._round, kinds, {"MANY": groups.MANY})
    yield noisy_tokens()


def main() -> None:
    chosen = [int(each) for each in sys.argv[1:]] or CAPABILITIES
    print("Compiled, not run. Instructions: of the inner loop, for each weight and all of the program's rows.")
    print("Share: of tensor cores' rate, if nothing else waited than instructions of a prompt's product.\n")
    columns = "kernel|capability|registers|spilled|shared memory|warps a multiprocessor|instructions a weight|share"
    print(f"| {columns.replace('|', ' | ')} |\n{'|---' * len(columns.split('|'))}|")
    wrong = []
    for capability in chosen:
        for kernel in every(capability):
            needs = kernel.needs(capability)
            each = f"{needs.each:.2f}" if needs.weights else ""
            share = f"{needs.share:.2f}" if needs.rows else ""
            figures = f"{needs.registers} | {needs.spilled} | {needs.shared} | {needs.resident} | {each} | {share}"
            print(f"| {kernel.name} | {capability / 10:.1f} | {figures} |", flush=True)
            few = needs.resident < 32 and kernel.name.endswith(", 1 row")
            if fault := needs.fault or few * "leaves room for fewer than 32 warps":
                wrong.append(f"{kernel.name}, of capability {capability / 10:.1f}, {fault}.")
    print("", *wrong or ["Every kernel finds room, and none spills."], sep="\n")
    sys.exit(len(wrong))


if __name__ == "__main__":
    main()

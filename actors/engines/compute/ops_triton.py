"""The operations of a layer by kernels of ours, for a GPU with Triton: a row's bits depend on no other row.

The splits' sums of a product are added up by the kernel that reads them. A prompt's rows go through cuBLAS, which is
quicker for many (256 rows of a 12,288 x 4,096 matrix: half the time), except where weights are in small groups or in
float8. What no kernel covers runs in torch.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.compute.layer import Program
from actors.engines.compute.operands import Parts, RowTurns, Steps
from actors.engines.compute.ops_torch import TorchOps, activated, choose_experts
from actors.engines.compute.rows import BatchRows
from actors.engines.compute.states import Indices, LayerMemory, TorchRecurrence
from actors.engines.decoder.gpu.groups import Float8Matrix, GroupedMatrix
from actors.engines.decoder.gpu.kernel_check import checked
from actors.engines.decoder.layout import Affine, DecoderWeights, ExpertWeights, LayerWeights, RecurrentWeights
from actors.engines.decoder.spec import SILU, Attention, Experts, Norm, Recurrent
from actors.engines.flat_batch import Segment
from actors.engines.weights.matrix import Matrix

log = logging.getLogger("duoactor.engines")
TRITON_KERNELS = "actors.engines.decoder.gpu.triton_kernels"
CLOSE = 0.1  # relative: 16 bits round differently through a deep model by a few hundredths, a fault by more than 1


class Kernels(NamedTuple):
    """Modules of ``TRITON_KERNELS`` by their names, and what their launches ask of the GPU."""

    linear: Any
    groups: Any
    float8: Any
    prompts: Any
    experts: Any
    between: Any
    states: Any
    gpu: Any


class TritonOps(TorchOps):
    """By kernels of ours."""

    def __init__(self, norm: Norm, dtype: torch.dtype, positions: int, kernels: Kernels, grouped: bool = False) -> None:
        """``grouped``: weights are in small groups, and rows are rounded for their products where they are made."""
        super().__init__(norm, dtype, positions)
        self._kernels, self._grouped = kernels, grouped
        self._made: tuple[Tensor, Any] | None = None  # the last rows that were rounded so, and these
        self._mixtures: dict[int, tuple[Any, Any]] = {}  # gate and up, and down, of layers' experts

    def embed(self, table: Matrix, ids: Tensor, scale: float) -> Tensor:
        if not isinstance(table, GroupedMatrix):
            return super().embed(table, ids, scale)
        rows: Tensor = self._kernels.groups.rows_of(table, ids, self._dtype)
        return rows if scale == 1.0 else rows * scale

    def linear(self, x: Tensor, matrix: Matrix, prompt: bool = False) -> Parts:
        kernels, x = self._kernels, x.contiguous()
        if prompt:
            if not isinstance(matrix, GroupedMatrix | Float8Matrix):
                return super().linear(x, matrix)
            made: Tensor = kernels.prompts.multiply(x, matrix, kernels.gpu)
            return made
        found: Tensor
        if isinstance(matrix, GroupedMatrix):
            found = kernels.groups.multiply(x, matrix, self._rounded(x))
        elif isinstance(matrix, Float8Matrix):
            found = kernels.float8.multiply(x, matrix)
        else:
            found = kernels.linear.multiply(x, matrix, kernels.gpu)
        return found

    def room(self, x: Tensor, size: int) -> Any:
        return self._kernels.groups.room(x, size) if self._grouped else None

    def made(self, rows: Tensor, room: Any) -> Tensor:
        self._made = rows, room
        return rows

    def _rounded(self, x: Tensor) -> Any:
        """The rows in 8 bits; None: they are not rounded yet."""
        return self._made[1] if self._made is not None and self._made[0] is x else None

    def whole(self, parts: Parts) -> Tensor:
        return (parts[0] if len(parts) == 1 else parts.sum(0)).to(self._dtype)

    def logits(self, x: Tensor, head: Matrix) -> Tensor:
        parts = self.linear(x, head)
        return parts[0] if len(parts) == 1 else parts.sum(0)

    def norm(self, x: Tensor, affine: Affine | None, eps: float = 0.0) -> Tensor:
        if affine is None:
            return x
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        norm = replace(self._norm, eps=eps or self._norm.eps)
        room = self.room(rows, rows.shape[1]) if x.ndim == 2 else None
        normed = self.made(self._kernels.between.join(rows, None, 1.0, None, affine, norm, room), room)
        return normed if x.ndim == 2 else normed.view(x.shape)

    def join(
        self, x: Tensor, parts: Parts, scale: float, behind: Affine | None, then: Affine | None
    ) -> tuple[Tensor, Tensor]:
        room = None if then is None else self.room(x, x.shape[1])
        return x, self.made(self._kernels.between.join(x, parts, scale, behind, then, self._norm, room), room)

    def heads(
        self,
        made: Parts,
        layer: LayerWeights,
        turns: RowTurns | None,
        pool: tuple[Tensor, Tensor],
        slots: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        mixer = layer.spec.attention
        assert mixer is not None
        if mixer.latent is not None or (mixer.norms is not None and mixer.norms.whole) or self._norm.centred:
            return super().heads(made, layer, turns, pool, slots)
        own = mixer.kv_heads if mixer.shares is None else 0
        heads, turn = (mixer.heads, own), self._kernels.between.turn
        norms = None if layer.head_norms is None else layer.head_norms.weight
        late = mixer.norms is not None and mixer.norms.turned
        queries = turn(made, heads, turns, norms, late, pool, slots, self._norm.eps)
        if not mixer.gated:
            return queries, None
        first = (mixer.heads + 2 * own) * mixer.width
        return queries, self.whole(made[:, :, first : first + mixer.heads * mixer.width])

    def feed(self, x: Tensor, up: Matrix, activation: str, gated: bool, prompt: bool = False) -> Tensor:
        if prompt or not gated or activation != SILU:
            return super().feed(x, up, activation, gated, prompt)
        kernels, x = self._kernels, x.contiguous()
        found: Tensor
        if isinstance(up, GroupedMatrix | Float8Matrix):
            parts, room = self.linear(x, up), self.room(x, len(up.weight) // 2)
            found = self.made(kernels.between.gate(parts, x.dtype, room), room)
        else:
            found = kernels.linear.multiply_gated(x, up, kernels.gpu)
        return found

    def convolve(
        self, mixer: Recurrent, weights: RecurrentWeights, rows: Tensor, memory: LayerMemory, indices: Indices
    ) -> Tensor:
        made: Tensor = self._kernels.states.convolve(mixer, weights, rows.contiguous(), memory, indices)
        return made

    def walk(self, mixer: Recurrent, steps: Steps, memory: LayerMemory, indices: Indices) -> Tensor:
        out: Tensor = self._kernels.states.walk(mixer, steps, memory, indices)
        return out

    def mixes(self, weights: ExpertWeights) -> bool:
        """Whether a kernel multiplies these experts."""
        if id(weights) not in self._mixtures:
            kinds = zip(*weights.each, strict=True)
            up, down = (self._kernels.experts.Mixture.of(kind, weights.router.weight.device) for kind in kinds)
            self._mixtures[id(weights)] = (up, down)
        return None not in self._mixtures[id(weights)]

    def experts(self, x: Tensor, logits: Tensor, spec: Experts, weights: ExpertWeights, prompt: bool = False) -> Tensor:
        if prompt or not self.mixes(weights):
            return super().experts(x, logits, spec, weights, prompt)
        (up, down), multiply = self._mixtures[id(weights)], self._kernels.experts.multiply
        chosen, shares = choose_experts(spec, logits, weights)
        chosen, order = chosen.sort(1)
        shares, flat = shares.gather(1, order), chosen.flatten()
        if spec.inside:
            x = (x[:, None] * shares[..., None].to(x.dtype)).flatten(0, 1)
        inner = activated(multiply(x.contiguous(), flat, up), spec.activation, spec.gated).to(self._dtype)
        given = multiply(inner.contiguous(), flat, down).view(*chosen.shape, -1)
        out = torch.zeros_like(given[:, 0])
        for place in range(spec.used):
            out += given[:, place] if spec.inside else given[:, place] * shares[:, place, None]
        return out.to(self._dtype)


def recordable(program: Program) -> bool:
    """Whether a round of the program runs without a word from the host."""
    ops, recurrent = program.ops, bool(program.spec.recurrent)
    mixtures = [layer.experts for layer in program.weights.layers if layer.experts is not None]
    if not isinstance(ops, TritonOps):
        return not (recurrent or mixtures)
    return all(map(ops.mixes, mixtures))


def torch_program(
    weights: DecoderWeights, pool: KVPool, positions: int, recurrence: TorchRecurrence | None = None
) -> Program:
    return Program(weights, pool, TorchOps(weights.spec.norm, pool.dtype, positions), recurrence)


def gpu_program(
    weights: DecoderWeights, pool: KVPool, positions: int, recurrence: TorchRecurrence | None = None
) -> Program:
    """By Triton; by torch where there is no Triton, or where its kernels do not compute what torch does."""
    plain = torch_program(weights, pool, positions, recurrence)
    try:
        *modules, gpu = (importlib.import_module(f"{TRITON_KERNELS}.{name}") for name in Kernels._fields)
    except ImportError:
        log.info("decode rounds use torch's kernels, which is slower: Triton is not installed")
        return plain

    def made() -> Program:
        kernels = Kernels._make([*modules, gpu.gpu_of(pool.device)])
        grouped = any(isinstance(matrix, GroupedMatrix) for matrix in weights.read())
        ops = TritonOps(weights.spec.norm, pool.dtype, positions, kernels, grouped)
        return Program(weights, pool, ops, recurrence)

    program = checked(made, lambda program: error_of(program, plain), CLOSE)
    if not isinstance(program, str):
        return program
    log.warning("decode rounds use torch's kernels, which is slower: Triton's layers failed (%s)", program)
    return plain


@torch.inference_mode()
def error_of(program: Program, plain: Program, positions: int = 64) -> float:
    """The relative difference of the logits to those of ``plain``, with random attention: of a few rows, of as many as
    go through tensor cores, and of a prompt's."""
    pool, device = plain.pool, plain.pool.device
    chance = torch.Generator().manual_seed(0)

    def error(rows: int, prompt: bool) -> float:
        ids = torch.randint(len(plain.weights.embedding.weight), (rows,), generator=chance).to(device)
        where = torch.arange(pool.slots, pool.slots + rows, device=device)  # spare ones

        def see(place: int, attention: Attention, queries: Tensor, sinks: Tensor | None) -> Tensor:
            keys, values = (
                part.index_select(1, where).transpose(0, 1).repeat_interleave(attention.heads // attention.kv_heads, 1)
                for part in (pool.keys[place], pool.values[place])
            )
            seen: Tensor = (values + 0.1 * (queries + keys)).reshape(rows, -1)
            return seen

        def made(by: Program) -> tuple[Tensor, Tensor]:
            text = Segment(rows, 0, 1, np.ones((rows, 1), np.bool_), prompt=prompt)
            walk = None if by.recurrence is None else by.walk(by.recurrence.index([text]).to(device))
            batch = BatchRows(ids, ids % positions, pool, where, see, walk, prompt)
            return by.embed(ids), by.logits(by.run_layers(batch))

        pairs = zip(made(program), made(plain), strict=True)
        return max(float((found - right).norm() / right.norm()) for found, right in pairs)

    return max(error(3, False), error(5, False), error(3, True))

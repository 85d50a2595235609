"""The operations of a layer in torch: the reference of every other spelling, on any device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.compute.operands import Parts, RowTurns, Steps
from actors.engines.compute.states import GO_ON, TEXT, TRASH, Indices, LayerMemory, record_parts
from actors.engines.decoder.layout import Affine, ExpertWeights, LayerWeights, RecurrentWeights
from actors.engines.decoder.spec import (
    CLAMPED_SWIGLU,
    CONVOLUTION,
    DELTA,
    GELU,
    GELU_TANH,
    RELU,
    RELU_SQUARED,
    SILU,
    Attention,
    Experts,
    Norm,
    Recurrent,
    Rotation,
)
from actors.engines.weights.matrix import Matrix

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    SILU: functional.silu,
    GELU: functional.gelu,
    GELU_TANH: partial(functional.gelu, approximate="tanh"),
    RELU: functional.relu,
    RELU_SQUARED: lambda x: functional.relu(x).square(),
}
# Rows of torch's own products on a CPU: at every place of a group of FIXED they agree, in every type; those of fewer
# than FEW outputs agree one by one (a router of two experts). See docs/exactness.md, "Row counts that agree"
FIXED, FEW = 8, 4
CLAMP, SHARPNESS = 7.0, 1.702  # gpt-oss: bound of gate and up, and factor within its sigmoid


class TorchOps:
    """The operations that a layer is made of. ``x`` is the residual stream ``(rows, hidden)``.

    Other spellings are subclasses, which give the same numbers by other means."""

    def __init__(self, norm: Norm, dtype: torch.dtype, positions: int) -> None:
        """``dtype``: of the residual stream; ``positions``: of the longest text."""
        self._norm, self._dtype, self._positions = norm, dtype, positions
        self._frequencies: dict[Rotation, Tensor] = {}
        self._tables: dict[Rotation, RowTurns] = {}

    def embed(self, table: Matrix, ids: Tensor, scale: float) -> Tensor:
        """Rows of a table, times ``scale``: ``(*ids, width)``."""
        rows = table.rows(ids, self._dtype)
        return rows if scale == 1.0 else rows * scale

    def linear(self, x: Tensor, matrix: Matrix, prompt: bool = False) -> Parts:
        """Multiply rows. ``prompt``: see :class:`BatchRows`."""
        x = x if prompt else matrix.inputs(x)
        if x.is_cpu:  # its libraries add up in another order for other numbers of rows
            return _by_groups(matrix, x)[None]
        return matrix.multiply(x)[None]

    def logits(self, x: Tensor, head: Matrix) -> Tensor:
        """float32 ``(rows, vocabulary)``."""
        return self.whole(self.linear(x, head)).float()

    def room(self, x: Tensor, size: int) -> Any:
        """A second place for rows of ``size`` numbers made of ``x``, in the form that products read; None: none."""
        return None

    def made(self, rows: Tensor, room: Any) -> Tensor:
        """Rows that are in ``room``, too."""
        return rows

    def whole(self, parts: Parts) -> Tensor:
        """Add up the parts of a product: ``(rows, outputs)``."""
        return parts[0] if len(parts) == 1 else parts.sum(0).to(self._dtype)

    def norm(self, x: Tensor, affine: Affine | None, eps: float = 0.0) -> Tensor:
        """Norm the last dimension; None: leave it. ``eps``: 0 for the model's."""
        if affine is None:
            return x
        wide, weight, eps = x.float(), affine.weight.float(), eps or self._norm.eps
        if self._norm.centred:
            bias = None if affine.bias is None else affine.bias.float()
            return functional.layer_norm(wide, weight.shape, weight, bias, eps).to(x.dtype)
        return functional.rms_norm(wide, weight.shape, weight, eps).to(x.dtype)

    def join(
        self, x: Tensor, parts: Parts, scale: float, behind: Affine | None, then: Affine | None
    ) -> tuple[Tensor, Tensor]:
        """Add a product, normed by ``behind``, times ``scale`` to ``x``, which may change in place. Return the sum, and
        the sum normed by ``then``."""
        added = self.norm(self.whole(parts), behind)
        x = x + (added if scale == 1.0 else added * scale)
        return x, self.norm(x, then)

    def turns(self, rotation: Rotation, positions: Tensor) -> RowTurns:
        if positions.device.type != "cpu":
            return self._turns(rotation, positions)
        # a CPU computes what fills no vector otherwise: whole tables give a position the same bits in any company
        if rotation not in self._tables:
            self._tables[rotation] = self._turns(rotation, torch.arange(self._positions))
        table = self._tables[rotation]
        return RowTurns(table.pairs[positions], None if table.stretch is None else table.stretch[positions])

    def _turns(self, rotation: Rotation, positions: Tensor) -> RowTurns:
        if rotation not in self._frequencies:  # sent once, for no graph may hold a copy from the host
            own = torch.empty(len(rotation.frequencies), device=positions.device)
            self._frequencies[rotation] = own.copy_(torch.tensor(rotation.frequencies))
        angles = positions[:, None].float() * self._frequencies[rotation]
        pairs = torch.polar(torch.full_like(angles, rotation.factor), angles)
        if (stretch := rotation.stretch) is None:
            return RowTurns(pairs)
        periods = torch.floor((positions.float() + stretch.first) / stretch.period)
        return RowTurns(pairs, 1 + stretch.share * torch.log1p(periods))

    def heads(
        self,
        made: Parts,
        layer: LayerWeights,
        turns: RowTurns | None,
        pool: tuple[Tensor, Tensor],
        slots: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """Norm and rotate queries and keys, and write keys and values into the ``slots`` of the layer's ``pool``.

        Return the queries ``(rows, heads, width)``, and gates ``(rows, heads * width)`` where the layer has them."""
        mixer = layer.spec.attention
        assert mixer is not None
        own = mixer.kv_heads if mixer.shares is None else 0
        heads = self.whole(made)
        count = (mixer.heads + 2 * own) if mixer.latent is None else mixer.heads + 1
        gates = heads[:, count * mixer.width :] if mixer.gated else None
        heads = heads[:, : count * mixer.width].view(len(heads), count, mixer.width)
        norms, late = layer.head_norms, mixer.norms is not None and mixer.norms.turned
        if norms is not None and not late:
            heads = self._normed_heads(heads, mixer, norms)
        queries, keys, values = torch.split(heads, [mixer.heads, *_own(mixer, own)], 1)
        if turns is not None:
            queries = turned(queries, turns.pairs)
            keys = turned(keys, turns.pairs) if own else keys
        if norms is not None and late:
            heads = self._normed_heads(torch.cat([queries, keys, values], 1), mixer, norms)
            queries, keys, values = torch.split(heads, [mixer.heads, *_own(mixer, own)], 1)
        if turns is not None and turns.stretch is not None:
            queries = (queries * turns.stretch[:, None, None]).to(self._dtype)
        if own:
            values = keys if mixer.latent is not None else values
            for part, found in zip(pool, (keys, values), strict=True):
                part.index_copy_(1, slots, found.transpose(0, 1).to(part.dtype))
        return queries, gates

    def _normed_heads(self, heads: Tensor, mixer: Attention, norms: Affine) -> Tensor:
        """The first heads of every row, as many as there are weights: each, or all of a kind together."""
        count, wide = len(norms.weight), norms.weight.float()
        first = heads[:, :count].float()
        if mixer.norms is not None and mixer.norms.whole:
            kinds = torch.split(first, [mixer.heads, count - mixer.heads], 1)
            first = torch.cat([self._plainly_normed(kind.flatten(1)).view_as(kind) for kind in kinds], 1) * wide
        else:
            first = self._plainly_normed(first) * wide
        if norms.bias is not None:
            first = first + norms.bias
        return torch.cat([first.to(heads.dtype), heads[:, count:]], 1)

    def _plainly_normed(self, x: Tensor) -> Tensor:
        if self._norm.centred:
            return functional.layer_norm(x, x.shape[-1:], None, None, self._norm.eps)
        return functional.rms_norm(x, x.shape[-1:], None, self._norm.eps)

    def gate(self, seen: Tensor, gates: Tensor, soft: bool) -> Tensor:
        """Multiply by the sigmoid of gates, or by their softplus."""
        return seen * (functional.softplus(gates) if soft else gates.sigmoid())

    def feed(self, x: Tensor, up: Matrix, activation: str, gated: bool, prompt: bool = False) -> Tensor:
        """The activated inner numbers of an MLP: ``(rows, inner)``."""
        return activated(self.whole(self.linear(x, up, prompt)), activation, gated)

    def convolve(
        self, mixer: Recurrent, weights: RecurrentWeights, rows: Tensor, memory: LayerMemory, indices: Indices
    ) -> Tensor:
        """``(rows, channels)`` of the convolution over each row's path. The rows, its inputs, go to their places, and
        written slots get the past inputs that precede their states."""
        before, past = (_inputs(numbers, rows, memory.inputs) for numbers in (indices.taps, indices.past))
        made = torch.zeros_like(rows) if weights.bias is None else weights.bias.expand_as(rows)
        for tap in range(mixer.kernel - 1):
            made = made + before[:, tap] * weights.convolution[tap]
        made = made + rows * weights.convolution[-1]
        at = indices.texts[:, 1:2] * past.shape[1] + torch.arange(past.shape[1], device=rows.device)
        memory.inputs.index_copy_(0, at.flatten().long(), past.flatten(0, 1))
        memory.inputs.index_copy_(0, memory.first + indices.places.long(), rows)
        return made if mixer.kind == CONVOLUTION else functional.silu(made)

    def walk(self, mixer: Recurrent, steps: Steps, memory: LayerMemory, indices: Indices) -> Tensor:
        """Queries' reads of the state after each row: ``(rows, heads, values)``. Records go to their places, and states
        into the slots that are written."""
        assert indices.host is not None
        heads = torch.arange(mixer.heads, device=steps.records.device)
        group = heads % mixer.groups if mixer.tiled else heads * mixer.groups // mixer.heads
        queries = steps.queries.view(-1, mixer.groups, mixer.keys, 1)[:, group]

        def behind(state: Tensor, record: Tensor) -> Tensor:
            keys, change, rates, decays = torch.split(record, record_parts(mixer))
            keys, change = keys.view(mixer.groups, -1, 1)[group], change.view(mixer.heads, -1)
            rates = rates.view(mixer.heads, -1)
            factor = decays[:, None, None] if steps.logarithms is None else torch.exp(steps.logarithms * rates[:, None])
            state = state * factor
            if mixer.kind == DELTA:
                change = change - (state * keys).sum(1)
            return state + keys * (change * rates)[:, None]

        outs = torch.empty(len(queries), mixer.heads, mixer.values, device=queries.device)
        rooms: dict[int, Tensor] = {}
        for slot, written, kept, first, rows, listed, count in indices.host.texts.tolist():
            text = memory.states[slot]
            for place in indices.host.pending[listed : listed + count]:
                text = behind(text, memory.records[place])
            state = text
            for row in range(first, first + rows):
                source = int(indices.host.sources[row])
                state = state if source == GO_ON else text if source == TEXT else rooms[source]
                state = rooms[int(indices.host.rooms[row])] = behind(state, steps.records[row])
                outs[row] = (state * queries[row]).sum(1)
            if written != TRASH:
                memory.states[written] = state if kept else text
        memory.records.index_copy_(0, indices.places.long(), steps.records)
        return outs

    def experts(self, x: Tensor, logits: Tensor, spec: Experts, weights: ExpertWeights, prompt: bool = False) -> Tensor:
        """Add up what each row's experts give, in the order of their numbers: ``(rows, hidden)``. ``logits``: float32
        ``(rows, experts)`` of the router."""
        chosen, shares = choose_experts(spec, logits, weights)
        flat, pairs = chosen.flatten().sort(stable=True)
        rows, shares = pairs // spec.used, shares.flatten()[pairs, None].to(x.dtype)
        counts = torch.zeros(spec.count, dtype=torch.int64, device=x.device).index_add_(0, flat, torch.ones_like(flat))
        out, begin = torch.zeros_like(x), 0
        for expert, count in enumerate(counts.tolist()):
            if not count:
                continue
            own, share = rows[begin : begin + count], shares[begin : begin + count]
            begin += count
            up, down = weights.each[expert]
            read = x[own] * share if spec.inside else x[own]
            made = self.whole(self.linear(self.feed(read, up, spec.activation, spec.gated, prompt), down, prompt))
            out.index_add_(0, own, made if spec.inside else made * share)
        return out


def _by_groups(matrix: Matrix, x: Tensor) -> Tensor:
    """The product by groups of ``FIXED`` rows; the last one is filled up."""
    rows, group = len(x), FIXED if len(matrix.weight) >= FEW else 1
    filled = functional.pad(x, (0, 0, 0, -rows % group))
    return torch.cat([matrix.multiply(part) for part in torch.split(filled, group)])[:rows]


def _inputs(numbers: Tensor, rows: Tensor, pool: Tensor) -> Tensor:
    """Inputs ``(*numbers, channels)`` by their numbers, see :class:`actors.engines.compute.states.Indices`."""
    places = numbers.long()
    return torch.where(places[..., None] < 0, rows[(-1 - places).clamp(min=0)], pool[places.clamp(min=0)])


def _own(mixer: Attention, own: int) -> tuple[int, int]:
    """Heads of keys, and of values beside them."""
    return (1, 0) if mixer.latent is not None else (own, own)


def turned(heads: Tensor, turns: Tensor) -> Tensor:
    """Multiply neighbouring dimensions by complex ``turns`` ``(rows, pairs)``; those behind them stay."""
    size = 2 * turns.shape[1]
    pairs = heads[..., :size].float().reshape(*heads.shape[:2], -1, 2).contiguous()
    part = torch.view_as_real(torch.view_as_complex(pairs) * turns[:, None]).flatten(2).to(heads.dtype)
    return part if size == heads.shape[2] else torch.cat([part, heads[..., size:]], 2)


def activated(made: Tensor, activation: str, gated: bool) -> Tensor:
    """``activation(gate) * up`` of gate and up side by side, or ``activation(up)``."""
    if not gated:
        return ACTIVATIONS[activation](made)
    gate, up = made.chunk(2, -1)
    if activation == CLAMPED_SWIGLU:
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return (up + 1) * gate * torch.sigmoid(SHARPNESS * gate)
    return ACTIVATIONS[activation](gate) * up


def choose_experts(spec: Experts, logits: Tensor, weights: ExpertWeights) -> tuple[Tensor, Tensor]:
    """The experts of each row and their shares, ``(rows, used)`` each."""
    routing, correction = spec.routing, weights.correction
    scores = logits.sigmoid() if routing.sigmoid else logits.softmax(-1)
    found = logits if routing.raw else scores
    found = found if correction is None else found + correction.to(scores.device)
    if routing.groups > 1:
        parts = found.view(len(found), routing.groups, -1)
        left = parts.topk(routing.best, -1).values.sum(-1).topk(routing.used_groups, -1).indices
        hidden = torch.ones_like(parts[..., 0], dtype=torch.bool).scatter_(1, left, False)
        found = parts.masked_fill(hidden[..., None], -torch.inf).flatten(1)
    chosen = found.topk(spec.used, -1).indices
    shares = scores.gather(1, chosen)
    shares = shares * routing.scale / (shares.sum(-1, keepdim=True) if routing.divided else 1.0)
    return chosen, shares if weights.scales is None else shares * weights.scales.to(shares.device)[chosen]

"""A model's weights as the bodies read them, laid out by its description, in the orders of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from actors.engines.decoder import spec as described
from actors.engines.decoder.orders import head_order, qkv_order, recurrent_order
from actors.engines.decoder.spec import (
    UNWEIGHTED,
    XIELU_SLOPE,
    Attention,
    DecoderSpec,
    Recurrent,
    Rotation,
    Scan,
    Selective,
)
from actors.engines.decoder.weight_shapes import Shapes, check_shapes
from actors.engines.weights.blocks import Blocks
from actors.engines.weights.draft_vocabulary import DraftVocabulary
from actors.engines.weights.matrix import Matrix
from actors.engines.weights.source import WeightSource


@dataclass(slots=True)
class Affine:
    """What a norm multiplies by, its offset included, and adds."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(slots=True)
class ExpertWeights:
    router: Matrix  # last row: the shared expert's gate, if it has one
    each: list[tuple[Matrix, Matrix]]  # gate and up side by side, and down
    correction: Tensor | None  # float32 (count,)
    scales: Tensor | None = None  # float32 (count,)
    norms: list[Affine] = field(default_factory=list)  # norms in the order of ``ExpertNorms``, or none


@dataclass(slots=True)
class LatentWeights:
    """``query``: of what ``qkv`` gives after the key, normed; None: ``qkv`` gives queries, and the key after them."""

    query: Matrix | None
    query_norm: Tensor | None
    key_norm: Tensor  # norm of its last dimensions


@dataclass(slots=True)
class SelectionWeights:
    choice: Matrix
    steps: Matrix
    norms: list[Tensor]  # float32


@dataclass(slots=True)
class RecurrentWeights:
    """float32, of heads but for the first two and the last ones; see :class:`Recurrent`."""

    convolution: Tensor  # (kernel, channels)
    bias: Tensor | None  # (channels,)
    decay: Tensor | None  # its rate, negative; of Mamba 1 (heads, keys, values)
    step: Tensor | None
    skip: Tensor | None
    norm: Tensor | None
    selection: SelectionWeights | None = None


@dataclass(slots=True)
class BesideWeights:
    gate: Matrix
    out: Matrix
    norm: Affine


@dataclass(slots=True)
class InputWeights:
    table: Matrix
    matrix: Matrix
    norm: Tensor


@dataclass(slots=True)
class LayerNorms:
    """See :class:`actors.engines.decoder.spec.Norms`."""

    attention: Affine | None
    mlp: Affine | None
    behind_attention: Affine | None
    behind_mlp: Affine | None


@dataclass(slots=True)
class LayerWeights:
    """The weights of a layer. With experts ``up`` and ``down`` are the shared one's, or None.
    ``qkv``: of a recurrent layer the channels of its convolution (queries, keys and values), then the gate, then what
    heads have a number of; of LFM 2's factor, gate and factor."""

    spec: described.Layer
    norms: LayerNorms
    qkv: Matrix
    head_norms: Affine | None  # (heads that are normed, width): of queries, keys and values
    out: Matrix
    up: Matrix | None  # gate and up side by side
    down: Matrix | None
    experts: ExpertWeights | None = None
    latent: LatentWeights | None = None
    recurrent: RecurrentWeights | None = None
    sinks: Tensor | None = None
    beside: BesideWeights | None = None
    scale: float = 1.0
    shape: tuple[float, float] = (0.0, 0.0)  # XIELU's factors of its positive and its negative part


@dataclass(slots=True)
class DecoderWeights:
    spec: DecoderSpec
    embedding: Matrix
    layers: list[LayerWeights]
    norm: Affine
    head: Matrix
    vocabulary: int  # rows of the head
    covered: DraftVocabulary | None = None  # what the head's rows stand for; None: the whole vocabulary
    inputs: InputWeights | None = None
    positions: Matrix | None = None
    embedded_norm: Affine | None = None

    def read(self) -> list[Matrix]:
        """The matrices that one token's forward reads."""
        parts = [m for layer in self.layers for m in (layer.qkv, layer.out, layer.up, layer.down) if m is not None]
        recurrent = [layer.recurrent for layer in self.layers if layer.recurrent is not None]
        selections = [one.selection for one in recurrent if one.selection is not None]
        parts += [matrix for one in selections for matrix in (one.choice, one.steps)]
        for experts, layer in zip(self.spec.experts, (layer for layer in self.layers if layer.experts), strict=True):
            assert layer.experts is not None
            parts += [matrix for both in layer.experts.each[: experts.used] for matrix in both]
        return [*parts, self.head]

    def count(self) -> int:
        """Weights that one token's forward reads."""
        return sum(part.weight.numel() for part in self.read())

    def spend(self) -> None:
        """Let go of everything that has been packed."""
        self.layers.clear()
        self.head = Matrix(self.norm.weight)


def changed(part: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of weights with what ``change`` makes of each part; where that is None, of the part's own parts."""
    if isinstance(part, DecoderSpec | described.Layer):
        return part
    if (made := change(part)) is not None:
        return made
    if isinstance(part, list | tuple):
        return type(part)(changed(each, change) for each in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{one.name: changed(getattr(part, one.name), change) for one in fields(part)})
    return part


def table(attention: Attention, positions: int, queries: bool = False) -> Tensor:
    """complex64 ``(positions, width / 2)``: by what each pair of a head is multiplied at each position.
    ``queries``: of theirs, which may be stretched."""
    turning = attention.rotation or Rotation(())
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * torch.tensor(turning.frequencies)[None]
    whole = torch.ones(positions, attention.width // 2, dtype=torch.complex64)
    turned = angles.shape[1]
    whole[:, :turned] = torch.complex(angles.cos() * turning.factor, angles.sin() * turning.factor)
    if queries and (stretch := turning.stretch) is not None:
        periods = torch.floor((torch.arange(positions, dtype=torch.float32) + stretch.first) / stretch.period)
        whole *= (1 + stretch.share * torch.log1p(periods))[:, None]
    return whole


def lay_out(spec: DecoderSpec, source: WeightSource, covered: DraftVocabulary | None = None) -> DecoderWeights:
    """The weights in the order that the bodies want. What the source holds is taken out of it. Raises ModelError for
    one of another shape than described."""
    assert not spec.edge, "see `DecoderSpec.in_context`"
    rows = spec.vocabulary if covered is None else len(covered.ids)
    check_shapes(spec, source.shape, source.place, rows)
    reader = WeightReader(spec, _Checked(source, Shapes.whole(spec, rows)))
    embedding = reader.matrix((spec.embedding,))
    layers = [reader.layer(layer) for layer in spec.layers]
    head = reader.matrix((spec.head,)) if spec.head in source else embedding
    norm, embedded_norm = reader.norm(spec.final_norm), reader.norm(spec.embedded_norm)
    positions = None if spec.positions is None else reader.matrix((spec.positions.table,))
    assert norm is not None
    inputs = reader.inputs(spec.inputs)
    source.check_used(len(layers))
    return DecoderWeights(
        spec, embedding, layers, norm, head, len(head.weight), covered, inputs, positions, embedded_norm
    )


def lay_out_ends(spec: DecoderSpec, source: WeightSource) -> DecoderWeights:
    """What is before the layers and after them alone: what a draft head shares with its target."""
    reader = WeightReader(spec, _Checked(source, Shapes(spec)))
    embedding, norm = reader.matrix((spec.embedding,)), reader.norm(spec.final_norm)
    head = reader.matrix((spec.head,)) if spec.head in source else embedding
    assert norm is not None
    return DecoderWeights(spec, embedding, [], norm, head, len(head.weight))


class _Checked(WeightSource):
    """A source whose weights have the shapes that a description says, those too that are made when they are taken."""

    def __init__(self, source: WeightSource, shapes: Shapes) -> None:
        self.device, self.dtype = source.device, source.dtype
        self._source, self._shapes = source, shapes

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def take(self, name: str) -> Tensor:
        tensor = self._source.take(name)
        self._shapes.check(name, tensor.shape, self._source.place(name))
        return tensor.t() if name in self._shapes.turned else tensor

    def blocks(self, name: str) -> list[Blocks] | None:
        found = None if name in self._shapes.turned else self._source.blocks(name)
        if found is not None:
            self._shapes.check_blocks(name, [each.shape for each in found], self._source.place(name))
        return found


class WeightReader:
    """Parts of a layer out of a source."""

    def __init__(self, spec: DecoderSpec, source: WeightSource) -> None:
        self._spec, self._source = spec, source

    def layer(self, layer: described.Layer) -> LayerWeights:
        mixer, mlp, norms = layer.mixer, layer.mlp, layer.norms
        dense = mlp.shared if isinstance(mlp, described.Experts) else mlp
        latent = recurrent = head_norms = sinks = None
        if isinstance(mixer, Recurrent):
            shared = mixer.groups * mixer.keys
            factors = _spread(
                mixer.factors if isinstance(mixer, Scan) else (),
                (mixer.inner, mixer.inner, shared, shared, mixer.heads),
            )
            qkv, out = self.matrix(mixer.inputs, recurrent_order(mixer), factors), self.matrix((mixer.out,))
            recurrent = self._recurrent(mixer)
        else:
            if mixer.latent is None:
                qkv, out = self.matrix(mixer.qkv, qkv_order(mixer)), self.matrix((mixer.out,))
            else:
                qkv, out, latent = self._latent(mixer, mixer.latent)
            head_norms = self._head_norms(mixer)
            sinks = self._floats(mixer.sinks)
        own = (norms.attention, norms.mlp, norms.behind_attention, norms.behind_mlp)
        return LayerWeights(
            layer,
            LayerNorms(*map(self.norm, own)),
            qkv,
            head_norms,
            out,
            None if dense is None else self._up(dense),
            None if dense is None else self.matrix((dense.down,)),
            self._experts(mlp) if isinstance(mlp, described.Experts) else None,
            latent,
            recurrent,
            sinks,
            self._beside(layer.beside),
            1.0 if layer.scale is None else float(self._source.take(layer.scale)),
            (0.0, 0.0) if dense is None or not dense.shape else self._shape(*dense.shape),
        )

    def _up(self, mlp: described.Mlp) -> Matrix:
        return self.matrix(mlp.up, None, _spread((mlp.gate_scale, 1.0), (mlp.inner, mlp.inner)))

    def _shape(self, positive: str, negative: str) -> tuple[float, float]:
        first, second = (float(softplus(self._source.take(name).float())) for name in (positive, negative))
        return first, second + XIELU_SLOPE

    def _beside(self, beside: described.Beside | None) -> BesideWeights | None:
        norm = None if beside is None else self.norm(beside.norm)
        if beside is None or norm is None:
            return None
        return BesideWeights(self.matrix((beside.gate,)), self.matrix((beside.out,)), norm)

    def inputs(self, inputs: described.LayerInputs | None) -> InputWeights | None:
        if inputs is None:
            return None
        norm = self._source.take(inputs.norm).float()
        return InputWeights(self.matrix((inputs.table,)), self.matrix((inputs.matrix,)), norm)

    def _floats(self, name: str | None) -> Tensor | None:
        return None if name is None else self._source.take(name).float()

    def _recurrent(self, mixer: Recurrent) -> RecurrentWeights:
        taps, bias = self._source.take(mixer.convolution).float()[:, 0], self._bias(mixer.convolution)
        if isinstance(mixer, Scan):  # its channels are values, keys and queries
            order = torch.arange(mixer.channels)
            order = torch.cat([*torch.split(order, [mixer.inner, *[mixer.groups * mixer.keys] * 2])[::-1]])
            taps, bias = taps[order], None if bias is None else bias[order]
        found = {name: self._floats(getattr(mixer, name, None)) for name in ("decay", "step", "skip", "norm")}
        decay, selection = found.pop("decay"), None
        if isinstance(mixer, Selective) and decay is not None:
            decay = decay.view(mixer.heads, mixer.values, mixer.keys).transpose(1, 2).contiguous()
            sizes = (mixer.rank, mixer.keys, mixer.keys)
            norms = [
                torch.ones(size, device=decay.device) if name == UNWEIGHTED else self._source.take(name).float()
                for name, size in zip(mixer.norms, sizes, strict=False)
            ]
            selection = SelectionWeights(self.matrix((mixer.choice,)), self.matrix((mixer.steps,)), norms)
        return RecurrentWeights(
            taps.t().contiguous(),
            None if bias is None else bias.float(),
            None if decay is None else -decay.exp(),
            **found,
            selection=selection,
        )

    def _latent(self, attention: Attention, latent: described.Latent) -> tuple[Matrix, Matrix, LatentWeights]:
        """What takes the place of the matrices of queries, keys and values, and of the output's."""
        heads, turned, take = attention.heads, latent.turned, self._source.take
        order, dtype = head_order(attention)[:turned], self._source.dtype
        up = take(latent.up).float().view(heads, latent.plain + latent.values, latent.rank)
        query = take(latent.query).float().view(heads, latent.plain + turned, -1)
        plain = torch.einsum("hpr,hpi->hri", up[:, : latent.plain], query[:, : latent.plain])
        queries = torch.cat([query[:, latent.plain :][:, order], plain], 1).flatten(0, 1).to(dtype)
        down = take(latent.down)
        key = torch.cat([down[latent.rank :][order], down[: latent.rank]])
        out = take(attention.out).float().view(self._spec.hidden, heads, latent.values)
        values = torch.einsum("ohv,hvr->ohr", out, up[:, latent.plain :])
        none = values.new_zeros(len(values), heads, turned)
        outputs = Matrix(torch.cat([none, values], 2).flatten(1).to(dtype))
        norm = take(latent.norm).float()
        if latent.query_down is None or latent.query_norm is None:
            return Matrix(torch.cat([queries, key])), outputs, LatentWeights(None, None, norm)
        whole = Matrix(torch.cat([key, take(latent.query_down)]))
        return whole, outputs, LatentWeights(Matrix(queries), take(latent.query_norm).float(), norm)

    def _experts(self, mlp: described.Experts) -> ExpertWeights:
        take, names = self._source.take, (mlp.router,) if mlp.shared_gate is None else (mlp.router, mlp.shared_gate)
        ups = self._each(mlp.up, mlp.transposed, mlp.woven)
        downs = self._each(mlp.down, mlp.transposed, False)
        correction = None if mlp.routing.correction is None else take(mlp.routing.correction).float().reshape(-1)
        scales, norms = self._floats(mlp.scales), []
        if (own := mlp.norms) is not None:
            found = (self.norm(name) for name in (own.router, own.inputs, own.behind, own.behind_shared))
            norms = [norm for norm in found if norm is not None]
            norms[0].weight = norms[0].weight.float() * self._spec.hidden**-0.5
        return ExpertWeights(self.matrix(names), [*zip(ups, downs, strict=True)], correction, scales, norms)

    def _each(self, name: str, transposed: bool, woven: bool) -> list[Matrix]:
        """A matrix of each expert."""
        biases: Sequence[Tensor | None] = [None]
        if f"{name}_bias" in self._source:
            whole = self._source.take(f"{name}_bias")
            biases = (torch.cat([whole[:, ::2], whole[:, 1::2]], 1) if woven else whole).unbind()
        blocks = self._source.blocks(name)
        if blocks is not None:
            return [Matrix.of_blocks(part, bias) for part, bias in zip(blocks, cycle(biases), strict=False)]
        weights = self._source.take(name)
        if transposed:
            weights = weights.transpose(1, 2)
        if woven:
            weights = torch.cat([weights[:, ::2], weights[:, 1::2]], 1)
        return [Matrix(weight, bias) for weight, bias in zip(weights, cycle(biases), strict=False)]

    def norm(self, name: str | None) -> Affine | None:
        if name is None:
            return None
        if name == UNWEIGHTED:
            return Affine(torch.ones(self._spec.hidden, dtype=self._source.dtype, device=self._source.device))
        weight, offset = self._source.take(name), self._spec.norm.offset
        return Affine(weight.float() + offset if offset else weight, self._bias(name))

    def matrix(self, names: tuple[str, ...], order: Tensor | None = None, factors: Tensor | None = None) -> Matrix:
        """Several matrices over the same input as one. ``order`` and ``factors``: of the rows of all."""
        blocks = [self._source.blocks(name) for name in names] if factors is None else []
        parts = [part for found in blocks if found is not None for part in found]
        if len(parts) == len(names) and len({part.in_float8 for part in parts}) == 1:
            joined, bias = Blocks.joined(parts), self._joined_bias(names, [len(part) for part in parts])
            if order is not None:
                joined, bias = joined.in_order(order.numpy()), None if bias is None else bias[order]
            return Matrix.of_blocks(joined, bias)
        read = {name: self._source.take(name) for name in dict.fromkeys(names)}  # keys may be values, too
        weights = [read[name] for name in names]
        bias = self._joined_bias(names, [len(weight) for weight in weights])
        kinds = {weight.dtype for weight in weights}
        if len(kinds) > 1:
            weights = [weight.float() for weight in weights]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        if factors is not None:
            factors = factors.to(weight.device)
            weight = (weight.float() * factors[:, None]).to(weight.dtype)
            bias = None if bias is None else (bias.float() * factors).to(bias.dtype)
        if order is not None:
            order = order.to(weight.device)
            weight, bias = weight[order], None if bias is None else bias[order]
        return Matrix(weight, bias)

    def _joined_bias(self, names: tuple[str, ...], rows: list[int]) -> Tensor | None:
        biases = [self._bias(name) for name in names]
        like = next((bias for bias in biases if bias is not None), None)
        if like is None:
            return None
        return torch.cat([like.new_zeros(n) if b is None else b for b, n in zip(biases, rows, strict=True)])

    def _bias(self, name: str) -> Tensor | None:
        name = name.removesuffix("weight") + "bias"
        return self._source.take(name) if name in self._source else None

    def _head_norms(self, attention: Attention) -> Affine | None:
        """One row a head, in the order of its turned dimensions."""
        norms, parts, biases = attention.norms, list[Tensor](), list[Tensor]()
        if norms is None:
            return None
        width, order = attention.width, head_order(attention)
        kv_heads = attention.kv_heads if attention.shares is None else 0

        def each(found: Tensor, heads: int) -> Tensor:
            return found.float().reshape(-1, width).expand(heads, -1)[:, order.to(found.device)]

        for name, heads in ((norms.query, attention.heads), (norms.key, kv_heads)):
            if name is None:
                parts.append(torch.ones(heads, width, device=self._source.device))
            elif heads:
                parts.append(each(self._source.take(name), heads) + self._spec.norm.offset)
                biases += [] if (bias := self._bias(name)) is None else [each(bias, heads)]
        if norms.value and kv_heads:
            parts.append(torch.ones(kv_heads, width, device=self._source.device))
        return Affine(torch.cat(parts), torch.cat(biases) if biases else None)


def _spread(factors: Sequence[float], sizes: Sequence[int]) -> Tensor | None:
    """Each factor for as many rows; None: all are 1."""
    if all(factor == 1.0 for factor in factors):
        return None
    return torch.cat([torch.full((size,), factor) for factor, size in zip(factors, sizes, strict=True)])

"""What shapes the weights of a description have, and whether those of a file are of them. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.engines.decoder.spec import (
    UNWEIGHTED,
    Attention,
    DecoderSpec,
    DeltaNet,
    Experts,
    Latent,
    Layer,
    LayerInputs,
    Mlp,
    Recurrent,
    Scan,
    Selective,
    ShortConvolution,
)
from actors.engines.weights.formats import GPU_FORMS, KINDS
from protocols.errors import ModelError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightShape:
    """A weight's shape: each dimension with what says it, or with None any. ``flat``: numbers alone count."""

    dimensions: tuple[tuple[int | None, str], ...]
    flat: bool = False

    def admits(self, shape: Sequence[int]) -> bool:
        wanted = [size for size, _ in self.dimensions]
        if self.flat:
            return math.prod(shape) == math.prod(size or 0 for size in wanted)
        return len(shape) == len(wanted) and all(one in (None, own) for one, own in zip(wanted, shape, strict=True))

    def __str__(self) -> str:
        return " x ".join(f"{'any' if size is None else size} ({name})" for size, name in self.dimensions)


def _matrix(rows: int | None, of_rows: str, columns: int | None, of_columns: str) -> WeightShape:
    return WeightShape(((rows, of_rows), (columns, of_columns)))


def _vector(size: int | None, name: str) -> WeightShape:
    return WeightShape(((size, name),))


_HIDDEN = "hidden size"


class Shapes:
    """What each weight of a description has to be, by its name. Biases have names of their own here."""

    def __init__(self, spec: DecoderSpec, head: int | None = None) -> None:
        """``head``: rows of the head; None: any."""
        self._hidden, self.wanted = spec.hidden, dict[str, WeightShape]()
        self._transposed: set[str] = set()
        self.turned: set[str] = set()  # matrices that are transposed in the checkpoint
        self._turns = False
        self._set(spec.embedding, _matrix(spec.vocabulary, "vocabulary", spec.hidden, _HIDDEN))
        if spec.head != spec.embedding:
            self._set(spec.head, _matrix(head, "vocabulary", spec.hidden, _HIDDEN))
        self._norm(spec.final_norm)
        self._norm(spec.embedded_norm)
        if spec.positions is not None:
            self._set(spec.positions.table, _matrix(None, "positions", spec.hidden, _HIDDEN))
        if spec.inputs is not None:
            self._inputs(spec.inputs, len(spec.layers), spec.vocabulary)

    @classmethod
    def whole(cls, spec: DecoderSpec, head: int | None = None) -> Shapes:
        """The shapes of all layers too."""
        made = cls(spec, head)
        made._turns = spec.transposed
        for layer in spec.layers:
            made.add(layer)
        return made

    def add(self, layer: Layer) -> None:
        """A layer's weights."""
        if isinstance(layer.mixer, Recurrent):
            self._recurrent(layer.mixer)
        else:
            self._attention(layer.mixer)
        norms = layer.norms
        for name in (norms.attention, norms.mlp, norms.behind_attention, norms.behind_mlp):
            self._norm(name)
        if isinstance(layer.mlp, Experts):
            self._experts(layer.mlp)
        elif layer.mlp is not None:
            self._mlp(layer.mlp)
        if layer.beside is not None:
            self._set(layer.beside.gate, _matrix(self._width, "width of a layer's inputs", self._hidden, _HIDDEN))
            self._set(layer.beside.out, _matrix(self._hidden, _HIDDEN, self._width, "width of a layer's inputs"))
            self._norm(layer.beside.norm)
        if layer.scale is not None:
            self._set(layer.scale, WeightShape(((1, "a layer's scale"),), flat=True))

    def check(self, name: str, shape: Sequence[int], place: str) -> None:
        """Raise ModelError unless a weight has the shape that is wanted of it. ``place``: its file and its tensor."""
        wanted = self.wanted.get(name)
        if wanted is not None and not wanted.admits(shape):
            own = " x ".join(map(str, shape)) or "a single number"
            raise ModelError(f"{place} is {own}, and its configuration says {wanted}; download it again")

    def check_blocks(self, name: str, shapes: Sequence[Shape], place: str) -> None:
        """The same of a matrix, or of each expert's, which maps inputs to outputs in any layout of the whole."""
        wanted = self.wanted.get(name)
        if wanted is None or len(wanted.dimensions) < 3:
            return self.check(name, shapes[0] if len(shapes) == 1 else (len(shapes), *shapes[0]), place)
        (count, experts), *both = wanted.dimensions
        if name in self._transposed:
            both = both[::-1]
        each = WeightShape(tuple(both))
        for shape in {shape for shape in shapes if not each.admits(shape)}:
            own = " x ".join(map(str, shape))
            raise ModelError(f"an expert of {place} is {own}, and its configuration says {each}; download it again")
        if len(shapes) != count:
            raise ModelError(f"{place} has {len(shapes)} {experts}, and its configuration says {count}")

    _width: int | None = None  # width of a layer's inputs

    def _set(self, name: str, wanted: WeightShape, bias: bool = True) -> None:
        self.wanted[name] = wanted
        if self._turns and len(wanted.dimensions) == 2:
            self.turned.add(name)
            self.wanted[name] = WeightShape(wanted.dimensions[::-1])
        if bias and name.endswith("weight"):
            self.wanted[name.removesuffix("weight") + "bias"] = WeightShape(wanted.dimensions[:1])

    def _norm(self, name: str | None) -> None:
        if name is not None and name != UNWEIGHTED:
            self._set(name, _vector(self._hidden, _HIDDEN))

    def _inputs(self, inputs: LayerInputs, layers: int, vocabulary: int) -> None:
        self._width = inputs.width
        rows, of_rows = layers * inputs.width, "layers * width of their inputs"
        self._set(inputs.table, _matrix(vocabulary, "vocabulary", rows, of_rows))
        self._set(inputs.matrix, _matrix(rows, of_rows, self._hidden, _HIDDEN))
        self._set(inputs.norm, _vector(inputs.width, "width of a layer's inputs"))

    def _attention(self, mixer: Attention) -> None:
        if mixer.latent is not None:
            self._latent(mixer, mixer.latent)
            return
        apart = mixer.gated and len(mixer.qkv) == 4
        gates, own = 1 + (mixer.gated and not apart), 0 if mixer.shares is not None else mixer.kv_heads
        queries, keys = mixer.heads * mixer.width * gates, own * mixer.width
        of = "gated heads * head width" if gates > 1 else "heads * head width"
        gates_apart = [mixer.heads if mixer.head_gates else queries] if apart else []
        parts = [queries, keys, keys, *gates_apart][: 1 if own == 0 else 4]
        if len(mixer.qkv) == len(parts):
            for name, rows, what in zip(mixer.qkv, parts, (of, *["key heads * head width"] * 2, of), strict=False):
                self._set(name, _matrix(rows, what, self._hidden, _HIDDEN))
        else:
            whole = "heads of queries, keys and values * head width"
            self._set(mixer.qkv[0], _matrix(sum(parts), whole, self._hidden, _HIDDEN))
        self._set(mixer.out, _matrix(self._hidden, _HIDDEN, mixer.heads * mixer.width, "heads * head width"))
        if mixer.sinks is not None:
            self._set(mixer.sinks, _vector(mixer.heads, "heads"))
        if mixer.norms is None:
            return
        for norm, heads in ((mixer.norms.query, mixer.heads), (mixer.norms.key, mixer.kv_heads)):
            if norm is not None:
                self._head_norm(norm, heads, mixer)

    def _head_norm(self, name: str, heads: int, mixer: Attention) -> None:
        assert mixer.norms is not None
        if mixer.norms.whole:
            self._set(name, _vector(heads * mixer.width, "heads * head width"))
        else:
            self._set(name, each := _EachHead(((heads, "heads"), (mixer.width, "head width"))), bias=False)
            self.wanted[name.removesuffix("weight") + "bias"] = each

    def _latent(self, mixer: Attention, latent: Latent) -> None:
        width, low = latent.plain + latent.turned, latent.query_down is not None
        inputs = (latent.query_rank, "rank of queries") if low else (self._hidden, _HIDDEN)
        self._set(latent.query, _matrix(mixer.heads * width, "heads * width of queries", *inputs))
        self._set(latent.down, _matrix(latent.rank + latent.turned, "rank + turned", self._hidden, _HIDDEN))
        self._set(latent.norm, _vector(latent.rank, "rank"))
        rows = mixer.heads * (latent.plain + latent.values)
        self._set(latent.up, _matrix(rows, "heads * widths of keys and values", latent.rank, "rank"))
        self._set(mixer.out, _matrix(self._hidden, _HIDDEN, mixer.heads * latent.values, "heads * width of values"))
        if latent.query_down is not None and latent.query_norm is not None:
            self._set(latent.query_down, _matrix(latent.query_rank, "rank of queries", self._hidden, _HIDDEN))
            self._set(latent.query_norm, _vector(latent.query_rank, "rank of queries"))

    def _recurrent(self, mixer: Recurrent) -> None:
        shared, inner, heads = 2 * mixer.groups * mixer.keys, mixer.inner, mixer.heads
        if isinstance(mixer, ShortConvolution):
            rows = [(3 * inner, "factors and gate")]
        elif isinstance(mixer, Selective):
            rows = [(2 * inner, "values and gate")]
        elif isinstance(mixer, Scan):
            rows = [(2 * inner + shared + heads, "gate, values, keys, queries and steps")]
        elif isinstance(mixer, DeltaNet) and mixer.woven:
            rows = [(2 * inner + shared, "queries, keys, values and gate"), (2 * heads, "twice the heads")]
        else:
            made = [(shared + inner, "queries, keys and values")]
            if len(mixer.inputs) == 6:
                made = [*[(shared // 2, "heads * width of keys")] * 2, (inner, "heads * width of values")]
            rows = [*made, (inner, "gate"), *[(heads, "heads")] * 2]
        for name, (count, what) in zip(mixer.inputs, rows, strict=True):
            self._set(name, _matrix(count, what, self._hidden, _HIDDEN))
        channels = (mixer.channels, "channels of the convolution")
        self._set(mixer.convolution, WeightShape((channels, (1, "one"), (mixer.kernel, "its length"))))
        self._set(mixer.out, _matrix(self._hidden, _HIDDEN, inner, "heads * width of values"))
        if isinstance(mixer, DeltaNet | Scan):
            for part in (mixer.decay, mixer.step, *([mixer.skip] if isinstance(mixer, Scan) else [])):
                self._set(part, _vector(heads, "heads"))
            if mixer.norm is not None:
                size = inner if isinstance(mixer, Scan) else mixer.values
                self._set(mixer.norm, _vector(size, "width of values"))
        if isinstance(mixer, Selective):
            self._set(mixer.decay, _matrix(inner, "channels", mixer.keys, "width of keys"))
            self._set(mixer.skip, _vector(inner, "channels"))
            self._set(mixer.choice, _matrix(mixer.rank + 2 * mixer.keys, "rank and keys", inner, "channels"))
            self._set(mixer.steps, _matrix(inner, "channels", mixer.rank, "rank"))
            for name, size in zip(mixer.norms, (mixer.rank, mixer.keys, mixer.keys), strict=bool(mixer.norms)):
                if name != UNWEIGHTED:
                    self._set(name, _vector(size, "its part of rank and keys"))

    def _mlp(self, mlp: Mlp) -> None:
        each = mlp.inner * (1 + mlp.gated) // len(mlp.up)
        for name in mlp.up:
            self._set(name, _matrix(each, "width of the MLP", self._hidden, _HIDDEN))
        self._set(mlp.down, _matrix(self._hidden, _HIDDEN, mlp.inner, "width of the MLP"))
        for name in mlp.shape:
            self._set(name, WeightShape(((1, "one number"),), flat=True))

    def _experts(self, mlp: Experts) -> None:
        count, hidden = (mlp.count, "experts"), (self._hidden, _HIDDEN)
        down = (mlp.inner, "their width")
        up = (2 * mlp.inner, "twice their width") if mlp.gated else down
        self._set(mlp.router, WeightShape((count, hidden)))
        if mlp.shared_gate is not None:
            self._set(mlp.shared_gate, WeightShape(((1, "one"), hidden)))
        self._transposed |= {mlp.up, mlp.down} if mlp.transposed else set()
        self._set(mlp.up, WeightShape((count, hidden, up) if mlp.transposed else (count, up, hidden)))
        self._set(mlp.down, WeightShape((count, down, hidden) if mlp.transposed else (count, hidden, down)))
        self._set(f"{mlp.up}_bias", WeightShape((count, up)))
        self._set(f"{mlp.down}_bias", WeightShape((count, hidden)))
        if mlp.routing.correction is not None:
            self._set(mlp.routing.correction, WeightShape((count,), flat=True))
        if mlp.scales is not None:
            self._set(mlp.scales, WeightShape((count,)))
        if (norms := mlp.norms) is not None:
            for name in (norms.router, norms.inputs, norms.behind, norms.behind_shared):
                self._norm(name)
        if mlp.shared is not None:
            self._mlp(mlp.shared)


class _EachHead(WeightShape):
    """One for each head, or one for all of them."""

    def admits(self, shape: Sequence[int]) -> bool:
        (heads, _), (width, _) = self.dimensions
        return math.prod(shape) in (width, (heads or 0) * (width or 0)) and len(shape) > 0 and shape[-1] in (width,)


def check_shapes(
    spec: DecoderSpec, shape_of: Callable[[str], Sequence[int] | None], place: Callable[[str], str], head: int | None
) -> None:
    """Raise ModelError for the first weight of another shape than a description says. ``shape_of``: a weight's, None:
    there is none, or it is known when it is read; ``place``: its file and its tensor; ``head``: rows of the head."""
    shapes = Shapes.whole(spec, head)
    for name in shapes.wanted:
        if (shape := shape_of(name)) is not None:
            shapes.check(name, shape, place(name))


def largest_format(spec: DecoderSpec, room: int) -> tuple[int, str] | None:
    """The size on a GPU, and ggml's name, of the largest format in which a model's matrices are no larger than ``room``
    bytes."""
    wanted = ([size or 1 for size, _ in one.dimensions] for one in Shapes.whole(spec, spec.vocabulary).wanted.values())
    matrices = [(math.prod(shape[:-1]), shape[-1]) for shape in wanted if len(shape) > 1]
    sizes = [(2 * sum(rows * inputs for rows, inputs in matrices), "BF16")]
    for kind in KINDS.values():
        if kind.form:
            form = GPU_FORMS[kind.form - 1]
            sizes.append((int(sum(rows * form.output_on_gpu(inputs) for rows, inputs in matrices)), kind.name))
    return max((one for one in sizes if one[0] <= room), default=None)

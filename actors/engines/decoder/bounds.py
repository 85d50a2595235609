"""What files may say: the numbers of a configuration, a description made of them, and the shapes of its weights.

Everything behind this trusts a description and its weights: compiled code reads and writes by sizes and addresses that
follow from them. So whatever is read from a file passes here first, whatever its format. No torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from actors.engines.decoder.spec import (
    CONVOLUTION,
    DELTA,
    SCAN,
    SELECTIVE,
    UNWEIGHTED,
    Attention,
    DecoderSpec,
    Experts,
    Latent,
    Layer,
    LayerInputs,
    Mlp,
    Recurrent,
    Rotation,
)
from protocols.errors import ModelError

Shape = tuple[int, ...]
MOST_LAYERS = 2048  # the deepest published model has 160
MOST_SIZE = 1 << 24  # the widest matrix of a published model has 262,144 rows
MOST_POSITIONS = 1 << 34
NUMBERS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float)}  # by the annotation of a field
# Names of numbers in configurations of Hugging Face and in GGUF metadata, and the most that they may be. A name takes
# the first pattern that it matches whole.
_MOST: Sequence[tuple[re.Pattern[str], int]] = [
    (re.compile(pattern), most)
    for pattern, most in (
        (r"max_position_embeddings|n_positions|context_length|.*sliding_window|attention_chunk_size", MOST_POSITIONS),
        (
            r"(num_|n_)?(hidden_|decoder_|encoder_|nextn_predict_)?layers?|.*block_count|first_k_dense_replace",
            MOST_LAYERS,
        ),
        (
            r".*(hidden_size|intermediate_size|vocab_size|head_dim|_rank|_heads|_experts|experts_per_tok|dimension_count)"
            r"|d_model|n_embd|n_inner|n_head|ffn_dim|embedding_length|.*feed_forward_length|expert_.*count"
            r"|attention\.(head_count|key_length|value_length).*|ssm\..*|mamba_[nd]_.*|linear_.*|.*conv_kernel.*",
            MOST_SIZE,
        ),
    )
]


def check_numbers(where: str, config: Mapping[str, Any]) -> None:
    """Raise ModelError for a size in a configuration that no model has. ``where``: its file."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            check_numbers(where, value)
        elif (most := _most(name)) is not None:
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, int | float) and not one <= most:
                    raise ModelError(
                        f"{name} in {where} is {one}, where a model has {most:,} at most; download it again"
                    )


def _most(name: str) -> int | None:
    return next((most for pattern, most in _MOST if pattern.fullmatch(name)), None)


def check_description(where: str, spec: DecoderSpec) -> None:
    """Raise ModelError for a description that no model has. ``where``: the file that it was made of."""
    for problem in _problems(spec):
        raise ModelError(f"the configuration of {where} does not describe a model: {problem}; download it again")


def _problems(spec: DecoderSpec) -> Iterator[str]:
    yield from _mistyped(spec)  # the first problem is raised: what follows may compare numbers
    if not 1 <= len(spec.layers) <= MOST_LAYERS:
        yield f"it has {len(spec.layers)} layers"
    yield from _sizes("", hidden_size=spec.hidden, vocab_size=spec.vocabulary)
    yield from _finite(eps=spec.norm.eps, logit_scale=spec.logit_scale, logit_cap=spec.logit_cap)
    yield from _finite(embedding_scale=spec.embedding_scale)
    for index, layer in enumerate(spec.layers):
        mixer, of = layer.mixer, f" of layer {index}"
        if isinstance(mixer, Attention):
            yield from _attention(of, mixer)
            if mixer.shares is not None and any(one.shares is None for one in spec.attentions):
                yield from _sharing(of, mixer, spec.layers[:index])  # else it is an assistant, with a target's keys
        else:
            yield from _recurrent(of, mixer)
        yield from _finite(scale_of_the_mixer=layer.scales[0], scale_of_the_MLP=layer.scales[1])
        if layer.mlp is not None:
            yield from _mlp(of, layer.mlp)
    if spec.inputs is not None:
        yield from _sizes(" of inputs of layers", width=spec.inputs.width)


def _mistyped(part: Any) -> Iterator[str]:
    """Fields of a description, and of its parts, that should be numbers and are none."""
    if isinstance(part, tuple):
        for one in part:
            yield from _mistyped(one)
    if not is_dataclass(part):
        return
    for field in fields(part):
        value, kind = getattr(part, field.name), NUMBERS.get(str(field.type))
        if kind is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            yield f"{field.name} of {type(part).__name__} is {value!r}"
        yield from _mistyped(value)


def _sizes(of: str, **sizes: Any) -> Iterator[str]:
    for name, size in sizes.items():
        if not isinstance(size, int) or not 1 <= size <= MOST_SIZE:
            yield f"the {name.replace('_', ' ')}{of} is {size}"


def _finite(**numbers: float) -> Iterator[str]:
    for name, number in numbers.items():
        if not math.isfinite(number):
            yield f"the {name.replace('_', ' ')} is {number}"


def _attention(of: str, mixer: Attention) -> Iterator[str]:
    yield from _sizes(of, number_of_heads=mixer.heads, number_of_key_heads=mixer.kv_heads, head_width=mixer.width)
    if mixer.kv_heads > 0 and mixer.heads % mixer.kv_heads:
        yield f"{mixer.heads} heads{of} cannot share {mixer.kv_heads} of keys"
    if not 0 <= mixer.window <= MOST_POSITIONS:
        yield f"the window{of} is {mixer.window}"
    yield from _finite(scale=mixer.scale, cap=mixer.cap)
    if mixer.rotation is not None:
        yield from _rotation(of, mixer.rotation, mixer.width if mixer.latent is None else mixer.latent.turned)
    if (latent := mixer.latent) is not None:
        yield from _sizes(of, rank=latent.rank, turned_width=latent.turned, plain_width=latent.plain)
        yield from _sizes(of, value_width=latent.values)
        if latent.query_down is not None:
            yield from _sizes(of, rank_of_queries=latent.query_rank)
        if latent.turned % 2 or mixer.width != latent.rank + latent.turned:
            yield f"{latent.turned} dimensions{of} cannot be turned"
        if mixer.rotation is not None and 2 * len(mixer.rotation.frequencies) != latent.turned:
            yield f"{2 * len(mixer.rotation.frequencies)} of {latent.turned} dimensions{of} are turned"


def _rotation(of: str, turning: Rotation, width: int) -> Iterator[str]:
    if 2 * len(turning.frequencies) > width:
        yield f"{2 * len(turning.frequencies)} of {width} dimensions of a head{of} are turned"
    yield from _finite(factor_of_rotations=turning.factor)
    if not all(map(math.isfinite, turning.frequencies)):
        yield f"the frequencies of rotations{of} are not finite"
    if turning.stretch is not None:
        yield from _finite(share_of_the_stretch=turning.stretch.share)
        if not 0 < turning.stretch.period < math.inf:
            yield f"the period of the stretch{of} is {turning.stretch.period}"


def _sharing(of: str, mixer: Attention, before: Sequence[Layer]) -> Iterator[str]:
    assert mixer.shares is not None
    owner = before[mixer.shares].attention if 0 <= mixer.shares < len(before) else None
    alike = owner is not None and (owner.kv_heads, owner.width) == (mixer.kv_heads, mixer.width)
    if owner is None or owner.shares is not None or not alike:
        yield f"the keys{of} cannot be those of layer {mixer.shares}"


def _recurrent(of: str, mixer: Recurrent) -> Iterator[str]:
    yield from _sizes(of, number_of_heads=mixer.heads, value_width=mixer.values, length_of_the_convolution=mixer.kernel)
    if mixer.kernel < 2 or mixer.kernel > 64:
        yield f"the length of the convolution{of} is {mixer.kernel}"
    if mixer.kind == CONVOLUTION:
        return
    yield from _sizes(of, number_of_key_heads=mixer.groups, key_width=mixer.keys)
    if mixer.groups > 0 and (mixer.heads % mixer.groups or mixer.inner % mixer.groups):
        yield f"{mixer.heads} heads{of} cannot share {mixer.groups} of keys"
    if mixer.selection is not None:
        yield from _sizes(of, rank_of_steps=mixer.selection.rank)


def _mlp(of: str, mlp: Mlp | Experts) -> Iterator[str]:
    yield from _sizes(of, width_of_the_MLP=mlp.inner)
    if not isinstance(mlp, Experts):
        return
    if mlp.shared is not None:
        yield from _mlp(of, mlp.shared)
    routing = mlp.routing
    yield from _sizes(of, number_of_experts=mlp.count, number_of_groups_of_experts=routing.groups)
    if not 1 <= mlp.used <= mlp.count:
        yield f"{mlp.used} of {mlp.count} experts{of} are used"
    yield from _finite(scale_of_experts=routing.scale)
    if routing.groups < 1 or mlp.count % routing.groups:
        yield f"{mlp.count} experts{of} make no {routing.groups} groups"
    elif routing.groups > 1:
        size = mlp.count // routing.groups
        if not 1 <= routing.best <= size:
            yield f"{routing.best} scores rank a group of {size} experts{of}"
        if not 1 <= routing.used_groups <= routing.groups or mlp.used > routing.used_groups * size:
            yield f"{mlp.used} experts{of} are used out of {routing.used_groups} groups of {size}"


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
        if mixer.kind == CONVOLUTION:
            rows = [(3 * inner, "factors and gate")]
        elif mixer.kind == SELECTIVE:
            rows = [(2 * inner, "values and gate")]
        elif mixer.kind == SCAN:
            rows = [(2 * inner + shared + heads, "gate, values, keys, queries and steps")]
        elif mixer.woven:
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
        for part in (mixer.decay, mixer.step, mixer.skip):
            if part is not None:
                self._set(part, _vector(heads, "heads"))
        if (chosen := mixer.selection) is not None:
            assert mixer.decay is not None and mixer.skip is not None
            self._set(mixer.decay, _matrix(inner, "channels", mixer.keys, "width of keys"))
            self._set(mixer.skip, _vector(inner, "channels"))
            self._set(chosen.choice, _matrix(chosen.rank + 2 * mixer.keys, "rank and keys", inner, "channels"))
            self._set(chosen.steps, _matrix(inner, "channels", chosen.rank, "rank"))
            for name, size in zip(chosen.norms, (chosen.rank, mixer.keys, mixer.keys), strict=bool(chosen.norms)):
                if name != UNWEIGHTED:
                    self._set(name, _vector(size, "its part of rank and keys"))
        if mixer.norm is not None:
            size = mixer.values if mixer.kind == DELTA else inner
            self._set(mixer.norm, _vector(size, "width of values"))

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

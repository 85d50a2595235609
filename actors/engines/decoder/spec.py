"""What a causal language model computes, layer by layer: families are described, the bodies execute the description.

Names of weights are those of the parameters of transformers' own model, whatever file they are read from
(:mod:`actors.engines.weights.source`). A matrix maps inputs to outputs as ``nn.Linear`` does; its bias, if there is
one, has the same name with ``bias`` in place of ``weight``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

SILU, GELU_TANH, GELU, RELU, RELU_SQUARED = "silu", "gelu_tanh", "gelu", "relu", "relu_squared"
CLAMPED_SWIGLU = "clamped_swiglu"  # gate and up are clamped: gpt-oss's
XIELU = "xielu"  # arXiv 2411.13010, with two numbers of each layer's own
XIELU_SLOPE, XIELU_EDGE = 0.5, -1e-6  # slope at zero; largest number with an exponential
ACTIVATIONS = (SILU, GELU_TANH, GELU, RELU, RELU_SQUARED, CLAMPED_SWIGLU, XIELU)
UNWEIGHTED = "unweighted"  # name of a norm that multiplies by nothing


@dataclass(frozen=True, slots=True)
class Norm:
    """How every norm of a model computes."""

    eps: float
    centred: bool = False  # layer norm: the mean is taken away first
    offset: float = 0.0  # added to the weights


@dataclass(frozen=True, slots=True)
class QueryScale:
    """Queries are multiplied by ``1 + share * log(1 + (position + first) // period)``."""

    share: float
    period: float
    first: int = 0


@dataclass(frozen=True, slots=True)
class Longer:
    """LongRoPE's frequencies for a context of more than ``edge`` tokens (arXiv 2402.13753)."""

    edge: int
    frequencies: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embedding of the leading dimensions of queries and keys; those after them stay as they are."""

    frequencies: tuple[float, ...]  # radians a position, of each pair
    factor: float = 1.0  # multiplies cosines and sines
    neighbours: bool = False  # pairs lie side by side in the checkpoint, not half a head apart
    stretch: QueryScale | None = None
    longer: Longer | None = None  # see :meth:`DecoderSpec.in_context`

    def in_context(self, tokens: int) -> Rotation:
        found = self if self.longer is None or tokens <= self.longer.edge else self.longer
        return replace(self, frequencies=found.frequencies, longer=None)


@dataclass(frozen=True, slots=True)
class Latent:
    """What all heads' keys and values are made of: one vector a token, and a rotated key (DeepSeek V2, arXiv
    2405.04434). With ``up`` inside the queries' and the output's matrices, the two are the one key, and the vector is
    the one value."""

    rank: int  # width of the vector
    turned: int  # leading dimensions of a head, which are the last ones in the checkpoint
    plain: int  # the others of a query's head in the checkpoint
    values: int  # width of a head's values in the checkpoint
    query: str  # (heads * (plain + turned), hidden or the rank of ``query_down``)
    down: str  # (rank + turned, hidden)
    norm: str  # the vector's norm
    up: str  # (heads * (plain + values), rank)
    query_down: str | None = None
    query_norm: str | None = None
    query_rank: int = 0  # width of what ``query_down`` gives
    eps: float = 1e-6  # both norms' epsilon


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms of heads of queries and keys, in the order of the checkpoint's dimensions; None: without weights. The
    bias of a norm that takes the mean away has the same name with ``bias``."""

    query: str | None = None
    key: str | None = None
    whole: bool = False  # one norm over all heads together
    value: bool = False  # norm of every head of values too, without weights
    turned: bool = False  # applied after the rotation, not before it


@dataclass(frozen=True, slots=True)
class Attention:
    """``qkv``: one matrix, or those of queries, keys and values; with ``latent`` none. ``woven``: the one matrix
    has of each head of keys its queries, and the key and the value after them."""

    heads: int
    kv_heads: int
    width: int  # a head's width
    scale: float  # multiplies scores
    qkv: tuple[str, ...]
    out: str
    rotation: Rotation | None = None
    window: int = 0  # a token sees this many tokens, itself included; 0: all
    chunked: bool = False  # ... or those since the last multiple of it
    cap: float = 0.0  # scores become ``cap * tanh(score / cap)``; 0: they stay
    norms: HeadNorms | None = None
    sinks: str | None = None  # (heads,): a score that takes a share and has no value
    latent: Latent | None = None
    shares: int | None = None  # the layer that it reads keys and values of; it has none then, and ``qkv`` is queries
    gated: bool = False  # a gate after each head's queries, or a fourth matrix; its sigmoid multiplies the output
    head_gates: bool = False  # the fourth matrix has one gate for each head
    soft_gates: bool = False  # ... with a softplus instead of a sigmoid
    woven: bool = False


DELTA, SCAN, CONVOLUTION, SELECTIVE = "delta", "scan", "convolution", "selective"
RECURRENT = (DELTA, SCAN, CONVOLUTION, SELECTIVE)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A mixer that keeps a state of a text in place of keys and values: a convolution, and after it what its kind
    does. A state is ``(heads, keys, values)``; ``heads / groups`` of them share queries and keys."""

    kind: ClassVar[str] = ""  # one of RECURRENT
    heads: int
    groups: int
    keys: int
    values: int
    kernel: int  # width of the convolution
    inputs: tuple[str, ...]
    convolution: str  # (channels, 1, kernel)
    out: str

    @property
    def inner(self) -> int:
        return self.heads * self.values

    @property
    def normed(self) -> int:
        """Numbers that its norm takes together."""
        return self.values

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.groups * self.keys + self.inner

    @property
    def tiled(self) -> bool:
        """Whether heads that share keys lie ``groups`` apart, not side by side."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet(Recurrent):
    """The gated delta rule (arXiv 2412.06464). ``inputs``: queries, keys and values (or each), gate, beta and alpha."""

    kind: ClassVar[str] = DELTA
    decay: str  # (heads,): the logarithm of its rate
    step: str  # (heads,): added to what its softplus is taken of
    norm: str  # norm of outputs, before the gate
    eps: float = 0.0  # the norm's epsilon; 0: the model's
    rate_scale: float = 1.0  # multiplies beta
    woven: bool = False  # ``inputs`` are two matrices with rows grouped by keys' heads (Qwen3-Next)
    tiles: bool = False  # see ``tiled``: GGUF

    @property
    def tiled(self) -> bool:
        return self.tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Recurrent):
    """Mamba 2's (arXiv 2405.21060)."""

    kind: ClassVar[str] = SCAN
    decay: str  # (heads,): the logarithm of its rate
    step: str  # (heads,): added to what its softplus is taken of
    skip: str  # (heads,): the share of a value in its output
    norm: str | None  # norm of outputs, after the gate
    least: float = 0.0  # the shortest step
    factors: tuple[float, ...] = ()  # multiply gate, values, keys, queries and steps

    @property
    def normed(self) -> int:
        return self.inner // self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Selective(Recurrent):
    """Mamba 1's (arXiv 2312.00752): each number of the state has its own decay. Steps, keys and queries are made of
    what the convolution gives."""

    kind: ClassVar[str] = SELECTIVE
    decay: str  # (inner, keys): the logarithm of its rate
    skip: str  # (inner,): the share of a value in its output
    rank: int  # numbers that steps are made of
    choice: str  # (rank + 2 * keys, inner)
    steps: str  # (inner, rank), with a bias
    norms: tuple[str, ...] = ()  # norms of the three parts of what ``choice`` gives
    eps: float = 0.0  # the norms' epsilon

    @property
    def channels(self) -> int:
        return self.inner


@dataclass(frozen=True, slots=True)
class ShortConvolution(Recurrent):
    """Nothing after the convolution (LFM 2). ``inputs``: factor, gate and factor."""

    kind: ClassVar[str] = CONVOLUTION


@dataclass(frozen=True, slots=True)
class Mlp:
    """``down(activation(gate(x)) * up(x))``; without a gate ``down(activation(up(x)))``."""

    inner: int
    activation: str  # one of ACTIVATIONS
    up: tuple[str, ...]  # gate and up, in one matrix or two; or up alone
    down: str
    gated: bool = True
    gate_scale: float = 1.0  # multiplies the gate before its activation
    shape: tuple[str, ...] = ()  # (1,) each: what makes the two numbers of XIELU


@dataclass(frozen=True, slots=True)
class ExpertNorms:
    """Norms of experts and of the shared MLP (Gemma 4). Both and the router read the residual stream."""

    router: str  # norm of its inputs, which are also divided by the root of their width
    inputs: str  # norm of the experts' inputs; those of the shared MLP are the layer's
    behind: str
    behind_shared: str


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router's scores choose experts, and what share each has."""

    sigmoid: bool = False  # scores by a sigmoid, instead of a softmax over all experts
    raw: bool = False  # the choice is by what the router gives, before its sigmoid
    correction: str | None = None  # (count,): added to scores for the choice alone
    groups: int = 1  # groups of experts; the best ``used_groups`` are left to choose from
    used_groups: int = 1
    best: int = 1  # number of scores; their sum ranks a group
    divided: bool = True  # shares are scores divided by their sum
    scale: float = 1.0  # multiplies shares


@dataclass(frozen=True, slots=True)
class Experts:
    """MLPs, of which a router chooses ``used`` for each row by its scores, and a shared one. The bias of ``up`` and of
    ``down`` has the same name with ``_bias`` after it."""

    count: int
    used: int
    inner: int
    activation: str  # one of ACTIVATIONS
    router: str  # (count, hidden)
    up: str  # (count, 2 * inner, hidden): gate and up; or (count, inner, hidden)
    down: str  # (count, hidden, inner)
    gated: bool = True
    transposed: bool = False  # both matrices
    woven: bool = False  # rows of gate and up alternate
    inside: bool = False  # shares multiply inputs, not outputs
    routing: Routing = Routing()
    shared: Mlp | None = None
    shared_gate: str | None = None  # (1, hidden): through a sigmoid the share of ``shared``
    shared_scale: float = 1.0  # multiplies what ``shared`` gives
    norms: ExpertNorms | None = None
    scales: str | None = None  # (count,): of the share of each


@dataclass(frozen=True, slots=True)
class Norms:
    """A layer's norms by name; None: there is none."""

    attention: str | None  # before attention
    mlp: str | None  # before the MLP
    behind_attention: str | None = None  # norm of what attention adds to the residual stream
    behind_mlp: str | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """What a layer adds after its two halves (Gemma 4): of its own ``LayerInputs``, times a gate of the stream."""

    activation: str  # one of ACTIVATIONS
    gate: str  # (width, hidden)
    out: str  # (hidden, width)
    norm: str  # norm of what is added


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """``width`` numbers a token for each layer: a row of a table, and what a matrix makes of its embedding."""

    width: int
    table: str  # (vocabulary, layers * width)
    matrix: str  # (layers * width, hidden)
    norm: str  # norm of what the matrix gives, each layer's
    table_scale: float
    matrix_scale: float
    scale: float  # multiplies their sum


@dataclass(frozen=True, slots=True)
class Positions:
    """A table with a row for each position, which is added to embeddings."""

    table: str  # (positions, hidden)
    first: int = 0  # row of the first position


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer and an MLP, one after the other, or with ``parallel`` both of the same input. With ``parallel`` and no
    norm before the MLP it shares the mixer's."""

    mixer: Attention | Recurrent
    mlp: Mlp | Experts | None
    norms: Norms
    parallel: bool = False
    rereads: bool = False  # the mixer reads what the mixer of the layer before has read (Falcon-H1)
    scales: tuple[float, float] = (1.0, 1.0)  # multiply what mixer and MLP add
    beside: Beside | None = None
    scale: str | None = None  # (1,): by what the stream is multiplied after the layer

    @property
    def attention(self) -> Attention | None:
        return self.mixer if isinstance(self.mixer, Attention) else None

    def in_context(self, tokens: int) -> Layer:
        if self.attention is None or self.attention.rotation is None:
            return self
        return replace(self, mixer=replace(self.attention, rotation=self.attention.rotation.in_context(tokens)))


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A whole model."""

    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    norm: Norm
    embedding: str
    final_norm: str
    head: str
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0  # logits become ``cap * tanh(logit / cap)``; 0: they stay
    inputs: LayerInputs | None = None
    positions: Positions | None = None
    embedded_norm: str | None = None  # norm of what the first layer reads
    transposed: bool = False  # matrices of layers, in the checkpoint

    @property
    def attention(self) -> Attention:
        """The first layer's that has one."""
        return self.attentions[0]

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Attention of the layers that have keys and values."""
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention))

    @property
    def edge(self) -> int:
        """The longest context that its first frequencies are for; 0: there are no others."""
        turns = (mixer.rotation for mixer in self.attentions)
        return max((one.longer.edge for one in turns if one is not None and one.longer is not None), default=0)

    def in_context(self, tokens: int) -> DecoderSpec:
        """The same for texts of at most ``tokens``: each rotation with the frequencies that those take."""
        if not self.edge:
            return self
        return replace(self, layers=tuple(layer.in_context(tokens) for layer in self.layers))

    @property
    def recurrent(self) -> tuple[Recurrent, ...]:
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, Recurrent))

    @property
    def names(self) -> Iterator[str]:
        """Names of the weights that every checkpoint has: all but biases, and the head, which may be the embedding."""
        return (name for name in _names(self) if name != self.head)

    @property
    def dense(self) -> tuple[Mlp, ...]:
        """The dense MLPs of all layers, shared ones included."""
        found = (layer.mlp.shared if isinstance(layer.mlp, Experts) else layer.mlp for layer in self.layers)
        return tuple(mlp for mlp in found if mlp is not None)

    @property
    def inner(self) -> set[int]:
        """Widths of MLPs."""
        return {mlp.inner for mlp in self.dense} | {mlp.inner for mlp in self.experts}

    @property
    def experts(self) -> tuple[Experts, ...]:
        return tuple(layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts))


def _names(part: Any) -> Iterator[str]:
    """All strings with a dot, also strings that name no weight."""
    match part:
        case str():
            yield from [part] if "." in part else []
        case tuple():
            for one in part:
                yield from _names(one)
        case _ if is_dataclass(part):
            for field in fields(part):
                yield from _names(getattr(part, field.name))

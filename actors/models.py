"""What the actors ask of a model. No torch here: the actors and their tests run without it.

Positions count from 0; ``length`` is the number of committed tokens, so the last committed token (the *root* of the
tree) sits at position ``length - 1``. A tree node at depth d (children of the root: 1) sits at ``length - 1 + d``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from actors.tree.accept import ROOT as ROOT
from protocols.messages import ChatTurn, Sampling, TokenizerParts, TokenLogprobs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_NODES = 31  # of the largest window of a request that names no other number: 32 rows with the root


@dataclass(frozen=True, slots=True)
class ModelInfo:
    model_id: str
    vocab_size: int  # ids below this may be sampled
    max_context: int  # tokens, prompt and output together
    eos_token_ids: frozenset[int]
    tokenizer_digest: str  # SHA-256 over the sorted vocabulary and the merges
    parameters: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    tokenizer: TokenizerParts | None = None  # what the digest is made of
    tool_form: str = ""  # how it writes tool calls, as ``Welcome`` says it
    response_template: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """One request's share of a round: a connected subtree below its root, parents before children."""

    handle: int
    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()  # index into ``tokens``; ROOT for children of the root


@dataclass(frozen=True, slots=True)
class Likeliest:
    """The target's likeliest tokens at each of n places, best first, under its raw logits: before penalties,
    temperature and filters."""

    ids: NDArray[np.int64]  # (n, k)
    probabilities: NDArray[np.float32]  # (n, k), of the whole vocabulary


@dataclass(slots=True)
class Outcome:
    """What the target made of a window: ``tokens`` are committed; ``path`` are the accepted nodes' indices.

    ``len(tokens) == len(path) + 1``: the accepted tokens, then one of the target's own. ``sampled[0]`` is the target's
    token behind the root, ``sampled[i + 1]`` that behind node i of the window (after a prefill it is empty).
    ``reused``: after a prefill, tokens of the prompt that an earlier one had begun with, and that were not computed.
    ``likeliest``: at the places of ``tokens``, where it is wanted.
    """

    path: list[int]
    tokens: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    reused: int = 0
    likeliest: Likeliest | None = None


class Constraint(Protocol):
    """Which tokens a request's output may go on with. Whoever opened the request keeps it at the committed output."""

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        """A row for what may follow the root, and one for each node of a window: token t is bit ``t % 32`` of word
        ``t // 32``. What may follow a node that its parent's row excludes does not matter. RequestError if the output
        cannot be followed any further."""
        ...


class TargetModel(Protocol):
    """The verifier's model. Not thread-safe: one compute thread owns it. Handles are small integers."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def kv_slots(self) -> int: ...
    @property
    def kv_used(self) -> int:
        """Slots of open requests."""
        ...

    @property
    def kv_cached(self) -> int:
        """Slots that hold beginnings of prompts for later ones; they are free as soon as a request needs them."""
        ...

    @property
    def max_window(self) -> int:
        """Most tree nodes of one request in one round."""
        ...

    @property
    def rows_agree(self) -> tuple[int, ...]:
        """Row counts whose results were bit-equal in the start-up self-check."""
        ...

    @property
    def branches(self) -> bool:
        """Whether a window may hold more than one path: branches give the bits of plain decoding too, or differ from
        them in float32's last digits (experts, or a device whose sums depend on shapes)."""
        ...

    @property
    def has_spare_cpus(self) -> bool:
        """Whether there are CPUs that it may use while drafters rest."""
        ...

    def use_spare_cpus(self, used: bool) -> None:
        """From the next forward on. Only where there are some; the bits are the same."""
        ...

    def open(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        most_nodes: int = DEFAULT_NODES,
        cache_salt: str = "",
        constraint: Constraint | None = None,
        likeliest: int = 0,
    ) -> int:
        """Reserve room for the text that there is; ``generated`` are output tokens to replay (a resumed stream).

        ``most_nodes``: of the request's largest window; more than ``max_window`` are never computed. ``cache_salt``:
        what was computed of earlier prompts with the same salt may be used again. ``constraint``: asked for its masks
        while a forward of the request is under way, on the compute thread. ``likeliest``: so many tokens at each place
        are wanted in :attr:`Outcome.likeliest`.

        Raises :class:`protocols.errors.PoolFull` when it must wait for another request to end.
        """
        ...

    def reserve(self, handle: int) -> None:
        """Make room for what the request's next round may commit.

        Raises :class:`protocols.errors.PoolFull` when there is none, without effect: some request must be closed first.
        An only request always finds room."""
        ...

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        """Compute the next chunk of the prompt. The outcome of the first new token once all is done, else None.

        ``limit``: at most so many tokens, because others wait; it is followed as far as the bits do not depend on it.
        Replayed tokens run in the shape of decode rounds, so that a resumed stream has the same bits.
        """
        ...

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        """One flat forward over every window's root and nodes; samples, walks, commits. One outcome per window.

        Where it raises it has committed nothing: the same windows may be verified again, one by one."""
        ...

    @property
    def mixes_prompts(self) -> bool:
        """Whether a piece of a prompt may share a round's forward: where bits do not depend on the rows beside."""
        ...

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        """``verify(windows)`` and ``prefill(handle, limit)`` of another request in one forward, which reads the weights
        once for both. Only where the model mixes prompts. Where it raises, it has done neither."""
        ...

    def close(self, handle: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """A node to expand. ``path`` holds the slots of its already expanded ancestors below the root, top first."""

    handle: int
    token: int
    path: tuple[int, ...]  # len(path) + 1 == depth of this node; ignored for the root
    is_root: bool = False  # expand the last committed token


@dataclass(frozen=True, slots=True)
class Expansion:
    """The likely children of an expanded node, best first.

    ``probs`` are the draft's confidences: softmax of its processed logits at temperature 0, softmax of
    ``logits / T + noise`` otherwise, so that rank 0 is the token that shared noise would pick.
    """

    slot: int  # where the node's K/V now lies (-1 for the root)
    tokens: tuple[int, ...]
    probs: tuple[float, ...]


class DraftModel(Protocol):
    """The drafter's model: a mirror of committed prefixes plus scratch slots for tree nodes.

    ``info.vocab_size`` and ``info.max_context`` are the draft's own and may be smaller than the target's: a text that
    holds an id from ``vocab_size`` on, or that leaves no position below ``max_context``, cannot be mirrored. A call
    that raises anything but CannotDraft leaves every mirror as it was.
    """

    @property
    def info(self) -> ModelInfo: ...
    @property
    def scratch_slots(self) -> int:
        """Most expanded tree nodes that one request may hold at once."""
        ...

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        """A mirror of ``prefix``, of which nothing is computed yet.

        Raises :class:`protocols.errors.PoolFull` when there is no room, and :class:`protocols.errors.CannotDraft` when
        this model can never mirror the prefix.
        """
        ...

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        """Make a mirror that of another text. What is computed of their common prefix stays; tree nodes go.

        Raises as ``open`` does.
        """
        ...

    def missing(self, handle: int) -> int:
        """Committed tokens before the last that are not computed yet."""
        ...

    def prefill(self, handle: int, limit: int) -> None:
        """Compute the first ``limit`` of the missing tokens."""
        ...

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        """One batched forward. A root among the leaves is the only leaf of its request in that call.

        A root's missing tokens are computed in the same call. A leaf at a position from ``info.max_context`` on is not
        computed: its expansion has slot -1 and no tokens.
        """
        ...

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        """Append committed tokens; ``slots[i]`` is where token i's K/V lies (copied home and freed), or -1.

        Raises :class:`protocols.errors.CannotDraft` when the text has grown to what this model cannot mirror: the
        handle is good for nothing but ``close`` then. Raises :class:`protocols.errors.PoolFull` when the text outgrows
        the room reserved for it.
        """
        ...

    def release(self, handle: int, slots: Sequence[int]) -> None:
        """Give scratch slots of dead nodes back."""
        ...

    def close(self, handle: int) -> None: ...


class Codec(Protocol):
    """Text to token ids and back, with the target's tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the special tokens that the tokenizer puts in front."""
        ...

    def chat(self, turns: Sequence[ChatTurn], tools: str = "") -> list[int]:
        """Ids of a conversation in the model's chat template, ready for the assistant's answer; ``tools`` as in
        Generate.

        Raises :class:`protocols.errors.RequestError` when the model has no chat template, or its template refuses.
        """
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Text of each id as it stands behind others; special tokens by their names, U+FFFD for half a character."""
        ...

    def serialized(self) -> str:
        """The tokenizer as a ``tokenizer.json``. RequestError ("unsupported") when it is none of Hugging Face's fast
        ones."""
        ...


def sample_tokens(count: int, vocab_size: int) -> list[int]:
    """Ordinary-looking ids, away from the special tokens at the start of most vocabularies."""
    return [(7919 * (i + 1)) % max(1, vocab_size - 16) + min(16, vocab_size - 1) for i in range(count)]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    a, b = tuple(one), tuple(other)
    same, differs = 0, min(len(a), len(b)) + 1  # by halves: comparing slices is a hundred times as fast as a loop
    while differs - same > 1:
        middle = (same + differs) // 2
        same, differs = (middle, differs) if a[same:middle] == b[same:middle] else (same, middle)
    return same

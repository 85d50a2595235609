"""The interfaces of models: the verifier's target, the drafter's draft, and the tokenizer. They need no torch, so the
actors and their tests run without it.

Positions count from 0; ``length`` is the number of committed tokens, so the last committed token (the *root* of the
tree) sits at position ``length - 1``. A tree node at depth d (children of the root: 1) sits at ``length - 1 + d``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from actors.tree.accept import ROOT as ROOT
from protocols.errors import ModelError, RequestError
from protocols.messages import (
    NO_THOUGHTS,
    UNCHANGED,
    ChatTurn,
    FailureCode,
    HiddenStates,
    Reading,
    Rendering,
    Sampling,
    Thinking,
    TokenizerParts,
    TokenLogprobs,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from actors.tree.tree import Node, TokenTree

RENDERING, NOTHING_READ = Rendering(), Reading()
DEFAULT_NODES = 31  # nodes of the largest window and the longest draft, if no number is named: 32 rows with the root
MOST_PROBABLE = 1.001  # 1, and the rounding of a float32 softmax
RANKED = 8  # likeliest tokens of a row that a target tells; fewer of a smaller vocabulary
MAX_FAILURES = 3  # failures of a model in a row: then no request is the cause, and a process ends, to be started anew


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
    layers: int = 0  # layers that have states to keep
    tokenizer: TokenizerParts | None = None  # what the digest is made of
    reading: Reading = NOTHING_READ
    tool_form: str = ""  # see ``Welcome``
    response_template: str = ""  # see ``Welcome``
    thinking: Thinking = NO_THOUGHTS  # see ``Welcome``
    sampling: Sampling = UNCHANGED  # see ``Welcome``
    identity: str = ""  # see ``Welcome``


class Window(msgspec.Struct, frozen=True):
    """One request's share of a round: a connected subtree below its root, parents before children."""

    handle: int
    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()  # index into ``tokens``; ROOT for children of the root
    ranks: bool = False  # whether the outcome is to have :attr:`Outcome.ranked`


class Ranked(NamedTuple):
    """What the target thought likeliest after each row of a window, its root first, before any penalty or mask."""

    tokens: list[NDArray[np.int64]]  # (RANKED,) of each row, best first
    logits: list[NDArray[np.float32]]  # (RANKED,) of each row; NaN or infinite where the target's are

    def then(self, more: Ranked) -> Ranked:
        """These rows and those of a further forward."""
        return Ranked(self.tokens + more.tokens, self.logits + more.logits)


@dataclass(slots=True)
class Outcome:
    """The target's result for a window, or for the last piece of a prompt."""

    path: list[int]  # indices of the accepted nodes, top first
    tokens: list[int]  # committed now: the accepted nodes' tokens, then one of the target's own
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one for each of ``tokens``, if asked for
    # the target's token after the root, then after each node of the window; after a prefill there are none
    sampled: list[int] = field(default_factory=list)
    reused: int = 0  # after a prefill: tokens of the prompt that were not computed, because an earlier one had them
    ranked: Ranked | None = None  # rows of the root and each node of the window, if the window asks for them


class Constraint(Protocol):
    """The tokens that may follow in a request's output. Whoever opened the request keeps it at the committed output."""

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        """int32 ``(1 + nodes, words)``: the tokens that may follow the root, then each node of a
        window; token t is bit ``t % 32`` of word ``t // 32``. The row of a node that is not allowed itself has no
        meaning. Raises RequestError if the output cannot be followed any further."""
        ...


class TargetModel(Protocol):
    """The verifier's model. Not thread-safe: one compute thread owns it. Handles are small integers."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def kv_slots(self) -> int:
        """Slots of the KV pool; each holds one token."""
        ...

    @property
    def kv_used(self) -> int:
        """Slots of open requests."""
        ...

    @property
    def kv_cached(self) -> int:
        """Slots that hold prefixes for later prompts; they are free as soon as a request needs them."""
        ...

    def give_back(self) -> None:
        """Give the system the memory that nothing lies in any more. Called between two forwards."""
        ...

    @property
    def max_window(self) -> int:
        """Most tree nodes of one request in one round."""
        ...

    @property
    def rows_agree(self) -> tuple[int, ...]:
        """Row counts with bit-equal results in the start-up self-check."""
        ...

    @property
    def branches(self) -> bool:
        """Whether a window may hold more than one path. Rows of other paths have the bits of plain decoding. With
        experts, or on a device with sums that depend on shapes, they differ in float32's last digits."""
        ...

    @property
    def has_spare_cpus(self) -> bool:
        """Whether there are CPUs of drafters that it may compute on while all drafters rest."""
        ...

    def use_spare_cpus(self, used: bool) -> None:
        """Whether forwards from the next one on use the spare CPUs, which there must be. The bits are the same."""
        ...

    def open(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        most_nodes: int = DEFAULT_NODES,
        cache_salt: str = "",
        constraint: Constraint | None = None,
    ) -> int:
        """Open a request and reserve room for its text so far. Returns its handle.

        ``generated``: output tokens of a resumed stream, which are computed after the prompt. ``most_nodes``: of the
        request's largest window; it is cut to ``max_window``. ``cache_salt``: keys and values of earlier requests with
        the same salt may be used again. ``constraint``: asked for its masks on the compute thread, during a forward of
        the request.

        Raises :class:`protocols.errors.PoolFull` if it must wait for another request to end.
        """
        ...

    def reserve(self, handle: int) -> None:
        """Make room for what the request's next round may commit.

        Raises :class:`protocols.errors.PoolFull`, without effect, if there is none: another request must be closed
        first. A request that is alone always has room."""
        ...

    def prefill(self, handle: int, limit: int | None = None) -> Outcome | None:
        """Compute the next piece of the prompt. Returns the outcome of the first new token after the last piece, else
        None.

        ``limit``: most tokens, because other requests wait; it is kept as far as bits do not depend on it. The
        output of a resumed stream is computed in the shape of decode rounds, so that it has the same bits as the first
        time.
        """
        ...

    def verify(self, windows: Sequence[Window]) -> list[Outcome]:
        """Compute the root and the nodes of each window in one flat forward, sample, walk, and commit. Returns an
        outcome for each window.

        If it raises, it has committed nothing, and the same windows may be verified again, one by one."""
        ...

    @property
    def mixes_prompts(self) -> bool:
        """Whether a piece of a prompt may share the forward of a round: bits do not depend on other rows."""
        ...

    def verify_beside(self, windows: Sequence[Window], handle: int, limit: int) -> tuple[list[Outcome], Outcome | None]:
        """``verify(windows)`` and ``prefill(handle, limit)`` of another request in one forward, which reads the weights
        once for both. Only if the model mixes prompts. If it raises, it has done neither."""
        ...

    def close(self, handle: int) -> None: ...
    def keep_states(self, layers: Sequence[int]) -> KeptStates:
        """Between two forwards: from the next one on keep the states that enter these layers, for a new reader."""
        ...

    def leave_states(self, reader: KeptStates) -> None: ...


class Leaf(msgspec.Struct, frozen=True):
    """A node to expand."""

    handle: int
    token: int
    path: tuple[int, ...]  # slots of its ancestors below the root, top first; ignored for the root
    is_root: bool = False  # it is the last committed token

    @classmethod
    def of(cls, handle: int, tree: TokenTree, node: Node) -> Leaf:
        """``node``, whose ancestors are expanded, in the mirror ``handle``."""
        return cls(handle, node.token, tree.slots_above(node), is_root=node is tree.root)


@dataclass(frozen=True, slots=True)
class Expansion:
    """The likely children of an expanded node, best first.

    ``probs`` are the draft's confidences: softmax of its processed logits at temperature 0, else softmax of
    ``logits / T + noise``. So the token that the shared noise picks has rank 0.
    """

    slot: int  # place of the node's K/V (-1 for the root)
    tokens: tuple[int, ...]
    probs: tuple[float, ...]

    def within(self, vocab_size: int) -> Expansion:
        """Without ids from ``vocab_size`` on: a draft's vocabulary may be padded beyond the target's. Raises ModelError
        for numbers that are no probabilities, as of a model with weights that are not finite."""
        for token, prob in zip(self.tokens, self.probs, strict=True):
            if not (token >= 0 and 0.0 <= prob <= MOST_PROBABLE):  # NaN is not
                raise ModelError(
                    f"the draft model gives token {token} the probability {prob:g}: its weights are broken, or too "
                    "large for its dtype; use another draft model"
                )
        if max(self.tokens, default=0) < vocab_size:
            return self
        known = [(token, prob) for token, prob in zip(self.tokens, self.probs, strict=True) if token < vocab_size]
        return Expansion(self.slot, tuple(token for token, _ in known), tuple(prob for _, prob in known))


class DraftModel(Protocol):
    """The drafter's model: mirrors of committed texts, with scratch slots for tree nodes.

    ``info.vocab_size`` and ``info.max_context`` are the draft's own, and may be smaller than the target's. It cannot
    mirror a text that has an id beyond that vocabulary, or more tokens than that context. A call that raises anything
    but CannotDraft leaves every mirror as it was.
    """

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that it reads states of, see ``Hello.states``; mostly none."""
        ...

    @property
    def info(self) -> ModelInfo: ...
    @property
    def scratch_slots(self) -> int:
        """Most expanded tree nodes that one request may hold at once."""
        ...

    def open(self, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> int:
        """Open a mirror of ``prefix``, of which nothing is computed yet. Returns its handle.

        Raises :class:`protocols.errors.PoolFull` if there is no room, and :class:`protocols.errors.CannotDraft` if this
        model can never mirror the prefix.
        """
        ...

    def reopen(self, handle: int, prefix: Sequence[int], prompt_len: int, sampling: Sampling) -> None:
        """Turn a mirror into that of another text. What is computed of their common prefix is kept, tree nodes are not.

        Raises as ``open`` does.
        """
        ...

    def missing(self, handle: int) -> int:
        """The number of committed tokens before the last that are not computed yet."""
        ...

    def prefill(self, handle: int, limit: int) -> None:
        """Compute the first ``limit`` of the missing tokens."""
        ...

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        """Expand leaves in one batched forward. A root comes before all others of its request, which are below it.

        A root's missing tokens are computed in the same call. A leaf at a position from ``info.max_context`` on is not
        computed: its expansion has slot -1 and no tokens.
        """
        ...

    def commit(self, handle: int, tokens: Sequence[int], slots: Sequence[int]) -> None:
        """Append committed tokens. ``slots[i]``: the scratch slot with token i's K/V, which is copied to its canonical
        slot and freed; -1: it is not computed.

        Raises :class:`protocols.errors.CannotDraft` if this model can no longer mirror the text: the
        handle can only be closed then. Raises :class:`protocols.errors.PoolFull` if the text outgrows the room that was
        reserved for it.
        """
        ...

    def release(self, handle: int, slots: Sequence[int]) -> None:
        """Free the scratch slots of dead nodes."""
        ...

    def close(self, handle: int) -> None: ...


class StateReader(DraftModel, Protocol):
    """A draft head in a process of its own, to which the target's states are sent."""

    def listen(self, handle: int) -> None:
        """Send the states of the mirror's text from now on."""
        ...

    def receive(self, handle: int, message: HiddenStates) -> bool:
        """Take states. False: it reads other states."""
        ...


class KeptStates(Protocol):
    """The states of named layers that a target keeps for one drafter."""

    def packed(self, handle: int) -> list[HiddenStates]:
        """Those of a request's tokens since the last call, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer as bytes and kinds."""

    tokens: list[bytes]  # bytes by id: none where an id has no token, a special token's name
    special: list[int]  # ids of special tokens, which no text contains


class Codec(Protocol):
    """The target's tokenizer."""

    def encode(self, text: str, special_tokens: bool = True, context: int = 0) -> list[int]:
        """The ids of a raw prompt, with or without the special tokens that the tokenizer adds in front.

        Raises :class:`protocols.errors.RequestError` for a text that is too long for ``context`` tokens, as far as its
        length tells; 0: any fits. On a thread, other threads go on meanwhile.
        """
        ...

    def chat(
        self, turns: Sequence[ChatTurn], tools: str = "", rendering: Rendering = RENDERING, context: int = 0
    ) -> list[int]:
        """The ids of a conversation in the model's chat template, up to where the output begins. ``tools`` and
        ``rendering``: as in Generate; ``context``: as of :meth:`encode`.

        Raises :class:`protocols.errors.RequestError` if the model has no chat template, or its template refuses.
        """
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id after other text: special tokens by their names, U+FFFD for a part of a character."""
        ...

    def octets(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id with U+FFFD in its piece; of the others none."""
        ...

    def config(self) -> dict[str, Any]:
        """Special tokens, chat template and class, as a ``tokenizer_config.json`` has them."""
        ...

    def vocabulary(self) -> Vocabulary:
        """Raises RequestError ("unsupported") if the tokenizer is not one of Hugging Face's fast ones over bytes."""
        ...

    def encode_inside(self, text: str) -> list[int]:
        """The ids of a text that stands after another one: without special tokens and without a space in front."""
        ...


def too_long(tokens: int, context: int, note: str = "") -> RequestError:
    """The error of a prompt that does not fit. Agents recognise its wording, and shorten the conversation."""
    detail = f"prompt is too long: {tokens} tokens > {context - 1} maximum"
    return RequestError(
        FailureCode.CONTEXT_LENGTH, f"{detail} ({note}this model's maximum context length is {context} tokens)"
    )


def sample_tokens(count: int, vocab_size: int) -> list[int]:
    """``count`` ids for measurements: without the special tokens at the start of most vocabularies."""
    return [(7919 * (i + 1)) % max(1, vocab_size - 16) + min(16, vocab_size - 1) for i in range(count)]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common prefix of two texts, in tokens."""
    a, b = tuple(one), tuple(other)
    # a binary search: comparing slices is a hundred times as fast as a loop over tokens
    same, differs = 0, min(len(a), len(b)) + 1
    while differs - same > 1:
        middle = (same + differs) // 2
        same, differs = (middle, differs) if a[same:middle] == b[same:middle] else (same, middle)
    return same

"""What clients ask a verifier, and what it answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

# isort: off
# fmt: off
from protocols.actor_messages import RoundTrace, Budget
from protocols.enumerations import FailureCode, FinishReason
from protocols.limits import (
    ActorId, Count, Counters, DraftLength, Flags, Label, Milliseconds, Pieces, Position, Priority, ProcessId,
    RequestId, RowCounts, Sentence, Sequences, StopString, Text, TextPieces, TokenId, Tokens,
)
from protocols.parts import (
    Message, Sampling, StructuredOutputs, RequestStats, Turns, Logprobs, RequestStatuses, DrafterStatuses, Totals,
    Expectation,
)
# fmt: on
# isort: on

Budgets = Annotated[tuple[Budget, ...], Meta(max_length=64)]


# --- client -> verifier ----------------------------------------------------------------------------------------------


class Generate(Message, frozen=True):
    """Exactly one of ``prompt`` (text or ids) and ``messages`` is given. ``generated`` resumes a broken stream."""

    rid: RequestId
    prompt: Text | Tokens = ""
    messages: Turns = ()
    sampling: Sampling = Sampling()
    method: Label = ""
    generated: Tokens = ()  # tokens the client already has; numbering goes on behind them
    num_speculative_tokens: DraftLength = 0  # 0: adaptive
    sequences: Sequences = 0  # 0: dynamic (the theta rule)
    attempt: Count = 0  # how often in a row the verifier ended, not in order, while it worked on this request
    structured_outputs: StructuredOutputs | None = None  # what the output, ``generated`` included, must be
    trace: bool = False  # chunks tell how they came about
    tools: Text = ""  # a JSON array in OpenAI's shape, for the chat template
    cache_salt: Label = ""  # what earlier requests left (KV cache, texts) speeds up only those with the same salt
    priority: Priority = 0  # lower is served earlier, and gives its room up later
    deadline_ms: Milliseconds = 0.0  # from the request's arrival to its last token; 0: none


class Cancel(Message, frozen=True):
    rid: RequestId


class Status(Message, frozen=True):
    rid: RequestId = ""


class Tokenize(Message, frozen=True):
    """Which tokens are that? Exactly one of ``text`` and ``messages`` is given. Nothing is generated."""

    rid: RequestId
    text: Text = ""
    messages: Turns = ()
    tools: Text = ""  # as in Generate


class Detokenize(Message, frozen=True):
    """Which text is that?"""

    rid: RequestId
    token_ids: Tokens


class Swap(Message, frozen=True):
    """Move every lease of drafter ``old`` to drafter ``new``."""

    rid: RequestId
    old: ActorId
    new: ActorId


class DrainActor(Message, frozen=True):
    """Take a drafter out of service: its leases move away, then it is told to leave."""

    rid: RequestId
    actor_id: ActorId


class Undo(Message, frozen=True):
    """Go back to the weights before the learner's last promotion. The verifier hands it to the learner."""

    rid: RequestId


# --- verifier -> client ----------------------------------------------------------------------------------------------


class Chunk(Message, frozen=True):
    """Tokens ``offset ..`` of the output. ``pieces[i]`` is the text that token i completes ("" inside a character).

    The first token has a chunk of its own. Later ones share it where rounds are shorter than a 60th of a second, unless
    the request asked for a trace."""

    rid: RequestId
    offset: Position
    token_ids: Tokens
    pieces: Pieces
    accepted: Flags  # True: a draft token that the target confirmed
    finish_reason: FinishReason | None = None
    logprobs: Logprobs = ()
    stats: RequestStats | None = None
    stop_reason: StopString | TokenId | None = None  # what ended it; None: an end-of-sequence token
    prompt_tokens: Position = 0  # in the first chunk
    trace: RoundTrace | None = None  # of the round that brought the tokens, if the request asked for it
    cached_tokens: Position = 0  # in the first chunk: of its prompt tokens, those that were not computed again

    @property
    def text(self) -> str:
        """The text of this chunk."""
        return "".join(self.pieces)


class Failed(Message, frozen=True):
    rid: RequestId
    code: FailureCode
    detail: Sentence
    retry_after_ms: Milliseconds = 0.0  # where it is overloaded: when there should be room; 0: not known


class Done(Message, frozen=True):
    """Swap, DrainActor or Undo was carried out, or handed on."""

    rid: RequestId
    detail: Sentence = ""


class Tokenized(Message, frozen=True):
    """A text and its tokens: the answer to Tokenize and to Detokenize."""

    rid: RequestId
    token_ids: Tokens
    pieces: TextPieces  # [i]: token i inside a text; U+FFFD stands for a part of a character
    text: Text  # special tokens by their names


class StatusReport(Message, frozen=True):
    rid: RequestId
    model_id: Label
    device: Label
    dtype: Label
    method: Label
    uptime_ms: Milliseconds
    kv_slots: Count
    kv_used: Count
    requests: RequestStatuses = ()
    drafters: DrafterStatuses = ()
    controller: Label = ""
    counters: Counters = field(default_factory=dict)
    rows_agree: RowCounts = ()  # window row counts that gave equal bits in the start-up self-check
    pid: ProcessId = 0
    budgets: Budgets = ()  # one per method
    totals: Totals = ()
    controller_pid: ProcessId = 0
    host: Label = ""
    controller_host: Label = ""
    kv_cached: Count = 0  # slots that hold beginnings of prompts for later ones, and are free when they are needed
    learner: Label = ""
    learner_pid: ProcessId = 0
    branches: bool = True  # whether windows may hold more than the likeliest path: the self-check found its bits equal
    inline_draft: Label = ""  # model that the verifier itself drafts with between forwards; empty: it does not
    inline_version: Count = 0  # of the learner's weights, as a drafter's
    inline_trouble: Sentence = ""
    expected: Expectation | None = None

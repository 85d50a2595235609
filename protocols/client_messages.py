"""The messages between clients and a verifier."""

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
    """Ask for text. Exactly one of ``prompt`` (text or ids) and ``messages`` is given."""

    rid: RequestId  # chosen by the client
    prompt: Text | Tokens = ""
    messages: Turns = ()
    sampling: Sampling = Sampling()
    method: Label = ""  # a Method; "": the verifier's default
    generated: Tokens = ()  # to resume a broken stream: output tokens that the client has; offsets go on behind them
    num_speculative_tokens: DraftLength = 0  # gamma; 0: adaptive
    sequences: Sequences = 0  # k; 0: by the theta rule
    attempt: Count = 0  # how often in a row the verifier has crashed while it worked on this request
    structured_outputs: StructuredOutputs | None = None  # what the output, ``generated`` included, must follow
    trace: bool = False  # chunks have a RoundTrace
    tools: Text = ""  # a JSON array in OpenAI's shape, for the chat template
    cache_salt: Label = ""  # only requests with the same salt share what is cached (keys and values, texts)
    priority: Priority = 0  # the lowest number is served first and preempted last
    deadline_ms: Milliseconds = 0.0  # from the request's arrival to its last token; 0: none


class Cancel(Message, frozen=True):
    """Stop generating. There is no answer."""

    rid: RequestId


class Status(Message, frozen=True):
    """Ask for a StatusReport."""

    rid: RequestId = ""


class Tokenize(Message, frozen=True):
    """Ask for the tokens of ``text`` or of ``messages``; exactly one of both is given."""

    rid: RequestId
    text: Text = ""
    messages: Turns = ()
    tools: Text = ""  # as in Generate


class Detokenize(Message, frozen=True):
    """Ask for the text of tokens."""

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
    """Go back to the draft weights before the learner's last promotion. The verifier forwards it to the learner."""

    rid: RequestId
    version: Count = 0  # the promoted one that is to be left; refused where another is in force. 0: whichever is


# --- verifier -> client ----------------------------------------------------------------------------------------------


class Chunk(Message, frozen=True):
    """The next tokens of the output.

    The first token has a chunk of its own. Later rounds share one where they are shorter than a 60th of a second,
    unless the request asked for a trace."""

    rid: RequestId
    offset: Position  # of the first of these tokens in the output
    token_ids: Tokens
    pieces: Pieces  # [i]: the text that token i completes; "" inside a character
    accepted: Flags  # [i]: token i is a draft token that the target has accepted
    finish_reason: FinishReason | None = None  # in the last chunk
    logprobs: Logprobs = ()  # of each token, if the request asked for them
    stats: RequestStats | None = None  # in the last chunk
    stop_reason: StopString | TokenId | None = None  # the request's own stop that ended it; None: another reason
    prompt_tokens: Position = 0  # in the first chunk
    trace: RoundTrace | None = None  # of the round that brought the tokens, if the request asked for it
    cached_tokens: Position = 0  # in the first chunk: of the prompt tokens, those that were not computed again

    @property
    def text(self) -> str:
        """The text of this chunk."""
        return "".join(self.pieces)


class Failed(Message, frozen=True):
    """The request or question of that id has failed; nothing more follows about it."""

    rid: RequestId
    code: FailureCode
    detail: Sentence
    retry_after_ms: Milliseconds = 0.0  # if the code is ``overloaded``: when there should be room; 0: not known


class Done(Message, frozen=True):
    """A Swap, DrainActor or Undo was carried out, or forwarded."""

    rid: RequestId
    detail: Sentence = ""


class Tokenized(Message, frozen=True):
    """The answer to Tokenize and Detokenize: a text and its tokens."""

    rid: RequestId
    token_ids: Tokens
    pieces: TextPieces  # [i]: the text of token i behind other text; U+FFFD for a part of a character
    text: Text  # special tokens by their names


class StatusReport(Message, frozen=True):
    """The verifier, and all that is connected to it, as the asking client may see it."""

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
    budgets: Budgets = ()  # the controller's, as far as they are in force
    totals: Totals = ()
    controller_pid: ProcessId = 0
    host: Label = ""
    controller_host: Label = ""
    kv_cached: Count = 0  # slots that hold prefixes for later prompts; they are free as soon as a request needs them
    learner: Label = ""  # actor id; "": none
    learner_pid: ProcessId = 0
    branches: bool = True  # whether windows may hold more than the likeliest path, see the self-check
    inline_draft: Label = ""  # model that the verifier itself drafts with between forwards; "": it does not
    inline_version: Count = 0  # of its weights, as DrafterStatus.version
    inline_trouble: Sentence = ""  # as DrafterStatus.trouble
    expected: Expectation | None = None

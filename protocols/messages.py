"""Every message of the protocol, one union per receiver. ``SPEC.md`` is the normative text.

Within a major version evolution is append-only: a new field goes to the end and has a default. Durations are in the
unit that the field's name ends in; there is no wall-clock time on the wire. Token ids are in the target's vocabulary.

Every number, string and array has limits in its type, so that decoding itself refuses what is outside (infinities and
NaN too): no receiver meets a value that it would have to check again, and no message takes more memory than they allow.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# isort: off
# fmt: off
from protocols.enumerations import FailureCode as FailureCode, FinishReason as FinishReason, Method as Method
from protocols.enumerations import Origin as Origin, RefuseCode as RefuseCode, Role as Role
from protocols.limits import (
    ActorId, Arrivals, BusyMilliseconds, Count, Counters, Difference, DraftLength, Flags, Forwards, FragmentLogprobs,
    FragmentParents, FragmentTokens, Gamma, Interval, Label, Leaves, Mean, Microseconds, Milliseconds, NodePath,
    Nodes, Origins, Pieces, Position, Priority, Probability, ProcessId, Ranks, RequestId, RowCounts, Sentence,
    Sequences, StepMicroseconds, StepTimes, StopString, Text, TextPieces, TokenId, Tokens, WaitMicroseconds,
)
from protocols.parts import (
    Struct as Struct, Sampling as Sampling, StructuredOutputs as StructuredOutputs,
    TokenizerParts as TokenizerParts, ToolCall as ToolCall, ChatTurn as ChatTurn, TokenLogprobs as TokenLogprobs,
    RequestStats as RequestStats, DrafterStatus as DrafterStatus, DraftTotals as DraftTotals,
    RequestStatus as RequestStatus, Plan as Plan, Turns, Logprobs, RequestStatuses, DrafterStatuses, Totals,
)
# fmt: on
# isort: on


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    """A whole message: an array whose first element is the class name."""


Budgets = Annotated[tuple["Budget", ...], Meta(max_length=64)]


# --- anyone -> verifier ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """Preflight. A client leaves the model fields empty."""

    role: Role
    actor_id: ActorId
    incarnation: Label  # fresh for every process start
    model_id: Label = ""
    vocab_size: Position = 0
    tokenizer_digest: Label = ""
    max_context: Position = 0
    host: Label = ""
    pid: ProcessId = 0
    step_us: StepMicroseconds | None = None  # a drafter's own calibration of one step
    tokenizer: TokenizerParts | None = None  # what ``tokenizer_digest`` is made of
    loads: bool = False  # a drafter that takes other weights of its model while it serves: see Load


class Heartbeat(Message, frozen=True):
    """Sent by both sides every ``heartbeat_ms``; the verifier echoes it."""

    busy_ms: BusyMilliseconds = 0.0  # of a drafter: it computes for so long, and hears and says nothing meanwhile


class Goodbye(Message, frozen=True):
    reason: Sentence = ""


# --- verifier -> anyone ----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    incarnation: Label  # the verifier's
    heartbeat_ms: Interval
    ttl_ms: Interval
    telemetry: Label  # address of the PUB socket; empty if none
    model_id: Label = ""
    vocab_size: Position = 0
    max_context: Position = 0
    forward_us: StepTimes = ()  # (rows, microseconds) of a forward, measured at start-up
    tool_form: Label = ""  # how the model writes tool calls: "hermes", "llama", "mistral" or "template"
    response_template: Text = ""  # JSON, as transformers has it: the form if that is "template"
    dtype: Label = ""  # of the target's weights


class Refuse(Message, frozen=True):
    code: RefuseCode
    detail: Sentence


class Drain(Message, frozen=True):
    """Finish what is open, then say Goodbye."""


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
    """Tokens ``offset ..`` of the output. ``pieces[i]`` is the text that token i completes ("" inside a character)."""

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
    counters: Counters = {}
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


# --- verifier <-> drafter --------------------------------------------------------------------------------------------


class Open(Message, frozen=True):
    """A lease: the drafter may grow request ``rid`` until ``Close`` or a newer epoch."""

    rid: RequestId
    epoch: Count
    prefix: Tokens  # every committed token, prompt included
    prompt_len: Position
    sampling: Sampling
    plan: Plan
    cache_salt: Label = ""  # the request's


class Verdict(Message, frozen=True):
    """``tokens`` were committed at positions ``base_len ..``. A drafter at another length asks for ``Resync``."""

    rid: RequestId
    epoch: Count
    round: Count
    base_len: Position
    tokens: Tokens
    due_us: Microseconds | None = None  # the verifier looks at the tree again in this time; None: its next round runs
    plan: Plan | None = None  # only when it changed
    verify_us: Microseconds | None = None  # expected length of the round that begins then; None: it is a whole phase
    awaited: Nodes | None = None  # drafts in a row that end the verifier's wait; None: the phase's end does, or it goes


class Close(Message, frozen=True):
    rid: RequestId
    epoch: Count


class Load(Message, frozen=True):
    """New leases are to be served with weights ``version`` of the drafter's model, in a directory of its own host;
    those that are open go on with the weights that they began with."""

    version: Count
    path: Sentence  # empty: the weights that it was started with


class Grow(Message, frozen=True):
    """A trie fragment below the committed token ``base_len - 1``. It is self-contained: ``parents[i]`` is an index
    into the same message (-1: the committed token), smaller than i. Merging is by (parent, token), so that a lost,
    repeated or late message can do no harm."""

    rid: RequestId
    epoch: Count
    base_len: Position
    parents: FragmentParents
    tokens: FragmentTokens
    logprobs: FragmentLogprobs  # natural log of the confidence in token i given its parent
    draft_us: Microseconds = 0.0  # drafting time spent on what is new in it
    sequences: Sequences = 0  # k of this phase; 0: does not apply
    steps: Position = 0  # draft forwards spent on what is new in it
    complete: bool = False  # the phase is over: no more comes before the next Verdict
    phase_sequences: Sequences = 0  # k of the newest phase whose first token the target has decided since; 0: none was
    phase_rank: Position = 0  # rank of that token among the draft's candidates for it, from 1; 0: none of them
    sent_us: Microseconds = 0.0  # since the drafter's start
    forwards: Forwards = ()  # since the last Grow: (microseconds from start to sending, its length)
    ranks: Ranks = ()  # like ``phase_rank``, of each position decided since the last Grow that had candidates


class Resync(Message, frozen=True):
    """The drafter holds ``have_len`` committed tokens (0: it does not know the request at all)."""

    rid: RequestId
    epoch: Count
    have_len: Position


class Decline(Message, frozen=True):
    """The drafter does not hold this lease, or not any more: it found no room, or its model cannot mirror the text."""

    rid: RequestId
    epoch: Count
    lasting: bool = False  # True: it will not for this request; False: it may when others end


class DraftStats(Message, frozen=True):
    actor_id: ActorId
    step_us: StepTimes  # (batch width, measured time)
    busy: Probability  # share of the time since the last report
    version: Count = 0  # of the weights that new leases get, see Load
    trouble: Sentence = ""  # why it is not the one that it was last told to load


# --- verifier <-> learner --------------------------------------------------------------------------------------------


class Finished(Message, frozen=True):
    """A request that has ended: prompt and output. The noise of its tokens follows from ``sampling``."""

    rid: RequestId
    tokens: Tokens
    prompt_len: Position
    sampling: Sampling


class Promote(Message, frozen=True):
    """Drafters of that model are to serve with these weights: better than those before by ``gain``."""

    version: Count
    path: Sentence  # as in Load
    model_id: Label  # of the drafters that are meant
    gain: Difference = 0.0  # in agreement with the target, by replay of texts that it did not learn from


# --- telemetry and controller ----------------------------------------------------------------------------------------


class RoundStats(Message, frozen=True):
    """One verification round of one request, as published on the telemetry socket."""

    rid: RequestId
    round: Count
    method: Method
    drafter: Label
    window: Nodes  # draft tokens verified
    accepted: Nodes
    committed: Position
    rows: Position  # of the whole flat batch
    forward_us: Microseconds
    wait_us: Microseconds
    wall_us: Microseconds  # end of the previous round to end of this one
    draft_us: Microseconds = 0.0
    draft_steps: Position = 0
    sequences: Sequences = 0
    needed_sequences: Position = 0  # rank of the token that came, among the drafted first tokens; 0: none of them
    gamma: Gamma | None = None  # as commanded
    started_us: Microseconds = 0.0  # since the verifier's start
    phase_sequences: Sequences = 0  # as the drafter told since the previous round, see Grow
    phase_rank: Position = 0
    draft_ranks: Ranks = ()  # of decided tokens among the draft's candidates, as the drafter told: see Grow
    retrieved: Position = 0  # tokens that the verifier alone, by its proposers or a grammar, would have had right
    resting: bool = False  # the controller had the drafter rest
    fixed_gamma: DraftLength = 0  # as the request itself asked; 0: it did not
    fixed_sequences: Sequences = 0
    draft_forwards: Forwards = ()  # (start since the verifier's, length); measured by the drafter
    waited_from_us: Microseconds = 0.0  # since the verifier's start, where ``wait_us`` is not 0
    streams: Count = 1  # that decode at the verifier, this one included
    slowdown: Mean = 1.0  # of forwards against ``Welcome.forward_us``, by the verifier's running estimate
    message_us: Microseconds = 0.0  # to the drafter and back, by the verifier's running estimate
    forced: Nodes = 0  # accepted draft tokens that were the only ones a grammar allowed


class RoundTrace(Struct, frozen=True):
    """One round of a request that asked for a trace: its token tree at the end of the forward, before it is pruned.

    The first ``stats.window`` nodes are those that were verified, in their order; behind them stands what else the tree
    held, the likeliest first, as far as there is room."""

    stats: RoundStats
    tokens: FragmentTokens
    parents: FragmentParents  # [i] < i; -1: the last committed token
    logprobs: FragmentLogprobs  # natural log of the confidence in token i given its parent
    origins: Origins
    arrived_us: Arrivals  # when the verifier had node i from a drafter, since its start; 0: its own, or not known
    path: NodePath  # the accepted nodes; the target's own token follows them


class ActorUp(Message, frozen=True):
    role: Role
    actor_id: ActorId
    model_id: Label = ""


class ActorDown(Message, frozen=True):
    role: Role
    actor_id: ActorId
    reason: Sentence


class Budget(Message, frozen=True):
    """What the controller commands. Without a successor it holds for ``ttl_ms``, then the start-up calibration's takes
    its place. What is None is left to the receiver."""

    revision: Count
    ttl_ms: Interval
    method: Label | None = None  # that it is meant for; None: every one
    drafter: Label | None = None  # actor id; None: every one
    draft: bool = True  # False: the drafter rests
    gamma: Gamma | None = None  # draft tokens of a phase; of a tree its depth
    sequences: Leaves | None = None  # cap on the theta rule; in a tree the leaves of one draft step
    window: Nodes | None = None  # most draft tokens in one round
    wait_us: WaitMicroseconds | None = None  # longest wait for drafts
    predicted_tokens_per_second: Mean = 0.0
    measured_tokens_per_second: Mean = 0.0
    fixed_gamma: DraftLength = 0  # and the requests: those that asked for so much; 0: for nothing
    fixed_sequences: Sequences = 0


ToVerifier = (
    Hello | Heartbeat | Goodbye | Generate | Cancel | Status | Tokenize | Detokenize | Swap | DrainActor
    | Grow | Resync | Decline | DraftStats | Budget | Undo | Promote
)  # fmt: skip
ToClient = Welcome | Refuse | Drain | Heartbeat | Chunk | Failed | Done | Tokenized | StatusReport
ToDrafter = Welcome | Refuse | Drain | Heartbeat | Open | Verdict | Close | Load
ToController = Welcome | Refuse | Drain | Heartbeat
ToLearner = Welcome | Refuse | Drain | Heartbeat | Finished | Undo
Telemetry = RoundStats | DraftStats | ActorUp | ActorDown | Budget

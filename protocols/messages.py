"""Every message of the protocol, and the union of those that each receiver understands. ``SPEC.md`` is normative.

The messages that every actor exchanges with the verifier are defined here, those of clients in ``client_messages.py``,
those of the other actors in ``actor_messages.py``, and what they are made of in ``parts.py``. Import all from here.

Within a major version evolution is append-only: a new field goes to the end and has a default. Durations are in the
unit that the field's name ends in; there is no wall-clock time on the wire. Token ids are in the target's vocabulary.

Every number, string and array has limits in its type (``limits.py``), so that decoding refuses what is outside,
infinities and NaN included: no receiver has to check a value again, and no message takes more memory than they allow.
"""

from __future__ import annotations

# isort: off
# fmt: off
from protocols.actor_messages import (
    Open as Open, Verdict as Verdict, Close as Close, Load as Load, Grow as Grow, Resync as Resync, Decline as Decline,
    DraftStats as DraftStats, Finished as Finished, Promote as Promote, RoundStats as RoundStats,
    RoundTrace as RoundTrace, ActorUp as ActorUp, ActorDown as ActorDown, Budget as Budget,
)
from protocols.client_messages import (
    Generate as Generate, Cancel as Cancel, Status as Status, Tokenize as Tokenize, Detokenize as Detokenize,
    Swap as Swap, DrainActor as DrainActor, Undo as Undo, Chunk as Chunk, Failed as Failed, Done as Done,
    Tokenized as Tokenized, StatusReport as StatusReport,
)
from protocols.enumerations import (
    FailureCode as FailureCode, FinishReason as FinishReason, Method as Method, Origin as Origin,
    RefuseCode as RefuseCode, Role as Role,
)
from protocols.limits import (
    ActorId, AlternativeCount, BusyMilliseconds, Interval, Label, Position, ProcessId, Sentence, StepMicroseconds,
    StepTimes, Text,
)
from protocols.parts import (
    Message as Message, Struct as Struct, Sampling as Sampling, StructuredOutputs as StructuredOutputs,
    TokenizerParts as TokenizerParts, ToolCall as ToolCall, ChatTurn as ChatTurn, TokenLogprobs as TokenLogprobs,
    RequestStats as RequestStats, DrafterStatus as DrafterStatus, DraftTotals as DraftTotals,
    Expectation as Expectation,
    RequestStatus as RequestStatus, Plan as Plan,
)
# fmt: on
# isort: on


# --- anyone -> verifier ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """An actor introduces itself, and the verifier answers Welcome or Refuse. Actors without a model leave its fields
    empty."""

    role: Role
    actor_id: ActorId
    incarnation: Label  # a new one for every start of a process
    model_id: Label = ""
    vocab_size: Position = 0
    tokenizer_digest: Label = ""
    max_context: Position = 0
    host: Label = ""
    pid: ProcessId = 0
    step_us: StepMicroseconds | None = None  # of a drafter: a draft step of one leaf, as calibrated
    tokenizer: TokenizerParts | None = None  # what ``tokenizer_digest`` is made of
    loads: bool = False  # of a drafter: it can load other weights of its model while it serves, see Load
    alternatives: AlternativeCount = 0  # of a learner: likeliest tokens that it wants at each position, see Finished


class Heartbeat(Message, frozen=True):
    """Sent every ``heartbeat_ms`` by peers, and sent back by the verifier."""

    busy_ms: BusyMilliseconds = 0.0  # of a drafter: it will compute for so long, and neither read nor send meanwhile


class Goodbye(Message, frozen=True):
    """The peer leaves."""

    reason: Sentence = ""


# --- verifier -> anyone ----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """The answer to a Hello: the verifier knows the peer now."""

    incarnation: Label  # the verifier's
    heartbeat_ms: Interval  # between two heartbeats
    ttl_ms: Interval  # of silence after which either side takes the other for dead
    telemetry: Label  # address of the PUB socket; "": none, or not for this key
    model_id: Label = ""  # of the target, as what follows
    vocab_size: Position = 0
    max_context: Position = 0
    forward_us: StepTimes = ()  # (rows, microseconds) of a forward, measured at start-up
    tool_form: Label = ""  # how the model writes tool calls: "hermes", "llama", "mistral" or "template"
    response_template: Text = ""  # with the form "template": transformers' response template, as JSON
    dtype: Label = ""  # of its weights


class Refuse(Message, frozen=True):
    """The verifier does not accept a peer, or one of its messages."""

    code: RefuseCode
    detail: Sentence


class Drain(Message, frozen=True):
    """The peer is to finish what is open, then to say Goodbye."""


ToVerifier = (
    Hello | Heartbeat | Goodbye | Generate | Cancel | Status | Tokenize | Detokenize | Swap | DrainActor
    | Grow | Resync | Decline | DraftStats | Budget | Undo | Promote
)  # fmt: skip
ToClient = Welcome | Refuse | Drain | Heartbeat | Chunk | Failed | Done | Tokenized | StatusReport
ToDrafter = Welcome | Refuse | Drain | Heartbeat | Open | Verdict | Close | Load
ToController = Welcome | Refuse | Drain | Heartbeat
ToLearner = Welcome | Refuse | Drain | Heartbeat | Finished | Undo
Telemetry = RoundStats | DraftStats | ActorUp | ActorDown | Budget

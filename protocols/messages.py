"""Every message of the protocol, one union per receiver; those of each link are told in a file of its own.
``SPEC.md`` is the normative text.

Within a major version evolution is append-only: a new field goes to the end and has a default. Durations are in the
unit that the field's name ends in; there is no wall-clock time on the wire. Token ids are in the target's vocabulary.

Every number, string and array has limits in its type, so that decoding itself refuses what is outside (infinities and
NaN too): no receiver meets a value that it would have to check again, and no message takes more memory than they allow.
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
    alternatives: AlternativeCount = 0  # of each token of a text that a learner wants to be told: see Finished


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


ToVerifier = (
    Hello | Heartbeat | Goodbye | Generate | Cancel | Status | Tokenize | Detokenize | Swap | DrainActor
    | Grow | Resync | Decline | DraftStats | Budget | Undo | Promote
)  # fmt: skip
ToClient = Welcome | Refuse | Drain | Heartbeat | Chunk | Failed | Done | Tokenized | StatusReport
ToDrafter = Welcome | Refuse | Drain | Heartbeat | Open | Verdict | Close | Load
ToController = Welcome | Refuse | Drain | Heartbeat
ToLearner = Welcome | Refuse | Drain | Heartbeat | Finished | Undo
Telemetry = RoundStats | DraftStats | ActorUp | ActorDown | Budget

"""Every message of the protocol, one union per receiver. ``SPEC.md`` is the normative text.

Evolution is append-only: a new field goes to the end and has a default. Durations are in the unit that the field's
name ends in; there is no wall-clock time on the wire. Token ids are in the target's vocabulary.
"""

from __future__ import annotations

import msgspec

# isort: off
# fmt: off
from protocols.enumerations import FailureCode as FailureCode, FinishReason as FinishReason, Method as Method
from protocols.enumerations import RefuseCode as RefuseCode, Role as Role
# fmt: on
# isort: on


class Struct(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message: an array on the wire, immutable in memory."""


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    """A whole message: an array whose first element is the class name."""


# --- parts -----------------------------------------------------------------------------------------------------------


class Sampling(Struct, frozen=True):
    """How the target's next token is chosen. Temperature 0 is greedy. See DESIGN "Lossless" for the shared noise."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over the output, as in OpenAI's API
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int = 256
    seed: int = 0
    logprobs: int = -1  # -1: none; n >= 0: the chosen token's and the n most likely
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit), as in OpenAI's API


class ChatTurn(Struct, frozen=True):
    role: str
    content: str


class TokenLogprobs(Struct, frozen=True):
    """Natural-log probabilities of the target's unprocessed distribution at one position."""

    chosen: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class RequestStats(Struct, frozen=True):
    """What one request cost; sent with its last chunk."""

    method: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token_ms: float = 0.0
    decode_ms: float = 0.0  # first token to last
    rounds: int = 0  # target forwards after the first token
    draft_tokens: int = 0  # verified in windows
    accepted_tokens: int = 0
    acceptance_histogram: tuple[int, ...] = ()  # [j] = rounds that accepted j draft tokens
    sequences_histogram: tuple[int, ...] = ()  # [k] = drafting phases with k sequences
    gamma: float = 0.0  # mean over rounds
    forward_ms: float = 0.0
    wait_ms: float = 0.0  # time spent waiting for a drafter
    overhead_ms: float = 0.0  # decode minus forward minus wait
    drafters: tuple[str, ...] = ()
    resyncs: int = 0


class DrafterStatus(Struct, frozen=True):
    actor_id: str
    model_id: str
    state: str  # "active", "standby", "draining"
    leases: int
    step_us: float  # measured draft-step time
    drafted: int
    accepted: int
    dropped: int  # messages fenced off
    last_seen_ms: float
    host: str = ""
    pid: int = 0


class DraftTotals(Struct, frozen=True):
    """Since the verifier's start, of one method's requests while one drafter had their lease."""

    method: str
    drafter: str  # "": none had
    drafts: int  # rounds with draft tokens
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] = ()  # [j]: rounds that accepted more than j
    speedup: float = 0.0  # lately, over plain decoding as measured; 0: not known


class RequestStatus(Struct, frozen=True):
    rid: str
    method: str
    state: str  # "queued", "prefill", "decode"
    tokens: int
    drafter: str = ""


# --- anyone -> verifier ----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """Preflight. A client leaves the model fields empty."""

    role: Role
    actor_id: str
    incarnation: str  # fresh for every process start
    protocol: int
    model_id: str = ""
    vocab_size: int = 0
    tokenizer_digest: str = ""
    max_context: int = 0
    host: str = ""
    pid: int = 0
    step_us: float = 0.0  # a drafter's own calibration of one step


class Heartbeat(Message, frozen=True):
    """Sent by both sides every ``heartbeat_ms``; the verifier echoes it."""

    incarnation: str
    seq: int
    busy_ms: float = 0.0


class Goodbye(Message, frozen=True):
    reason: str = ""


# --- verifier -> anyone ----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    incarnation: str  # the verifier's
    heartbeat_ms: int
    ttl_ms: int
    telemetry: str  # address of the PUB socket; empty if none
    model_id: str = ""
    vocab_size: int = 0
    max_context: int = 0
    default_method: str = ""


class Refuse(Message, frozen=True):
    code: RefuseCode
    detail: str


class Drain(Message, frozen=True):
    """Finish what is open, then say Goodbye."""


# --- client -> verifier ----------------------------------------------------------------------------------------------


class Generate(Message, frozen=True):
    """Exactly one of ``prompt`` (text or ids) and ``messages`` is given. ``generated`` resumes a broken stream."""

    rid: str
    prompt: str | tuple[int, ...] = ""
    messages: tuple[ChatTurn, ...] = ()
    sampling: Sampling = Sampling()
    method: str = ""
    generated: tuple[int, ...] = ()  # tokens the client already has; numbering goes on behind them
    num_speculative_tokens: int = 0  # 0: adaptive
    sequences: int = 0  # 0: dynamic (the theta rule)


class Cancel(Message, frozen=True):
    rid: str


class Status(Message, frozen=True):
    rid: str = ""


class Tokenize(Message, frozen=True):
    """Which tokens are that? Exactly one of ``text`` and ``messages`` is given. Nothing is generated."""

    rid: str
    text: str = ""
    messages: tuple[ChatTurn, ...] = ()


class Detokenize(Message, frozen=True):
    """Which text is that?"""

    rid: str
    token_ids: tuple[int, ...]


class Swap(Message, frozen=True):
    """Move every lease of drafter ``old`` to drafter ``new``."""

    rid: str
    old: str
    new: str


class DrainActor(Message, frozen=True):
    """Take a drafter out of service: its leases move away, then it is told to leave."""

    rid: str
    actor_id: str


# --- verifier -> client ----------------------------------------------------------------------------------------------


class Chunk(Message, frozen=True):
    """Tokens ``offset ..`` of the output. ``pieces[i]`` is the text that token i completes ("" inside a character)."""

    rid: str
    offset: int
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    accepted: tuple[bool, ...]  # True: a draft token that the target confirmed
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    stats: RequestStats | None = None
    stop_reason: str | int | None = None  # the stop string or stop token that ended it; None: the model's own end
    prompt_tokens: int = 0  # in the first chunk

    @property
    def text(self) -> str:
        """The text of this chunk."""
        return "".join(self.pieces)


class Failed(Message, frozen=True):
    rid: str
    code: FailureCode
    detail: str


class Done(Message, frozen=True):
    """Swap or DrainActor was carried out."""

    rid: str
    detail: str = ""


class Tokenized(Message, frozen=True):
    """A text and its tokens: the answer to Tokenize and to Detokenize."""

    rid: str
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]  # [i]: token i inside a text; U+FFFD stands for a part of a character
    text: str  # special tokens by their names


class StatusReport(Message, frozen=True):
    rid: str
    model_id: str
    device: str
    dtype: str
    method: str
    uptime_ms: float
    kv_slots: int
    kv_used: int
    requests: tuple[RequestStatus, ...] = ()
    drafters: tuple[DrafterStatus, ...] = ()
    controller: str = ""
    budget: Budget | None = None  # the newest
    counters: dict[str, int] = {}
    rows_agree: tuple[int, ...] = ()  # window row counts that gave equal bits in the start-up self-check
    pid: int = 0
    budgets: tuple[Budget, ...] = ()  # one per method
    totals: tuple[DraftTotals, ...] = ()
    controller_pid: int = 0


# --- verifier <-> drafter --------------------------------------------------------------------------------------------


class Plan(Struct, frozen=True):
    """How a drafter grows one request's tree."""

    method: str
    gamma: int  # draft tokens per phase
    sequences: int = 0  # 0: by the theta rule
    max_sequences: int = 0  # the controller's cap on the theta rule; 0: none


class Open(Message, frozen=True):
    """A lease: the drafter may grow request ``rid`` until ``Close`` or a newer epoch."""

    rid: str
    epoch: int
    prefix: tuple[int, ...]  # every committed token, prompt included
    prompt_len: int
    sampling: Sampling
    plan: Plan
    due_us: float = 0.0


class Verdict(Message, frozen=True):
    """``tokens`` were committed at positions ``base_len ..``. A drafter at another length asks for ``Resync``."""

    rid: str
    epoch: int
    round: int
    base_len: int
    tokens: tuple[int, ...]
    due_us: float = 0.0  # the verifier looks at the tree again in this time; 0: it has begun its next round already
    plan: Plan | None = None  # only when it changed
    verify_us: float = 0.0  # expected length of the round that begins then
    awaited: int = 0  # drafts in a row that end the verifier's wait; 0: it waits for the end of the phase, or not


class Close(Message, frozen=True):
    rid: str
    epoch: int


class Grow(Message, frozen=True):
    """A trie fragment below the committed token ``base_len - 1``. It is self-contained: ``parents[i]`` is an index
    into the same message (-1: the committed token), smaller than i. Merging is by (parent, token), so that a lost,
    repeated or late message can do no harm."""

    rid: str
    epoch: int
    base_len: int
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # natural log of the confidence in token i given its parent
    draft_us: float = 0.0  # drafting time spent on what is new in it
    sequences: int = 0  # k of this phase; 0: does not apply
    steps: int = 0  # draft forwards spent on what is new in it
    complete: bool = False  # the phase is over: no more comes before the next Verdict
    phase_sequences: int = 0  # k of the newest phase whose first token the target has decided since; 0: none was
    phase_rank: int = 0  # rank of that token among the draft's candidates for it, from 1; 0: none of them
    sent_us: float = 0.0  # since the drafter's start
    forwards: tuple[tuple[int, int], ...] = ()  # since the last Grow: (microseconds from start to sending, its length)


class Resync(Message, frozen=True):
    """The drafter holds ``have_len`` committed tokens (0: it does not know the request at all)."""

    rid: str
    epoch: int
    have_len: int


class DraftStats(Message, frozen=True):
    actor_id: str
    step_us: tuple[tuple[int, float], ...]  # (batch width, measured time)
    busy: float  # share of the time since the last report
    leases: int = 0


# --- telemetry and controller ----------------------------------------------------------------------------------------


class RoundStats(Message, frozen=True):
    """One verification round of one request, as published on the telemetry socket."""

    rid: str
    round: int
    method: str
    drafter: str
    window: int  # draft tokens verified
    accepted: int
    committed: int
    rows: int  # of the whole flat batch
    forward_us: float
    wait_us: float
    wall_us: float  # end of the previous round to end of this one
    draft_us: float = 0.0
    draft_steps: int = 0
    sequences: int = 0
    needed_sequences: int = 0  # rank of the token that came, among the drafted first tokens; 0: none of them
    gamma: int = 0
    started_us: float = 0.0  # since the verifier's start
    draft_width: int = 1
    top_probability: float = 0.0
    phase_sequences: int = 0  # as the drafter told since the previous round, see Grow
    phase_rank: int = 0
    ranks: tuple[int, ...] = ()  # of the accepted tokens among the window's by path probability, from 0; trees only
    retrieved: int = 0  # tokens that the verifier's own proposers alone would have had right
    resting: bool = False  # the controller had the drafter rest
    fixed_gamma: int = 0  # as the request itself asked; 0: it did not
    fixed_sequences: int = 0
    draft_forwards: tuple[tuple[int, int], ...] = ()  # (start since the verifier's, length); measured by the drafter
    waited_from_us: float = 0.0  # since the verifier's start, where ``wait_us`` is not 0


class ActorUp(Message, frozen=True):
    role: Role
    actor_id: str
    model_id: str = ""


class ActorDown(Message, frozen=True):
    role: Role
    actor_id: str
    reason: str


class Budget(Message, frozen=True):
    """What the controller chose. Without a successor it holds for ``ttl_ms``, then the default applies."""

    revision: int
    drafter_id: str  # "": every drafter
    gamma: int
    sequences: int  # cap on the number of sequences; 0: none
    window: int
    wait_us: float
    ttl_ms: int
    predicted_tokens_per_second: float = 0.0
    measured_tokens_per_second: float = 0.0
    method: str = ""  # the method it is meant for; "": every one
    fixed_gamma: int = 0  # and the requests: those that asked for this gamma and for so many sequences; 0: for none
    fixed_sequences: int = 0


ToVerifier = (
    Hello | Heartbeat | Goodbye | Generate | Cancel | Status | Tokenize | Detokenize | Swap | DrainActor
    | Grow | Resync | DraftStats | Budget
)  # fmt: skip
ToClient = Welcome | Refuse | Drain | Heartbeat | Chunk | Failed | Done | Tokenized | StatusReport
ToDrafter = Welcome | Refuse | Drain | Heartbeat | Open | Verdict | Close | Budget
ToController = Welcome | Refuse | Drain | Heartbeat
Telemetry = RoundStats | DraftStats | ActorUp | ActorDown | Budget

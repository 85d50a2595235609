"""Every message of the protocol, the parts that they are made of, and the union that each receiver understands.

``SPEC.md`` is normative. Within a major version evolution is append-only: a new field goes to the end and has a
default. The unit of a duration ends the field's name; there is no wall-clock time on the wire. Token ids are in the
target's vocabulary.

Every number, string and array has limits in its type, see ``limits.py``. Decoding refuses what is outside, infinities
and NaN included: no receiver checks a value again, and no message takes more memory than they allow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, field

from protocols.limits import *


class Struct(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message: an array on the wire, immutable in memory."""


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    """A whole message: an array that begins with the class name."""


# --- enumerations; they travel as their values -----------------------------------------------------------------------


class Role(StrEnum):
    CLIENT = "client"
    DRAFTER = "drafter"
    CONTROLLER = "controller"
    VERIFIER = "verifier"
    LEARNER = "learner"


class Method(StrEnum):
    """How draft tokens are found and verified, see :mod:`actors.methods`. "" in a message: the receiver's
    default."""

    AUTO = "auto"
    TREE = "tree"
    DUODECODING = "duodecoding"
    DUODECODING_LOCKSTEP = "duodecoding-lockstep"
    PEARL = "pearl"
    SPS = "sps"
    PLD = "pld"
    PLD_EARLIEST = "pld-earliest"
    SAM = "sam"
    REST = "rest"
    LOOKAHEAD = "lookahead"
    VANILLA = "vanilla"


class Origin(StrEnum):
    """The origin of a token."""

    DRAFT = "draft"  # the drafter's likeliest token at its position
    SIBLING = "sibling"  # another of the drafter's candidates, in case the likeliest is rejected
    RETRIEVED = "retrieved"  # the verifier's own proposers
    FORCED = "forced"  # the only one in a grammar
    TARGET = "target"  # not a draft: a committed token of the target's own, never a node of a tree


class RefuseCode(StrEnum):
    """Why a verifier refuses a peer, or a message of it. See ``SPEC.md`` section 9."""

    VERSION = "version"
    TOKENIZER = "tokenizer"
    UNKNOWN_PEER = "unknown_peer"  # it has not said Hello, or the verifier has restarted since
    DUPLICATE = "duplicate"
    MALFORMED = "malformed"
    DRAINING = "draining"
    FORBIDDEN = "forbidden"  # the key that the connection was made with is not for that role


class FailureCode(StrEnum):
    """Why a request or question has failed. See ``SPEC.md`` section 9."""

    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH = "context_length"
    UNSUPPORTED = "unsupported"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    CANCELLED = "cancelled"
    DRAINING = "draining"
    INTERNAL = "internal"
    FORBIDDEN = "forbidden"
    DEADLINE_EXCEEDED = "deadline_exceeded"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


# --- parts -----------------------------------------------------------------------------------------------------------


Origins = Annotated[tuple[Origin, ...], Meta(max_length=MAX_NODES)]


class Sampling(Struct, frozen=True):
    """How the target's next token is chosen. Temperature 0 is greedy; otherwise by shared noise, see
    :mod:`actors.engines.sampling.noise`."""

    temperature: Temperature = 0.0
    top_k: Position = 0  # 0: off
    top_p: TopP = 1.0
    min_p: Probability = 0.0
    repetition_penalty: RepetitionPenalty = 1.0  # over prompt and output, as in transformers
    presence_penalty: Penalty = 0.0  # over the output, as in OpenAI's API
    frequency_penalty: Penalty = 0.0  # 0: none
    stop: StopStrings = ()
    stop_token_ids: StopTokens = ()
    max_tokens: MaxTokens = 256
    seed: Seed = 0  # seed of the noise
    logprobs: LogprobCount = -1  # -1: none; n >= 0: the chosen token's and those of the n likeliest
    ignore_eos: bool = False
    logit_bias: LogitBias = ()  # (token id, what is added to its logit), as in OpenAI's API
    skip_special_tokens: bool = True  # False: the text has special tokens by their names; some tool calls need them
    min_tokens: Position = 0  # neither an end token nor a stop string ends the output before it has so many
    bad_words: BadWords = ()  # texts that the output never has, with a space in front or without

    def ends(self, eos: frozenset[int]) -> frozenset[int]:
        """The tokens that end the output. ``eos``: the model's end-of-sequence tokens."""
        return eos.union(self.stop_token_ids) if not self.ignore_eos else frozenset(self.stop_token_ids)


UNCHANGED = Sampling(temperature=1.0)  # the model's own distribution
DEFAULTED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # generation_config.json may set them


class StructuredOutputs(Struct, frozen=True):
    """What the output must follow, as in vLLM's StructuredOutputsParams. Exactly one field is given."""

    json_schema: Grammar | None = None  # the text of a JSON schema; ``{"type": "object"}`` allows any object
    regex: Grammar | None = None  # form of the whole output
    grammar: Grammar | None = None  # text in llguidance's Lark, or GBNF


class Dictation(Struct, frozen=True):
    """Output tokens that the target does not choose: to score a text, or to end a thought that has grown too long."""

    at: Position = 0  # position of the first of them, in the output
    tokens: Tokens = ()
    text: Label = ""  # replaces ``tokens``; it is not dictated if the output has it before ``at``
    behind: Label = ""  # condition of ``text``: the output has this before ``at``


class TokenizerParts(Struct, frozen=True):
    """What a tokenizer's digest is made of, part by part, so that a refusal can say what differs."""

    entries: Count  # size of the vocabulary, added tokens included
    blocks: Blocks = b""  # WIDTH bytes for each BLOCK token ids: the first of the SHA-256 of their entries
    merges: Label = ""  # SHA-256
    special: Label = ""  # SHA-256 of the special tokens and their ids

    BLOCK: ClassVar[int] = 32
    WIDTH: ClassVar[int] = 4


class ToolCall(Struct, frozen=True):
    """A function call that the model has written."""

    id: Label
    name: Label
    arguments: Text  # a JSON object; other text is shown to the model under the key "arguments"


ToolCalls = Annotated[tuple[ToolCall, ...], Meta(max_length=MAX_CALLS)]


class ChatTurn(Struct, frozen=True):
    """A message of a conversation, in OpenAI's sense."""

    role: Label
    content: Text
    tool_calls: ToolCalls = ()  # role "assistant" only
    tool_call_id: Label = ""  # role "tool" only: the call that it answers
    reasoning: Text = ""  # role "assistant" only: its thought, which the chat template shows or leaves out


class Rendering(Struct, frozen=True):
    """How a conversation becomes a prompt, in the terms of transformers' ``apply_chat_template``."""

    generation_prompt: bool = True  # begin the assistant's turn after the conversation
    continue_final: bool = False  # the assistant's last turn stays open, and the output continues it
    plain: bool = False  # what turns, calls and tools hold of special tokens' names is plain text
    variables: Text = ""  # a JSON object of further variables for the template, such as enable_thinking


class Thinking(Struct, frozen=True):
    """How the target sets thoughts apart from answers, and what its chat template begins; all empty: not at all."""

    begin: Label = ""  # markup in front of a thought
    end: Label = ""  # the mark after it
    markup: Markup = ()  # other texts that stand between thoughts and answers and belong to neither
    special: NamedTokens = ()  # the special tokens in these marks
    opens: bool = False  # the prompt ends inside a thought
    opens_on: bool = False  # thoughts are opened if the variable enable_thinking is true
    opens_off: bool = False  # thoughts are opened if enable_thinking is false
    after: Label = ""  # the text that ends an answer and is no part of it
    answers_off: bool = False  # if enable_thinking is false, the prompt ends in the last of ``markup``


class TokenLogprobs(Struct, frozen=True):
    """Natural-log probabilities at one position under the target's raw logits: before penalties, temperature, filters
    and masks."""

    chosen: LogProbability  # log-probability of the committed token
    top_ids: TopIds = ()  # the likeliest tokens, best first
    top_logprobs: TopLogprobs = ()


class RequestStats(Struct, frozen=True):
    """What one request took and how well it was drafted for; sent with its last chunk."""

    method: Label = ""
    prompt_tokens: Position = 0
    completion_tokens: Position = 0
    time_to_first_token_ms: Milliseconds = 0.0
    decode_ms: Milliseconds = 0.0  # time between the first token and the last
    rounds: Count = 0  # target forwards after the first token
    draft_tokens: Count = 0  # drafts that were verified
    accepted_tokens: Count = 0
    acceptance_histogram: Histogram = ()  # [j] = rounds that accepted j draft tokens
    sequences_histogram: Histogram = ()  # [k] = drafting phases with k sequences
    gamma: Mean = 0.0  # mean over rounds
    forward_ms: Milliseconds = 0.0  # the target's forward
    wait_ms: Milliseconds = 0.0  # time spent waiting for a drafter
    overhead_ms: Milliseconds = 0.0  # decode minus forward minus wait
    drafters: ActorIds = ()  # drafters that had its lease, the latest last
    resyncs: Count = 0  # drafters that had to ask for committed tokens
    cached_tokens: Position = 0  # prompt tokens that were not computed again, because an earlier one began with them
    forced_tokens: Count = 0  # accepted tokens that were the only ones a grammar allowed
    prediction_tokens: Position = 0  # tokens of the request's prediction
    predicted_tokens: Position = 0  # tokens of the prediction that the output has, too
    foreseen_rounds: Count = 0  # rounds that ended with drafts below the target's own token there already


class DrafterStatus(Struct, frozen=True):
    """One connected drafter."""

    actor_id: ActorId
    model_id: Label
    state: Label  # "active", "standby", "paused", "draining"
    leases: Count
    step_us: StepMicroseconds  # time for one leaf, as measured
    drafted: Count  # draft tokens that were verified
    accepted: Count  # draft tokens
    dropped: Count  # messages that were fenced off
    host: Label = ""
    pid: ProcessId = 0
    version: Count = 0  # version of its weights, by the learner's count; 0: the weights at its start
    gain: Difference = 0.0  # gain in agreement that replay found when these weights were promoted
    trouble: Sentence = ""  # why it does not serve what the learner has promoted
    speedup: Mean = 0.0  # gain of its streams lately, over the same streams without it; 0: not known
    tokens_per_second: Mean = 0.0  # rate of one of its streams, lately


class DraftTotals(Struct, frozen=True):
    """Sums since the verifier's start over the requests of one method while one drafter had their lease."""

    method: Label
    drafter: Label  # actor id; "": none had
    drafts: Count  # rounds with draft tokens
    draft_tokens: Count
    accepted_tokens: Count
    accepted_per_position: Histogram = ()  # [j]: rounds that accepted more than j
    speedup: Mean = 0.0  # lately, over plain decoding at its measured cost; 0: not known


class Reading(Struct, frozen=True):
    """What one token's forward reads of the target's weights, what this machine's memory gives, and what streams
    take of it."""

    read_bytes: Count = 0  # 0: not known
    bits: Mean = 0.0  # bits of a weight, on average, as it is read; 0: a smaller file would not change it
    gigabytes: Mean = 0.0  # a second, that the target's threads read of memory; 0: not measured
    token_bytes: Count = 0  # size of the keys and values that each token of a stream takes; 0: not known
    stream_bytes: Count = 0  # size of a stream's windows in layers that have them, and of its recurrent states


class TargetStatus(Struct, frozen=True):
    """The target model, where it computes, and its KV pool."""

    model_id: Label
    device: Label
    dtype: Label
    kv_slots: Count  # tokens that the pool holds
    kv_used: Count  # slots, by open requests
    kv_cached: Count = 0  # slots that hold prefixes for later prompts; they are free as soon as a request needs them
    rows_agree: RowCounts = ()  # window row counts that gave equal bits in the start-up self-check
    branches: bool = True  # whether windows may hold more than the likeliest path, see the self-check
    threads: Count = 0  # threads that compute on a CPU; 0: it is on another device
    cpus: Label = ""  # CPUs that they are pinned to
    spare_cpus: Label = ""  # drafters' CPUs that compute as well while all drafters rest; "": none, or of no help
    tokens_per_second: Mean = 0.0  # rate of one stream without drafts, by measured forwards
    sampling: Sampling = UNCHANGED  # see Welcome
    reading: Reading = Reading()


class ActorStatus(Struct, frozen=True):
    """A connected actor, as far as anybody may know of it."""

    actor_id: ActorId
    host: Label = ""
    pid: ProcessId = 0


class InlineStatus(Struct, frozen=True):
    """The draft model that the verifier itself drafts with between forwards."""

    model_id: Label
    version: Count = 0  # version of its weights, as DrafterStatus.version
    trouble: Sentence = ""  # see DrafterStatus.trouble
    agreement: Agreements = ()  # how often its first choice is right, by depth below the root


class RequestStatus(Struct, frozen=True):
    """One open request."""

    rid: RequestId
    method: Label
    state: Label  # "queued", "prefill", "decode"
    tokens: Position  # output tokens
    drafter: Label = ""  # actor id of the holder of its lease; "": none


class Kind(Struct, frozen=True, order=True):
    """Requests that share one setting of the controller: of one method, with one drafter, and with the same numbers
    fixed by the request."""

    method: Label = ""  # "": every method
    drafter: Label = ""  # actor id; "": in a budget every drafter, in statistics none
    gamma: DraftLength = 0  # the draft length that the requests ask for; 0: none
    sequences: Sequences = 0  # the number of sequences that they ask for; 0: none


class HiddenStates(Struct, frozen=True):
    """What the target computed of committed tokens in a row, for a drafter with a draft head: the states that enter the
    layers of ``Hello.states``, counted from 0; of the number of layers, those that leave the last."""

    start: Position  # position of the first token
    width: Count  # numbers of a token, of all these layers
    rows: StateRows  # bfloat16, little-endian


class Plan(Struct, frozen=True):
    """How a drafter grows one request's tree."""

    method: Method
    gamma: Gamma | None = None  # draft tokens of a phase, of a tree its depth; None: the drafter decides
    sequences: Leaves | None = None  # k, as the user asked; None: by the theta rule
    max_sequences: Leaves | None = None  # cap on the theta rule; in a tree the leaves of one draft step; None: no cap


Turns = Annotated[tuple[ChatTurn, ...], Meta(max_length=MAX_TURNS)]
Logprobs = Annotated[tuple[TokenLogprobs, ...], Meta(max_length=1024)]
RequestStatuses = Annotated[tuple[RequestStatus, ...], Meta(max_length=MAX_REQUESTS)]
DrafterStatuses = Annotated[tuple[DrafterStatus, ...], Meta(max_length=MAX_DRAFTERS)]
Totals = Annotated[tuple[DraftTotals, ...], Meta(max_length=4096)]


NO_THOUGHTS = Thinking()


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
    step_us: StepMicroseconds | None = None  # drafters only: a draft step of one leaf, as calibrated
    tokenizer: TokenizerParts | None = None  # what ``tokenizer_digest`` is made of
    loads: bool = False  # drafters only: it can load other weights of its model while it serves, see Load
    states: Layers = ()  # draft heads only: it reads what enters these layers of the target, see HiddenStates


class Heartbeat(Message, frozen=True):
    """Sent every ``heartbeat_ms`` by peers, and sent back by the verifier."""

    busy_ms: BusyMilliseconds = 0.0  # drafters only: length of a computation without reading or sending


class Goodbye(Message, frozen=True):
    """The peer leaves."""

    reason: Sentence = ""


# --- verifier -> anyone ----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """The answer to a Hello: the verifier knows the peer now."""

    incarnation: Label  # the verifier's
    heartbeat_ms: Interval  # between two heartbeats
    ttl_ms: Interval  # silence after which either side takes the other for dead
    telemetry: Label  # address of the PUB socket; "": none, or not for this key
    model_id: Label = ""  # the target's, as what follows
    vocab_size: Position = 0
    max_context: Position = 0
    forward_us: StepTimes = ()  # (rows, microseconds) of a forward, measured at start-up
    tool_form: Label = ""  # how the model writes tool calls: "hermes", "llama", "mistral" or "template"
    response_template: Text = ""  # form "template": transformers' response template, as JSON
    dtype: Label = ""  # type of its weights
    thinking: Thinking = NO_THOUGHTS
    sampling: Sampling = UNCHANGED  # sampling of a request that names none: generation_config.json's
    identity: Label = ""  # digest of the target's weights, configuration, tokenizer and chat template; "": not known


class Refuse(Message, frozen=True):
    """The verifier does not accept a peer, or one of its messages."""

    code: RefuseCode
    detail: Sentence


class Drain(Message, frozen=True):
    """The peer is to finish what is open, then to say Goodbye."""


# --- verifier <-> drafter --------------------------------------------------------------------------------------------


class Open(Message, frozen=True):
    """A lease: the drafter may grow the tree of request ``rid`` until ``Close``, or an ``Open`` of a later epoch."""

    rid: RequestId
    epoch: Count  # epoch of the lease; a verifier never uses one twice
    prefix: Tokens  # every committed token, prompt included
    prompt_len: Position
    sampling: Sampling
    plan: Plan
    cache_salt: Label = ""  # the request's


class Verdict(Message, frozen=True):
    """``tokens`` were committed at positions ``base_len ..``. A drafter that holds fewer than ``base_len`` committed
    tokens asks for the others with ``Resync``."""

    rid: RequestId
    epoch: Count
    round: Count
    base_len: Position
    tokens: Tokens
    due_us: Microseconds | None = None  # until the verifier looks at the tree again; None: its next round has begun
    plan: Plan | None = None  # None: as before
    verify_us: Microseconds | None = None  # expected length of the next round; None: the phase is sent as a whole
    awaited: Nodes | None = None  # drafts in a row that end the verifier's wait; None: the end of the phase, or no wait
    states: HiddenStates | None = None  # states of committed tokens


class Close(Message, frozen=True):
    """The lease is over."""

    rid: RequestId
    epoch: Count


class Load(Message, frozen=True):
    """The drafter is to serve new leases with weights ``version`` of its model. Open leases go on with the weights that
    they began with."""

    version: Count
    path: Sentence  # a directory on the drafter's host; empty: the weights that it was started with


class Grow(Message, frozen=True):
    """New draft tokens: a trie below the committed token at position ``base_len - 1``.

    It is self-contained: ``parents[i]`` < i is an index into the same message (-1: the committed token). Merging is by
    (parent, token), so that a lost, repeated or late message does no harm."""

    rid: RequestId
    epoch: Count
    base_len: Position
    parents: FragmentParents
    tokens: FragmentTokens
    logprobs: FragmentLogprobs  # natural log of the confidence in token i given its parent
    sequences: Sequences = 0  # k of this phase; 0: the method has no sequences
    complete: bool = False  # the phase is over: nothing more is sent before the next Verdict
    sent_us: Microseconds = 0.0  # since the drafter's start
    forwards: Forwards = ()  # since the last Grow: (microseconds from its start until ``sent_us``, its length)
    # for each position with candidates that was decided since the last Grow: the rank of the target's token among
    # them, from 1; 0: none of them
    ranks: Ranks = ()


class Resync(Message, frozen=True):
    """The drafter holds ``have_len`` committed tokens, and asks for those after them (0: for a new Open)."""

    rid: RequestId
    epoch: Count
    have_len: Position


class Decline(Message, frozen=True):
    """The drafter does not take this lease, or gives it back: it has no room, or its model cannot mirror the text."""

    rid: RequestId
    epoch: Count
    lasting: bool = False  # True: it can never draft for this request; False: it may later, when other leases end


class DraftStats(Message, frozen=True):
    """How a drafter does; sent some times a second."""

    actor_id: ActorId
    step_us: StepTimes  # (leaves in one step, microseconds), as measured
    busy: Probability  # share of the time since the last report that forwards took
    version: Count = 0  # version of the weights that new leases get, see Load
    trouble: Sentence = ""  # why it is not that of the last Load
    path: Sentence | None = None  # path in the Load that it was last sent; None: it does not say


# --- verifier <-> learner --------------------------------------------------------------------------------------------


class Finished(Message, frozen=True):
    """A request that has ended. The noise of its tokens follows from ``sampling``."""

    tokens: Tokens  # prompt and output
    prompt_len: Position
    sampling: Sampling


class Promote(Message, frozen=True):
    """The learner's order: drafters with that model are to load these weights, which replay found to be better."""

    version: Count
    path: Sentence  # see Load
    model_id: Label  # model of the drafters that are meant
    gain: Difference = 0.0  # gain in agreement with the target, on texts that it did not learn from


# --- telemetry and controller ----------------------------------------------------------------------------------------


class Drafting(Struct, frozen=True):
    """What a drafter has reported since the round before, see Grow."""

    sequences: Sequences = 0  # k of its phase
    ranks: Ranks = ()
    forwards: Forwards = ()  # (start since the verifier's start, length); measured by the drafter
    message_us: Microseconds = 0.0  # time to the drafter and back, by the verifier's running estimate


class RoundStats(Message, frozen=True):
    """One verification round of one request, as published on the telemetry socket; or several in a row without
    drafts, of which ``round`` is the last one's number."""

    rid: RequestId
    round: Count
    kind: Kind  # its drafter: who has the lease; "": none
    window: Nodes  # draft tokens verified
    accepted: Nodes
    committed: Position  # tokens
    rows: Position  # rows of the whole forward, all requests together
    forward_us: Microseconds
    wait_us: Microseconds  # wait for drafts before the forward
    wall_us: Microseconds  # time between the ends of the previous round and of this one
    started_us: Microseconds = 0.0  # beginning of the forward, since the verifier's start
    plan: Plan | None = None  # the drafter's plan; None: there is none, or it rests
    drafting: Drafting = Drafting()
    streams: Count = 1  # requests that decode at the verifier, this one included
    slowdown: Mean = 1.0  # ratio of forwards to ``Welcome.forward_us``, by the verifier's running estimate

    @property
    def rounds(self) -> int:
        """How many it tells of: where no drafts were verified, each token had a forward of its own."""
        return 1 if self.window else max(1, self.committed)


class RoundTrace(Struct, frozen=True):
    """One round of a request that asked for a trace: its token tree at the end of the forward, before it is pruned.

    The first ``stats.window`` nodes are the verified ones, in their order. The other nodes of the tree follow,
    the likeliest first, as far as there is room."""

    stats: RoundStats
    tokens: FragmentTokens
    parents: FragmentParents  # [i] < i; -1: the last committed token
    logprobs: FragmentLogprobs  # natural log of the confidence in token i given its parent
    origins: Origins
    arrived_us: Arrivals  # when node i came from a drafter, since the verifier's start; 0: its own, or not known
    path: NodePath  # indices of the accepted nodes; the target's own token follows them
    remembered: NodePath = ()  # indices of nodes that the memory of earlier requests named, and this one's text did not


class ActorUp(Message, frozen=True):
    """An actor was welcomed."""

    role: Role
    actor_id: ActorId
    model_id: Label = ""


class ActorDown(Message, frozen=True):
    """An actor has left, or is taken for dead."""

    role: Role
    actor_id: ActorId
    reason: Sentence


class Budget(Message, frozen=True):
    """What the controller commands for requests of one kind.

    It holds until the next one for the same kind, for ``ttl_ms`` at most, and only while its sender is connected; then
    the budget of the verifier's start-up calibration takes its place. None leaves a value to the receiver."""

    revision: Count
    ttl_ms: Interval
    kind: Kind = Kind()  # kind of the requests that it is for
    gamma: Gamma | None = None  # draft tokens of a phase; of a tree its depth
    sequences: Leaves | None = None  # cap on the theta rule; in a tree the leaves of one draft step
    window: Nodes | None = None  # most draft tokens in one round
    wait_us: WaitMicroseconds | None = None  # longest wait for drafts
    measured_tokens_per_second: Mean = 0.0  # rate of one stream, lately


Budgets = Annotated[tuple[Budget, ...], Meta(max_length=MAX_BUDGETS)]


# --- client -> verifier ----------------------------------------------------------------------------------------------


class Generate(Message, frozen=True):
    """Ask for text. Exactly one of ``prompt`` (text or ids) and ``messages`` is given."""

    rid: RequestId  # chosen by the client
    prompt: Text | Tokens = ""
    messages: Turns = ()
    sampling: Sampling = Sampling()
    method: Label = ""  # a Method; "": the verifier's default
    generated: Tokens = ()  # output tokens that the client of a resumed stream has; offsets go on after them
    num_speculative_tokens: DraftLength = 0  # gamma; 0: adaptive
    sequences: Sequences = 0  # k; 0: by the theta rule
    attempt: Count = 0  # how often in a row the verifier has crashed while it worked on this request
    structured_outputs: StructuredOutputs | None = None  # what the output, ``generated`` included, must follow
    trace: bool = False  # chunks have a RoundTrace
    tools: Text = ""  # a JSON array in OpenAI's shape, for the chat template
    cache_salt: Label = ""  # only requests with the same salt share what is cached (keys and values, texts)
    priority: Priority = 0  # the lowest number is served first and preempted last
    deadline_ms: Milliseconds = 0.0  # time from the request's arrival to its last token; 0: none
    rendering: Rendering = Rendering()  # way to render ``messages``
    dictation: Dictation | None = None
    prediction: Text = ""  # the output, as far as the client knows it: a draft


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
    tools: Text = ""  # see Generate
    special_tokens: bool = True  # whether the tokenizer's own are put in front of ``text``
    rendering: Rendering = Rendering()  # see Generate
    describe: bool = False  # whether the answer has ``tokenizer``


class Detokenize(Message, frozen=True):
    """Ask for the text of tokens."""

    rid: RequestId
    token_ids: Tokens


OWN_HEAD = "head"  # ``old`` of a Swap: the verifier's head, unless a drafter has that name


class Swap(Message, frozen=True):
    """Move every lease of drafter ``old`` to drafter ``new``; or put a head in the place of the verifier's own."""

    rid: RequestId
    old: ActorId  # a drafter, or ``OWN_HEAD``
    new: Sentence  # new weights; a head's directory or hub id; empty: the one before


class DrainActor(Message, frozen=True):
    """Take a drafter out of service: its leases move away, then it leaves."""

    rid: RequestId
    actor_id: ActorId


class Undo(Message, frozen=True):
    """Go back to the draft weights before the learner's last promotion. The verifier forwards it to the learner."""

    rid: RequestId
    version: Count = 0  # the promoted version to leave; refused where another is in force. 0: whichever is


# --- verifier -> client ----------------------------------------------------------------------------------------------


class Chunk(Message, frozen=True):
    """The next tokens of the output.

    The first token has a chunk of its own. Later rounds share one where they are shorter than a 60th of a second,
    unless the request asked for a trace."""

    rid: RequestId
    offset: Position  # position of the first token, in the output
    token_ids: Tokens
    pieces: Pieces  # [i]: the text that token i completes; "" inside a character
    accepted: Flags  # [i]: token i is a draft token that the target has accepted
    finish_reason: FinishReason | None = None  # set in the last chunk
    logprobs: Logprobs = ()  # one for each token, if the request asked for them
    stats: RequestStats | None = None  # set in the last chunk
    stop_reason: StopString | TokenId | None = None  # the request's own stop that ended it; None: another reason
    prompt_tokens: Position = 0  # set in the first chunk
    trace: RoundTrace | None = None  # trace of the round that brought the tokens, if the request asked for it
    cached_tokens: Position = 0  # set in the first chunk: prompt tokens that were not computed again

    @property
    def text(self) -> str:
        """The text of this chunk."""
        return "".join(self.pieces)


class Failed(Message, frozen=True):
    """A request or question has failed; nothing more follows about it."""

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
    pieces: TextPieces  # [i]: the text of token i after other text; U+FFFD for a part of a character
    text: Text  # special tokens by their names
    octets: TokenBytes = ()  # [i]: the bytes of token i where its piece has U+FFFD, else none
    tokenizer: Text = ""  # its tokenizer_config.json, where Tokenize asks for it


class StatusReport(Message, frozen=True):
    """The verifier, and all that is connected to it, as the asking client may see it."""

    rid: RequestId
    method: Label  # method of requests that name none
    uptime_ms: Milliseconds
    target: TargetStatus
    verifier: ActorStatus
    requests: RequestStatuses = ()
    drafters: DrafterStatuses = ()
    controller: ActorStatus | None = None
    learner: ActorStatus | None = None
    inline: InlineStatus | None = None
    budgets: Budgets = ()  # the controller's, as far as they are in force
    totals: Totals = ()
    counters: Counters = field(default_factory=dict)
    left_out: Sentence = ""  # why the verifier does not draft itself with the draft model or head that it was given


ToVerifier = (
    Hello | Heartbeat | Goodbye | Generate | Cancel | Status | Tokenize | Detokenize | Swap | DrainActor
    | Grow | Resync | Decline | DraftStats | Budget | Undo | Promote
)  # fmt: skip
ToClient = Welcome | Refuse | Drain | Heartbeat | Chunk | Failed | Done | Tokenized | StatusReport
ToDrafter = Welcome | Refuse | Drain | Heartbeat | Open | Verdict | Close | Load
ToController = Welcome | Refuse | Drain | Heartbeat
ToLearner = Welcome | Refuse | Drain | Heartbeat | Finished | Undo
Telemetry = RoundStats | DraftStats | ActorUp | ActorDown | Budget

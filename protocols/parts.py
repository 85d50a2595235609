"""The parts that messages are made of, and the base classes of both. On the wire a part is an array of its fields; a
message has its name before them."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

# isort: off
# fmt: off
from protocols.enumerations import Method
from protocols.limits import (
    ActorId, ActorIds, Blocks, Count, Difference, Gamma, Grammar, Histogram, Label, Leaves, LogitBias, LogProbability,
    LogprobCount, MaxTokens, Mean, Milliseconds, Penalty, Position, Probability, ProcessId, RepetitionPenalty,
    RequestId, Seed, Sentence, StepMicroseconds, StopStrings, StopTokens, Temperature, Text, TopIds, TopLogprobs, TopP,
)
# fmt: on
# isort: on


class Struct(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message: an array on the wire, immutable in memory."""


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    """A whole message: an array whose first element is the class name."""


class Sampling(Struct, frozen=True):
    """How the target's next token is chosen. Temperature 0 is greedy; otherwise by shared noise, see
    :mod:`actors.engines.sampling.noise`."""

    temperature: Temperature = 0.0
    top_k: Position = 0  # 0: off
    top_p: TopP = 1.0
    min_p: Probability = 0.0
    repetition_penalty: RepetitionPenalty = 1.0  # over prompt and output, as in transformers
    presence_penalty: Penalty = 0.0  # over the output, as in OpenAI's API
    frequency_penalty: Penalty = 0.0  # likewise
    stop: StopStrings = ()
    stop_token_ids: StopTokens = ()
    max_tokens: MaxTokens = 256
    seed: Seed = 0  # of the noise
    logprobs: LogprobCount = -1  # -1: none; n >= 0: the chosen token's and those of the n likeliest
    ignore_eos: bool = False
    logit_bias: LogitBias = ()  # (token id, what is added to its logit), as in OpenAI's API
    skip_special_tokens: bool = True  # False: the text has special tokens by their names; some tool calls need them


class StructuredOutputs(Struct, frozen=True):
    """What the output must follow, as in vLLM's StructuredOutputsParams. Exactly one of these is given."""

    json_schema: Grammar | None = None  # the text of a JSON schema; ``{"type": "object"}`` allows any object
    regex: Grammar | None = None  # of the whole output
    grammar: Grammar | None = None  # in llguidance's Lark, or GBNF


class TokenizerParts(Struct, frozen=True):
    """What a tokenizer's digest is made of, part by part, so that a refusal can say what differs."""

    entries: Count  # of the vocabulary, added tokens included
    blocks: Blocks = b""  # WIDTH bytes for each BLOCK token ids: the first of the SHA-256 of their entries
    merges: Label = ""  # SHA-256
    special: Label = ""  # SHA-256 of the special tokens and their ids

    BLOCK: ClassVar[int] = 32
    WIDTH: ClassVar[int] = 4


class ToolCall(Struct, frozen=True):
    """A function call that the model has written."""

    id: Label
    name: Label
    arguments: Text  # a JSON object


ToolCalls = Annotated[tuple[ToolCall, ...], Meta(max_length=1024)]


class ChatTurn(Struct, frozen=True):
    """A message of a conversation, in OpenAI's sense."""

    role: Label
    content: Text
    tool_calls: ToolCalls = ()  # of the role "assistant"
    tool_call_id: Label = ""  # of the role "tool": the call whose result this is


class TokenLogprobs(Struct, frozen=True):
    """Natural-log probabilities at one position under the target's raw logits: before penalties, temperature, filters
    and masks."""

    chosen: LogProbability  # of the committed token
    top_ids: TopIds = ()  # the likeliest tokens, best first
    top_logprobs: TopLogprobs = ()


class RequestStats(Struct, frozen=True):
    """What one request took and how well it was drafted for; sent with its last chunk."""

    method: Label = ""
    prompt_tokens: Position = 0
    completion_tokens: Position = 0
    time_to_first_token_ms: Milliseconds = 0.0
    decode_ms: Milliseconds = 0.0  # from the first token to the last
    rounds: Count = 0  # target forwards after the first token
    draft_tokens: Count = 0  # that were verified
    accepted_tokens: Count = 0
    acceptance_histogram: Histogram = ()  # [j] = rounds that accepted j draft tokens
    sequences_histogram: Histogram = ()  # [k] = drafting phases with k sequences
    gamma: Mean = 0.0  # mean over rounds
    forward_ms: Milliseconds = 0.0  # of the target
    wait_ms: Milliseconds = 0.0  # time spent waiting for a drafter
    overhead_ms: Milliseconds = 0.0  # decode minus forward minus wait
    drafters: ActorIds = ()  # that had its lease, the latest last
    resyncs: Count = 0  # drafters that had to ask for committed tokens
    cached_tokens: Position = 0  # of the prompt: not computed again, because an earlier one began with them
    forced_tokens: Count = 0  # accepted tokens that were the only ones a grammar allowed


class DrafterStatus(Struct, frozen=True):
    """One connected drafter."""

    actor_id: ActorId
    model_id: Label
    state: Label  # "active", "standby", "paused", "draining"
    leases: Count
    step_us: StepMicroseconds  # of one leaf, as measured
    drafted: Count  # draft tokens that were verified
    accepted: Count  # of those
    dropped: Count  # messages that were fenced off
    host: Label = ""
    pid: ProcessId = 0
    version: Count = 0  # of its weights, by the learner's count; 0: those that it was started with
    gain: Difference = 0.0  # in agreement, as replay found when these weights were promoted
    trouble: Sentence = ""  # why it does not serve what the learner has promoted
    speedup: Mean = 0.0  # of its streams lately, over the same streams without it; 0: not known
    tokens_per_second: Mean = 0.0  # of one of its streams, lately
    asked: Count = 0  # times, what it would have drafted for a stream of another drafter
    compared: Count = 0  # places of those streams at which both had a first choice
    right: Count = 0  # of those
    others_right: Count = 0  # of those the first choices of the drafters that had the streams


class DraftTotals(Struct, frozen=True):
    """Sums since the verifier's start over the requests of one method while one drafter had their lease."""

    method: Label
    drafter: Label  # actor id; "": none had
    drafts: Count  # rounds with draft tokens
    draft_tokens: Count
    accepted_tokens: Count
    accepted_per_position: Histogram = ()  # [j]: rounds that accepted more than j
    speedup: Mean = 0.0  # lately, over plain decoding at its measured cost; 0: not known


class Expectation(Struct, frozen=True):
    """What to expect of a single stream before anything is known of its text: who drafts, and the rates that follow
    from the measured times of forwards and draft steps."""

    threads: Count = 0  # that compute a target on a CPU; 0: it is on another device
    cpus: Label = ""  # that they are pinned to
    spare_cpus: Label = ""  # drafters' CPUs that compute as well while all drafters rest; "": none, or of no help
    drafts: Label = ""  # actor id of who drafts: a drafter, or the verifier itself; "": nobody with a draft model
    plain_tokens_per_second: Mean = 0.0  # without drafts
    tokens_per_second: Mean = 0.0  # with drafts; 0: nobody drafts
    agreement: Probability = 0.0  # assumed in that: the chance that the draft's first choice is the target's


class RequestStatus(Struct, frozen=True):
    """One open request."""

    rid: RequestId
    method: Label
    state: Label  # "queued", "prefill", "decode"
    tokens: Position  # of its output
    drafter: Label = ""  # actor id of who has its lease; "": nobody


class Plan(Struct, frozen=True):
    """How a drafter grows one request's tree."""

    method: Method
    gamma: Gamma | None = None  # draft tokens of a phase, of a tree its depth; None: the drafter decides
    sequences: Leaves | None = None  # k, as the user asked; None: by the theta rule
    max_sequences: Leaves | None = None  # cap on the theta rule; in a tree the leaves of one draft step; None: no cap


Turns = Annotated[tuple[ChatTurn, ...], Meta(max_length=1 << 14)]
Logprobs = Annotated[tuple[TokenLogprobs, ...], Meta(max_length=1024)]
RequestStatuses = Annotated[tuple[RequestStatus, ...], Meta(max_length=4096)]
DrafterStatuses = Annotated[tuple[DrafterStatus, ...], Meta(max_length=4096)]
Totals = Annotated[tuple[DraftTotals, ...], Meta(max_length=4096)]

"""What messages are made of. A part is an array of its fields, without a name."""

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
    """How the target's next token is chosen. Temperature 0 is greedy. See DESIGN "Lossless" for the shared noise."""

    temperature: Temperature = 0.0
    top_k: Position = 0  # 0: off
    top_p: TopP = 1.0
    min_p: Probability = 0.0
    repetition_penalty: RepetitionPenalty = 1.0  # over prompt and output, as in transformers
    presence_penalty: Penalty = 0.0  # over the output, as in OpenAI's API
    frequency_penalty: Penalty = 0.0
    stop: StopStrings = ()
    stop_token_ids: StopTokens = ()
    max_tokens: MaxTokens = 256
    seed: Seed = 0
    logprobs: LogprobCount = -1  # -1: none; n >= 0: the chosen token's and the n most likely
    ignore_eos: bool = False
    logit_bias: LogitBias = ()  # (token id, what is added to its logit), as in OpenAI's API
    skip_special_tokens: bool = True  # False: they stand in the text by their names, as some tool calls need it


class StructuredOutputs(Struct, frozen=True):
    """What the output must be, as vLLM's StructuredOutputsParams: exactly one of these is given."""

    json_schema: Grammar | None = None  # the text of a JSON schema; ``{"type": "object"}`` is any object
    regex: Grammar | None = None  # of the whole output
    grammar: Grammar | None = None  # Lark as llguidance takes it, or GBNF


class TokenizerParts(Struct, frozen=True):
    """What a tokenizer's digest is made of, so that a refusal can say what differs."""

    entries: Count  # of the vocabulary, added tokens included
    blocks: Blocks = b""  # 4 bytes for each 32 token ids: the first of the SHA-256 of their entries
    merges: Label = ""  # SHA-256
    special: Label = ""  # SHA-256 of the special tokens and their ids

    BLOCK: ClassVar[int] = 32  # token ids
    WIDTH: ClassVar[int] = 4  # bytes


class ToolCall(Struct, frozen=True):
    """A function that the model asked for."""

    id: Label
    name: Label
    arguments: Text  # a JSON object


ToolCalls = Annotated[tuple[ToolCall, ...], Meta(max_length=1024)]


class ChatTurn(Struct, frozen=True):
    role: Label
    content: Text
    tool_calls: ToolCalls = ()  # of the assistant
    tool_call_id: Label = ""  # of role "tool": the call whose result this is


class TokenLogprobs(Struct, frozen=True):
    """Natural-log probabilities of the target's unprocessed distribution at one position."""

    chosen: LogProbability
    top_ids: TopIds = ()
    top_logprobs: TopLogprobs = ()


class RequestStats(Struct, frozen=True):
    """What one request cost; sent with its last chunk."""

    method: Label = ""
    prompt_tokens: Position = 0
    completion_tokens: Position = 0
    time_to_first_token_ms: Milliseconds = 0.0
    decode_ms: Milliseconds = 0.0  # first token to last
    rounds: Count = 0  # target forwards after the first token
    draft_tokens: Count = 0  # verified in windows
    accepted_tokens: Count = 0
    acceptance_histogram: Histogram = ()  # [j] = rounds that accepted j draft tokens
    sequences_histogram: Histogram = ()  # [k] = drafting phases with k sequences
    gamma: Mean = 0.0  # mean over rounds
    forward_ms: Milliseconds = 0.0
    wait_ms: Milliseconds = 0.0  # time spent waiting for a drafter
    overhead_ms: Milliseconds = 0.0  # decode minus forward minus wait
    drafters: ActorIds = ()
    resyncs: Count = 0
    cached_tokens: Position = 0  # of the prompt: not computed again, because an earlier one began with them
    forced_tokens: Count = 0  # accepted tokens that were the only ones a grammar allowed


class DrafterStatus(Struct, frozen=True):
    actor_id: ActorId
    model_id: Label
    state: Label  # "active", "standby", "paused", "draining"
    leases: Count
    step_us: StepMicroseconds  # measured draft-step time
    drafted: Count
    accepted: Count
    dropped: Count  # messages fenced off
    host: Label = ""
    pid: ProcessId = 0
    version: Count = 0  # of the learner's weights; 0: those that it was started with
    gain: Difference = 0.0  # in agreement, that replay found when they were promoted
    trouble: Sentence = ""  # why it does not serve what the learner promoted
    speedup: Mean = 0.0  # of its streams lately, over the same time without it; 0: not known
    tokens_per_second: Mean = 0.0  # of one of its streams, lately


class DraftTotals(Struct, frozen=True):
    """Since the verifier's start, of one method's requests while one drafter had their lease."""

    method: Label
    drafter: Label  # "": none had
    drafts: Count  # rounds with draft tokens
    draft_tokens: Count
    accepted_tokens: Count
    accepted_per_position: Histogram = ()  # [j]: rounds that accepted more than j
    speedup: Mean = 0.0  # lately, over plain decoding as measured; 0: not known


class Expectation(Struct, frozen=True):
    """Of a stream alone, whose text nothing is known of: who drafts, and the rates that the model of a round promises
    by measured times of forwards and draft steps."""

    threads: Count = 0  # that compute a target on a CPU; 0: on another device
    cpus: Label = ""  # where they are pinned
    spare_cpus: Label = ""  # drafters' that compute, too, while all drafters rest; empty: none, or of no help
    drafts: Label = ""  # the actor that drafts: a drafter, or the verifier itself; empty: nobody with a draft model
    plain_tokens_per_second: Mean = 0.0  # without drafts
    tokens_per_second: Mean = 0.0  # with them; 0: nobody drafts
    agreement: Probability = 0.0  # assumed in that: chance that the draft's first choice is the target's


class RequestStatus(Struct, frozen=True):
    rid: RequestId
    method: Label
    state: Label  # "queued", "prefill", "decode"
    tokens: Position
    drafter: Label = ""


class Plan(Struct, frozen=True):
    """How a drafter grows one request's tree."""

    method: Method
    gamma: Gamma | None = None  # draft tokens per phase, of a tree its depth; None: as the drafter likes
    sequences: Leaves | None = None  # asked for by the user; None: by the theta rule
    max_sequences: Leaves | None = None  # cap on the theta rule; in a tree the leaves of one draft step; None: no cap


Turns = Annotated[tuple[ChatTurn, ...], Meta(max_length=1 << 14)]
Logprobs = Annotated[tuple[TokenLogprobs, ...], Meta(max_length=1024)]
RequestStatuses = Annotated[tuple[RequestStatus, ...], Meta(max_length=4096)]
DrafterStatuses = Annotated[tuple[DrafterStatus, ...], Meta(max_length=4096)]
Totals = Annotated[tuple[DraftTotals, ...], Meta(max_length=4096)]

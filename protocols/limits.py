"""The limits of every value in a message, as types: ``Annotated`` for msgspec, which refuses what is outside, and NaN.

``SPEC.md`` section 5.0 has the same table. Each limit is far beyond what a working peer sends. It is low enough that no
computation overflows and no message takes more memory than its receiver can spare. Limits that a user can meet have
names, so that :mod:`protocols.validation` can name them in a sentence before a message is made.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

MAX_INT = (1 << 31) - 1  # largest token id, position and token count
MAX_SENTENCE = 4096  # characters
MAX_REQUEST_ID = 128  # characters
MAX_ACTOR_ID = 128  # characters
LONGEST_LABEL = 256  # characters of a name or an id
MAX_STOPS, LONGEST_STOP = 16, 1024  # stop strings, and the characters of one
LONGEST_GRAMMAR = 1 << 18  # characters
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024  # tokens of a logit_bias
MAX_BAD_WORDS = 1024
MAX_CALLS = 1024  # functions in one turn
MAX_TURNS = 1 << 14  # turns of a conversation
MAX_TEMPERATURE = 1e6  # temperature at which logits hardly matter any more
MAX_LOGPROBS = 20  # likeliest tokens at one position
MAX_DRAFT_LENGTH = 256  # draft tokens of one phase; windows are far smaller
MAX_SEQUENCES = 64
MAX_NODES = 512  # nodes of a tree in one message
MAX_FORWARDS = 256  # draft steps that one message tells of
MAX_BUDGETS = 64  # budgets in force at a time
MAX_REQUESTS = 4096  # open at a verifier
MAX_DRAFTERS = 4096  # connected to a verifier, which tells of each in a status

ActorId = Annotated[str, Meta(min_length=1, max_length=MAX_ACTOR_ID)]
RequestId = Annotated[str, Meta(max_length=MAX_REQUEST_ID)]
Label = Annotated[str, Meta(max_length=LONGEST_LABEL)]
Sentence = Annotated[str, Meta(max_length=MAX_SENTENCE)]
Text = Annotated[str, Meta(max_length=1 << 23)]
Blocks = Annotated[bytes, Meta(max_length=1 << 18)]
Piece = Annotated[str, Meta(max_length=1 << 16)]
StopString = Annotated[str, Meta(min_length=1, max_length=LONGEST_STOP)]
Grammar = Annotated[str, Meta(min_length=1, max_length=LONGEST_GRAMMAR)]

TokenId = Annotated[int, Meta(ge=0, le=MAX_INT)]
Position = Annotated[int, Meta(ge=0, le=MAX_INT)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
ProcessId = Annotated[int, Meta(ge=0, le=MAX_INT)]
ParentIndex = Annotated[int, Meta(ge=-1, le=MAX_NODES - 1)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
DraftLength = Annotated[int, Meta(ge=0, le=MAX_DRAFT_LENGTH)]
Sequences = Annotated[int, Meta(ge=0, le=MAX_SEQUENCES)]
Gamma = Annotated[int, Meta(ge=1, le=MAX_DRAFT_LENGTH)]
Leaves = Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)]
Nodes = Annotated[int, Meta(ge=0, le=MAX_NODES)]
Width = Annotated[int, Meta(ge=1, le=4096)]
Interval = Annotated[int, Meta(ge=1, le=60_000)]

Milliseconds = Annotated[float, Meta(ge=0, le=1e12)]
BusyMilliseconds = Annotated[float, Meta(ge=0, le=60_000)]
Microseconds = Annotated[float, Meta(ge=0, le=1e12)]
StepMicroseconds = Annotated[float, Meta(ge=0.1, le=1e9)]
WaitMicroseconds = Annotated[float, Meta(ge=0, le=1e7)]
Probability = Annotated[float, Meta(ge=0, le=1)]
LogProbability = Annotated[float, Meta(ge=-1e9, le=0)]
Mean = Annotated[float, Meta(ge=0, le=1e9)]
Difference = Annotated[float, Meta(ge=-1, le=1)]

Temperature = Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)]
TopP = Annotated[float, Meta(gt=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=100)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
MaxTokens = Annotated[int, Meta(ge=1, le=MAX_INT)]
LogprobCount = Annotated[int, Meta(ge=-1, le=MAX_LOGPROBS)]
Seed = int  # any: MessagePack itself ends at -2^63 and 2^64 - 1, which Meta cannot say

Tokens = Annotated[tuple[TokenId, ...], Meta(max_length=1 << 20)]
StopStrings = Annotated[tuple[StopString, ...], Meta(max_length=MAX_STOPS)]
StopTokens = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKENS)]
BadWords = Annotated[tuple[StopString, ...], Meta(max_length=MAX_BAD_WORDS)]
LogitBias = Annotated[tuple[tuple[TokenId, Bias], ...], Meta(max_length=MAX_BIASES)]
Markup = Annotated[tuple[Label, ...], Meta(max_length=16)]
NamedTokens = Annotated[tuple[tuple[Label, TokenId], ...], Meta(max_length=64)]
TopIds = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_LOGPROBS)]
TopLogprobs = Annotated[tuple[LogProbability, ...], Meta(max_length=MAX_LOGPROBS)]
Pieces = Annotated[tuple[Piece, ...], Meta(max_length=1024)]
TextPieces = Annotated[tuple[Piece, ...], Meta(max_length=1 << 20)]
StateRows = Annotated[bytes, Meta(max_length=1 << 22)]
Octets = Annotated[bytes, Meta(max_length=1024)]
TokenBytes = Annotated[tuple[Octets, ...], Meta(max_length=1 << 20)]
Flags = Annotated[tuple[bool, ...], Meta(max_length=1024)]
Histogram = Annotated[tuple[Count, ...], Meta(max_length=1024)]
ActorIds = Annotated[tuple[ActorId, ...], Meta(max_length=1024)]
Counters = Annotated[dict[Label, Count], Meta(max_length=1024)]
Layers = Annotated[tuple[Nodes, ...], Meta(max_length=16)]
RowCounts = Annotated[tuple[Width, ...], Meta(max_length=64)]
Agreements = Annotated[tuple[Probability, ...], Meta(max_length=8)]
FragmentParents = Annotated[tuple[ParentIndex, ...], Meta(max_length=MAX_NODES)]
FragmentTokens = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_NODES)]
FragmentLogprobs = Annotated[tuple[LogProbability, ...], Meta(max_length=MAX_NODES)]
StepTimes = Annotated[tuple[tuple[Width, StepMicroseconds], ...], Meta(max_length=64)]
Forwards = Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MAX_FORWARDS)]
Ranks = Annotated[tuple[Nodes, ...], Meta(max_length=MAX_NODES)]
NodePath = Annotated[tuple[Nodes, ...], Meta(max_length=MAX_NODES)]
Arrivals = Annotated[tuple[Count, ...], Meta(max_length=MAX_NODES)]


def within(value: float, limited: Any) -> float:
    """``value``, a measured or computed number, clamped to the limits of a type such as ``Mean``; NaN to the lower."""
    (limits,) = limited.__metadata__
    return min(max(value, limits.ge), limits.le) if value == value else float(limits.ge)


def clipped(sentence: str) -> str:
    """``sentence``, cut to the length of a ``Sentence``."""
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 1] + "…"

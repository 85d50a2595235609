"""The limits of what may stand in a message, as types: ``Annotated`` for msgspec, which refuses the rest (NaN too).

``SPEC.md`` section 5.0 has the same table. Each limit is far beyond what a working peer sends, and low enough that
nothing computed from the value overflows and no message takes more memory than its receiver can spare.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from protocols.enumerations import Origin

MAX_SENTENCE = 4096

ActorId = Annotated[str, Meta(min_length=1, max_length=128)]
RequestId = Annotated[str, Meta(max_length=128)]
Label = Annotated[str, Meta(max_length=256)]
Sentence = Annotated[str, Meta(max_length=MAX_SENTENCE)]
Text = Annotated[str, Meta(max_length=1 << 23)]
Blocks = Annotated[bytes, Meta(max_length=1 << 18)]
Packed = Annotated[bytes, Meta(max_length=1 << 21)]
Piece = Annotated[str, Meta(max_length=1 << 16)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Grammar = Annotated[str, Meta(min_length=1, max_length=1 << 18)]

TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Position = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
ProcessId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
ParentIndex = Annotated[int, Meta(ge=-1, le=511)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
DraftLength = Annotated[int, Meta(ge=0, le=256)]
Sequences = Annotated[int, Meta(ge=0, le=64)]
Gamma = Annotated[int, Meta(ge=1, le=256)]
Leaves = Annotated[int, Meta(ge=1, le=64)]
Nodes = Annotated[int, Meta(ge=0, le=512)]
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

Temperature = Annotated[float, Meta(ge=0, le=1e6)]
TopP = Annotated[float, Meta(gt=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=100)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
MaxTokens = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
LogprobCount = Annotated[int, Meta(ge=-1, le=20)]
AlternativeCount = Annotated[int, Meta(ge=0, le=20)]
Seed = int  # any: MessagePack itself ends at -2^63 and 2^64 - 1, which Meta cannot say

Tokens = Annotated[tuple[TokenId, ...], Meta(max_length=1 << 20)]
StopStrings = Annotated[tuple[StopString, ...], Meta(max_length=16)]
StopTokens = Annotated[tuple[TokenId, ...], Meta(max_length=1024)]
LogitBias = Annotated[tuple[tuple[TokenId, Bias], ...], Meta(max_length=1024)]
TopIds = Annotated[tuple[TokenId, ...], Meta(max_length=20)]
TopLogprobs = Annotated[tuple[LogProbability, ...], Meta(max_length=20)]
Pieces = Annotated[tuple[Piece, ...], Meta(max_length=1024)]
TextPieces = Annotated[tuple[Piece, ...], Meta(max_length=1 << 20)]
Flags = Annotated[tuple[bool, ...], Meta(max_length=1024)]
Histogram = Annotated[tuple[Count, ...], Meta(max_length=1024)]
ActorIds = Annotated[tuple[ActorId, ...], Meta(max_length=1024)]
Counters = Annotated[dict[Label, Count], Meta(max_length=1024)]
RowCounts = Annotated[tuple[Width, ...], Meta(max_length=64)]
FragmentParents = Annotated[tuple[ParentIndex, ...], Meta(max_length=512)]
FragmentTokens = Annotated[tuple[TokenId, ...], Meta(max_length=512)]
FragmentLogprobs = Annotated[tuple[LogProbability, ...], Meta(max_length=512)]
StepTimes = Annotated[tuple[tuple[Width, StepMicroseconds], ...], Meta(max_length=64)]
Forwards = Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=256)]
Ranks = Annotated[tuple[Nodes, ...], Meta(max_length=512)]
NodePath = Annotated[tuple[Nodes, ...], Meta(max_length=512)]
Arrivals = Annotated[tuple[Count, ...], Meta(max_length=512)]
Origins = Annotated[tuple[Origin, ...], Meta(max_length=512)]


def within(value: float, limited: Any) -> float:
    """A measured or computed number, brought into the limits of a type such as ``Mean``."""
    (limits,) = limited.__metadata__
    return min(max(value, limits.ge), limits.le) if value == value else float(limits.ge)


def clipped(sentence: str) -> str:
    """A sentence of whatever length, cut to what a ``Sentence`` may hold."""
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 1] + "…"

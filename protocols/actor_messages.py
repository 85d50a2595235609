"""What a verifier says to its drafters, its learner and its telemetry socket, and what drafters, controller and learner
say to it."""

from __future__ import annotations

# isort: off
# fmt: off
from protocols.enumerations import Method, Role
from protocols.limits import (
    ActorId, Arrivals, Count, Difference, DraftLength, Forwards, FragmentLogprobs, FragmentParents, FragmentTokens,
    Gamma, Interval, Label, Leaves, Mean, Microseconds, NodePath, Nodes, Origins, Packed, Position, Probability, Ranks,
    RequestId, Sentence, Sequences, StepTimes, Tokens, WaitMicroseconds,
)
from protocols.parts import Message, Struct, Sampling, Plan
# fmt: on
# isort: on

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
    sequences: Sequences = 0  # k of this phase; 0: does not apply
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
    """A request that has ended: prompt and output. The noise of its tokens follows from ``sampling``.

    What the target held likeliest under its raw logits, n tokens of output by ``Hello.alternatives``, best first."""

    tokens: Tokens
    prompt_len: Position
    sampling: Sampling
    top_ids: Packed = b""  # int32, little-endian; -1: none
    top_logprobs: Packed = b""  # natural logarithms, float16, little-endian


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
    sequences: Sequences = 0
    gamma: Gamma | None = None  # as commanded
    started_us: Microseconds = 0.0  # since the verifier's start
    phase_sequences: Sequences = 0  # as the drafter told since the previous round, see Grow
    phase_rank: Position = 0
    draft_ranks: Ranks = ()  # of decided tokens among the draft's candidates, as the drafter told: see Grow
    retrieved: Position = 0  # tokens that the verifier alone, by its proposers or a grammar, would have had right
    resting: bool = False  # the request did without its drafter
    fixed_gamma: DraftLength = 0  # as the request itself asked; 0: it did not
    fixed_sequences: Sequences = 0
    draft_forwards: Forwards = ()  # (start since the verifier's, length); measured by the drafter
    waited_from_us: Microseconds = 0.0  # since the verifier's start, where ``wait_us`` is not 0
    streams: Count = 1  # that decode at the verifier, this one included
    slowdown: Mean = 1.0  # of forwards against ``Welcome.forward_us``, by the verifier's running estimate
    message_us: Microseconds = 0.0  # to the drafter and back, by the verifier's running estimate


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
    """What the controller commands. Without a successor it holds for ``ttl_ms``, and no longer than whoever sent it is
    there; then the start-up calibration's takes its place. What is None is left to the receiver."""

    revision: Count
    ttl_ms: Interval
    method: Label | None = None  # that it is meant for; None: every one
    drafter: Label | None = None  # actor id; None: every one
    gamma: Gamma | None = None  # draft tokens of a phase; of a tree its depth
    sequences: Leaves | None = None  # cap on the theta rule; in a tree the leaves of one draft step
    window: Nodes | None = None  # most draft tokens in one round
    wait_us: WaitMicroseconds | None = None  # longest wait for drafts
    predicted_tokens_per_second: Mean = 0.0
    measured_tokens_per_second: Mean = 0.0
    fixed_gamma: DraftLength = 0  # and the requests: those that asked for so much; 0: for nothing
    fixed_sequences: Sequences = 0

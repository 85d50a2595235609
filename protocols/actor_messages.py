"""The messages between a verifier and its drafters, learner and controller, and those of its telemetry socket."""

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
    """A lease: the drafter may grow the tree of request ``rid`` until ``Close``, or an ``Open`` of a later epoch."""

    rid: RequestId
    epoch: Count  # of the lease; a verifier never uses one twice
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
    phase_sequences: Sequences = 0  # k of the newest phase whose first token was decided since the last Grow; 0: none
    phase_rank: Position = 0  # rank of that token among the draft's candidates for it, from 1; 0: none of them
    sent_us: Microseconds = 0.0  # since the drafter's start
    forwards: Forwards = ()  # since the last Grow: (microseconds from its start until ``sent_us``, its length)
    ranks: Ranks = ()  # like ``phase_rank``, for each position with candidates that was decided since the last Grow


class Resync(Message, frozen=True):
    """The drafter holds ``have_len`` committed tokens, and asks for those behind them (0: for a new Open)."""

    rid: RequestId
    epoch: Count
    have_len: Position


class Decline(Message, frozen=True):
    """The drafter does not take this lease, or gives it back: it has no room, or its model cannot mirror the text."""

    rid: RequestId
    epoch: Count
    lasting: bool = False  # True: it can never draft for this request; False: it may later, when other leases end


class DraftStats(Message, frozen=True):
    """How a drafter does; sent about once a second."""

    actor_id: ActorId
    step_us: StepTimes  # (leaves in one step, microseconds), as measured
    busy: Probability  # share of the time since the last report that forwards took
    version: Count = 0  # of the weights that new leases get, see Load
    trouble: Sentence = ""  # why it is not the one that it was last told to load
    path: Sentence | None = None  # of the Load that it was last told; None: it does not say


# --- verifier <-> learner --------------------------------------------------------------------------------------------


class Finished(Message, frozen=True):
    """A request that has ended. The noise of its tokens follows from ``sampling``.

    ``top_ids`` and ``top_logprobs`` are the target's likeliest tokens under its raw logits: arrays of shape (tokens of
    output, ``Hello.alternatives``), best first; empty if the learner asked for none."""

    tokens: Tokens  # prompt and output
    prompt_len: Position
    sampling: Sampling
    top_ids: Packed = b""  # int32, little-endian; -1: not known
    top_logprobs: Packed = b""  # natural logarithms, float16, little-endian


class Promote(Message, frozen=True):
    """The learner's order: drafters with that model are to load these weights, which replay found to be better."""

    version: Count
    path: Sentence  # as in Load
    model_id: Label  # of the drafters that are meant
    gain: Difference = 0.0  # in agreement with the target, by replay of texts that it did not learn from


# --- telemetry and controller ----------------------------------------------------------------------------------------


class RoundStats(Message, frozen=True):
    """One verification round of one request, as published on the telemetry socket; or several in a row without drafts,
    of which ``round`` is the last one's number."""

    rid: RequestId
    round: Count
    method: Method
    drafter: Label  # actor id; "": none had the lease
    window: Nodes  # draft tokens verified
    accepted: Nodes
    committed: Position  # tokens
    rows: Position  # of the whole forward, all requests together
    forward_us: Microseconds
    wait_us: Microseconds  # for drafts
    wall_us: Microseconds  # from the end of the previous round to the end of this one
    sequences: Sequences = 0  # k of the drafter's phase
    gamma: Gamma | None = None  # of the plan
    started_us: Microseconds = 0.0  # of the forward, since the verifier's start
    phase_sequences: Sequences = 0  # as the drafter has reported since the previous round, see Grow
    phase_rank: Position = 0
    draft_ranks: Ranks = ()  # ``ranks`` of Grow
    retrieved: Position = 0  # tokens that the verifier's own proposers and the grammar would have got accepted alone
    resting: bool = False  # the drafter that has the lease rested
    fixed_gamma: DraftLength = 0  # that the request itself asked for; 0: none
    fixed_sequences: Sequences = 0
    draft_forwards: Forwards = ()  # (start since the verifier's start, length); measured by the drafter
    waited_from_us: Microseconds = 0.0  # since the verifier's start, where ``wait_us`` is not 0
    streams: Count = 1  # requests that decode at the verifier, this one included
    slowdown: Mean = 1.0  # of forwards against ``Welcome.forward_us``, by the verifier's running estimate
    message_us: Microseconds = 0.0  # to the drafter and back, by the verifier's running estimate
    from_draft: Nodes = 0  # of ``accepted``: that a draft model alone had named
    from_both: Nodes = 0  # a draft model, and one of the verifier's own proposers as well
    from_text: Nodes = 0  # no draft model, but a proposer that reads the request's own text, ...
    from_memory: Nodes = 0  # ... or else one that reads ended requests ...
    from_datastore: Nodes = 0  # ... or else the datastore

    @property
    def rounds(self) -> int:
        """How many it tells of: where no drafts were verified, each token had a forward of its own."""
        return 1 if self.window else max(1, self.committed)


class RoundTrace(Struct, frozen=True):
    """One round of a request that asked for a trace: its token tree at the end of the forward, before it is pruned.

    The first ``stats.window`` nodes are those that were verified, in their order. The other nodes of the tree follow,
    the likeliest first, as far as there is room."""

    stats: RoundStats
    tokens: FragmentTokens
    parents: FragmentParents  # [i] < i; -1: the last committed token
    logprobs: FragmentLogprobs  # natural log of the confidence in token i given its parent
    origins: Origins
    arrived_us: Arrivals  # when node i came from a drafter, since the verifier's start; 0: its own, or not known
    path: NodePath  # indices of the accepted nodes; the target's own token follows them


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
    method: Label | None = None  # of the requests that it is for; None: every method
    drafter: Label | None = None  # actor id of their drafter; None: every drafter
    gamma: Gamma | None = None  # draft tokens of a phase; of a tree its depth
    sequences: Leaves | None = None  # cap on the theta rule; in a tree the leaves of one draft step
    window: Nodes | None = None  # most draft tokens in one round
    wait_us: WaitMicroseconds | None = None  # longest wait for drafts
    predicted_tokens_per_second: Mean = 0.0
    measured_tokens_per_second: Mean = 0.0
    fixed_gamma: DraftLength = 0  # for requests that ask for this gamma themselves; 0: for those that ask for none
    fixed_sequences: Sequences = 0  # likewise

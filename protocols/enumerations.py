"""The enumerations of the protocol; they travel as their values."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    CLIENT = "client"
    DRAFTER = "drafter"
    CONTROLLER = "controller"
    VERIFIER = "verifier"
    LEARNER = "learner"


class KeyRole(StrEnum):
    """What a CURVE key is issued for; only key files have it. An operator may do what a client may; also swap and drain
    drafters, hear the telemetry and see everybody's requests."""

    CLIENT = "client"
    DRAFTER = "drafter"
    CONTROLLER = "controller"
    LEARNER = "learner"
    OPERATOR = "operator"


class Method(StrEnum):
    """How draft tokens are found and verified, see :mod:`actors.tree.methods`. "" in a message: the receiver's
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
    """Where a token came from."""

    DRAFT = "draft"  # the drafter's likeliest token at its position
    SIBLING = "sibling"  # another of the drafter's candidates, in case the likeliest is rejected
    RETRIEVED = "retrieved"  # guessed by the verifier's own proposers
    FORCED = "forced"  # the only one that a grammar allows
    TARGET = "target"  # nobody had drafted it: a committed token of the target's own, never a node of a tree


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

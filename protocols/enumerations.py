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
    """What a CURVE key is issued for; it travels in key files only. An operator may do whatever a client may, and swap,
    drain, watch the telemetry and see everybody's requests."""

    CLIENT = "client"
    DRAFTER = "drafter"
    CONTROLLER = "controller"
    LEARNER = "learner"
    OPERATOR = "operator"


class Method(StrEnum):
    """How draft tokens are grown and verified; ``""`` in a message means "the receiver's default"."""

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
    """Where a draft token came from, or, of a committed one, that nobody had drafted it."""

    DRAFT = "draft"  # a drafter's likeliest token at its place
    SIBLING = "sibling"  # another of its candidates, kept for the case that the likeliest is rejected
    RETRIEVED = "retrieved"  # the verifier's own proposers
    FORCED = "forced"  # the only one that a grammar allows
    TARGET = "target"  # the target's own; no node of a tree has it


class RefuseCode(StrEnum):
    VERSION = "version"
    TOKENIZER = "tokenizer"
    UNKNOWN_PEER = "unknown_peer"  # "say Hello first": after a restart of the verifier
    DUPLICATE = "duplicate"
    MALFORMED = "malformed"
    DRAINING = "draining"
    FORBIDDEN = "forbidden"  # the key that the connection came with is not for that role


class FailureCode(StrEnum):
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

"""The enumerations of the protocol; they travel as their values."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    CLIENT = "client"
    DRAFTER = "drafter"
    CONTROLLER = "controller"
    VERIFIER = "verifier"


class Method(StrEnum):
    """How draft tokens are grown and verified; ``""`` in a message means "the receiver's default"."""

    VANILLA = "vanilla"
    SPS = "sps"
    PEARL = "pearl"
    DUODECODING = "duodecoding"
    TREE = "tree"
    PLD = "pld"
    REST = "rest"
    LOOKAHEAD = "lookahead"
    AUTO = "auto"
    PLD_EARLIEST = "pld-earliest"
    SAM = "sam"
    DUODECODING_LOCKSTEP = "duodecoding-lockstep"


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


class FailureCode(StrEnum):
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH = "context_length"
    UNSUPPORTED = "unsupported"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    CANCELLED = "cancelled"
    DRAINING = "draining"
    INTERNAL = "internal"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"

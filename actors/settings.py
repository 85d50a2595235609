"""One typed struct per actor; each option is described once, here.

The command line, ``duo.toml`` and ``docs/configuration.md`` are generated from these structs (see
:mod:`duoactor.config`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from protocols.messages import Method

BUNDLED = "bundled"  # the model pair that comes with duoactor
RETRIEVAL = "sam"  # a drafter that needs no model and fits every tokenizer
AUTO_DRAFT = "auto"  # ``draft``: the target's own head; where it has none, retrieval
NO_DRAFT = "none"  # ``inline_draft``: the verifier does not draft itself
MAX_THREADS = 16  # threads of a target on a CPU, by default: no machine with more was measured

Port = Annotated[str, Meta(description="address as ipc://PATH or tcp://HOST:PORT")]


def retrieves(draft: str) -> bool:
    """Whether a drafter's ``draft`` names a proposer instead of a model."""
    return draft in ("pld", "sam") or draft.startswith("rest:")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all actors' options."""


class KeySettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: Annotated[str, Meta(description="this actor's CURVE secret key file, made by `duoactor keys`")] = ""


class PeerSettings(KeySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    connect: Annotated[Port, Meta(description="the verifier's address; empty: this user's default")] = ""
    server_key: Annotated[str, Meta(description="the verifier's CURVE public key file, where it has one")] = ""


PEER_VARIABLES = {
    "connect": "DUOACTOR_CONNECT",
    "key": "DUOACTOR_KEY",
    "server_key": "DUOACTOR_SERVER_KEY",
}  # environment variables for these options, if neither a flag nor, for a client, an argument gives them


class VerifierSettings(KeySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Owns the committed tokens and runs the target model."""

    target: Annotated[str, Meta(description="target model: a directory, hub id or GGUF file")] = BUNDLED
    tokenizer: Annotated[
        str,
        Meta(
            description="directory, hub id or tokenizer.json of the original model, for a file or directory without one"
        ),
    ] = ""
    bind: Annotated[
        Port, Meta(description="address that all others connect to; one that other hosts reach needs key and allow")
    ] = ""
    allow: Annotated[str, Meta(description="directory with the public key files of those who may connect")] = ""
    device: Annotated[str, Meta(description="torch device of the target: auto, cpu, cuda, cuda:1")] = "auto"
    dtype: Annotated[
        str,
        Meta(
            description="float32, bfloat16, float16 or auto: bfloat16 on a GPU, and on a CPU where it is faster; int8, "
            "on a CPU, is faster still and takes half the memory, but is another model, with other texts"
        ),
    ] = "auto"
    method: Annotated[Method, Meta(description="method of requests that name none")] = Method.AUTO
    num_speculative_tokens: Annotated[
        int, Meta(description="draft length gamma; 0: measured at the start, then adapted", ge=0, le=256)
    ] = 0
    sequences: Annotated[int, Meta(description="number of draft sequences; 0: by the theta rule", ge=0, le=64)] = 0
    kv_tokens: Annotated[
        int,
        Meta(
            description="size of the KV pool in tokens; 0: by the memory that is free, of which ended requests keep as "
            "much as the weights take, or 0.23 GB",
            ge=0,
        ),
    ] = 0
    context: Annotated[
        int,
        Meta(
            description="longest text in tokens; 0: the model's own, with LongRoPE that of its first training, since "
            "more changes short texts too",
            ge=0,
        ),
    ] = 0
    threads: Annotated[
        int,
        Meta(
            description="compute threads of a target on a CPU; 0: one for each of its CPUs, at most 16", ge=0, le=1024
        ),
    ] = 0
    cpus: Annotated[str, Meta(description="pin the process to these CPUs, such as 0 or 0,1; empty: do not pin")] = ""
    spare_cpus: Annotated[
        str, Meta(description="the drafters' CPUs, which a target on a CPU uses too while all drafters are idle")
    ] = ""
    inline_draft: Annotated[
        str,
        Meta(
            description="draft head or draft model with which the verifier itself drafts between forwards, for "
            "method auto; auto: the head in the target's checkpoint; none: it does not; empty: under `up` the drafters'"
        ),
    ] = ""
    actor_id: Annotated[str, Meta(description="name in status output and logs")] = "verifier"
    datastore: Annotated[
        str, Meta(description="directory made by `duoactor datastore build`; method rest needs it, auto uses it")
    ] = ""

    max_queued_requests: Annotated[
        int,
        Meta(description="how many requests may wait for room; further ones are refused as overloaded", ge=1, le=4096),
    ] = 1024
    shutdown_timeout: Annotated[
        float,
        Meta(
            description="seconds that running requests get to finish after SIGTERM; clients resume the others",
            ge=0,
            le=86_400,
        ),
    ] = 0.0
    memory: Annotated[
        int,
        Meta(
            description="tokens of finished texts to keep, in which method auto finds drafts; 28 bytes each; 0: none, "
            "and no token recycling",
            ge=0,
            le=1 << 30,
        ),
    ] = 1_000_000
    share_texts: Annotated[
        bool,
        Meta(
            description="requests of all CURVE keys share caches, the learner and the request log: faster, but a "
            "client can then find out, by drafts and answer times, what others asked and were answered"
        ),
    ] = False
    learn_salted: Annotated[
        bool,
        Meta(
            description="let the learner also learn from requests that belong to a CURVE key, an API key or a "
            "cache_salt: drafts for everybody may then show what it learned"
        ),
    ] = False
    log_requests: Annotated[
        str, Meta(description="append finished requests to this file, as token ids, for `duoactor replay`; empty: none")
    ] = ""


class DrafterSettings(PeerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Guesses ahead with the draft model. It can be lost at any time: that costs speed only."""

    draft: Annotated[
        str,
        Meta(
            description="draft model: a directory, hub id or GGUF file; or the target's head, which the verifier runs: "
            "a directory, hub id or auto; or, with no model, pld, sam or rest:DATASTORE"
        ),
    ] = BUNDLED
    target: Annotated[
        str,
        Meta(
            description="for a draft head that this drafter runs itself: the target's directory, hub id or GGUF file "
            "here, whose embedding and tokenizer the head reads"
        ),
    ] = ""
    device: Annotated[str, Meta(description="torch device of the draft model")] = "cpu"
    dtype: Annotated[
        str, Meta(description="type of the draft's weights: auto, float32, bfloat16 or int8; never changes the output")
    ] = "auto"
    kv_tokens: Annotated[
        int, Meta(description="size of the KV pool in tokens; 0: by the memory that is free", ge=0)
    ] = 0
    threads: Annotated[int, Meta(description="compute threads", ge=1, le=1024)] = 1
    cpus: Annotated[str, Meta(description="pin the process to these CPUs; empty: do not pin")] = ""
    actor_id: Annotated[str, Meta(description="name in status output; empty: drafter-HOST-PID")] = ""


class ControllerSettings(PeerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapts gamma and the number of sequences to what the telemetry shows."""

    cpus: Annotated[str, Meta(description="pin the process to these CPUs; empty: do not pin")] = ""
    actor_id: Annotated[str, Meta(description="name in status output")] = "controller"


class LearnerSettings(PeerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trains a copy of the draft model on what is served; drafters load it once replay finds it to be better."""

    draft: Annotated[
        str, Meta(description="draft model to begin with, the drafters' own: a Hugging Face directory or hub id")
    ] = BUNDLED
    dtype: Annotated[str, Meta(description="type of the drafters' weights; candidates are judged in it")] = "auto"
    directory: Annotated[
        str, Meta(description="where promoted weights are kept, at most four versions; empty: in this user's cache")
    ] = ""
    cpus: Annotated[str, Meta(description="pin the process to these CPUs; empty: do not pin")] = ""
    actor_id: Annotated[str, Meta(description="name in status output")] = "learner"

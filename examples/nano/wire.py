"""The messages: the part of protocols/SPEC.md that a verifier, its drafters, a controller and a client need.

A message is two frames: the protocol's version, then a MessagePack array of the class name and the fields in order.
Trailing fields that nano has no use for are left out: the standard has defaults for them, and receivers skip others.
"""

from typing import Any

import msgspec

# fmt: off
VERSION = b"duoactor/4"

class Part(msgspec.Struct, array_like=True, frozen=True): ...  # an array of its fields
class Message(msgspec.Struct, array_like=True, frozen=True, tag=True): ...  # an array of its name and its fields

def struct(name: str, base: type = Message, **fields) -> type:
    """A struct whose fields need no more explanation than their names: a type each, or a type and a default."""
    typed = [(field, *kind) if isinstance(kind, tuple) else (field, kind) for field, kind in fields.items()]
    return msgspec.defstruct(name, typed, bases=(base,))

Sampling = struct("Sampling", Part,  # how the target chooses tokens. Nano refuses what it cannot honour, see HONOURED
    temperature=(float, 0.0), top_k=(int, 0), top_p=(float, 1.0), min_p=(float, 0.0),  # temperature 0: greedy
    repetition_penalty=(float, 1.0), presence_penalty=(float, 0.0), frequency_penalty=(float, 0.0),
    stop=(tuple[str, ...], ()), stop_token_ids=(tuple[int, ...], ()), max_tokens=(int, 256), seed=(int, 0),
    logprobs=(int, -1), ignore_eos=(bool, False), logit_bias=(tuple[Any, ...], ()), skip_special_tokens=(bool, True),
    min_tokens=(int, 0), bad_words=(tuple[str, ...], ()))
HONOURED = ("temperature", "stop_token_ids", "max_tokens", "seed", "ignore_eos")

class Hello(Message):  # anyone to the verifier, which answers Welcome or Refuse
    role: str  # "client", "drafter" or "controller"
    actor_id: str
    incarnation: str  # a new one for every start of a process
    model_id: str = ""
    vocab_size: int = 0
    tokenizer_digest: str = ""  # a drafter's must be the target's
    max_context: int = 0

class Welcome(Message):  # the verifier's answer
    incarnation: str
    heartbeat_ms: int
    ttl_ms: int  # silence after which either side takes the other for dead
    telemetry: str  # address of the PUB socket
    model_id: str = ""
    vocab_size: int = 0
    max_context: int = 0
    forward_us: tuple[tuple[int, float], ...] = ()  # (rows, microseconds) of a target forward

class Plan(Part):  # how a drafter grows one tree
    method: str
    gamma: int | None = None  # depth of the tree, in tokens; None: the drafter decides

Heartbeat = struct("Heartbeat", busy_ms=(float, 0.0))  # every peer's, and back; ms that a drafter will be silent
Goodbye = struct("Goodbye", reason=(str, ""))
Refuse = struct("Refuse", code=str, detail=str)
Drain = struct("Drain")  # the verifier asks a peer to leave
Cancel = struct("Cancel", rid=str)
Failed = struct("Failed", rid=str, code=str, detail=str)
Resync = struct("Resync", rid=str, epoch=int, have_len=int)  # a drafter misses the tokens from there on; 0: an Open
Decline = struct("Decline", rid=str, epoch=int, lasting=(bool, False))  # a drafter does not take this lease
Close = struct("Close", rid=str, epoch=int)  # the lease is over

Generate = struct("Generate",  # a client asks for text
    rid=str, prompt=(str | tuple[int, ...], ""), messages=(tuple[Any, ...], ()), sampling=(Sampling, Sampling()),
    method=(str, ""),  # "vanilla": without drafts
    generated=(tuple[int, ...], ()),  # output that the client has already, to resume a broken stream
    num_speculative_tokens=(int, 0), sequences=(int, 0), attempt=(int, 0), structured_outputs=(Any, None),
    trace=(bool, False), tools=(str, ""), cache_salt=(str, ""), priority=(int, 0), deadline_ms=(float, 0.0),
    rendering=(Any, None), dictation=(Any, None))
REFUSED = ("messages", "structured_outputs", "deadline_ms", "dictation")  # what else nano cannot honour

class Chunk(Message):  # the next tokens of an output
    rid: str
    offset: int  # position of the first of these tokens in the output
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]  # [i]: the text that token i completes
    accepted: tuple[bool, ...]  # [i]: token i is an accepted draft token
    finish_reason: str | None = None  # "stop" or "length" in the last chunk

class Open(Message):  # a lease: the drafter may grow the tree of request ``rid`` under this epoch
    rid: str
    epoch: int  # never used twice
    prefix: tuple[int, ...]  # every committed token, prompt included
    prompt_len: int
    sampling: Sampling
    plan: Plan

class Grow(Message):  # new draft tokens: a trie below the committed token at position ``base_len - 1``
    rid: str
    epoch: int
    base_len: int
    parents: tuple[int, ...]  # [i] < i: index of node i's parent in this message; -1: that committed token
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # natural log of the chance of token i given its parent
    sequences: int = 0
    complete: bool = False  # nothing more comes before the next Verdict

class Verdict(Message):  # ``tokens`` were committed at positions ``base_len`` and up
    rid: str
    epoch: int
    round: int
    base_len: int
    tokens: tuple[int, ...]
    due_us: float | None = None  # until the next window is cut; None: at once
    plan: Plan | None = None  # None: as before
    verify_us: float | None = None  # expected length of the next round
    awaited: int | None = None  # drafts in a row that end the verifier's wait

class DraftStats(Message):  # a drafter's report, each second; the verifier publishes it
    actor_id: str
    step_us: tuple[tuple[int, float], ...]  # (leaves in one step, microseconds), as measured
    busy: float  # share of the time that forwards took

Kind = msgspec.defstruct("Kind", [("method", str, ""), ("drafter", str, "")], bases=(Part,), frozen=True)  # "": every
class Budget(Message):  # the controller's command for requests of that kind. It holds for ``ttl_ms``
    revision: int
    ttl_ms: int
    kind: Kind = Kind()
    gamma: int | None = None

ToVerifier = Hello | Heartbeat | Goodbye | Generate | Cancel | Grow | Resync | Decline | DraftStats | Budget
ToClient = Welcome | Refuse | Drain | Heartbeat | Chunk | Failed
ToDrafter = Welcome | Refuse | Drain | Heartbeat | Open | Verdict | Close
ToController = Welcome | Refuse | Drain | Heartbeat

def encode(message: Message) -> list[bytes]:
    return [VERSION, msgspec.msgpack.encode(message)]

def decode(frames: list[bytes], decoder: msgspec.msgpack.Decoder) -> Message | None:
    """The message in these frames; None: another version, a message that is not known here, or garbage."""
    try:
        return decoder.decode(frames[1]) if len(frames) == 2 and frames[0] == VERSION else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None

"""A caller's request, checked and as a message, and chunks as one answer."""

from __future__ import annotations

import contextlib
import difflib
import json
import random
import reprlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec.structs import replace

from duoactor.client.options import DEFAULTS
from duoactor.thoughts import Thoughts
from protocols import wire
from protocols.errors import ProtocolError, RequestError
from protocols.limits import MAX_TURNS
from protocols.messages import (
    DEFAULTED,
    ChatTurn,
    Chunk,
    Dictation,
    FailureCode,
    FinishReason,
    Generate,
    Message,
    Method,
    Rendering,
    RequestStats,
    Sampling,
    StructuredOutputs,
    TokenLogprobs,
    ToolCall,
    ToVerifier,
)
from protocols.validation import MAX_INT, validate

M = TypeVar("M", bound=Message)
K = TypeVar("K", bound=msgspec.Struct)
Turn = ChatTurn | Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Turn]

PROMPT = "a text, a list of token ids, or a list of turns"
TURN = "a turn is a mapping such as {'role': 'user', 'content': 'Hello'}"
PROMOTED = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
WANTED = {
    int: "a whole number",
    PROMOTED: "the number of a version that was promoted",
    float: "a number",
    str: "a text",
    bool: "True or False",
    tuple[str, ...]: "a text or a list of texts",
    tuple[int, ...]: "a list of token ids",
    tuple[tuple[int, float], ...]: "a mapping of token ids to numbers",
}
KINDS = get_type_hints(Sampling)  # by name, found once: finding them takes 150 µs, everything else of a request 30
_decoder = wire.Decoder(ToVerifier)


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    ``sampling`` is as it was sent, with the seed that was drawn if none was given: asking again with it gives the same
    text. ``stats`` has the timings and what came of the drafts; ``logprobs`` is empty unless asked for. ``text`` is as
    the model wrote it: its thoughts, as far as the answer to a conversation has any, are ``reasoning``, the rest is
    ``content``.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: RequestStats
    sampling: Sampling
    logprobs: tuple[TokenLogprobs, ...] = ()
    reasoning: str = ""
    content: str = ""


def make_request(prompt: Prompt, messages: Sequence[Turn], options: Mapping[str, Any]) -> Generate:
    """The request for a prompt or a conversation. RequestError names what cannot be right, and says what would be."""
    for name in options:
        if name not in DEFAULTS:
            raise _bad(f"option {name!r} is not known{_meant(name, DEFAULTS)}")
    rest = {name: options.get(name, DEFAULTS[name]) for name in ("num_speculative_tokens", "sequences", "priority")}
    prompt, turns = _question(prompt, messages)
    request = Generate(
        uuid.uuid4().hex,
        prompt,
        turns,
        sampling=make_sampling(options.get("sampling"), options),
        method=_method(options.get("method") or ""),
        cache_salt=typed("cache_salt", options.get("cache_salt", ""), str),
        structured_outputs=make_structure(options.get("structured_outputs")),
        tools=make_tools(options.get("tools") or ()),
        prediction=_text("prediction", options.get("prediction", "")),
        **{name: typed(name, value, int) for name, value in rest.items()},
        trace=typed("trace", options.get("trace", False), bool),
        deadline_ms=typed("deadline_ms", options.get("deadline_ms", 0.0), float),
        rendering=instance("rendering", options.get("rendering"), Rendering) or Rendering(),
        dictation=instance("dictation", options.get("dictation"), Dictation),
    )
    validate(request)
    return checked(request)


def unsaid(options: Mapping[str, Any]) -> frozenset[str]:
    """Names of values that the caller leaves to the model's defaults."""
    return frozenset(() if options.get("sampling") else (name for name in DEFAULTED if options.get(name) is None))


def defaulted(sampling: Sampling, defaults: Sampling, said: Collection[str]) -> Sampling:
    """``sampling`` with the model's own ``defaults`` for all but the names in ``said``."""
    return replace(sampling, **{name: getattr(defaults, name) for name in DEFAULTED if name not in said})


def make_sampling(given: Sampling | None, options: Mapping[str, Any]) -> Sampling:
    """Sampling from keyword arguments. A seed is drawn here if none is given, so that a resumed stream keeps it."""
    instance("sampling", given, Sampling)
    values = {name: getattr(given or Sampling(), name) for name in Sampling.__struct_fields__}
    if given is None:
        values["seed"] = random.SystemRandom().getrandbits(63)
    values.update({name: options[name] for name in values if options.get(name) is not None})
    if isinstance(values["stop"], str):
        values["stop"] = (values["stop"],)
    if isinstance(values["logit_bias"], Mapping):
        values["logit_bias"] = tuple(values["logit_bias"].items())
    sampling = Sampling(**{name: typed(name, value, KINDS[name]) for name, value in values.items()})
    for stop in sampling.stop:
        _text("stop", stop)
    return sampling


def make_structure(given: object) -> StructuredOutputs | None:
    """Structured outputs; ``json_schema`` may also be the schema itself, as a mapping."""
    if instance("structured_outputs", given, StructuredOutputs) is None:
        return None
    texts: dict[str, str] = {}
    for field in StructuredOutputs.__struct_fields__:
        value, name = getattr(given, field), f"structured_outputs.{field}"
        if field == "json_schema" and isinstance(value, Mapping):
            try:
                value = json.dumps(value, ensure_ascii=False)
            except (TypeError, ValueError) as error:
                raise _bad(f"{name} is not JSON: {error}") from None
        if value is not None:
            texts[field] = _text(name, value)
    return StructuredOutputs(**texts)


def instance(name: str, given: object, kind: type[K]) -> K | None:
    """The value of an option that takes one of our own classes, or None."""
    if isinstance(given, kind | None):
        return given
    raise _bad(f"{name} must be a duoactor.{kind.__name__}, not {reprlib.repr(given)}")


def make_turns(given: object, name: str = "messages") -> tuple[ChatTurn, ...]:
    """A conversation: ChatTurns, or mappings with ``role`` and ``content``."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise _bad(f"{name} must be a list of turns, not {reprlib.repr(given)}; {TURN}")
    turns = list(given)
    if len(turns) > MAX_TURNS:
        raise _bad(f"a conversation has at most {MAX_TURNS} turns, not {len(turns)}; leave old ones out")
    return tuple(_turn(turn, f"{name}[{at}]") for at, turn in enumerate(turns))


def make_tools(given: object) -> str:
    """Functions in OpenAI's shape as JSON, or such JSON as it is."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list | tuple) or not all(isinstance(tool, Mapping) for tool in given):
        raise _bad(f"tools must be a list of functions in OpenAI's shape, not {reprlib.repr(given)}")
    return msgspec.json.encode(given).decode() if given else ""


def checked(message: M) -> M:
    """The message, if the verifier will be able to read it: this is its decoder."""
    try:
        _decoder.decode(wire.encode(message))
    except (ProtocolError, OverflowError, UnicodeEncodeError) as error:
        raise _bad(f"the verifier could not read this: {error}") from None
    return message


def typed(name: str, value: object, kind: Any) -> Any:
    """``value`` as that type: lists become tuples, and what numpy and torch call numbers become numbers."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(value, kind)
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(_plain(value), kind)
    raise _bad(f"{name} must be {WANTED[kind]}, not {reprlib.repr(value)}")


def complete(chunks: Sequence[Chunk], sampling: Sampling, thoughts: Thoughts) -> Completion:
    """RequestError if the stream was closed before its end."""
    last = chunks[-1] if chunks else None
    if last is None or last.finish_reason is None:
        raise RequestError(FailureCode.CANCELLED, "the stream was closed before its end; ask again")
    text = "".join(c.text for c in chunks)
    reasoning, content = thoughts.whole(text, last.finish_reason is FinishReason.LENGTH)
    return Completion(
        text,
        tuple(t for c in chunks for t in c.token_ids),
        last.finish_reason,
        last.stats or RequestStats(),
        sampling,
        tuple(p for c in chunks for p in c.logprobs),
        reasoning,
        content,
    )


def _bad(detail: str) -> RequestError:
    return RequestError(FailureCode.BAD_REQUEST, detail)


def _meant(name: str, known: Iterable[str]) -> str:
    likely = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {likely[0]}?" if likely else f"; there are {', '.join(known)}"


def _plain(value: object) -> object:
    """Arrays, tensors and their elements as Python's own lists and numbers."""
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_plain(item) for item in value]
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else value


def _method(method: object) -> str:
    name: str = typed("method", method, str)
    if name and name not in list(Method):
        raise _bad(f"method {name!r} is not known{_meant(name, [str(one) for one in Method])}")
    return str(name)


def _question(prompt: object, messages: object) -> tuple[str | tuple[int, ...], tuple[ChatTurn, ...]]:
    """The prompt as text or ids, or the conversation; the other of the two is empty."""
    turns = make_turns(messages)
    if isinstance(prompt, str):
        if prompt and turns:
            raise _bad("give either a prompt or messages, not both")
        if not prompt and not turns:
            raise _bad("the prompt is empty; give a text, token ids or messages")
        return _text("prompt", prompt), turns
    items = list(prompt) if isinstance(prompt, list | tuple | range) else _plain(prompt)
    if not isinstance(items, list):
        raise _bad(f"prompt must be {PROMPT}, not {reprlib.repr(prompt)}")
    if turns:
        raise _bad("give either a prompt or messages, not both")
    if not items:
        raise _bad("the prompt is empty; give a text, token ids or messages")
    if isinstance(items[0], ChatTurn | Mapping):
        return "", make_turns(items, "prompt")
    if isinstance(items[0], str):
        raise _bad(f"prompt must be {PROMPT}, not {reprlib.repr(prompt)}; ask for each text in a call of its own")
    ids: tuple[int, ...] = typed("prompt", items, tuple[int, ...])
    for token in (min(ids), max(ids)):
        if not 0 <= token <= MAX_INT:
            raise _bad(f"prompt must hold token ids, which {token} is not")
    return ids, ()


def _turn(turn: object, name: str) -> ChatTurn:
    if isinstance(turn, ChatTurn):
        turn = msgspec.structs.asdict(turn)
    if not isinstance(turn, Mapping):
        raise _bad(f"{name} must be a turn, not {reprlib.repr(turn)}; {TURN}")
    for key in ("role", "content"):
        if key not in turn:
            raise _bad(f"{name} has no {key}; {TURN}")
        if turn[key] is None and turn.get("tool_calls"):
            turn = {**turn, key: ""}  # OpenAI's API writes a turn of calls alone so
        _text(f"{name}.{key}", turn[key])
    unknown = [key for key in turn if key not in ChatTurn.__struct_fields__]
    if unknown:
        raise _bad(f"{name} has {unknown[0]!r}, which no turn has here; {TURN}")
    if not turn["role"]:
        raise _bad(f"{name}.role is empty; give system, user or assistant")
    calls = tuple(_tool_call(call, f"{name}.tool_calls[{at}]") for at, call in enumerate(turn.get("tool_calls") or ()))
    answered: str = typed(f"{name}.tool_call_id", turn.get("tool_call_id", ""), str)
    thought = _text(f"{name}.reasoning", turn.get("reasoning") or "")
    return ChatTurn(turn["role"], turn["content"], calls, answered, thought)


def _tool_call(call: object, name: str) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    try:
        function = call["function"]  # type: ignore[index]
        return msgspec.convert((call["id"], function["name"], function["arguments"]), ToolCall)  # type: ignore[index]
    except (TypeError, LookupError, msgspec.ValidationError):
        raise _bad(f"{name} must be a call in OpenAI's shape, with id and function, not {reprlib.repr(call)}") from None


def _text(name: str, value: object) -> str:
    text: str = typed(name, value, str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _bad(
            f"{name} holds half of a character ({text[error.start]!r} at {error.start}), which is no text; read its "
            "source as UTF-8"
        ) from None
    return text

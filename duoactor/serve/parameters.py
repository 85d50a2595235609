"""Typed parameters from a JSON body."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from duoactor.serve.errors import ApiError, bad
from duoactor.serve.fields import Ignored, known
from duoactor.serve.other_names import in_our_words
from protocols.limits import Milliseconds, Priority
from protocols.messages import Method, Sampling

T = TypeVar("T", bound=msgspec.Struct)

LARGEST = (1 << 63) - 1  # limit of a client that is named in words; OpenTelemetry has no larger number
UNLIMITED = LARGEST + 1  # no client's limit
JSON_WORDS = {"True": "true", "False": "false"}
HALF_OF_A_CHARACTER = re.compile("[\ud800-\udfff]")
Limit = Annotated[int, Meta(ge=-1)]
ChoiceCount = Annotated[int, Meta(ge=1, le=64)]
Gamma = Annotated[int, Meta(ge=1, le=256)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # usage in every event, not in the last alone


class PromptCut(NamedTuple):
    """What becomes of a prompt's tokens: the last ``most`` are read (-1: what fits; 0: all), and they are ``shown``."""

    most: int = 0
    shown: bool = False


WHOLE_PROMPT = PromptCut()


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """duoactor's own parameters and vLLM's ``cache_salt`` and ``priority``: they change the time of an
    answer, never its text."""

    speculative: bool = True
    method: Method | None = None
    num_speculative_tokens: Gamma = 0
    cache_salt: str = ""
    priority: Priority = 0
    deadline_ms: Milliseconds = 0.0

    def __post_init__(self) -> None:
        if not self.speculative and self.method not in (None, Method.VANILLA):
            raise ApiError(400, f"speculative is false, so method cannot be {self.method}", param="method")

    @property
    def wanted_method(self) -> str:
        """The method to ask the verifier for; "" is its default."""
        return str((self.method or "") if self.speculative else Method.VANILLA)


class ExtraSampling(Speculation, frozen=True, kw_only=True):
    """Parameters of vLLM's that OpenAI's API has not."""

    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    return_token_ids: bool = False
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None


class SamplingParameters(ExtraSampling, frozen=True, kw_only=True):
    """Parameters that chat and text completions share, with their defaults."""

    model: str = ""
    n: ChoiceCount = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: str | tuple[str, ...] = ()
    seed: int | None = None
    trace: bool = False
    timings_per_token: bool = False  # llama-server's
    logit_bias: dict[str, float] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncate_prompt_tokens == 0:
            raise bad("truncate_prompt_tokens", "must be at least 1, or -1 for what fits into the context")
        if self.trace and not self.stream:
            raise bad("trace", "needs stream to be true: a trace comes with the events of a stream")

    @property
    def cut(self) -> PromptCut:
        return PromptCut(self.truncate_prompt_tokens or 0, self.return_token_ids)

    def sampling(self, *, max_tokens: int, logprobs: int) -> Sampling:
        """``logprobs`` as in :class:`Sampling`. The seed is 0 where none was given."""
        return Sampling(
            temperature=self.temperature,
            top_k=max(self.top_k, 0) if self.top_k >= -1 else self.top_k,  # vLLM writes -1 for "all"
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            stop=stops(self.stop),
            stop_token_ids=self.stop_token_ids,
            max_tokens=max_tokens,
            seed=self.seed or 0,
            logprobs=logprobs,
            ignore_eos=self.ignore_eos,
            logit_bias=tuple((_token_id(key), value) for key, value in self.logit_bias.items()),
            skip_special_tokens=self.skip_special_tokens,
            min_tokens=self.min_tokens,
            bad_words=self.bad_words,
        )


def stops(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """An empty text stops nothing."""
    return tuple(text for text in ((given,) if isinstance(given, str) else given) if text)


def limit(given: int | None, param: str, default: int = UNLIMITED) -> int:
    """``max_tokens``, by whichever name, as the client's number: -1 is no limit, as clients of llama.cpp say it."""
    if given == 0:
        raise bad(param, "must be at least 1, or -1 for no limit")
    return default if given is None else UNLIMITED if given == -1 else min(given, LARGEST)


def _token_id(key: str) -> int:
    if not re.fullmatch(r"-?\d{1,18}", key):
        raise bad("logit_bias", f"must be keyed by token ids, not {key!r}")
    return int(key)


def decode(body: bytes, struct: type[T]) -> tuple[T, Ignored]:
    """The parameters in ``body``. ApiError (400) names the first that is refused or of a wrong type."""
    return convert(read(body), struct)


def countable(body: bytes) -> bytes:
    """A body whose tokens are counted, without the parameters that change the time of an answer alone: they are not
    looked at. A body that is no JSON object stays as it is, for the reader to refuse."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    left = {name: value for name, value in given.items() if name not in Speculation.__struct_fields__}
    return msgspec.json.encode(left) if len(left) < len(given) else body


def read(body: bytes) -> dict[str, Any]:
    """The body's JSON object. ApiError (400) if it is none."""
    if not body.strip():
        raise ApiError(400, "the body is empty: send a JSON object")
    try:
        given = msgspec.json.decode(body)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8, as JSON must be") from None
    except msgspec.MsgspecError as error:
        raise ApiError(400, f"the body {no_json(body, error)}") from None
    if not isinstance(given, dict):
        raise ApiError(400, "the body must be a JSON object")
    return given


def no_json(text: bytes, problem: msgspec.MsgspecError) -> str:
    """What to say of a text that msgspec cannot read, behind the text's name. The standard library's reader takes two
    things that JSON does not have, and so tells them apart: NaN and Infinity, and half of a character."""
    if isinstance(problem, msgspec.ValidationError):  # without a type to fit it is a number out of range
        return "holds a number that is too large: name one between -1.7e308 and 1.7e308"
    constants: list[str] = []
    half = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text.decode(), parse_constant=constants.append)
        half = HALF_OF_A_CHARACTER.search(json.dumps(found, ensure_ascii=False))
    if constants:
        return f"holds {constants[0]}, which JSON does not have: name a number"
    if half:
        return r"holds half of a character: an escape \ud800 to \udfff without its other one"
    return f"is not valid JSON: {problem}"


def convert(given: Mapping[str, Any], struct: type[T]) -> tuple[T, Ignored]:
    """The parameters in a JSON object, in our words or those of another server's API. ApiError as :func:`decode`."""
    try:
        kept, ignored = known(in_our_words(given, struct.__struct_fields__), struct)
        return msgspec.convert(kept, struct), ignored
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


def _invalid(error: msgspec.ValidationError) -> ApiError:
    """msgspec says "Expected `float`, got `str` - at `$.temperature`"."""
    what, _, where = str(error).partition(" - at `$")
    param = where.rstrip("`").lstrip(".")
    if missing := re.search(r"missing required field `(\w+)`", what):
        return bad(f"{param}.{missing[1]}".lstrip("."), "is missing")
    if wrong := re.fullmatch("Invalid enum value (.*)", what):
        if param == "method":
            return bad(param, f"can be {', '.join(Method)}, not {wrong[1]}")
        return bad(param, f"cannot be {JSON_WORDS.get(wrong[1], wrong[1])} here")
    problem = what.replace("`", "")
    return bad(param, f": {problem[0].lower()}{problem[1:]}") if param else ApiError(400, problem)

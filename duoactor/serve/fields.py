"""Known, ignored and refused fields of a request's body, by one rule at every depth.

- A hint is ignored and counted.
- A field that would change the text and cannot be honoured is refused.
- A misspelt field is refused, and so is any unknown field where the answer's form is described.
- Other unknown fields, such as newer SDKs send, are ignored; a header of the answer names them.

A field that is ``null`` counts as missing.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from duoactor.serve.errors import NOT_SUPPORTED, ApiError

# Hints for a provider's records, caches, prices and thinking, and fields of an earlier answer that is sent back
_HINTS = """
    allowed_callers annotations betas cache_control cache_prompt caller citations client_metadata container
    context_management defer_loading detail diagnostics display eager_input_streaming effort enable_thinking
    encrypted_content guided_decoding_backend id id_slot include include_obfuscation index inference_geo
    input_examples keep_alive metadata parallel_tool_calls phase prediction prompt_cache_key prompt_cache_options
    prompt_cache_retention provider_specific_fields reasoning reasoning_content reasoning_details reasoning_effort
    request_id return_progress safety_identifier service_tier signature slot_id speed status store summary thinking
    thinking_blocks timings_per_token title user verbosity
"""
HINTS = frozenset(_HINTS.split())

# Parameters that cannot be honoured, other APIs' included, with the values that ask for nothing
_UNSUPPORTED: Sequence[tuple[tuple[Any, ...], str]] = (
    (
        (),
        """
        add_special_tokens allowed_token_ids audio chat_template conversation ebnf guided_choice guided_grammar
        guided_json guided_regex guided_whitespace_pattern input json_schema lora_path max_completion_tokens
        max_output_tokens max_tokens max_tool_calls messages n_predict num_predict
        previous_response_id prompt prompt_logprobs random_seed regex seed structured_outputs
        truncate_prompt_tokens web_search_options
        """,
    ),
    (
        (False,),
        """
        continue_final_message echo ignore_eos include_stop_str_in_output logprobs penalize_nl prefix return_token_ids
        return_tokens_as_token_ids safe_prompt think trace use_beam_search
        """,
    ),
    ((True,), "add_generation_prompt parse_tool_calls skip_special_tokens"),
    ((True, False), "spaces_between_special_tokens"),  # special tokens are skipped
    ((0,), "epsilon_cutoff eta_cutoff frequency_penalty min_p presence_penalty smoothing_factor top_a"),
    ((0,), "min_tokens top_logprobs"),
    ((0, -1), "top_k"),
    ((1,), "best_of length_penalty n repeat_penalty repetition_penalty tfs_z typ_p typical_p"),
    (("",), "format grammar instructions suffix system template"),
    ((0,), "dry_multiplier dynatemp_range mirostat xtc_probability"),
    (("none", "auto"), "function_call tool_choice"),
    (({},), "chat_template_kwargs logit_bias options output_config stream_options text"),
    (([],), "bad_words context documents functions lora mcp_servers stop_sequences stop_token_ids tools"),
    (([], ""), "stop"),
    (({"type": "text"},), "response_format"),
    (("auto", "deepseek", "deepseek-legacy"), "reasoning_format"),  # llama-server's: thoughts have their own field
    ((["text"],), "modalities"),
)
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {name: idle for idle, names in _UNSUPPORTED for name in names.split()}
SAMPLERS = ("dry_", "dynatemp_", "mirostat_", "xtc_")  # each has a switch above, without which the rest does nothing
EXACT = 1 << 53  # float64 has every integer up to here
MISSPELT = 0.8  # difflib's ratio of a name and the intended one
MOST_NAMED, LONGEST_NAME = 8, 64  # unknown fields in a header, and the characters of one
MOST_SPELT = 64  # unknown fields that are compared with the known ones: 50 µs each, and a body may hold a million


@dataclass(slots=True)
class Ignored:
    """The names in a body, and the fields without effect."""

    said: frozenset[str] = frozenset()  # names at the top that something is made of
    hints: list[str] = field(default_factory=list)  # names
    unknown: list[str] = field(default_factory=list)  # places of unknown fields

    @property
    def warning(self) -> str:
        """A sentence for people; "" if all was used."""
        if not self.unknown:
            return ""
        named = list(dict.fromkeys(self.unknown))
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        return f"ignored, for they have no effect here: {', '.join(named[:MOST_NAMED])}{more}"


def known(given: Mapping[str, Any], struct: type[msgspec.Struct]) -> tuple[dict[str, Any], Ignored]:
    """The known fields of a body. ApiError (400) names the first field that is refused."""
    ignored = Ignored()
    kept = _object(given, struct, "", ignored)
    ignored.said = frozenset(kept)
    return kept, ignored


def _object(given: Mapping[str, Any], struct: type[msgspec.Struct], place: str, ignored: Ignored) -> dict[str, Any]:
    kinds = _kinds(struct)
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        where = f"{place}{name}"
        if name in kinds:
            kept[name] = _value(value, kinds[name], where, ignored)
        elif name in HINTS:
            ignored.hints.append(name)
        elif place or not _asks_nothing(name, value):
            strict = struct.__struct_config__.forbid_unknown_fields
            if strict or len(ignored.unknown) < MOST_SPELT:
                _check_spelling(name, where, kinds, strict)
            ignored.unknown.append(where[:LONGEST_NAME])
    return kept


def _value(value: Any, kinds: tuple[Any, ...], where: str, ignored: Ignored) -> Any:
    """``kinds``: the structs, and tuples of kinds, that the value may be."""
    value = _whole(value)
    for kind in kinds:
        if isinstance(value, dict) and isinstance(kind, type):
            return _object(value, kind, f"{where}.", ignored)
        if isinstance(value, list) and isinstance(kind, tuple):
            return [_value(one, kind, f"{where}[{at}]", ignored) for at, one in enumerate(value)]
    return value


def _whole(value: Any) -> Any:
    """8.0 as 8, also in arrays: to JSON Schema it is an integer. Objects are as they came."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT else value


def _asks_nothing(name: str, value: Any) -> bool:
    """Whether it is a parameter that is not supported, with a value that asks for nothing. ApiError if it asks."""
    if name not in UNSUPPORTED:
        return name.startswith(SAMPLERS)
    value = _whole(value)
    if any(value == idle and type(value) is type(idle) for idle in UNSUPPORTED.get(name, ())):
        return True
    raise ApiError(400, f"{name} is not supported here; leave it out", param=name, code=NOT_SUPPORTED)


def _check_spelling(name: str, where: str, names: Collection[str], strict: bool) -> None:
    """ApiError if it is one of ``names`` misspelt, or, where that is ``strict``, none of them."""
    near = difflib.get_close_matches(name[:LONGEST_NAME], names, n=1, cutoff=MISSPELT)
    if near or strict:
        meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
        raise ApiError(400, f"Unrecognized request argument supplied: {where}{meant}", param=where)


@cache
def _kinds(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, ...]]:
    hints = typing.get_type_hints(struct)
    return {name: _structs(hints[name]) for name in struct.__struct_fields__}


def _structs(hint: Any) -> tuple[Any, ...]:
    """The structs of a type; those inside an array as a tuple."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return (_structs(arguments[0]),) if arguments and arguments[-1] is ... and _structs(arguments[0]) else ()
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for one in arguments for kind in _structs(one))
    return (hint,) if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else ()

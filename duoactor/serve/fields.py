"""Which fields of a body are known: one rule for all depths.

A field that only hints is ignored and counted. One that would change the text and cannot be honoured is refused, and so
is a misspelt one, and any that is unknown where the form of the answer is said. Other unknown fields, such as newer
SDKs send, are ignored and named in a header. ``null`` is nothing.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from duoactor.serve.errors import ApiError

# They concern a provider's records, caches, prices and thinking, or repeat what the answer before them said.
HINTS = frozenset(
    re.findall(
        r"\w+",
        """
        allowed_callers annotations betas cache_control cache_prompt caller citations client_metadata container
        context_management continuous_usage_stats defer_loading detail diagnostics eager_input_streaming effort
        enable_thinking encrypted_content id_slot include include_obfuscation index inference_geo
        input_examples keep_alive metadata parallel_tool_calls phase prediction
        prompt_cache_key prompt_cache_options prompt_cache_retention
        provider_specific_fields reasoning reasoning_content reasoning_details reasoning_effort
        request_id return_progress
        safety_identifier service_tier signature slot_id speed status store summary thinking thinking_blocks
        timings_per_token title user verbosity
        """,
    )
)

# Parameters that cannot be honoured, with the values that ask for nothing. Those of other APIs are among them.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, 0.0),
    "ignore_eos": (False,),
    "input": (),
    "instructions": ("",),
    "logit_bias": ({},),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_output_tokens": (),
    "max_tokens": (),
    "messages": (),
    "min_p": (0, 0.0),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},),
    "seed": (),
    "skip_special_tokens": (True,),
    "stop": ([], ""),
    "stop_sequences": ([],),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "system": ("",),
    "text": ({},),
    "top_k": (0, -1),
    "trace": (False,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "conversation": (),
    "documents": ([],),
    "ebnf": (),
    "echo": (False,),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "format": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1.0,),
    "lora": ([],),
    "lora_path": (),
    "max_tool_calls": (),
    "mcp_servers": ([],),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n_predict": (),
    "options": ({},),
    "output_config": ({},),
    "penalize_nl": (False,),
    "prefix": (False,),
    "previous_response_id": (),
    "prompt": (),
    "prompt_logprobs": (),
    "random_seed": (),
    "regex": (),
    "repeat_last_n": (),
    "repeat_penalty": (1, 1.0),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "safe_prompt": (False,),
    "samplers": (),
    "smoothing_factor": (0, 0.0),
    "spaces_between_special_tokens": (True, False),  # special tokens are skipped
    "stream_options": ({},),
    "suffix": ("",),
    "tfs_z": (1, 1.0),
    "think": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_a": (0, 0.0),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
    "web_search_options": (),
}
UNSUPPORTED_KINDS = ("dry_", "dynatemp_", "guided_", "mirostat", "xtc_")  # how samplers' names begin
MISSPELT = 0.8  # difflib's ratio of a name and the one that is meant
MOST_NAMED = 8  # unknown fields in a header


@dataclass(slots=True)
class Ignored:
    """What a body has that nothing is made of."""

    hints: list[str] = field(default_factory=list)  # names
    unknown: list[str] = field(default_factory=list)  # where they stand

    @property
    def warning(self) -> str:
        """For people; "" if there is nothing to say."""
        if not self.unknown:
            return ""
        named = list(dict.fromkeys(self.unknown))
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        return f"ignored, for they are not known here: {', '.join(named[:MOST_NAMED])}{more}"


def known(given: Mapping[str, Any], struct: type[msgspec.Struct]) -> tuple[dict[str, Any], Ignored]:
    """What is known of a body. ApiError (400) names the first field that is refused."""
    ignored = Ignored()
    return _object(given, struct, "", ignored), ignored


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
            _check_spelling(name, where, kinds, struct.__struct_config__.forbid_unknown_fields)
            ignored.unknown.append(where[:64])
    return kept


def _value(value: Any, kinds: tuple[Any, ...], where: str, ignored: Ignored) -> Any:
    """``kinds``: the structs, and tuples of kinds, that the value may be."""
    for kind in kinds:
        if isinstance(value, dict) and isinstance(kind, type):
            return _object(value, kind, f"{where}.", ignored)
        if isinstance(value, list) and isinstance(kind, tuple):
            return [_value(one, kind, f"{where}[{at}]", ignored) for at, one in enumerate(value)]
    return value


def _asks_nothing(name: str, value: Any) -> bool:
    """Whether it is a parameter that is not supported, with a value that asks for nothing. ApiError if it asks."""
    if name not in UNSUPPORTED and not name.startswith(UNSUPPORTED_KINDS):
        return False
    if any(value == idle and type(value) is type(idle) for idle in UNSUPPORTED.get(name, ())):
        return True
    raise ApiError(400, f"{name} is not supported here; leave it out", param=name, code="unsupported_parameter")


def _check_spelling(name: str, where: str, names: Collection[str], strict: bool) -> None:
    """ApiError if it is one of ``names`` misspelt, or, where that is ``strict``, none of them."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=MISSPELT)
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

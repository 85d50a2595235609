"""Names that other servers give to parameters of ours: a body in their words becomes one in ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from duoactor.serve.errors import ApiError, bad

_RENAMED: Mapping[str, str] = {
    "repeat_penalty": "repetition_penalty",  # llama.cpp's and Ollama's
    "n_predict": "max_tokens",  # llama.cpp's
    "num_predict": "max_tokens",  # Ollama's
    "draft_num_predict": "num_speculative_tokens",  # Ollama's
    "random_seed": "seed",  # Mistral's
}
# vLLM's former names and llama.cpp's, by the field of ``structured_outputs``
_FORMS: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
}
# How Ollama loads and holds a model: no part of a request here. ``num_ctx`` is checked by whoever knows the context.
_LOADING = """
    f16_kv low_vram main_gpu num_batch num_ctx num_gpu num_keep num_thread numa penalize_newline use_mlock use_mmap
"""
_IDLE = frozenset(_LOADING.split())
LIKELIEST = 1e-9  # what a top_p of 0 is to OpenAI and llama.cpp: the likeliest token alone


def in_our_words(given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """``given`` with other servers' names as those of ``fields``. ApiError (400) where two names contradict."""
    made: dict[str, Any] = {}
    for name, value in _flat(given, fields).items():
        for own, meant in _meant(name, value, fields):
            if made.get(own) not in (None, meant):
                raise bad(own, f"is given twice, and {name} says otherwise: give one of them")
            made[own] = meant
    return made


def _flat(given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """``given`` with Ollama's ``options`` among the other names."""
    options = given.get("options")
    if "options" in fields or not isinstance(options, dict):
        return dict(given)
    rest = {name: value for name, value in given.items() if name != "options"}
    for name, value in options.items():
        if name in rest and rest[name] != value:
            raise ApiError(400, f"options.{name} and {name} say different things: give one of them", param=name)
    return {**rest, **{name: value for name, value in options.items() if name not in _IDLE}}


def _meant(name: str, value: Any, fields: Collection[str]) -> list[tuple[str, Any]]:
    """A parameter in our words, which may be several."""
    if name == "top_p" and value == 0 and not isinstance(value, bool):
        return [(name, LIKELIEST)]
    if name in fields or value is None or value == "":
        return [(name, value)]
    if name == "draft_num_predict" and value == 0 and "speculative" in fields:
        return [("speculative", False)]
    if name == "thinking_budget_tokens" and "thinking_budget" in fields:  # llama-server's: -1 is no limit
        return [] if value == -1 else [("thinking_budget", value) if value else ("enable_thinking", False)]
    if name in _RENAMED and _RENAMED[name] in fields:
        unlimited = name == "num_predict" and isinstance(value, int) and value < 1
        warming = name == "n_predict" and value == 0  # the prompt is read; the one token is left to the caller
        return [(_RENAMED[name], -1 if unlimited else 1 if warming else value)]
    if name in _FORMS and "structured_outputs" in fields:
        return [("structured_outputs", {_FORMS[name]: value})]
    if name == "format" and "response_format" in fields:
        if value == "json":
            return [("response_format", {"type": "json_object"})]
        return [("response_format", {"type": "json_schema", "json_schema": {"schema": value}})]
    if name == "think" and "enable_thinking" in fields:
        if isinstance(value, str):
            return [("enable_thinking", True), ("reasoning_effort", value)]
        return [("enable_thinking", value)]
    return [(name, value)]

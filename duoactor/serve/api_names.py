"""The names that an API's own clients know: sentences about our parameters are put into its words."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OLLAMA = {
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "num_speculative_tokens": "draft_num_predict",
    "response_format.json_schema.schema": "format",
    "response_format": "format",
    "reasoning_effort": "think",
    "enable_thinking": "think",
    "reasoning_content": "thinking",
}
_LLAMA = {
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "structured_outputs.json": "json_schema",
    "structured_outputs.grammar": "grammar",
    "logprobs": "n_probs",
    "n": "n_cmpl",
}
# The API's names by ours, by the beginning of a path; the first that fits counts
_NAMES: Mapping[str, Mapping[str, str]] = {
    "/api/": _OLLAMA,
    "/completion": _LLAMA,
    "/infill": _LLAMA,
    "/v1/messages": {"stop": "stop_sequences"},
    "/v1/responses": {"max_tokens": "max_output_tokens"},
    "/responses": {"max_tokens": "max_output_tokens"},
}


def in_words_of(path: str, sentence: str, param: str = "") -> str:
    """A sentence in the words of the path's API. A name that is also a plain word (``stop``, ``n``) is only replaced
    where the sentence begins with it and is about it, as ``param`` says. What is in quotes is the client's own."""
    names = next((names for begin, names in _NAMES.items() if path.startswith(begin)), {})
    for ours, theirs in names.items():
        if "_" in ours:
            sentence = re.sub(rf"(?<![\w.`'\"]){re.escape(ours)}(?!\w)", theirs, sentence)
        elif param == ours:
            sentence = re.sub(rf"^{ours}\b", theirs, sentence)
    return sentence

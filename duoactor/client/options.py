"""What a caller may say about a request besides the prompt: one definition for every call, sync and async."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

from protocols.messages import Generate, Sampling, StructuredOutputs

F = TypeVar("F", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    temperature: Annotated[float, "0 is greedy; higher is more varied"]
    top_k: Annotated[int, "sample from the k most likely tokens; 0 is off"]
    top_p: Annotated[float, "sample from the most likely tokens that hold this share of the probability"]
    min_p: Annotated[float, "drop tokens less likely than this share of the best one's probability"]
    repetition_penalty: Annotated[float, "above 1 discourages tokens of the prompt and the output"]
    presence_penalty: Annotated[float, "above 0 discourages tokens that the output has"]
    frequency_penalty: Annotated[float, "above 0 discourages tokens by their count in the output"]
    stop: Annotated[str | Sequence[str], "end before this text, or the first of these"]
    stop_token_ids: Annotated[Sequence[int], "end with the first of these tokens"]
    max_tokens: Annotated[int, "most tokens to make"]
    seed: Annotated[int | None, "the same seed gives the same text, whatever drafts; drawn if not given"]
    logprobs: Annotated[int, "log-probabilities of each token and the n most likely; -1 is none"]
    ignore_eos: Annotated[bool, "go on behind the end-of-text token"]
    logit_bias: Annotated[
        Mapping[int, float] | Sequence[tuple[int, float]], "what is added to the logits of single tokens"
    ]
    skip_special_tokens: Annotated[bool, "leave special tokens out of the text"]
    sampling: Annotated[Sampling | None, "all of the above at once; single options win"]
    tools: Annotated[Sequence[Mapping[str, Any]] | str, "functions in OpenAI's shape, for the chat template"]
    method: Annotated[str, "how to draft and verify, such as auto, duodecoding or vanilla; never changes the text"]
    num_speculative_tokens: Annotated[int, "gamma, the draft length; 0 is adaptive"]
    sequences: Annotated[int, "draft sequences; 0 is dynamic"]
    cache_salt: Annotated[str, "what earlier requests left in caches is of use only to those with the same salt"]
    priority: Annotated[int, "lower is served earlier, and gives its room in the KV pool up later"]
    deadline_ms: Annotated[float, "the answer must be complete after so many milliseconds, or it fails; 0 is no limit"]
    structured_outputs: Annotated[StructuredOutputs | None, "a JSON schema, regex or grammar that the answer follows"]
    trace: Annotated[bool, "each chunk.trace tells how its round came about: the token tree and what became of it"]


DEFAULTS: Mapping[str, object] = {
    name: getattr(Sampling() if name in Sampling.__struct_fields__ else Generate(""), name)
    for name in Options.__annotations__
} | {"seed": None, "sampling": None, "tools": ()}

DESCRIPTIONS: Mapping[str, str] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Options, include_extras=True).items()
}


def shows_options(call: F) -> F:
    """Show every option in the signature and docstring of ``call(..., **options: Unpack[Options])``: ``help`` and
    notebooks read those at run time, where editors and type checkers read :class:`Options`."""
    hints = get_type_hints(Options, include_extras=True)
    signature = inspect.signature(call)
    listed = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=hint.__origin__)
        for name, hint in hints.items()
    ]
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    call.__signature__ = signature.replace(parameters=[*own, *listed])  # type: ignore[attr-defined]
    lines = [f"{name}: {description}" for name, description in DESCRIPTIONS.items()]
    call.__doc__ = f"{inspect.getdoc(call)}\n\nOptions:\n{textwrap.indent(chr(10).join(lines), '    ')}"
    return call

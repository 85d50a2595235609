"""Options of a client and of a request: one definition for every call, sync and async."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

from protocols.messages import Dictation, Generate, Rendering, Sampling, StructuredOutputs
from protocols.transport import Network

F = TypeVar("F", bound=Callable[..., Any])


class ClientOptions(TypedDict, total=False):
    """Options of a client."""

    key: Annotated[str, "your CURVE secret key file, which a verifier that uses keys asks for"]
    server_key: Annotated[str, "the verifiers' CURVE public key file"]
    timeout: Annotated[
        float | None,
        "seconds to wait for a verifier, and for its answers to questions; None: 10 s, but an address without a "
        "listener is an error at once",
    ]
    reconnect_timeout: Annotated[
        float | None,
        "seconds for which streams wait until a lost verifier is back; None: 30 s, but no time after an orderly "
        "shutdown",
    ]
    max_retries: Annotated[int, "how often a request is repeated for which no verifier has room"]
    network: Annotated[Network | None, "the transport; None: ZeroMQ"]


CLIENT_DEFAULTS = ClientOptions(
    key="", server_key="", timeout=None, reconnect_timeout=None, max_retries=2, network=None
)


class SamplingOptions(TypedDict, total=False):
    """The fields of ``Sampling``."""

    temperature: Annotated[float, "0 is greedy; higher is more varied"]
    top_k: Annotated[int, "sample from the k most likely tokens; 0 is off"]
    top_p: Annotated[float, "sample from the most likely tokens that together have this probability; 1 is off"]
    min_p: Annotated[float, "drop tokens whose probability is below this share of the likeliest token's; 0 is off"]
    repetition_penalty: Annotated[float, "above 1 makes tokens of the prompt and the output less likely; 1 is off"]
    presence_penalty: Annotated[float, "above 0 makes tokens that the output has less likely; 0 is off"]
    frequency_penalty: Annotated[float, "above 0 makes tokens less likely by their count in the output; 0 is off"]
    stop: Annotated[str | Sequence[str], "end before this text, or the first of these"]
    stop_token_ids: Annotated[Sequence[int], "end with the first of these tokens"]
    max_tokens: Annotated[int, "maximum number of tokens to generate"]
    seed: Annotated[int | None, "the same seed gives the same text, with any drafter and method; drawn if not given"]
    logprobs: Annotated[int, "log-probabilities of each token and of the n most likely; -1 is none"]
    ignore_eos: Annotated[bool, "continue after the end-of-text token"]
    logit_bias: Annotated[
        Mapping[int, float] | Sequence[tuple[int, float]], "what to add to the logits of these token ids, -100 to 100"
    ]
    skip_special_tokens: Annotated[bool, "leave special tokens out of the text"]
    min_tokens: Annotated[int, "do not end before the output has so many tokens"]
    bad_words: Annotated[Sequence[str], "words that the output never has"]


class Options(SamplingOptions, total=False):
    """Options of a request."""

    sampling: Annotated[Sampling | None, "all of the above at once; single options win"]
    tools: Annotated[Sequence[Mapping[str, Any]] | str, "functions in OpenAI's shape, for the chat template"]
    method: Annotated[str, "how to draft and verify, such as auto, duodecoding or vanilla; never changes the text"]
    num_speculative_tokens: Annotated[int, "draft length gamma; 0 lets it adapt"]
    sequences: Annotated[int, "number of draft sequences; 0 lets it adapt"]
    cache_salt: Annotated[
        str,
        "share cached prompts and texts only with own requests of the same salt; share:SECRET with others that send it",
    ]
    priority: Annotated[int, "lower is served earlier, and keeps its room in the KV pool longer"]
    deadline_ms: Annotated[float, "fail if the answer is not complete after so many milliseconds; 0 is no limit"]
    structured_outputs: Annotated[StructuredOutputs | None, "JSON schema, regex or grammar that the answer must follow"]
    prediction: Annotated[str, "what the answer should be, as far as you know it: a draft, which changes no token"]
    rendering: Annotated[
        Rendering, "how messages become a prompt; its continue_final continues an assistant's last turn"
    ]
    dictation: Annotated[Dictation | None, "output tokens that the model does not choose, such as a text to score"]
    trace: Annotated[bool, "add to each chunk, as chunk.trace, the token tree of its round and what became of it"]


DEFAULTS: Mapping[str, object] = {
    name: getattr(Sampling() if name in Sampling.__struct_fields__ else Generate(""), name)
    for name in Options.__annotations__
} | {"seed": None, "sampling": None, "tools": ()}

DESCRIPTIONS: Mapping[str, str] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Options, include_extras=True).items()
}


def shows(options: type, defaults: Mapping[str, object]) -> Callable[[F], F]:
    """Show every option in the signature and docstring of ``call(..., **options: Unpack[...])``: ``help`` and
    notebooks read those at run time, where editors and type checkers read the class of ``options``."""

    def decorate(call: F) -> F:
        hints = get_type_hints(options, include_extras=True)
        signature = inspect.signature(call)
        listed = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint.__origin__)
            for name, hint in hints.items()
        ]
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        call.__signature__ = signature.replace(parameters=[*own, *listed])  # type: ignore[attr-defined]
        lines = "\n".join(f"{name}: {hint.__metadata__[0]}" for name, hint in hints.items())
        call.__doc__ = f"{inspect.getdoc(call)}\n\nOptions:\n{textwrap.indent(lines, '    ')}"
        return call

    return decorate


shows_options = shows(Options, DEFAULTS)
shows_client_options = shows(ClientOptions, CLIENT_DEFAULTS)

"""``/tokenize`` and ``/detokenize``, as vLLM and llama-server have them, and ``/apply-template``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from duoactor.serve.errors import bad
from duoactor.serve.gateway import Gateway, Model
from duoactor.serve.openai.messages import ChatMessage, FunctionTool, rendering, turns, use
from duoactor.serve.parameters import decode
from duoactor.serve.thinking import wish
from duoactor.serve.tool_calls.use import ToolUse
from protocols.limits import TokenId
from protocols.messages import ChatTurn, Rendering, Tokenized


class Templated(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation becomes a text."""

    model: str = ""
    tools: tuple[FunctionTool, ...] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class TokenizeRequest(Templated, frozen=True, kw_only=True):
    """A text (``prompt``; llama-server's ``content``) or a conversation (``messages``), and not both."""

    prompt: str | None = None
    content: str | None = None
    add_special: bool = False  # applies to ``content``
    parse_special: Literal[True] = True
    with_pieces: bool = False  # applies to ``content``
    messages: tuple[ChatMessage, ...] | None = None
    return_token_strs: bool = False
    add_special_tokens: bool | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class TokenPiece(msgspec.Struct, frozen=True):
    """A token: its text, or its bytes if they are no text alone."""

    id: int
    piece: str | list[int]


class LlamaTokens(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...] | list[TokenPiece]


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""
    tokens: tuple[TokenId, ...]


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    """The text, by vLLM's name and by llama-server's."""

    prompt: str
    content: str


class TemplateRequest(Templated, frozen=True, kw_only=True):
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1)]


class TemplateAnswer(msgspec.Struct, frozen=True):
    prompt: str


def parse_tokenize(body: bytes) -> tuple[TokenizeRequest, str | tuple[ChatTurn, ...], ToolUse]:
    """The request, its text or conversation, and the conversation's tools. ApiError (400) for a wrong body."""
    wanted, _ = decode(body, TokenizeRequest)
    if wanted.content is not None and wanted.prompt is None and wanted.messages is None:
        return wanted, wanted.content, use(wanted.tools)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise bad("prompt", "or messages must be given, and not both")
    if wanted.messages is not None and wanted.add_special_tokens:
        raise bad("add_special_tokens", "is for a prompt: a chat template has its own special tokens")
    return wanted, wanted.prompt if wanted.prompt is not None else turns(wanted.messages or ()), use(wanted.tools)


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    """The request. ApiError (400) for a wrong body."""
    return decode(body, DetokenizeRequest)[0]


async def tokenize(gateway: Gateway, body: bytes) -> TokenizeAnswer | LlamaTokens:
    wanted, asked, tools = parse_tokenize(body)
    model = await gateway.model()
    model.called(wanted.model)
    if wanted.content is not None:
        spelt = await gateway.tokenize(wanted.content, special_tokens=wanted.add_special) if wanted.content else None
        return _llama(spelt, wanted.with_pieces)
    shown = _rendering(wanted, wanted.messages or (), gateway, model)
    plain = wanted.add_special_tokens is False
    found = await gateway.tokenize(asked, tools, special_tokens=not plain, rendering=shown)
    return TokenizeAnswer(
        count=len(found.token_ids),
        max_model_len=model.max_context,
        tokens=found.token_ids,
        token_strs=found.pieces if wanted.return_token_strs else None,
    )


async def detokenize(gateway: Gateway, body: bytes) -> DetokenizeAnswer:
    wanted = parse_detokenize(body)
    (await gateway.model()).called(wanted.model)
    text = (await gateway.detokenize(wanted.tokens)).text
    return DetokenizeAnswer(text, text)


async def apply_template(gateway: Gateway, body: bytes) -> TemplateAnswer:
    wanted, _ = decode(body, TemplateRequest)
    model = await gateway.model()
    model.called(wanted.model)
    shown = _rendering(wanted, wanted.messages, gateway, model)
    return TemplateAnswer((await gateway.tokenize(turns(wanted.messages), use(wanted.tools), rendering=shown)).text)


def _rendering(wanted: Templated, messages: Sequence[ChatMessage], gateway: Gateway, model: Model) -> Rendering:
    shown = rendering(messages, wanted.add_generation_prompt, wanted.continue_final_message)
    return gateway.rendering(shown, wish(None, None, 0, wanted.chat_template_kwargs), model.calling)


def _llama(found: Tokenized | None, with_pieces: bool) -> LlamaTokens:
    if found is None or not with_pieces:
        return LlamaTokens(() if found is None else found.token_ids)
    octets = found.octets or [b""] * len(found.pieces)
    named = zip(found.token_ids, found.pieces, octets, strict=True)
    return LlamaTokens([TokenPiece(token, list(own) if own else text) for token, text, own in named])

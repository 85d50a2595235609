"""``/tokenize`` and ``/detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Any

import msgspec

from duoactor.serve.errors import bad
from duoactor.serve.gateway import Gateway
from duoactor.serve.openai.messages import ChatMessage, FunctionTool, rendering, turns, use
from duoactor.serve.parameters import decode
from duoactor.serve.thinking import wish
from duoactor.serve.tool_calls.use import ToolUse
from protocols.limits import TokenId
from protocols.messages import ChatTurn


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text (``prompt``) or a conversation (``messages``), and not both."""

    model: str = ""
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    tools: tuple[FunctionTool, ...] = ()
    return_token_strs: bool = False
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""
    tokens: tuple[TokenId, ...]


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    prompt: str


def parse_tokenize(body: bytes) -> tuple[TokenizeRequest, str | tuple[ChatTurn, ...], ToolUse]:
    """The request, its text or conversation, and the conversation's tools. ApiError (400) for a wrong body."""
    wanted, _ = decode(body, TokenizeRequest)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise bad("prompt", "or messages must be given, and not both")
    if wanted.messages is not None and wanted.add_special_tokens:
        raise bad("add_special_tokens", "is for a prompt: a chat template has its own special tokens")
    return wanted, wanted.prompt if wanted.prompt is not None else turns(wanted.messages or ()), use(wanted.tools)


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    """The request. ApiError (400) for a wrong body."""
    return decode(body, DetokenizeRequest)[0]


async def tokenize(gateway: Gateway, body: bytes) -> TokenizeAnswer:
    wanted, asked, tools = parse_tokenize(body)
    model = await gateway.model()
    model.called(wanted.model)
    shown = rendering(wanted.messages or (), wanted.add_generation_prompt, wanted.continue_final_message)
    found = await gateway.tokenize(
        asked,
        tools,
        special_tokens=wanted.add_special_tokens is not False,
        rendering=gateway.rendering(shown, wish(None, None, 0, wanted.chat_template_kwargs), model.calling),
    )
    return TokenizeAnswer(
        count=len(found.token_ids),
        max_model_len=model.max_context,
        tokens=found.token_ids,
        token_strs=found.pieces if wanted.return_token_strs else None,
    )


async def detokenize(gateway: Gateway, body: bytes) -> DetokenizeAnswer:
    wanted = parse_detokenize(body)
    (await gateway.model()).called(wanted.model)
    return DetokenizeAnswer((await gateway.detokenize(wanted.tokens)).text)

"""The blocks of Anthropic's messages, as they come in and go out, and its tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from duoactor.serve.content import ContentPart, called, text_of, tool_call
from duoactor.serve.errors import bad
from duoactor.serve.structure import AnswerForm, json_shape
from duoactor.serve.thinking import ThinkingSwitch, Wish, wish
from duoactor.serve.tool_calls.use import Choice, Pick, Tool, ToolUse
from protocols.messages import ChatTurn, ToolCall


class InputBlock(msgspec.Struct, frozen=True):
    """Text, a thought, a call that the model made (``tool_use``), or its result (``tool_result``)."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    content: str | tuple[ContentPart, ...] | None = None
    is_error: bool = False


class InputMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | tuple[InputBlock, ...]


class ToolDefinition(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None
    type: str | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: dict[str, Any]
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: OutputFormat | None = None
    effort: str | None = None


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""  # nothing has to be proven: thoughts are not hidden here


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


def turns(system: str | Sequence[ContentPart], messages: Sequence[InputMessage]) -> tuple[ChatTurn, ...]:
    text_of(system, "system")  # nothing but text
    parts = [system] if isinstance(system, str) else [part.text for part in system]
    told = "\n".join(part for part in map(_without_billing, parts) if part)
    made = [ChatTurn("system", told)] if told else []
    for at, message in enumerate(messages):
        made += _turns(message, f"messages[{at}].content")
    return tuple(made)


def _without_billing(text: str) -> str:
    """Claude Code's first lines are a count for its provider that differs from request to request: in front of a prompt
    it would keep the cache from knowing any of it."""
    return re.sub(r"^x-anthropic-billing-header:[^\n]*\n?", "", text)


def _turns(message: InputMessage, where: str) -> list[ChatTurn]:
    """A message's results of calls are turns of their own, before its text."""
    if isinstance(message.content, str):
        return [ChatTurn(message.role, message.content)]
    results: list[ChatTurn] = []
    texts: list[ContentPart] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for at, block in enumerate(message.content):
        place = f"{where}[{at}]"
        match block.type:
            case "tool_use" if message.role == "assistant":
                arguments = msgspec.json.encode(block.input).decode()
                calls.append(tool_call(block.id, block.name, arguments, place))
            case "tool_result" if message.role == "user":
                if not block.tool_use_id:
                    raise bad(f"{place}.tool_use_id", "is missing")
                text = "Error: " * block.is_error + text_of(block.content, f"{place}.content")
                results.append(ChatTurn("tool", text, tool_call_id=called(block.tool_use_id, f"{place}.tool_use_id")))
            case "thinking" if message.role == "assistant":
                thoughts.append(block.thinking)
            case "redacted_thinking" if message.role == "assistant":
                pass  # another model's, which alone can read it
            case "text":
                texts.append(ContentPart("text", block.text))
            case other:
                raise bad(f"{place}.type", f": no {other!r} can stand here; the model reads text")
    if texts or calls or not results:
        results.append(ChatTurn(message.role, text_of(texts, where), tuple(calls), reasoning="\n".join(thoughts)))
    return results


def use(tools: Sequence[ToolDefinition], choice: ToolChoice | None) -> ToolUse:
    for at, tool in enumerate(tools):
        if tool.type not in (None, "custom") or tool.input_schema is None:
            param = f"tools[{at}].{'input_schema' if tool.type in (None, 'custom') else 'type'}"
            raise bad(param, ": tools are functions with a name and an input_schema here")
    functions = (Tool(one.name, one.description, one.input_schema) for one in tools)
    given = choice or ToolChoice("auto")
    if given.type == "tool" and not given.name:
        raise bad("tool_choice.name", "is missing")
    picked: Choice | Pick = "required"  # any
    if given.type != "any":
        picked = Pick(name=given.name) if given.type == "tool" else given.type
    alone = given.disable_parallel_tool_use
    return ToolUse.of(functions, picked, None if alone is None else not alone, "tools[{}].name")


def shape(wanted: OutputConfig) -> AnswerForm | None:
    return None if wanted.format is None else json_shape(wanted.format.schema, "output_config.format.schema")


def thinking(given: ThinkingSwitch | None, effort: str | None) -> Wish:
    """The request's wish for thoughts. Without the parameter there are none, as in Anthropic's API."""
    return wish(given is not None and given.type != "disabled", effort, given.budget_tokens if given else 0, {})

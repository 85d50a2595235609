"""Renders conversations with tools in a tokenizer's chat template, and tells in which form its model writes calls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from protocols.errors import RequestError
from protocols.messages import ChatTurn, ToolCall

# Text that only the chat templates of one family contain.
MARKS = {"[TOOL_CALLS]": "mistral", "<tool_call>": "hermes", "<|python_tag|>": "llama", '"parameters": dict': "llama"}
MISTRAL_ID = 9  # letters and digits of a call's id: Mistral's templates refuse any other number

# For models whose template has no tools: the text of Hermes' template, which most open models have been trained on.
SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

# The response template of Qwen3-Coder and its successors, for tokenizers that come without one.
TAGGED = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"content": "text"},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}


def tool_form(tokenizer: Any) -> str:
    """``Welcome.tool_form``; "" if the template gives none away."""
    template = _template(tokenizer)
    return next((form for mark, form in MARKS.items() if mark in template), "")


def response_template(tokenizer: Any) -> str:
    """``Welcome.response_template``; "" if there is none for tool calls."""
    template = getattr(tokenizer, "response_template", None)
    if template is None and "<function=" in _template(tokenizer):
        template = TAGGED
    known = isinstance(template, dict) and "tool_calls" in template.get("fields", {})
    return json.dumps(template) if known else ""


def render(tokenizer: Any, turns: Sequence[ChatTurn], tools: str = "") -> str:
    """The text of a prompt, up to where the assistant's answer begins. ``tools``: see ``Generate``.

    To a template without tools they are given as text, in Hermes' form. Raises RequestError if there is no template, or
    it refuses the conversation.
    """
    functions = _functions(tools)
    template = _template(tokenizer)
    if not template:
        raise RequestError("unsupported", "the target model has no chat template; send a plain prompt, not messages")
    if "tools" in template:
        messages = _messages(turns, short_ids=tool_form(tokenizer) == "mistral")
    else:
        messages, functions = _in_words(turns, functions), []
    try:
        text: str = tokenizer.apply_chat_template(
            messages, tools=functions or None, tokenize=False, add_generation_prompt=True
        )
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError("bad_request", f"the chat template refused the messages: {first}") from None
    return text


def _template(tokenizer: Any) -> str:
    """The chat template; of several the one for tools."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template or ""


def _functions(tools: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(tools or "[]")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError("bad_request", "tools must be a JSON array of functions in OpenAI's shape")
    return found


def _messages(turns: Sequence[ChatTurn], short_ids: bool) -> list[dict[str, Any]]:
    """The turns in the form that transformers' templates take: arguments as objects, results with their function's
    name."""
    names: dict[str, str] = {}
    messages: list[dict[str, Any]] = []
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        if turn.tool_calls:
            names |= {call.id: call.name for call in turn.tool_calls}
            message["tool_calls"] = [
                {"type": "function", "id": _id(call.id, short_ids), "function": _function(call)}
                for call in turn.tool_calls
            ]
        if turn.role == "tool":
            message["tool_call_id"] = _id(turn.tool_call_id, short_ids)
            message["name"] = names.get(turn.tool_call_id, "")
        messages.append(message)
    return messages


def _id(given: str, short: bool) -> str:
    return re.sub(r"[^0-9a-zA-Z]", "", given)[-MISTRAL_ID:].rjust(MISTRAL_ID, "0") if short else given


def _function(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError("bad_request", f"the arguments of the call of {call.name} must be a JSON object")
    return {"name": call.name, "arguments": arguments}


def _in_words(turns: Sequence[ChatTurn], functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        role, content = turn.role, turn.content
        for call in turn.tool_calls:
            content += f"\n<tool_call>\n{json.dumps(_function(call), ensure_ascii=False)}\n</tool_call>"
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        messages.append({"role": role, "content": content.lstrip("\n") if turn.tool_calls else content})
    if functions:
        words = SYSTEM.format(tools="\n".join(json.dumps(one, ensure_ascii=False) for one in functions))
        if messages and messages[0]["role"] == "system":
            messages[0]["content"] += f"\n\n{words}"
        else:
            messages.insert(0, {"role": "system", "content": words})
    return messages

"""Parts of messages in every API: text, and calls of functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duoactor.serve.errors import bad
from protocols.messages import ToolCall


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


def tool_call(id: str, name: str, arguments: str, where: str) -> ToolCall:
    """A call. ApiError unless the arguments are a JSON object, or nothing: chat templates show them as one."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise bad(f"{where}.arguments", "must be a JSON object, written as a string")
    for what, value in (("id", id), ("name", name)):
        if not 0 < len(value) <= 256:
            raise bad(where, f": the call's {what} must be 1 to 256 characters long")
    return ToolCall(id, name, arguments or "{}")


def text_of(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """The text of a message; its parts one below the other, as vLLM puts them."""
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text", "reasoning_text", "refusal"):
            raise bad(f"{where}[{at}].type", f"can be text only, not {part.type!r}: the model reads text")
    return "\n".join(part.text for part in content)

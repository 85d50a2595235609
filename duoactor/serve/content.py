"""Parts of messages in every API: text, and calls of functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duoactor.serve.errors import bad
from protocols.limits import LONGEST_LABEL
from protocols.messages import ToolCall


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    refusal: str = ""  # the text of a part of this type


def tool_call(id: str, name: str, arguments: str, where: str) -> ToolCall:
    """A call. Its arguments are as the model wrote them, which may be no JSON."""
    for what, value in (("id", id), ("name", name)):
        if not 0 < len(value) <= LONGEST_LABEL:
            raise bad(where, f": the call's {what} must be 1 to {LONGEST_LABEL} characters long")
    return ToolCall(id, name, arguments or "{}")


def called(id: str, where: str) -> str:
    """The id of the call that a result answers."""
    if len(id) > LONGEST_LABEL:
        raise bad(where, f"must be at most {LONGEST_LABEL} characters long, as the call's id")
    return id


def text_of(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """The text of a message; its parts one below the other, as vLLM puts them."""
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text", "reasoning_text", "refusal"):
            raise bad(f"{where}[{at}].type", f"can be text only, not {part.type!r}: the model reads text")
    return "\n".join(part.text or part.refusal for part in content)

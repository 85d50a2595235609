"""``/api/chat`` and ``/api/generate``: Ollama's parameters as a question."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duoactor.serve.errors import bad
from duoactor.serve.fields import Ignored
from duoactor.serve.openai import chat, completions
from duoactor.serve.openai.messages import FunctionTool
from duoactor.serve.parameters import convert, decode
from duoactor.serve.question import Question
from protocols.messages import Sampling

Name = Annotated[str, Meta(min_length=1)]
USUAL = Sampling(temperature=0.8, top_k=40, top_p=0.9)  # a Modelfile's, where it names none
PICTURES = "is not supported here: the model reads text"


class OllamaFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any] = {}
    index: int = 0


class OllamaCall(msgspec.Struct, frozen=True):
    function: OllamaFunction
    id: str = ""


class OllamaMessage(msgspec.Struct, frozen=True):
    """A message; ``thinking`` is what the model thought before it wrote ``content``."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: tuple[Any, ...] = ()
    tool_calls: tuple[OllamaCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""


class OllamaParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What both requests have. ``options``: the parameters of sampling."""

    model: Name
    stream: bool = True
    options: dict[str, Any] = {}
    format: str | dict[str, Any] = ""
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    truncate: bool = True  # a prompt longer than the context is refused, whatever this says
    shift: bool = True  # an answer ends with the context, whatever this says

    @property
    def shared(self) -> dict[str, Any]:
        """The parameters under the names that :func:`convert` knows."""
        options = {name: value for name, value in self.options.items() if value is not None}
        if options.get("seed") == -1:  # draw one
            del options["seed"]
        return {"model": self.model, "stream": self.stream, "format": self.format, "options": options}

    @property
    def context(self) -> int:
        """The context that is asked for; 0: any."""
        size = self.options.get("num_ctx")
        return size if isinstance(size, int) else 0


class OllamaChat(OllamaParameters, frozen=True, kw_only=True):
    messages: tuple[OllamaMessage, ...] = ()
    tools: tuple[FunctionTool, ...] = ()


class OllamaGenerate(OllamaParameters, frozen=True, kw_only=True):
    prompt: str = ""
    system: str = ""
    suffix: str = ""  # the answer fills the gap before it
    raw: bool = False
    images: tuple[Any, ...] = ()


def parse_chat(body: bytes) -> tuple[OllamaChat, Question | None]:
    """The request and its question; None where it only loads the model."""
    wanted, outer = decode(body, OllamaChat)
    messages = _messages(wanted.messages)
    return wanted, _conversation(wanted, outer, messages, wanted.tools) if messages else None


def parse_generate(body: bytes) -> tuple[OllamaGenerate, Question | None]:
    """The request and its question; None where it only loads the model."""
    wanted, outer = decode(body, OllamaGenerate)
    if wanted.images:
        raise bad("images", PICTURES)
    if not wanted.prompt:
        return wanted, None
    if not (wanted.raw or wanted.suffix):
        system = [{"role": "system", "content": wanted.system}] if wanted.system else []
        return wanted, _conversation(wanted, outer, [*system, {"role": "user", "content": wanted.prompt}])
    if wanted.system:
        raise bad("system", "cannot be had with raw or suffix, which take the prompt as it is")
    given = {
        "prompt": wanted.prompt,
        "suffix": wanted.suffix,
        **wanted.shared,
        "logprobs": wanted.top_logprobs if wanted.logprobs else None,
    }
    given["options"].setdefault("num_predict", -1)
    return wanted, _noted(completions.question(*convert(given, completions.CompletionRequest)), wanted, outer)


def _conversation(
    wanted: OllamaParameters, outer: Ignored, messages: list[dict[str, Any]], tools: Sequence[FunctionTool] = ()
) -> Question:
    given = {"messages": messages, "tools": msgspec.to_builtins(tools), **wanted.shared}
    given |= {"logprobs": wanted.logprobs, "top_logprobs": wanted.top_logprobs, "think": wanted.think}
    return _noted(chat.question(*convert(given, chat.ChatRequest)), wanted, outer)


def _noted(question: Question, wanted: OllamaParameters, outer: Ignored) -> Question:
    question.ignored.hints += outer.hints
    question.ignored.unknown += outer.unknown
    return replace(question, context=wanted.context, usual=USUAL)


def _messages(given: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Messages as the chat API has them. Results without the id of a call belong to the calls in their order."""
    named = all(one.tool_call_id for one in given if one.role == "tool")
    made: list[dict[str, Any]] = []
    for at, one in enumerate(given):
        if one.images:
            raise bad(f"messages[{at}].images", PICTURES)
        message: dict[str, Any] = {"role": one.role.lower(), "content": one.content, "reasoning_content": one.thinking}
        if one.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id if named else "",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                    },
                }
                for call in one.tool_calls
            ]
        if one.role == "tool":
            message |= {"name": one.tool_name or None, "tool_call_id": (one.tool_call_id or None) if named else None}
        made.append(message)
    return made

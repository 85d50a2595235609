"""The tools of a request, of any API, in the form of the served model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import msgspec

from duoactor.serve.closed_schemas import closed
from duoactor.serve.errors import bad
from duoactor.serve.tool_calls.channels import CHANNEL, channel_grammar, channel_parser
from duoactor.serve.tool_calls.events import FirstCall, NoTools, Parser
from duoactor.serve.tool_calls.forms import DEFAULT_FORM, FORMS, form_parser
from duoactor.serve.tool_calls.template import TemplateParser
from protocols.messages import NO_THOUGHTS, Thinking

MAX_TOOLS = 512
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. ``parameters``: a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its arguments; without ``parameters`` it takes none."""
        empty = {"type": "object", "properties": {}, "additionalProperties": False}
        return empty if self.parameters is None else closed(self.parameters)

    @property
    def described(self) -> dict[str, Any]:
        """Its description for chat templates."""
        shown = self.parameters or {"type": "object", "properties": {}}
        function = {"name": self.name, "description": self.description, "parameters": shown}
        return {"type": "function", "function": function}


class Typed(Protocol):
    @property
    def type(self) -> str: ...


def left_out(tools: Sequence[Typed]) -> list[str]:
    """The tools that are no functions, by place and type: they run at a provider."""
    return [f"tools[{at}] ({one.type})" for at, one in enumerate(tools) if one.type != "function"]


@dataclass(frozen=True, slots=True)
class Calling:
    """The served model's form of calls and thoughts, from ``Welcome``; ``mark`` is the token id of its
    form's mark, where that is one token, or -1."""

    form: str = DEFAULT_FORM
    template: str = ""
    mark: int = -1
    thinking: Thinking = NO_THOUGHTS

    @property
    def channels(self) -> bool:
        """Whether every message has a header, as those of gpt-oss."""
        return self.thinking.begin.startswith(CHANNEL)


class FunctionName(msgspec.Struct, frozen=True):
    name: str


class Allowed(msgspec.Struct, frozen=True):
    """Some of the tools, as an allowed choice."""

    tools: tuple[Pick, ...]
    mode: Literal["auto", "required"] = "auto"


class Pick(msgspec.Struct, frozen=True):
    """``tool_choice`` that is no word: a function, or several that are allowed. The chat API has their names in
    ``function`` and ``allowed_tools``, the Responses API beside ``type``."""

    type: Literal["function", "allowed_tools"] = "function"
    name: str = ""
    function: FunctionName | None = None
    tools: tuple[Pick, ...] = ()
    mode: Literal["auto", "required"] = "auto"
    allowed_tools: Allowed | None = None

    @property
    def called(self) -> str:
        return self.function.name if self.function is not None else self.name


Choice = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class ToolUse:
    """``choice``: "required" means one call at least; ``named``: this function and no other; ``parallel``: whether an
    answer may have several calls, or None where the request did not say."""

    tools: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    named: str = ""
    parallel: bool | None = None

    @classmethod
    def of(cls, tools: Iterable[Tool], choice: Choice | Pick, parallel: bool | None, place: str) -> ToolUse:
        """ApiError about what cannot be; ``place`` is where the names stand."""
        offered = tuple(tools)
        if isinstance(choice, str):
            found = cls(offered, choice, parallel=parallel)
        elif choice.type == "function":
            found = cls(offered, "required", choice.called or " ", parallel)
        else:
            allowed = choice.allowed_tools or Allowed(choice.tools, choice.mode)
            names = {one.called for one in allowed.tools}
            if not names or (unknown := names - {one.name for one in offered}):
                what = f"tools has no function called {min(unknown)!r}" if names else "name at least one function"
                raise bad("tool_choice", f": {what}")
            found = cls(tuple(one for one in offered if one.name in names), allowed.mode, parallel=parallel)
        found.check(place)
        return found

    def check(self, place: str) -> None:
        """Raise ApiError about the first mistake; ``place`` is where the names stand."""
        if len(self.tools) > MAX_TOOLS:
            raise bad("tools", f": at most {MAX_TOOLS} at once, not {len(self.tools)}")
        for at, tool in enumerate(self.tools):
            param = place.format(at)
            if not _NAME.fullmatch(tool.name):
                raise bad(param, f"must be 1 to 128 letters, digits, dots, dashes and underscores, not {tool.name!r}")
            if tool.name in (other.name for other in self.tools[:at]):
                raise bad(param, f": there are two functions called {tool.name!r}")
        if self.named and self.named not in (tool.name for tool in self.tools):
            raise bad("tool_choice", f": tools has no function called {self.named!r}")
        if self.choice == "required" and not self.tools:
            raise bad("tool_choice", ": a call is required, and tools has no function")

    @property
    def offered(self) -> bool:
        """Whether the model may call a function."""
        return bool(self.tools) and self.choice != "none"

    @property
    def forced(self) -> bool:
        return self.offered and self.choice == "required"

    @property
    def several(self) -> bool:
        """Whether an answer may have several calls. A small model that must call would go on calling."""
        return not self.named and (not self.forced if self.parallel is None else self.parallel)

    @cached_property
    def described(self) -> str:
        """The JSON of ``Generate.tools``; empty where no call is allowed."""
        return msgspec.json.encode([tool.described for tool in self.tools]).decode() if self.offered else ""

    def parser(self, calling: Calling, constrained: bool, sure: bool = False) -> Parser:
        """A new one, for one answer; ``constrained``: calls are as :meth:`grammar` has them, and nothing but the limit
        ends one before its end (``sure``)."""
        if not self.offered:
            return NoTools()
        parser = self._parser(calling, constrained, sure)
        return parser if self.several else FirstCall(parser)

    def _parser(self, calling: Calling, constrained: bool, sure: bool) -> Parser:
        if calling.template and not constrained:
            return TemplateParser(calling.template, self.described)
        if calling.channels:
            return channel_parser(sure)
        return form_parser(FORMS[calling.form], [tool.name for tool in self.tools], sure)

    def grammar(self, calling: Calling, otherwise: Mapping[str, Any] | None = None) -> str:
        """A grammar of an answer that calls, or follows the JSON schema ``otherwise``."""
        functions = [(tool.name, tool.schema) for tool in self.tools if self.named in ("", tool.name)]
        if calling.channels:
            return channel_grammar(functions, calling.thinking, otherwise)
        form = FORMS[calling.form]
        return form.lark(functions, several=self.several, mark=calling.mark, otherwise=otherwise)


NO_TOOLS = ToolUse()

"""What a request says of tools, whichever API it came by, and what follows from it for the model that is served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec

from duoactor.serve.errors import bad
from duoactor.serve.tool_calls.events import NoTools, Parser
from duoactor.serve.tool_calls.forms import DEFAULT_FORM, FORMS, MISTRAL_MARK, FormParser
from duoactor.serve.tool_calls.grammar import call_grammar
from duoactor.serve.tool_calls.template import TemplateParser

MAX_TOOLS = 512
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True)
class Tool:
    """``parameters``: a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Calling:
    """How the model that is served writes calls, as ``Welcome`` says; ``mark`` is the id of Mistral's, or -1."""

    form: str = DEFAULT_FORM
    template: str = ""
    mark: int = -1


@dataclass(frozen=True)
class ToolUse:
    """``choice``: "required" means one call at least; ``named``: this function and no other."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required"] = "auto"
    named: str = ""
    parallel: bool = True

    def check(self, place: str, choice: str = "tool_choice") -> None:
        """ApiError about the first thing that cannot be; ``place`` is where the names stand, ``choice`` the choice."""
        if len(self.tools) > MAX_TOOLS:
            raise bad("tools", f": at most {MAX_TOOLS} at once, not {len(self.tools)}")
        for at, tool in enumerate(self.tools):
            param = place.format(at)
            if not _NAME.fullmatch(tool.name):
                raise bad(param, f"must be 1 to 128 letters, digits, dots, dashes and underscores, not {tool.name!r}")
            if tool.name in (other.name for other in self.tools[:at]):
                raise bad(param, f": there are two functions called {tool.name}")
        if self.named and self.named not in (tool.name for tool in self.tools):
            raise bad(choice, f": tools has no function called {self.named!r}")
        if self.choice == "required" and not self.tools:
            raise bad(choice, ": a call is required, and tools has no function")

    @property
    def offered(self) -> bool:
        """May the model call anything?"""
        return bool(self.tools) and self.choice != "none"

    @property
    def forced(self) -> bool:
        return self.offered and self.choice == "required"

    @cached_property
    def described(self) -> str:
        """As ``Generate.tools`` has it. Without a choice the model is not told of tools at all."""
        return msgspec.json.encode([_described(tool) for tool in self.tools]).decode() if self.offered else ""

    def parser(self, calling: Calling, constrained: bool) -> Parser:
        """A new one, for one answer; ``constrained``: a grammar has calls written in ``calling.form``."""
        if not self.offered:
            return NoTools()
        if calling.template and not constrained:
            return TemplateParser(calling.template, self.described)
        return FormParser(FORMS[calling.form], [tool.name for tool in self.tools])

    def grammar(self, calling: Calling, otherwise: Mapping[str, Any] | None = None) -> str:
        """Of an answer that calls, or follows the JSON schema ``otherwise``."""
        functions = [(tool.name, tool.parameters or {}) for tool in self.tools if self.named in ("", tool.name)]
        mark = f"<[{calling.mark}]>" if calling.mark >= 0 else f'"{MISTRAL_MARK}"'
        several = self.parallel and not self.named
        return call_grammar(calling.form, functions, several=several, mark=mark, otherwise=otherwise)


NO_TOOLS = ToolUse()


def _described(tool: Tool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}

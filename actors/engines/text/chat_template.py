"""Conversations in a tokenizer's chat template.

What a template shows is found by rendering probes: what was given must be in what comes out. Its text tells nothing
reliable: it may mention ``tools`` without showing them, or show them under another name.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from actors.engines.text.thoughts import (
    AGAIN,
    ANSWER,
    DEFAULT,
    THOUGHT_KEYS,
    USER,
    VARIABLES,
    find_marks,
)
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Rendering, Thinking, ToolCall
from protocols.validation import is_object

Message = dict[str, Any]
RENDERING = Rendering()

# What a rendered call looks like in each form; the first that is found counts.
FORMS = (
    (r"\[TOOL_CALLS\]", "mistral"),
    (r'<tool_call>\s*(\{"name": "|<function=)', "hermes"),
    (r'<\|python_tag\|>|\{"name": "probecalled", "parameters":', "llama"),
)
CONSTRAIN = "<|constrain|>"  # gpt-oss's mark in front of the format of a call's arguments
# Variables that are not the caller's to set: they are what the conversation says, or a template of its own.
RESERVED = frozenset({
    "messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip
MISTRAL_ID = 9  # letters and digits of a call's id: Mistral's templates refuse any other number

# For templates that do not show tools: the text of Hermes' template, which most open models have been trained on.
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

# --- probes: texts that no template has of its own -------------------------------------------------------------------

SYSTEMS, LATER = "probesystem", "probelater"
CALLED, KEY, VALUE, RESULT = "probecalled", "probekey", "probevalue", "proberesult"
TOOL = {
    "type": "function",
    "function": {
        "name": "probetool",
        "description": "probedescription",
        "parameters": {"type": "object", "properties": {"probeparameter": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Calls:
    """How a template takes calls."""

    text: bool  # arguments as JSON text, not as an object
    short_ids: bool  # ids have MISTRAL_ID letters
    several: bool  # more than one in a turn
    shown: str  # a rendered call, up to the end of its turn


@dataclass(frozen=True, slots=True)
class Shown:
    """What a template shows."""

    parts: bool  # contents are lists of parts only
    system: bool  # a system turn in front
    later_system: bool  # one after other turns
    repeats: bool  # two turns of one role, one after the other
    calls: Calls | None  # tools, calls and results; None: not all of them


class ChatTemplate:
    """The chat template of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.text = _text(tokenizer)

    @property
    def tool_form(self) -> str:
        """``Welcome.tool_form``; "" if calls are not shown, or in no known form."""
        shown = self._call
        return next((form for pattern, form in FORMS if re.search(pattern, shown)), "")

    @property
    def response_template(self) -> str:
        """``Welcome.response_template``; "" if there is none for tool calls."""
        template = getattr(self._tokenizer, "response_template", None)
        if template is None and re.search(r"<tool_call>\s*<function=", self._call):
            template = TAGGED
        known = isinstance(template, dict) and "tool_calls" in template.get("fields", {})
        return json.dumps(template) if known else ""

    @property
    def thinking(self) -> Thinking:
        """``Welcome.thinking``."""
        put = _with_parts if self.text and self.shown.parts else _same

        def render(
            messages: Sequence[Mapping[str, Any]], end: bool = True, variables: Mapping[str, Any] = DEFAULT
        ) -> str:
            return self._rendered([put(dict(one)) for one in messages], None, end, variables)

        calls = self.shown.calls if self.text else None
        short, text = (calls.short_ids, calls.text) if calls is not None else (False, False)
        marks = find_marks(render, _call(_id("call_1", short), CALLED, {KEY: VALUE}, text)) if self.text else None
        if marks is None:
            return Thinking()
        added = getattr(self._tokenizer, "added_tokens_decoder", {})
        special = {str(token.content): ident for ident, token in added.items() if token.special}
        user = [{"role": "user", "content": USER}]
        prompts = [render(user, True, variables).rstrip() for variables in VARIABLES]
        plain, on, off = (prompt.endswith(marks.begin) for prompt in prompts)
        answers = bool(marks.between) and prompts[-1].endswith(marks.between[-1])
        texts = (marks.begin, marks.end, *marks.between, marks.after, CONSTRAIN)
        named = tuple((name, ident) for name, ident in special.items() if any(name in text for text in texts))
        return Thinking(marks.begin, marks.end, marks.between, named, plain, on, off, marks.after, answers)

    @property
    def _call(self) -> str:
        return self.shown.calls.shown if self.text and self.shown.calls is not None else ""

    def render(self, turns: Sequence[ChatTurn], tools: str = "", rendering: Rendering = RENDERING) -> str:
        """The text of a prompt. ``tools`` and ``rendering``: see ``Generate``.

        What the template does not show is said in words: tools, calls and results in Hermes' form, a system turn in
        front of the user's. Raises RequestError if there is no template, or it refuses the conversation.
        """
        functions = _functions(tools)
        if not self.text:
            detail = "the target model has no chat template; send a plain prompt, or name one by --tokenizer DIRECTORY"
            raise RequestError("unsupported", detail)
        if rendering.continue_final and (not turns or turns[-1].role != "assistant" or turns[-1].tool_calls):
            detail = "only a last message of the assistant's, without tool calls, can be continued"
            raise RequestError("bad_request", detail)
        if not functions and not any(turn.tool_calls or turn.role == "tool" for turn in turns):
            return self._apply(self._messages(turns, None), [], rendering)
        if self.shown.calls is not None:
            text = self._apply(self._messages(turns, self.shown.calls), functions, rendering)
            called = [call.name for turn in turns for call in turn.tool_calls]
            if all(name in text for name in (*map(_name, functions), *called)):
                return text
        return self._apply(self._messages(_in_words(turns, functions), None), [], rendering)

    # --- probing -----------------------------------------------------------------------------------------------------

    @cached_property
    def shown(self) -> Shown:
        user, answer = {"role": "user", "content": USER}, {"role": "assistant", "content": ANSWER}
        system, later = {"role": "system", "content": SYSTEMS}, {"role": "system", "content": LATER}
        again = {"role": "user", "content": AGAIN}
        parts = not self._shows([user], USER) and self._shows([_with_parts(user)], USER)
        first = _with_parts if parts else _same

        def shows(*messages: Message) -> bool:
            return self._shows([first(one) for one in messages], *(one["content"] for one in messages))

        return Shown(
            parts,
            shows(system, user),
            shows(system, user, answer, later, again),
            shows(user, again),
            next(self._ways_of_calls(first), None),
        )

    def _ways_of_calls(self, put: Callable[[Message], Message]) -> Iterator[Calls]:
        """The ways to give calls that show everything; the first is the best."""
        user = put({"role": "user", "content": USER})
        for text, short in ((False, False), (False, True), (True, False), (True, True)):
            first, second = (_id(f"call_{digit * 16}", short) for digit in "12")
            one, other = (_call(ident, CALLED, {KEY: VALUE}, text) for ident in (first, second))
            result = {"role": "tool", "content": RESULT, "tool_call_id": first, "name": CALLED}
            asked = [user, {"role": "assistant", "content": "", "tool_calls": [one]}]
            needed = ("probetool", "probedescription", "probeparameter", CALLED, KEY, VALUE, RESULT)
            if not self._shows([*asked, put(result)], *needed, tools=[TOOL], end=True):
                continue
            asked_alone = self._rendered(asked, [TOOL], end=False) or self._rendered([*asked, put(result)], [TOOL])
            if f"'{KEY}'" in asked_alone:  # an object as Python writes it
                continue
            twice = [user, {"role": "assistant", "content": "", "tool_calls": [one, other]}, put(result)]
            both = self._rendered([*twice, put({**result, "tool_call_id": second})], [TOOL]).count(VALUE) == 2
            yield Calls(text, short, both, asked_alone.rpartition(USER)[2])

    def _shows(
        self, messages: list[Message], *texts: str, tools: list[Message] | None = None, end: bool = True
    ) -> bool:
        rendered = self._rendered(messages, tools, end)
        return all(text in rendered for text in texts)

    def _rendered(
        self,
        messages: list[Message],
        tools: list[Message] | None = None,
        end: bool = True,
        variables: Mapping[str, Any] = DEFAULT,
    ) -> str:
        """ "" where the template refuses."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=end, **variables
            )
        except Exception:
            return ""
        return text

    # --- messages ----------------------------------------------------------------------------------------------------

    def _apply(self, messages: list[Message], functions: list[Message], rendering: Rendering) -> str:
        variables = _variables(rendering.variables)
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                tools=functions or None,
                tokenize=False,
                add_generation_prompt=rendering.generation_prompt and not rendering.continue_final,
                continue_final_message=rendering.continue_final,
                **variables,
            )
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RequestError("bad_request", f"the chat template refused the messages: {first}") from None
        return text

    def _messages(self, turns: Sequence[ChatTurn], calls: Calls | None) -> list[Message]:
        """In the form that transformers' templates take, and with the turns that this one shows."""
        shown = self.shown
        if calls is not None and not calls.several:
            turns = _one_call_a_turn(turns)
        names = {call.id: call.name for turn in turns for call in turn.tool_calls}
        messages: list[Message] = []
        folds = False  # whether the last message is a system turn that joins the user's after it
        for turn in turns:
            role, content = turn.role, turn.content
            front = all(one["role"] == "system" for one in messages)
            if role == "system" and not (shown.system if front else shown.later_system):
                role = "user"
            message: Message = {"role": role, "content": content}
            if turn.reasoning:
                message |= dict.fromkeys(THOUGHT_KEYS, turn.reasoning)
            if calls is not None and turn.tool_calls:
                message["tool_calls"] = [
                    _call(_id(call.id, calls.short_ids), call.name, _arguments(call), calls.text)
                    for call in turn.tool_calls
                ]
            if calls is not None and role == "tool":
                message["tool_call_id"] = _id(turn.tool_call_id, calls.short_ids)
                message["name"] = names.get(turn.tool_call_id, "")
            last = messages[-1] if messages else {"role": ""}
            plain = set(message) == set(last) == {"role", "content"}
            joins = folds or not (shown.later_system if role == "system" else shown.repeats)
            if plain and last["role"] == role and joins:
                last["content"] += f"\n\n{content}"
            else:
                messages.append(message)
            folds = role != turn.role
        return [_with_parts(one) for one in messages] if shown.parts else messages


def _text(tokenizer: Any) -> str:
    """The chat template; of several the one for tools."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template or ""


def _same(message: Message) -> Message:
    return message


def _with_parts(message: Message) -> Message:
    if not isinstance(message["content"], str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _functions(tools: str) -> list[Message]:
    try:
        found = json.loads(tools or "[]")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError("bad_request", "tools must be a JSON array of functions in OpenAI's shape")
    return found


def _variables(given: str) -> dict[str, Any]:
    try:
        found = json.loads(given or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError("bad_request", "the template's variables must be a JSON object")
    for name in found:
        if name in RESERVED:
            raise RequestError("bad_request", f"chat_template_kwargs cannot set {name}; leave it out")
    return found


def _name(function: Message) -> str:
    inner = function.get("function", function)
    return str(inner.get("name", "")) if isinstance(inner, dict) else ""


def _id(given: str, short: bool) -> str:
    return re.sub(r"[^0-9a-zA-Z]", "", given)[-MISTRAL_ID:].rjust(MISTRAL_ID, "0") if short else given


def _call(ident: str, name: str, arguments: Message, text: bool) -> Message:
    given = json.dumps(arguments, ensure_ascii=False) if text else arguments
    return {"type": "function", "id": ident, "function": {"name": name, "arguments": given}}


def _arguments(call: ToolCall) -> Message:
    """The arguments as an object. A text that is none, as a cut answer has it, is its only value: a client that keeps a
    history cannot mend what the model wrote."""
    text = call.arguments or "{}"
    found: Message = {"arguments": text}
    if is_object(text):
        with contextlib.suppress(ValueError):  # an integer of thousands of digits
            found = json.loads(text)
    return found


def _one_call_a_turn(turns: Sequence[ChatTurn]) -> list[ChatTurn]:
    """Each call in a turn of its own, with its result after it."""
    results = {turn.tool_call_id: turn for turn in turns if turn.role == "tool"}
    made: list[ChatTurn] = []
    moved: set[str] = set()
    for turn in turns:
        if len(turn.tool_calls) < 2:
            if turn.tool_call_id not in moved:
                made.append(turn)
            continue
        for at, call in enumerate(turn.tool_calls):
            made.append(ChatTurn(turn.role, "" if at else turn.content, (call,)))
            if call.id in results:
                made.append(results[call.id])
                moved.add(call.id)
    return made


def _in_words(turns: Sequence[ChatTurn], functions: list[Message]) -> list[ChatTurn]:
    made: list[ChatTurn] = []
    for turn in turns:
        role, content = turn.role, turn.content
        for call in turn.tool_calls:
            said = json.dumps({"name": call.name, "arguments": _arguments(call)}, ensure_ascii=False)
            content += f"\n<tool_call>\n{said}\n</tool_call>"
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        made.append(ChatTurn(role, content.lstrip("\n") if turn.tool_calls else content))
    if functions:
        words = SYSTEM.format(tools="\n".join(json.dumps(one, ensure_ascii=False) for one in functions))
        if made and made[0].role == "system":
            made[0] = ChatTurn("system", f"{made[0].content}\n\n{words}")
        else:
            made.insert(0, ChatTurn("system", words))
    return made

"""Text below the tokens: special tokens' names as plain text, and the bytes of tokens that are parts of characters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from protocols.errors import RequestError
from protocols.messages import ChatTurn, ToolCall

BREAKS = "".join(map(chr, range(0xE000, 0xE100)))  # private use: a character outside the texts marks the places
LITERAL = re.compile(r'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)', re.DOTALL)  # a string of JSON; one without an end ends the text
NOTHING = r"(?!)"  # matches nowhere
BEFORE = "\n"  # a character that no tokenizer merges with a special token's name


class Plain:
    """A conversation in which nothing that its authors wrote is a special token.

    ``turns``, ``tools`` and ``variables`` have a mark inside each name of a special token, in JSON also where escapes
    spell it. :meth:`encode` splits the rendered text there, so that the tokens spell the name and none of them is the
    special one.
    """

    def __init__(self, tokenizer: Any, turns: Sequence[ChatTurn], tools: str, variables: str = "") -> None:
        self._tokenizer = tokenizer
        names = sorted(_special_names(tokenizer), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or NOTHING)
        seen: list[str] = []  # what the template gets

        def note(text: str) -> str:
            seen.append(text)
            return text

        self._written(turns, tools, variables, note)
        self.mark = next((one for one in BREAKS if not any(one in text for text in seen)), "")
        if not self.mark:
            raise RequestError("bad_request", "the messages hold every character from U+E000 to U+E0FF: leave one out")
        self.turns, self.tools, self.variables = self._written(turns, tools, variables, self._marked)

    def _marked(self, text: str) -> str:
        return self._names.sub(lambda one: f"{one[0][0]}{self.mark}{one[0][1:]}", text)

    @staticmethod
    def _written(
        turns: Sequence[ChatTurn], tools: str, variables: str, change: Callable[[str], str]
    ) -> tuple[tuple[ChatTurn, ...], str, str]:
        """The conversation with each text of its authors changed."""

        def call(one: ToolCall) -> ToolCall:
            return ToolCall(change(one.id), change(one.name), _in_json(one.arguments, change))

        changed = tuple(
            ChatTurn(
                change(turn.role),
                change(turn.content),
                tuple(map(call, turn.tool_calls)),
                change(turn.tool_call_id),
                change(turn.reasoning),
            )
            for turn in turns
        )
        return changed, _in_json(tools, change), _in_json(variables, change)

    def encode(self, text: str) -> list[int]:
        first, *rest = text.split(self.mark)
        ids = self._ids(first)
        for piece in rest:
            ids += encode_behind(self._ids, piece)
        return ids

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _in_json(text: str, change: Callable[[str], str]) -> str:
    """JSON with each of its strings changed, keys included; of what is no JSON the whole text."""
    try:
        json.loads(text)
    except ValueError:
        return change(text)
    except RecursionError:
        pass  # another reader's stack may have more room

    def changed(literal: re.Match[str]) -> str:
        try:
            return json.dumps(change(json.loads(literal[0])), ensure_ascii=False)
        except ValueError:
            return change(literal[0])

    return LITERAL.sub(changed, text)


def _special_names(tokenizer: Any) -> list[str]:
    names = {str(token) for token in (getattr(tokenizer, "added_tokens_decoder", None) or {}).values()}
    return [name for name in names | set(tokenizer.all_special_tokens) if len(name) > 1 and not name.isspace()]


def encode_behind(encode: Callable[[str], list[int]], text: str) -> list[int]:
    """The ids of a text after another character: some tokenizers put a space in front of the first."""
    before = encode(BEFORE)
    found = encode(BEFORE + text)
    return found[len(before) :] if found[: len(before)] == before else encode(text)


def octets_by(decoder: Any) -> Callable[[str], bytes] | None:
    """What gives the bytes of a token by its name, for a decoder of Hugging Face's library; None: it is not over bytes.

    As llguidance does: GPT-2's letters, or characters with a mark for spaces and names for single bytes."""
    described = json.loads(decoder.__getstate__()) if decoder is not None else {}
    parts = described.get("decoders", [described])
    kinds = [part.get("type") for part in parts]
    if "ByteLevel" in kinds:
        return octets_of
    if "ByteFallback" not in kinds:
        return None
    marks = [
        part["pattern"].get("String") for part in parts if part.get("type") == "Replace" and part["content"] == " "
    ]
    mark = marks[0] if marks and marks[0] else " "
    return lambda name: octets_of(name) if name.startswith("<0x") else name.replace(mark, " ").encode()


def octets_of(token: str) -> bytes:
    """The bytes of a token by its name in the vocabulary: a byte's own token, or GPT-2's letters for bytes."""
    if own := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes([int(own[1], 16)])
    return bytes(LETTERS[letter] for letter in token) if all(map(LETTERS.__contains__, token)) else token.encode()


def _letters() -> dict[str, int]:
    """GPT-2's letters: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


LETTERS = _letters()
